"""How lines are translated and written: as text, TSV or JSONL, each with its number."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from heedful.bundle import PARTS, Bundle
from heedful.commands.options import one_line
from heedful.commands.resuming import of_file
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.engines.lines import LineEngine, translate_lines
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.text.glossary import Glossary
from heedful.text.links import pharaoh
from heedful.text.trees import SHAPE, heads_fault

FORMATS = ("text", "tsv", "jsonl")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of every line."""

    search: SearchConfig
    prefix: str = ""
    form: str = "text"
    alignments: bool = False
    glossary: Glossary | None = None

    @property
    def details(self) -> bool:
        """Whether the engine is asked for more than the text."""
        return self.alignments or self.form == "jsonl"

    def identity(self, models: Sequence[Path], engine: str) -> dict[str, Any]:
        """What tells this work from another on the same input."""
        return {
            "model": [of_file(model / name) for model in models for name in PARTS],
            "engine": engine,
            "search": json.loads(self.search.model_dump_json()),
            "prefix": self.prefix,
            "format": [self.form, self.alignments],
            "glossary": self.glossary.entries if self.glossary else (),
        }


def chosen_form(told: str, search: SearchConfig, *, columns: bool) -> str:
    """The format that was told, or the plainest with room for what is wanted; ``columns``: more than text."""
    columns = columns or search.n_best > 1
    if told == "text" and columns:
        raise HeedfulError("--format text has room for a translation a line only", hint="use tsv or jsonl")
    return told or ("tsv" if columns else "text")


@dataclass(frozen=True, slots=True)
class LineWork:
    """An engine, and what is wanted of it."""

    engine: LineEngine
    wanted: Wanted

    def translated(self, lines: Iterable[str], *, waiting: bool) -> Iterator[Translation]:
        """The translation of each line, in order."""
        return translate_lines(
            self.engine,
            lines,
            self.wanted.search,
            self.wanted.prefix,
            details=self.wanted.details,
            waiting=waiting,
            glossary=self.wanted.glossary,
        )

    def written(self, found: Iterable[Translation], file: TextIO, first: int = 0) -> tuple[int, int]:
        """Write every translation; returns how many are incomplete, and how many lack a term."""
        incomplete = missing = 0
        line = _LINES[self.wanted.form]
        for number, translation in enumerate(found, start=first + 1):
            file.write(line(number, translation, self.wanted.alignments))
            file.flush()
            incomplete += not translation.complete
            missing += bool(translation.missing)
        return incomplete, missing


class Treeless:
    """The lines that a model of trees gets without one, or with one that does not fit."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.lines, self.found, self.first = bundle, 0, 0, ""

    def noted(self, lines: Iterable[str], before: int = 0) -> Iterator[str]:
        """The lines, without heads that do not fit; ``before`` others stand before them in their file."""
        if not self.bundle.config.model.trees:
            yield from lines
            return
        for number, line in enumerate(lines, start=before + 1):
            sentence, heads = self.bundle.source_parts(line)
            fault = heads_fault(clean_sentence(sentence, self.bundle.config.normalize), heads)
            self.lines += 1
            if fault and sentence.strip():
                self.found += 1
                self.first = self.first or f"line {number:,}, {fault}"
            yield sentence if fault else line


def tell_treeless(report: Reporter, found: int, lines: int, first: str) -> None:
    """Say how many lines had no tree."""
    if found:
        report.warn(
            f"{found:,} of {lines:,} lines were translated without a tree, which this model "
            f"has learned to read (first: {first}); a line is {SHAPE}"
        )


def tell_incomplete(report: Reporter, incomplete: int, missing: int) -> None:
    """Say how many translations have no end, or not every term."""
    if missing:
        report.warn(f"{missing:,} translations lack a term of the glossary")
    if incomplete:
        report.warn(
            f"{incomplete:,} translations stopped at the longest length "
            "(source + search.extra_length tokens) before they ended"
        )


def _text(number: int, translation: Translation, alignments: bool) -> str:
    return " ".join(translation.text.splitlines()) + "\n"


def _tsv(number: int, translation: Translation, alignments: bool) -> str:
    return "".join(
        f"{number}\t{rank}\t{alternative.score:.4f}\t{one_line(alternative.text)}"
        + (f"\t{pharaoh(alternative.alignment)}" if alignments else "")
        + "\n"
        for rank, alternative in enumerate(translation.alternatives, start=1)
    )


def _jsonl(number: int, translation: Translation, alignments: bool) -> str:
    return json.dumps(_as_json(number, translation), ensure_ascii=False) + "\n"


_LINES: Mapping[str, Callable[[int, Translation, bool], str]] = {"text": _text, "tsv": _tsv, "jsonl": _jsonl}


def _as_json(number: int, translation: Translation) -> dict[str, Any]:
    return {
        "line": number,
        "source": translation.source,
        "complete": translation.complete,
        "segments": translation.segments,
        "missing_terms": translation.missing,
        "translations": [
            {
                "text": alternative.text,
                "score": alternative.score,
                "log_probability": alternative.log_probability,
                "tokens": alternative.tokens,
                "token_log_probabilities": alternative.token_log_probabilities,
                "alignment": alternative.alignment,
            }
            for alternative in translation.alternatives
        ],
    }
