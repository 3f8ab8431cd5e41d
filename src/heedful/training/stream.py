"""Pairs straight from the files while training, for corpora larger than the disk: nothing of them is kept.

data/stream.json    what is read, and what is not learned from
data/windows.jsonl  where each window begins: in its files, and among the batches of the run

A window is the next records of every file, as many of each as its weight says; they are cleaned, encoded,
shuffled by (seed, window) and cut into batches. So a window, and with it every update, depends on the files
and the settings alone: windows.jsonl only saves reading all that was before. Whoever comes first to a window
writes its line; others find it there.
"""

import json
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heedful.corpora.batches import Indices, plan_batches
from heedful.corpora.endless import Endless, Position
from heedful.corpora.filters import CleaningReport, clean
from heedful.corpora.formats import grouped
from heedful.corpora.parts import Part
from heedful.corpora.pieces import Piece, identity
from heedful.corpora.reading import Record
from heedful.corpora.store import Ids
from heedful.errors import HeedfulError
from heedful.files import append_line, read_json
from heedful.text.tokenizer import PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.corpus import Numbered
from heedful.training.encoding import chunks, encoded
from heedful.training.inputs import Inputs
from heedful.training.learns import Learns

STREAM = "stream.json"
WINDOWS = "windows.jsonl"
ENCODED_AT_ONCE = 10_000
MOST_EMPTY = 100
"""Windows in a row of which nothing is fit to learn from: then the files are not what they were."""
_PLACE = 1 << 32
"""Between the numbers of the first pairs of two windows."""
_AGAIN = "delete the model folder and train anew"


class Group(NamedTuple):
    """A file of pairs or two parallel ones, and the part that it belongs to."""

    part: int
    paths: tuple[Path, ...]


class Start(NamedTuple):
    """Where a window begins."""

    window: int
    batch: int
    """Batches of the run before it."""
    positions: tuple[Position, ...]
    """In each group of files."""


@dataclass(frozen=True, slots=True)
class Window:
    """The pairs at hand."""

    start: Start
    sources: list[Ids]
    targets: list[Ids]
    batches: list[Indices]
    """As numbers of pairs of the whole stream."""

    def __contains__(self, batch: int) -> bool:
        return self.start.batch <= batch < self.start.batch + len(self.batches)


def groups_of(inputs: Inputs) -> list[Group]:
    """All files of a corpus, as they are read."""
    return [
        Group(number, tuple(paths))
        for number, part in enumerate(inputs.corpus)
        for paths in ([(path,) for path in part.paths] if inputs.plain else grouped(part.paths))
    ]


def endless(inputs: Inputs, group: Group, position: Position) -> Endless:
    """A group of files, read as its part is read."""
    read = partial(_records, inputs, inputs.corpus[group.part])
    return Endless(group.paths, read, position, plain=inputs.plain)


def _records(inputs: Inputs, part: Part, piece: Piece) -> Iterator[Record]:
    return inputs.records(part, piece)


