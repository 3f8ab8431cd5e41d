"""Document-level pairs: neighbouring lines joined into paragraphs, for models that read long text.

A paragraph never crosses what divides documents: a blank line, the end of a file, or a line that cannot be
used, since the lines around it are no neighbours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from heedful.corpora.filters import CleaningReport, Pair, clean_sentence
from heedful.corpora.reading import Record


@dataclass(frozen=True, slots=True)
class ParagraphSize:
    """How much is joined at most."""

    lines: int
    characters: int = 0
    """Of either side; 0 for any number. A line that is longer by itself stays whole."""

    def holds(self, lines: Sequence[Pair]) -> bool:
        """Whether one paragraph has room for these."""
        spaces = len(lines) - 1
        longest = spaces + max(sum(len(line[side]) for line in lines) for side in (0, 1))
        return len(lines) <= self.lines and not 0 < self.characters < longest


def paragraphs(records: Iterable[Record], size: ParagraphSize, report: CleaningReport) -> Iterator[Pair]:
    """Pairs of paragraphs, in the order of the lines; ``report`` counts the lines, kept and dropped.

    >>> lines = [Record("a", n, f"one {n}", f"eins {n}") for n in (1, 2, 3)]
    >>> [pair.target for pair in paragraphs(lines, ParagraphSize(2), CleaningReport())]
    ['eins 1 eins 2', 'eins 3']
    """
    waiting: list[Pair] = []
    origin = ""
    for record in records:
        pair = _usable(record, report)
        goes_on = pair is not None and record.origin == origin and size.holds([*waiting, pair])
        if waiting and not goes_on:
            yield _joined(waiting)
            waiting = []
        if pair is not None:
            waiting.append(pair)
        origin = record.origin
    if waiting:
        yield _joined(waiting)


def _usable(record: Record, report: CleaningReport) -> Pair | None:
    """The pair of a line, if there is one."""
    report.took(record)
    if record.source is None or record.target is None:
        report.drop(record.fault or "unreadable", record)
        return None
    pair = Pair(clean_sentence(record.source), clean_sentence(record.target))
    if not (pair.source and pair.target):
        report.drop(
            "empty side" if pair.source or pair.target else "blank line, the end of a paragraph", record
        )
        return None
    report.kept += 1
    return pair


def _joined(lines: Sequence[Pair]) -> Pair:
    return Pair(" ".join(line.source for line in lines), " ".join(line.target for line in lines))
