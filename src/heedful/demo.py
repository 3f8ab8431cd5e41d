"""``heedful demo``: the whole way on the embedded grammar, in about a minute.

demo/pairs.tsv  demo/held-out.tsv  demo/model/
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from heedful.api import load, resume, train
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.engines.native import NativeEngine
from heedful.evaluation import exact_match
from heedful.progress import Reporter

TRAINING_PAIRS, HELD_OUT_PAIRS = 20_000, 1_000
HEADLINES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


def run_demo(folder: Path, *, again: bool, report: Reporter) -> Iterator[str]:
    """Train (or take the model that is there), examine on unseen noun pairs, translate: lines to print."""
    if again:
        shutil.rmtree(folder / "model", ignore_errors=True)
    engine = _trained(folder, report)
    yield ""
    yield f"Exact match on {HELD_OUT_PAIRS:,} sentences with noun pairs it never saw: {_examined(engine):.1%}"
    yield 'What does "it" mean? Never seen together in training: "animal" and "street".'
    for translation in engine.translate(HEADLINES):
        yield f"  {translation.source}"
        yield f"    -> {translation.text}"
    yield ""
    yield f'Your turn: {_command()} translate {folder / "model"} "The dog is too tired."'


def _trained(folder: Path, report: Reporter) -> NativeEngine:
    model = folder / "model"
    if (model / "config.json").exists():
        report.say(f"{model} is trained already (--again trains anew)")
        return load(model, device="cpu")
    if (model / "training" / "run.json").exists():
        return resume(model, report=report)
    folder.mkdir(parents=True, exist_ok=True)
    write_tsv([(pair.source, pair.target) for pair in generate(TRAINING_PAIRS)], folder / "pairs.tsv")
    held_out = generate(HELD_OUT_PAIRS, held_out=True)
    write_tsv([(pair.source, pair.target) for pair in held_out], folder / "held-out.tsv")
    return train(
        folder / "pairs.tsv", model, languages=("en", "fr"), settings={"preset": "demo"}, report=report
    )


def _command() -> str:
    """How the user can call us: by name where the name is known, else by the path we were called by."""
    return "heedful" if shutil.which("heedful") else sys.argv[0]


def _examined(engine: NativeEngine) -> float:
    pairs = generate(HELD_OUT_PAIRS, held_out=True)
    found = engine.translate([pair.source for pair in pairs])
    return exact_match([translation.text for translation in found], [pair.target for pair in pairs])
