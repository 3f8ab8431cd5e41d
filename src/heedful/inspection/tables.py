"""Steps of a calculation as plain values, and the same as aligned text or as JSON.

Text is for reading: numbers are rounded, and a table wider than the screen goes on below; nothing is cut off.
JSON is for programs: every number in full precision, and -inf as the string "-inf".
"""

import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, TextIO

from rich.cells import cell_len

Cell = float | int | str
"""A number that is rounded when printed, a whole number, or a word."""

INDENT, GAP, BETWEEN = "   ", "  ", "      "
NARROWEST = 40
FIRST_COLUMNS = 8
"""What is shown of a long table at first."""
LEFT_TO_RIGHT = "\u200e"


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers with a name for every row and column."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[str, tuple[Cell, ...]], ...] = ()
    """Named rows below a rule, such as sums."""
    digits: int | None = None
    """Decimals, where a document's are quoted; None for what the reader asks for."""
    at_least: int = 0
    """Decimals that it needs to show its point, even if the reader asks for fewer."""
    scientific: bool = False
    """1.7e-07 instead of decimals."""
    beside: bool = False
    """Stands at the right of the table before it if there is room."""
    long: bool = False
    """A vector as wide as the model: the first numbers are enough unless the reader asks for all."""

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.cells), f"{self.title}: a name for every row"
        for row in (*self.cells, *(row for _, row in self.foot)):
            assert len(row) == len(self.columns), f"{self.title}: a cell for every column"

    def with_sum_row(self, label: str = "sum", only: Sequence[str] | None = None) -> "Table":
        """The table with the sum of each column, or of the named ones, below a rule."""
        sums = tuple(
            _sum([row[place] for row in self.cells]) if only is None or name in only else ""
            for place, name in enumerate(self.columns)
        )
        return replace(self, foot=(*self.foot, (label, sums)))

    def with_sum_column(self, label: str = "sum") -> "Table":
        """The table with the sum of each row at its right."""
        foot = tuple((name, (*row, _sum(row))) for name, row in self.foot)
        cells = tuple((*row, _sum(row)) for row in self.cells)
        return replace(self, columns=(*self.columns, label), cells=cells, foot=foot)


@dataclass(frozen=True, slots=True)
class Section:
    """One step: what it is called, its formula, its numbers, and what there is to know about them."""

    heading: str
    formula: str = ""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A calculation from beginning to end."""

    title: str
    sections: tuple[Section, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every number by name, in full precision: numbers, strings, and lists and dicts of them."""


def grid(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    numbers: Sequence[Sequence[float]],
    *,
    whole: bool = False,
    digits: int | None = None,
    at_least: int = 0,
    beside: bool = False,
) -> Table:
    """A table of a matrix, given as lists; ``whole`` for integers that came as floats.

    >>> grid("K", ["k1"], ["1", "2"], [[4.0, 0.0]], whole=True).cells
    ((4, 0),)
    """
    cells = tuple(tuple(int(number) if whole else number for number in row) for row in numbers)
    return Table(title, tuple(rows), tuple(columns), cells, digits=digits, at_least=at_least, beside=beside)


def counted(count: int, prefix: str = "") -> tuple[str, ...]:
    """Names of rows or columns from 1.

    >>> counted(3, "k")
    ('k1', 'k2', 'k3')
    """
    return tuple(f"{prefix}{number}" for number in range(1, count + 1))


def _sum(cells: Sequence[Cell]) -> Cell:
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    if not numbers:
        return ""
    return sum(numbers) if all(isinstance(number, int) for number in numbers) else math.fsum(numbers)


def shown(cell: Cell, digits: int = 4, scientific: bool = False) -> str:
    """A cell as text; a number too small for the decimals is not shown as if it were nothing.

    >>> shown(14), shown(0.88079), shown(1.125e-7), shown(-0.0), shown(float("-inf")), shown("yes")
    ('14', '0.8808', '1.1e-07', '0.0000', '-inf', 'yes')
    """
    if isinstance(cell, (str, int)):
        return str(cell)
    if scientific and math.isfinite(cell):
        return f"{cell:.{digits}e}"
    if cell and abs(cell) < 0.5 * 10**-digits:
        return f"{cell:.1e}"
    return f"{cell + 0.0:.{digits}f}"  # -0.0 + 0.0 is 0.0


