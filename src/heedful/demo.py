"""``heedful demo``: the whole way on the embedded grammar, in about a minute.

demo/pairs.tsv  demo/held-out.tsv  demo/model/
demo/links.tsv  demo/taught-model/   with --taught-head: one head is shown what "it" means, and says so
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from heedful.api import load, resume, train
from heedful.config import Settings
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import DEMO_PAIRS, GrammarPair, generate
from heedful.engines.base import Engine
from heedful.evaluation import exact_match
from heedful.progress import Reporter

HELD_OUT_PAIRS = 1_000
HEADLINES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


TAUGHT: Settings = {"layer": 2, "head": 1}


def run_demo(folder: Path, *, again: bool, taught: bool, report: Reporter) -> Iterator[str]:
    """Train (or take the model that is there), examine on unseen noun pairs, translate: lines to print."""
    model = demo_model(folder, taught)
    if again:
        shutil.rmtree(model, ignore_errors=True)
    engine = _trained(folder, model, taught, report)
    yield ""
    yield f"Exact match on {HELD_OUT_PAIRS:,} sentences with noun pairs it never saw: {_examined(engine):.1%}"
    yield 'What does "it" mean? Never seen together in training: "animal" and "street".'
    for translation in engine.translate(HEADLINES):
        yield f"  {translation.source}"
        yield f"    -> {translation.text}"
    yield ""
    if taught:
        where = f"encoder layer {TAUGHT['layer']} head {TAUGHT['head']}"
        yield f'A taught head: an extra loss has shown {where} to look from "it" to its noun.'
    yield f'Your turn: {_command()} translate {model} "The dog is too tired."'
    yield f'In numbers: {_command()} explain {model} "{HEADLINES[0]}" --layer 2 --head 1 --word it'
    yield f"See inside, on a web page: {_command()} serve {model} --open"


def demo_model(folder: Path, taught: bool) -> Path:
    """Where the demo's model is kept."""
    return folder / ("taught-model" if taught else "model")


def _trained(folder: Path, model: Path, taught: bool, report: Reporter) -> Engine:
    if (model / "config.json").exists():
        report.say(f"{model} is trained already (--again trains anew)")
        return load(model, device="cpu", engine="pytorch")
    if (model / "training" / "run.json").exists():
        return resume(model, report=report)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = generate(DEMO_PAIRS)
    write_tsv([(pair.source, pair.target) for pair in pairs], folder / "pairs.tsv")
    settings: Settings = {"preset": "demo"}
    if taught:
        write_tsv(
            [(pair.source, link) for pair in pairs if (link := antecedent_link(pair))], folder / "links.tsv"
        )
        settings["taught"] = {**TAUGHT, "links": str(folder / "links.tsv")}
    held_out = generate(HELD_OUT_PAIRS, held_out=True)
    write_tsv([(pair.source, pair.target) for pair in held_out], folder / "held-out.tsv")
    return train(folder / "pairs.tsv", model, languages=("en", "fr"), settings=settings, report=report)


def antecedent_link(pair: GrammarPair) -> str:
    """ "7-1": the numbers of "it" and of the noun that it means, among the words between spaces.

    >>> antecedent_link(generate(1, seed=2, held_out=True)[0]).count("-")
    1
    """
    if pair.antecedent is None:
        return ""
    # No mark stands alone before either, so its number among the words is the same.
    return "-".join(str(place) for place in pair.antecedent)


def _command() -> str:
    """How the user can call us: by name where the name is known, else as we were called."""
    if shutil.which("heedful"):
        return "heedful"
    return "python -m heedful" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def _examined(engine: Engine) -> float:
    pairs = generate(HELD_OUT_PAIRS, held_out=True)
    found = engine.translate([pair.source for pair in pairs])
    return exact_match([translation.text for translation in found], [pair.target for pair in pairs])
