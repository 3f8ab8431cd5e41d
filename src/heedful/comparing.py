"""Several recipes on one corpus with the same budget: which learns more, which is quicker?

The paper's questions come with it (``QUESTIONS``); others are any settings. What is done stays done: called
again with the same folder, finished models are kept and an interrupted one goes on.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from heedful.api import load, resume, train
from heedful.config import Settings, merged
from heedful.corpora.filters import Pair
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine
from heedful.errors import HeedfulError
from heedful.evaluation import corpus_scores
from heedful.files import read_json, write_text
from heedful.inspection.metrics import metrics_path, read_metrics
from heedful.progress import Reporter
from heedful.training.validation import pairs_loss

BASELINE = "baseline"
SENTENCES = 1000
"""Of the test set at most, for scores and for the speed of translating."""


@dataclass(frozen=True, slots=True)
class Question:
    """Some recipes that differ in one thing."""

    ask: str
    paper: str
    """What the paper found."""
    recipes: dict[str, Settings]


def _model(**settings: Any) -> Settings:
    return {"model": settings}


NO_POSITIONS = {"no-positions": _model(positions="none")}
QUESTIONS = {
    "recurrence": Question(
        "Is attention all you need?",
        "better than recurrent models at a fraction of the training cost (table 2)",
        {BASELINE: {}, "gru": _model(family="gru"), "lstm": _model(family="lstm")},
    ),
    "heads": Question(
        "How many heads, at the same cost?",
        "one head is 0.9 BLEU worse than the best; too many also lose (table 3, rows A)",
        {f"heads-{count}": _model(heads=count) for count in (1, 2, 4, 8)},
    ),
    "positions": Question(
        "How should words know where they stand?",
        "sines and learned vectors are nearly identical (table 3, row E)",
        {
            BASELINE: {},
            **{name: _model(positions=name) for name in ("learned", "relative", "rotary", "alibi")},
            **NO_POSITIONS,
        },
    ),
    "ablations": Question(
        "What is each part good for?",
        "dropout avoids over-fitting, label smoothing costs perplexity but gains BLEU (rows D); "
        "scaling keeps the softmax from where its gradient vanishes (section 3.2.1)",
        {
            BASELINE: {},
            "no-label-smoothing": {"training": {"label_smoothing": 0.0}},
            "no-dropout": _model(dropout=0.0),
            "no-scaling": _model(scaled_attention=False),
            **NO_POSITIONS,
            "no-residuals": _model(residuals=False),
        },
    ),
}
"""The paper's questions, for a small scale. A recipe of the same name is the same everywhere."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one recipe."""

    name: str
    parameters: int
    updates: int
    tokens: int
    """Target tokens learned from."""
    minutes: float
    tokens_per_second: float
    loss: float
    """On the test set, nats a token."""
    bleu: float
    sentences_per_second: float
    """Greedy, by PyTorch, whatever else could run the model."""