def rendered(
    explanation: Explanation,
    *,
    width: int = 100,
    digits: int = 4,
    styled: bool = False,
    whole: bool = True,
    only: Collection[int] = (),
) -> str:
    """The explanation as aligned text, no wider than ``width`` where a column allows it.

    If not ``whole``, long tables end after their first columns and say so; ``only`` are the numbers of the
    sections to be shown, if not all.
    """
    width = max(NARROWEST, width)
    lines = [_bold(line, styled) for line in _wrapped(explanation.title, width)]
    for number, section in enumerate(explanation.sections, start=1):
        if only and number not in only:
            continue
        lines += ["", *(_bold(line, styled) for line in _wrapped(section.heading, width, f"{number}. "))]
        if section.formula:
            lines += _wrapped(section.formula, width, INDENT)
        tables = section.tables if whole else [_shortened(table) for table in section.tables]
        for group in _side_by_side(tables, width - len(INDENT), digits):
            lines += ["", *(INDENT + line for line in group)]
        if section.notes:
            lines.append("")
        for note in section.notes:
            lines += _wrapped(note, width, f"{INDENT}* ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _shortened(table: Table) -> Table:
    """A long table without the columns that few want to see; short ones as they are."""
    left = len(table.columns) - FIRST_COLUMNS
    if not table.long or left <= 0:
        return table
    said = f"channels 1 to {FIRST_COLUMNS} of {len(table.columns)}; --all shows all"
    return replace(
        table,
        title=f"{table.title} ({said})" if table.title else said.capitalize(),
        columns=table.columns[:FIRST_COLUMNS],
        cells=tuple(row[:FIRST_COLUMNS] for row in table.cells),
        foot=tuple((name, row[:FIRST_COLUMNS]) for name, row in table.foot),
    )


def to_json(explanation: Explanation) -> str:
    """The same as JSON: ``values`` by name, and ``sections`` with the tables; -inf is the string "-inf"."""
    return json.dumps(as_data(explanation), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def as_data(explanation: Explanation) -> dict[str, Any]:
    """What ``to_json`` writes, as lists and dicts."""
    sections = [
        {
            "heading": section.heading,
            "formula": section.formula,
            "tables": [_table_json(table) for table in section.tables],
            "notes": section.notes,
        }
        for section in explanation.sections
    ]
    whole = {"title": explanation.title, "values": explanation.values, "sections": sections}
    finite: dict[str, Any] = _finite(whole)
    return finite


def terminal_width(fallback: int = 100) -> int:
    """Columns of the terminal; COLUMNS wins, and a pipe or file has 100."""
    return shutil.get_terminal_size((fallback, 24)).columns


def may_style(stream: TextIO = sys.stdout) -> bool:
    """Whether bold letters reach a person: on a terminal that can, unless NO_COLOR asks for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _table_json(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "rows": table.rows,
        "columns": table.columns,
        "cells": table.cells,
        "foot": [{"row": label, "cells": row} for label, row in table.foot],
    }


def _finite(value: Any) -> Any:
    """JSON has no -inf, inf and nan: they become strings."""
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _side_by_side(tables: Sequence[Table], width: int, digits: int) -> list[list[str]]:
    """The lines of each table; those that may stand beside another are joined to it where they fit."""
    groups: list[list[str]] = []
    for table in tables:
        lines = list(_table_lines(table, width, digits))
        if table.beside and groups:
            joined = _joined(groups[-1], lines)
            if max(map(cell_len, joined)) <= width:
                groups[-1] = joined
                continue
        groups.append(lines)
    return groups


def _joined(left: Sequence[str], right: Sequence[str]) -> list[str]:
    left_width = max(map(cell_len, left))
    pairs = zip_longest(left, right, fillvalue="")
    return [first + " " * (left_width - cell_len(first)) + BETWEEN + second for first, second in pairs]


def _table_lines(table: Table, width: int, digits: int) -> Iterator[str]:
    digits = max(digits, table.at_least) if table.digits is None else table.digits
    texts = [[_safe(shown(cell, digits, table.scientific)) for cell in row] for row in table.cells]
    foot = [[_safe(shown(cell, digits, table.scientific)) for cell in row] for _, row in table.foot]
    labels = [_safe(label) for label in (*table.rows, *(label for label, _ in table.foot))]
    columns = [_safe(column) for column in table.columns]
    if table.title:
        yield from _wrapped(table.title, width)
    if not table.rows:
        yield "(nothing)"
        return
    widths = [max(cell_len(text) for text in column) for column in zip(columns, *texts, *foot, strict=True)]
    words = [all(isinstance(row[place], str) for row in table.cells) for place in range(len(columns))]
    label_width = max(map(cell_len, labels))
    for number, block in enumerate(_blocks(widths, width - label_width)):
        line_width = label_width + sum(len(GAP) + widths[place] for place in block)
        own = [(place, widths[place], words[place]) for place in block]
        if number:
            yield ""
        if any(columns):
            yield _line("", columns, label_width, own)
            yield "─" * line_width
        for label, row in zip(labels, texts, strict=False):
            yield _line(label, row, label_width, own)
        if foot:
            yield "─" * line_width
        for label, row in zip(labels[len(texts) :], foot, strict=True):
            yield _line(label, row, label_width, own)


def _blocks(widths: Sequence[int], room: int) -> list[range]:
    """Columns that fit side by side, about as many in each block; no columns are one block as well."""
    blocks = list(_filled(widths, room, len(widths)))
    return list(_filled(widths, room, -(-len(widths) // len(blocks))))


def _filled(widths: Sequence[int], room: int, most: int) -> Iterator[range]:
    start = used = 0
    for place, width in enumerate(widths):
        if place > start and (used + len(GAP) + width > room or place - start == most):
            yield range(start, place)
            start, used = place, 0
        used += len(GAP) + width
    yield range(start, len(widths))


def _line(label: str, row: Sequence[str], label_width: int, block: Sequence[tuple[int, int, bool]]) -> str:
    parts = [_padded(label, label_width, left=True)]
    parts += [_padded(row[place], width, left=words) for place, width, words in block]
    return GAP.join(parts)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - cell_len(text))
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text):
        # Else a terminal that writes Arabic from the right would turn the numbers after it around too.
        text = f"{LEFT_TO_RIGHT}{text}{LEFT_TO_RIGHT}"
    return text + space if left else space + text


def _safe(text: str) -> str:
    """Without control characters, which would move the cursor."""
    return "".join("\ufffd" if unicodedata.category(letter) == "Cc" else letter for letter in text)


def _wrapped(text: str, width: int, prefix: str = "") -> list[str]:
    """Lines of words no wider than ``width``; the first has the prefix, the others its width in spaces."""
    lines, line = [], prefix
    empty = True
    for word in _safe(text).split(" "):
        if not empty and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, empty = " " * cell_len(prefix), True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line]


def _bold(text: str, styled: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if styled and text else text
