"""Runs: text with inline tags between two things that are copied, translated with the tags put back.

A run is translated as a whole with its tags out, and they go back by the links; where links are missing or
would make tags cross, each part is translated by itself. The rule to remember: no tag is ever lost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from heedful.text.inline_tags import (
    Item,
    Layout,
    folded,
    laid_out,
    peeled,
    put_back,
    translatable,
    written,
)
from heedful.text.protection import Rules, Spanned, translate_protected, translate_spans
from heedful.text.spans import has_letters
from heedful.text.translated import Placed, Rounds, Translated


@dataclass
class Run:
    """Text and inline tags."""

    before: str
    items: Sequence[Item]
    after: str
    layout: Layout | None
    write: Callable[[str], str] = written
    """How text is written between tags."""
    result: str | None = None
    complete: bool = True

    @classmethod
    def of(cls, items: Sequence[Item], rules: Rules, write: Callable[[str], str] = written) -> "Run":
        """A run with what needs no translation apart."""
        items = folded(items, rules)
        first, end = peeled(items)
        layout = laid_out(items[first:end])
        return cls(_raw(items[:first]), items[first:end], _raw(items[end:]), layout, write)

    @property
    def has_letters(self) -> bool:
        """Whether there is anything to translate."""
        return any(item.kind == "text" and has_letters(item.text) for item in self.items)

    @property
    def raw(self) -> str:
        """The run as it is now."""
        return self.before + (_raw(self.items) if self.result is None else self.result) + self.after

    def take_whole(self, source: Spanned, placed: Placed) -> None:
        """Take the translation of the text without tags, if they can be put back."""
        assert self.layout is not None
        self.complete = placed.complete
        if placed.text == source.text:
            self.result = _raw(self.items)
        else:
            spans = [(span.start, span.end) for span in source.spans]
            self.result = put_back(self.layout, spans, placed, self.write)

    def parts(self) -> list[str]:
        """The texts between the tags."""
        cores = (translatable(item.text)[1] for item in self.items if item.kind == "text")
        return [core for core in cores if core]

    def take_parts(self, answers: Iterator[Translated]) -> None:
        """Take the translations of the parts, whatever became of the whole."""
        self.complete = True
        self.result = "".join(
            self._part(item, answers) if item.kind == "text" else item.raw for item in self.items
        )

    def _part(self, item: Item, answers: Iterator[Translated]) -> str:
        lead, core, tail = translatable(item.text)
        if not core:
            return item.raw
        answer = next(answers)
        self.complete &= answer.complete
        text = answer.text.strip()
        return item.raw if text in ("", core) else self.write(lead + text + tail)


def translate_runs(runs: Sequence[Run], rules: Rules) -> Rounds[None]:
    """Translate what has letters in the runs; at most four rounds."""
    runs = [run for run in runs if run.has_letters]
    whole = [(run, run.layout) for run in runs if run.layout]
    sources = [Spanned(layout.text, rules.spans(layout.text, layout.kept)) for _, layout in whole]
    for (run, _), source, placed in zip(
        whole, sources, (yield from translate_spans(sources, rules)), strict=True
    ):
        run.take_whole(source, placed)
    remaining = [run for run in runs if run.result is None]
    parts = [part for run in remaining for part in run.parts()]
    answers = iter((yield from translate_protected(parts, rules)))
    for run in remaining:
        run.take_parts(answers)


def _raw(items: Sequence[Item]) -> str:
    return "".join(item.raw for item in items)
