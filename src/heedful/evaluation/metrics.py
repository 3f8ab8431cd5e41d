"""BLEU, chrF and TER by sacrebleu, with signatures."""

from collections.abc import Sequence
from dataclasses import dataclass

from heedful.errors import HeedfulError

METRICS = ("BLEU", "chrF", "TER")

SACREBLEU_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "lo": "char", "km": "char", "my": "char"}
"""sacrebleu tokenizers of languages written without spaces; others use 13a."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one metric; the signature makes it comparable."""

    name: str
    value: float
    signature: str


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[str] = METRICS, language: str = ""
) -> dict[str, Score]:
    """Corpus-level BLEU, chrF and TER; ``language`` selects the tokenizer.

    >>> corpus_scores(["the cat sat on the mat"], ["the cat sat on the mat"])["BLEU"].value
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if len(hypotheses) != len(references):
        raise HeedfulError(f"{len(hypotheses):,} translations but {len(references):,} references")
    if not hypotheses:
        raise HeedfulError("nothing to score", hint="at least one sentence pair is needed")
    tokenize = SACREBLEU_TOKENIZERS.get(language.lower()[:2], "13a")
    # force: suppress the warning about tokenized text, which early checkpoints trigger.
    bleu = BLEU(tokenize=tokenize, force=True)
    metric_objects = {"BLEU": bleu, "chrF": CHRF(), "TER": TER(asian_support=tokenize != "13a")}
    scores = {}
    for name in metrics:
        metric = metric_objects[name]
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        # Rounded, because sacrebleu may return 100.00000000000004.
        scores[name] = Score(name, round(float(value), 6), str(metric.get_signature()))
    return scores


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of hypotheses equal to their reference.

    >>> exact_match(["oui", "non"], ["oui", "si"])
    0.5
    """
    matching = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return matching / max(1, len(hypotheses))
