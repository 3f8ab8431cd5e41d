"""Pairs of which a model has written one side: back-translated or distilled ones.

Work goes on after a kill: out.tsv.translated.partial keeps every line, with the reason if it is hopeless,
and what is fit becomes out.tsv at the end, whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from heedful.bundle import PARTS
from heedful.commands.resuming import by_order, of_file, resumed
from heedful.corpora.filters import CleaningConfig, Pair, clean_sentence, objection
from heedful.corpora.formats import write_tsv
from heedful.corpora.lines import read_lines
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine, Translation
from heedful.engines.lines import translate_lines
from heedful.errors import HeedfulError
from heedful.progress import Reporter, counted

ANY_LENGTH = CleaningConfig(max_characters=0)
"""How long a sentence may be is for the training to say."""

STUCK = 5
"""The same word so many times in a row is no language, unless the line had it too."""


@dataclass(frozen=True, slots=True)
class Writer:
    """What writes the missing side, and how."""

    engine: Engine
    models: tuple[Path, ...]
    search: SearchConfig
    source_side: bool
    """Whether its translations are the sources of the pairs: back-translation."""

    def identity(self, origin: Any) -> dict[str, Any]:
        """What tells this work from another; ``origin`` is of what it reads."""
        return {
            "input": origin,
            "model": [of_file(model / name) for model in self.models for name in PARTS],
            "engine": self.engine.name,
            "search": self.search.model_dump(mode="json"),
            "source side": self.source_side,
        }

    def line(self, found: Translation) -> str:
        """A pair and what is wrong with it, as a line."""
        normalize = self.engine.bundle.config.normalize
        given, written = (clean_sentence(text, normalize) for text in (found.source, found.text))
        sides = (written, given) if self.source_side else (given, written)
        return "\t".join((*sides, _fault(given, written, found.complete))) + "\n"


def _fault(given: str, written: str, complete: bool) -> str:
    """Why a translation is hopeless; empty if it is not."""
    if not given:
        return "nothing to translate"
    if not written:
        return "empty translation"
    if not complete:
        return "translation without an end"
    if given == written:
        return "copied"
    if _longest_run(written) >= STUCK > _longest_run(given):
        return "the same word over and over"
    return objection(Pair(given, written), ANY_LENGTH)


def _longest_run(text: str) -> int:
    """Times that a word follows itself, the word included.

    >>> _longest_run("so so so good")
    3
    """
    return max(sum(1 for _ in run) for _, run in groupby(text.split()))


def check_writer(engine: Engine) -> None:
    """A model of trees would read plain lines worse than it can."""
    if engine.bundle.config.model.trees:
        raise HeedfulError("this model reads trees, and lines of text have none", hint="use another model")


def write_pairs(
    writer: Writer,
    lines: Iterable[str],
    origin: Any,
    output: Path,
    report: Reporter,
    total: int | None = None,
) -> list[str]:
    """Translate the lines and write ``output``; returns what became of them, for a person.

    ``origin`` says what the lines are of: only the same can go on.
    """
    work = output.with_name(output.name + ".translated")
    with (
        resumed(work, writer.identity(origin), by_order, report) as (file, done),
        report.task("translating", total, done, "lines") as task,
    ):
        rest = islice(lines, done, None)
        for found in translate_lines(writer.engine, rest, writer.search, waiting=False):
            file.write(writer.line(found))
            file.flush()
            task.advance()
        faults: Counter[str] = Counter()
        kept = write_tsv(_fit(Path(file.name), faults), output)
    work.unlink()
    return summary(kept, faults)


def _fit(path: Path, faults: Counter[str]) -> Iterator[Sequence[str]]:
    """The pairs without a fault; the others are counted. An error, before anything is written, if none is."""
    any_fit = False
    for line in read_lines(path):
        source, target, fault = ("", "", line.fault) if line.fault else line.text.split("\t")
        if fault:
            faults[fault] += 1
        else:
            any_fit = True
            yield source, target
    if not any_fit:
        raise HeedfulError(
            f"not one of {counted(faults.total(), 'line')} became a pair",
            hint="; ".join(f"{count:,}: {reason}" for reason, count in faults.most_common())
            or "there is nothing to read",
        )


def summary(kept: int, faults: Counter[str]) -> list[str]:
    """How many pairs there are, and how many lines became none.

    >>> summary(2, Counter({"copied": 1}))
    ['2 pairs from 3 lines', 'dropped 1: copied']
    """
    first = f"{counted(kept, 'pair')} from {counted(kept + faults.total(), 'line')}"
    return [first, *(f"dropped {count:,}: {reason}" for reason, count in faults.most_common())]