class Stream:
    """The pairs of a run, and which update sees which of them."""

    def __init__(
        self, folder: Path, state: dict[str, Any], config: RunConfig, tokenizer: PairTokenizer
    ) -> None:
        self.longest_source: int = state["longest_source"]
        self._pairs, self._per_epoch = int(state["pairs"]), int(state["per_epoch"])
        self._inputs, self._learns = Inputs.from_json(state["inputs"]), Learns.from_json(state["learns"])
        self._weights = np.array(state["weights"]) / sum(state["weights"])
        self._config, self._tokenizer = config, tokenizer
        self._groups = groups_of(self._inputs)
        self._journal = folder / WINDOWS
        self._starts = _read_starts(self._journal)
        self._windows: list[Window] = []
        self._go_to(Start(0, 0, (Position(),) * len(self._groups)))

    @classmethod
    def open(cls, folder: Path, config: RunConfig, tokenizer: PairTokenizer) -> Self:
        """The stream that was prepared in a folder, if its files are still the same."""
        state = read_json(folder / STREAM, _AGAIN)
        inputs = Inputs.from_json(state["inputs"])
        found = identity(inputs.paths)
        changed = [told[0] for told in state["files"] if told not in found]
        if changed:
            raise HeedfulError(
                f"{changed[0]} has changed or gone since this training began",
                hint="bring it back, or train anew",
            )
        return cls(folder, state, config, tokenizer)

    def __len__(self) -> int:
        return self._pairs

    def source(self, index: int) -> Ids:
        """Token ids of one source sentence of an update that was asked for last."""
        return self._window(index // _PLACE).sources[index % _PLACE]

    def target(self, index: int) -> Ids:
        """Token ids of one target sentence of an update that was asked for last."""
        return self._window(index // _PLACE).targets[index % _PLACE]

    def updates_per_epoch(self, epoch: int) -> int:
        """About as many as it takes to read all files once; a stream has no end."""
        return self._per_epoch

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update."""
        count = self._config.training.accumulate
        first = (epoch * self._per_epoch + index) * count
        wanted = range(first, first + count)
        self._windows = [window for window in self._windows if any(number in window for number in wanted)]
        return [self._batch(number) for number in range(first, first + count)]

    def _batch(self, number: int) -> Indices:
        for window in self._windows:
            if number in window:
                return window.batches[number - window.start.batch]
        known = [start for start in self._starts if start.batch <= number]
        best = max(known, key=lambda start: start.window, default=self._next)
        if self._next.batch > number or best.window > self._next.window:
            self._go_to(best if known else Start(0, 0, (Position(),) * len(self._groups)))
        for _ in range(MOST_EMPTY + number - self._next.batch):
            window = self._opened()
            if number in window:
                self._windows.append(window)
                return window.batches[number - window.start.batch]
        raise HeedfulError(
            "the files hold no more pairs that are fit to learn from", hint="are they as before?"
        )

    def _window(self, number: int) -> Window:
        return next(window for window in self._windows if window.start.window == number)

    def _go_to(self, start: Start) -> None:
        together = zip(self._groups, start.positions, strict=True)
        self._next = start
        self._files = [endless(self._inputs, group, position) for group, position in together]

    def _opened(self) -> Window:
        """Read the next window, and write down where it began."""
        start = self._next
        if all(known.window != start.window for known in self._starts):
            with suppress(OSError):  # it only saves time, and not all who read may write here
                append_line(self._journal, _line_of(start), partial(_is_later, start.window))
            self._starts.append(start)
        sources, targets = self._encoded(self._fit(start.window))
        plan = plan_batches(
            lengths(sources),
            lengths(targets),
            self._config.batches,
            seed=self._config.training.seed,
            epoch=start.window,
        )
        positions = tuple(file.position for file in self._files)
        self._next = Start(start.window + 1, start.batch + len(plan), positions)
        return Window(start, sources, targets, [batch + start.window * _PLACE for batch in plan])

    def _fit(self, window: int) -> Iterator[Numbered]:
        """The pairs of a window that are learned from; duplicates in it come once."""
        size, cleaning = self._config.preparation.window_pairs, self._config.cleaning
        before, after = (np.floor(number * size * self._weights) for number in (window, window + 1))
        for group, file, count in zip(self._groups, self._files, after - before, strict=True):
            tags, trees = self._inputs.corpus[group.part].tags, self._inputs.trees
            records = file.take(int(count))
            for pair in clean(records, cleaning, CleaningReport(), trees=trees, tags=tags):
                if self._learns(pair):
                    yield group.part, pair

    def _encoded(self, pairs: Iterator[Numbered]) -> tuple[list[Ids], list[Ids]]:
        sides: tuple[list[Ids], list[Ids]] = ([], [])
        for some in chunks(pairs, ENCODED_AT_ONCE):
            for both in zip(*encoded(some, self._tokenizer), strict=True):
                if max(map(len, both)) < self._config.model.longest:  # END needs a place too
                    for side, ids in zip(sides, both, strict=True):
                        side.append(np.array(ids, dtype=np.uint64 if self._inputs.trees else np.uint32))
        return sides


def lengths(sentences: Sequence[Sized]) -> NDArray[np.int32]:
    """With the end symbol, which is not among the ids."""
    return np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences)) + np.int32(1)


def _line_of(start: Start) -> str:
    return json.dumps({"window": start.window, "batch": start.batch, "positions": start.positions})


def _is_later(window: int, last: str) -> bool:
    """Whether a window is behind the one of the last line, so that its own is missing."""
    found = _parsed(last)
    return found is None or found.window < window


def _read_starts(path: Path) -> list[Start]:
    """The windows that were opened before; a line cut short by a kill is none."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [start for start in map(_parsed, text.splitlines()) if start is not None]


def _parsed(line: str) -> Start | None:
    try:
        state = json.loads(line)
        positions = [Position(turn, record, tuple(offsets)) for turn, record, offsets in state["positions"]]
        return Start(int(state["window"]), int(state["batch"]), tuple(positions))
    except (ValueError, TypeError, KeyError):
        return None
