"""``heedful demo``: train on the built-in corpus, score on unseen noun pairs, translate; about a minute.

demo/pairs.tsv  demo/validation.tsv  demo/model/
demo/guided_attention.tsv  demo/guided-model/   with --guided-attention: one head is trained to resolve "it"
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from heedful.config import Settings
from heedful.data.demo_corpus.grammar import DEMO_PAIRS, GrammarPair, generate_pairs
from heedful.data.reader import write_tsv
from heedful.evaluation.metrics import exact_match
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.progress import Reporter
from heedful.workflows.train import resume, train

VALIDATION_PAIRS = 1_000

EXAMPLE_SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)

GUIDED_HEAD: Settings = {"layer": 2, "head": 1}


def run_demo(folder: Path, *, retrain: bool, guided: bool, report: Reporter) -> Iterator[str]:
    """Train the demo model (or load it), score it on unseen noun pairs, translate; yields lines to print."""
    model = demo_model_path(folder, guided)
    if retrain:
        shutil.rmtree(model, ignore_errors=True)
    translator = _train_demo_model(folder, model, guided, report)
    yield ""
    pairs = generate_pairs(VALIDATION_PAIRS, validation=True)
    texts = [translation.text for translation in translator.translate([pair.source for pair in pairs])]
    exact_match_rate = exact_match(texts, [pair.target for pair in pairs])
    yield f"Exact match on {VALIDATION_PAIRS:,} sentences with unseen noun pairs: {exact_match_rate:.1%}"
    yield 'What does "it" refer to? No training pair contains both "animal" and "street".'
    for translation in translator.translate(EXAMPLE_SENTENCES):
        yield f"  {translation.source}"
        yield f"    -> {translation.text}"
    yield ""
    if guided:
        head_name = f"encoder layer {GUIDED_HEAD['layer']} head {GUIDED_HEAD['head']}"
        yield f'Guided attention: an extra loss trained {head_name} to attend from "it" to its noun.'
    command = "heedful"
    if not shutil.which(command):  # as this process was started
        command = "python -m heedful" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    yield f'Translate: {command} translate {model} "The dog is too tired."'
    yield f'Explain: {command} explain {model} "{EXAMPLE_SENTENCES[0]}" --layer 2 --head 1 --word it'
    yield f"Inspect on a web page: {command} serve {model} --open"


def demo_model_path(folder: Path, guided: bool) -> Path:
    """The folder of the demo model."""
    return folder / ("guided-model" if guided else "model")


def _train_demo_model(folder: Path, model: Path, guided: bool, report: Reporter) -> Translator:
    if (model / "config.json").exists():
        report.info(f"{model} is already trained (--retrain trains it again)")
        return load(model, device="cpu", engine="pytorch")
    if (model / "training" / "run.json").exists():
        return resume(model, report=report)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = generate_pairs(DEMO_PAIRS)
    write_tsv([(pair.source, pair.target) for pair in pairs], folder / "pairs.tsv")
    settings: Settings = {"preset": "demo"}
    if guided:
        write_tsv(
            [(pair.source, link) for pair in pairs if (link := antecedent_link(pair))], folder / "guided_attention.tsv"
        )
        settings["guided_attention"] = {**GUIDED_HEAD, "alignments": str(folder / "guided_attention.tsv")}
    validation_pairs = generate_pairs(VALIDATION_PAIRS, validation=True)
    write_tsv([(pair.source, pair.target) for pair in validation_pairs], folder / "validation.tsv")
    return train(folder / "pairs.tsv", model, languages=("en", "fr"), settings=settings, report=report)


def antecedent_link(pair: GrammarPair) -> str:
    """Such as "7-1": the indices of "it" and of its antecedent among the space-separated words.

    >>> antecedent_link(generate_pairs(1, seed=2, validation=True)[0]).count("-")
    1
    """
    if pair.antecedent is None:
        return ""
    # No punctuation mark stands alone before either, so token and word indices agree.
    return "-".join(str(position) for position in pair.antecedent)