_RESULT = TypeAdapter(Result)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The corpus, the budget and what all recipes have in common."""

    pairs: Sequence[Path]
    validation: Sequence[Path]
    test: Sequence[Pair]
    settings: Settings
    folder: Path
    languages: tuple[str, str] | None = None

    def run(self, recipes: dict[str, Settings], report: Reporter) -> list[Result]:
        """Train and examine every recipe, one after the other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = []
        for number, (name, own) in enumerate(recipes.items(), start=1):
            report.say(f"{number} of {len(recipes)}: {name}")
            found.append(self._result(name, merged(self.settings, own), report))
            report.say(_line(found[-1]))
        return found

    def _result(self, name: str, settings: Settings, report: Reporter) -> Result:
        folder, kept = self.folder / name, self.folder / f"{name}.json"
        if kept.is_file():
            return self._kept(kept, name, settings)
        if (folder / "training").is_dir() and not (folder / "config.json").is_file():
            resume(folder, report=report)
        elif not (folder / "config.json").is_file():
            train(
                list(self.pairs),
                folder,
                validation=list(self.validation),
                languages=self.languages,
                settings=settings,
                report=report,
            )
        result = self._examined(name, folder)
        write_text(kept, json.dumps({"settings": settings, "result": asdict(result)}, indent=1) + "\n")
        return result

    def _kept(self, path: Path, name: str, settings: Settings) -> Result:
        hint = "remove it to measure again"
        told = read_json(path, hint)
        if told.get("settings") != settings:
            raise HeedfulError(
                f"{self.folder} holds a {name} that was trained with other settings",
                hint="compare into another folder, or remove that one",
            )
        try:
            return _RESULT.validate_python(told.get("result"))
        except ValueError as error:
            raise HeedfulError(f"{path} is damaged: {error}", hint=hint) from None

    def _examined(self, name: str, folder: Path) -> Result:
        engine = load(folder, device="cpu", engine="pytorch")
        metrics = [each for each in read_metrics(metrics_path(folder)) if "tokens_per_second" in each]
        trees = engine.bundle.config.model.trees
        test = [pair if trees else pair._replace(heads="") for pair in self.test]
        greedy = engine.bundle.config.search.model_copy(update={"beam": 1, "method": "beam"})
        bleu, speed = bleu_and_speed(engine, test, greedy)
        return Result(
            name,
            engine.bundle.model.parameter_count(),
            metrics[-1]["update"],
            metrics[-1]["tokens"],
            metrics[-1]["seconds"] / 60,
            metrics[-1]["tokens"] / max(metrics[-1]["seconds"], 1e-9),
            pairs_loss(engine.bundle.model, engine.bundle.tokenizer, test),
            bleu,
            speed,
        )


def bleu_and_speed(engine: Engine, test: Sequence[Pair], search: SearchConfig) -> tuple[float, float]:
    """BLEU and sentences a second."""
    sources = [pair.read for pair in test]
    engine.translate(sources[:1], search)  # what is loaded at first use
    started = time.perf_counter()
    texts = [found.text for found in engine.translate(sources, search)]
    seconds = time.perf_counter() - started
    languages = engine.bundle.config.languages
    language = languages[1] if languages else ""
    score = corpus_scores(texts, [pair.target for pair in test], ("BLEU",), language)["BLEU"]
    return score.value, len(texts) / seconds


COLUMNS = ("recipe", "parameters", "updates", "tokens", "minutes", "tokens/s", "loss", "BLEU", "sentences/s")


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.parameters:,}",
        f"{result.updates:,}",
        f"{result.tokens:,}",
        f"{result.minutes:.2f}",
        f"{result.tokens_per_second:,.0f}",
        f"{result.loss:.3f}",
        f"{result.bleu:.2f}",
        f"{result.sentences_per_second:.1f}",
    )


def _line(result: Result) -> str:
    return "  " + ", ".join(
        f"{name} {cell}" for name, cell in zip(COLUMNS[1:], _cells(result)[1:], strict=True)
    )


def table(results: Sequence[Result]) -> str:
    """All results as a Markdown table.

    >>> print(table([Result("gru", 1000, 10, 500, 2.0, 4.2, 3.5, 12.25, 8.0)]).splitlines()[2])
    | gru | 1,000 | 10 | 500 | 2.00 | 4 | 3.500 | 12.25 | 8.0 |
    """
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *map(_cells, results)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def measures(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """What is drawn as bars: a measure of every recipe, by its title."""
    chosen: dict[str, Callable[[Result], float]] = {
        "BLEU (test, greedy)": lambda result: result.bleu,
        "parameters": lambda result: result.parameters,
        "learned tokens/s": lambda result: result.tokens_per_second,
        "translated sentences/s": lambda result: result.sentences_per_second,
    }
    return {title: {result.name: of(result) for result in results} for title, of in chosen.items()}
