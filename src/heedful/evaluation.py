"""Scores of translations: strings in, sacrebleu's numbers with their signatures out."""

from collections.abc import Sequence
from dataclasses import dataclass

from heedful.errors import HeedfulError

METRICS = ("BLEU", "chrF", "TER")
WITHOUT_SPACES = {
    "zh": "zh",
    "ja": "char",
    "ko": "char",
    "th": "char",
    "lo": "char",
    "km": "char",
    "my": "char",
}
"""How sacrebleu counts words of languages for which its usual tokenizer (13a) makes no sense."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric; the signature says how it was computed, so that others can compare."""

    name: str
    value: float
    signature: str


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = METRICS,
    language: str = "",
) -> dict[str, Score]:
    """BLEU, chrF and TER of all hypotheses together, in ``language`` if it is written without spaces.

    >>> corpus_scores(["the cat sat on the mat"], ["the cat sat on the mat"])["BLEU"].value
    100.0
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if len(hypotheses) != len(references):
        raise HeedfulError(f"{len(hypotheses):,} translations cannot be scored against {len(references):,}")
    if not hypotheses:
        raise HeedfulError("there is nothing to score", hint="give at least one sentence pair")
    tokenize = WITHOUT_SPACES.get(language.lower()[:2], "13a")
    # force: no advice about `force` when a young model puts spaces before full stops.
    bleu = BLEU(tokenize=tokenize, force=True)
    made = {"BLEU": bleu, "chrF": CHRF(), "TER": TER(asian_support=tokenize != "13a")}
    scores = {}
    for name in metrics:
        metric = made[name]
        value = metric.corpus_score(list(hypotheses), [list(references)]).score
        # Rounded where sacrebleu's floating point would say 100.00000000000004.
        scores[name] = Score(name, round(float(value), 6), str(metric.get_signature()))
    return scores


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of hypotheses that equal their reference to the letter.

    >>> exact_match(["oui", "non"], ["oui", "si"])
    0.5
    """
    same = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return same / max(1, len(hypotheses))
