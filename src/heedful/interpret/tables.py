"""The steps of a computation as tables, rendered as aligned text or as JSON.

Text is for reading: numbers are rounded, and a table wider than the terminal is split into blocks.
JSON is for programs: every number in full precision, and -inf as the string "-inf".
"""

import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol, TextIO

from rich.cells import cell_len

Cell = float | int | str
"""A number that is rounded when printed, an integer, or a word."""

INDENT, COLUMN_GAP, TABLE_GAP = "   ", "  ", "      "
MIN_WIDTH = 40
SHORTENED_COLUMNS = 8
"""Columns shown of a wide vector without --all."""

LEFT_TO_RIGHT_MARK = "\u200e"


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers with a label for every row and column."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    footer: tuple[tuple[str, tuple[Cell, ...]], ...] = ()
    """Named rows below a rule, such as sums."""
    digits: int | None = None
    """Decimals, where a document is quoted; None: the --digits option."""
    min_digits: int = 0
    """Minimum decimals, whatever --digits says."""
    scientific: bool = False
    """1.7e-07 instead of decimals."""
    beside: bool = False
    """Placed to the right of the previous table if there is room."""
    is_wide_vector: bool = False
    """Has d_model columns: shortened without --all."""

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.cells), f"{self.title}: a label for every row"
        for row in (*self.cells, *(row for _, row in self.footer)):
            assert len(row) == len(self.columns), f"{self.title}: a cell for every column"

    def with_sum_row(self, label: str = "sum", only: Sequence[str] | None = None) -> "Table":
        """The table with the sum of each column, or of the named ones, below a rule."""
        sums = tuple(
            _sum_cells([row[column] for row in self.cells]) if only is None or name in only else ""
            for column, name in enumerate(self.columns)
        )
        return replace(self, footer=(*self.footer, (label, sums)))

    def with_sum_column(self, label: str = "sum") -> "Table":
        """The table with the sum of each row at its right."""
        footer = tuple((name, (*row, _sum_cells(row))) for name, row in self.footer)
        cells = tuple((*row, _sum_cells(row)) for row in self.cells)
        return replace(self, columns=(*self.columns, label), cells=cells, footer=footer)


@dataclass(frozen=True, slots=True)
class Section:
    """One step: its heading, formula, tables and notes."""

    heading: str
    formula: str = ""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A computation step by step."""

    title: str
    sections: tuple[Section, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every number by name, in full precision: numbers, strings, and lists and dicts of them."""


class Matrix(Protocol):
    """A tensor or an array."""

    def tolist(self) -> Any: ...


def matrix_table(
    title: str,
    rows: str | Sequence[str],
    columns: str | Sequence[str],
    numbers: Matrix | Sequence[Sequence[float]],
    *,
    digits: int | None = None,
    min_digits: int = 0,
    beside: bool = False,
) -> Table:
    """A table of a matrix; ``rows`` and ``columns`` are labels, or the prefix of numbered labels.

    >>> matrix_table("K", "k", ["a", "b"], [[4.0, 0.0], [1.5, 2.0]]).rows
    ('k1', 'k2')
    """
    cells = tuple(map(tuple, numbers if isinstance(numbers, Sequence) else numbers.tolist()))
    row_labels = number_labels(len(cells), rows) if isinstance(rows, str) else tuple(rows)
    column_labels = number_labels(len(cells[0]), columns) if isinstance(columns, str) else tuple(columns)
    return Table(title, row_labels, column_labels, cells, digits=digits, min_digits=min_digits, beside=beside)


def number_labels(count: int, prefix: str = "") -> tuple[str, ...]:
    """Labels of rows or columns, from 1.

    >>> number_labels(3, "k")
    ('k1', 'k2', 'k3')
    """
    return tuple(f"{prefix}{number}" for number in range(1, count + 1))


def _sum_cells(cells: Sequence[Cell]) -> Cell:
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    if not numbers:
        return ""
    return sum(numbers) if all(isinstance(number, int) for number in numbers) else math.fsum(numbers)


def format_cell(cell: Cell, digits: int = 4, scientific: bool = False) -> str:
    """A cell as text; a number too small for the decimals is shown in scientific notation.

    >>> [format_cell(cell) for cell in (14, 0.88079, 1.125e-7, -0.0, float("-inf"), "yes")]
    ['14', '0.8808', '1.1e-07', '0.0000', '-inf', 'yes']
    """
    if isinstance(cell, (str, int)):
        return str(cell)
    if scientific and math.isfinite(cell):
        return f"{cell:.{digits}e}"
    if cell and abs(cell) < 0.5 * 10**-digits:
        return f"{cell:.1e}"
    return f"{cell + 0.0:.{digits}f}"  # -0.0 + 0.0 is 0.0


def render_text(
    explanation: Explanation,
    *,
    width: int = 100,
    digits: int = 4,
    use_style: bool = False,
    show_all_columns: bool = True,
    selected_sections: Collection[int] = (),
) -> str:
    """The explanation as aligned text, no wider than ``width`` where a column allows it.

    Without ``show_all_columns``, wide vectors end after their first columns and say so; ``selected_sections``
    are the numbers of the sections to show, default all.
    """
    width = max(MIN_WIDTH, width)

    def make_bold(lines: Iterable[str]) -> list[str]:
        return [f"\x1b[1m{line}\x1b[0m" if use_style and line else line for line in lines]

    lines = make_bold(_wrap_text(explanation.title, width))
    for number, section in enumerate(explanation.sections, start=1):
        if selected_sections and number not in selected_sections:
            continue
        lines += ["", *make_bold(_wrap_text(section.heading, width, f"{number}. "))]
        if section.formula:
            lines += _wrap_text(section.formula, width, INDENT)
        tables = section.tables if show_all_columns else [_shorten_table(table) for table in section.tables]
        for group in _arrange_tables(tables, width - len(INDENT), digits):
            lines += ["", *(INDENT + line for line in group)]
        if section.notes:
            lines.append("")
        for note in section.notes:
            lines += _wrap_text(note, width, f"{INDENT}* ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _shorten_table(table: Table) -> Table:
    """The first columns of a wide vector; other tables are unchanged."""
    remaining = len(table.columns) - SHORTENED_COLUMNS
    if not table.is_wide_vector or remaining <= 0:
        return table
    note = f"channels 1 to {SHORTENED_COLUMNS} of {len(table.columns)}; --all shows all"
    return replace(
        table,
        title=f"{table.title} ({note})" if table.title else note.capitalize(),
        columns=table.columns[:SHORTENED_COLUMNS],
        cells=tuple(row[:SHORTENED_COLUMNS] for row in table.cells),
        footer=tuple((name, row[:SHORTENED_COLUMNS]) for name, row in table.footer),
    )


def to_json(explanation: Explanation) -> str:
    """The same as JSON: ``values`` by name, and ``sections`` with the tables; -inf is the string "-inf"."""
    return json.dumps(to_dict(explanation), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def to_dict(explanation: Explanation) -> dict[str, Any]:
    """What ``to_json`` writes, as lists and dicts."""
    sections = [
        {
            "heading": section.heading,
            "formula": section.formula,
            "tables": [
                {
                    "title": table.title,
                    "rows": table.rows,
                    "columns": table.columns,
                    "cells": table.cells,
                    "footer": [{"row": label, "cells": row} for label, row in table.footer],
                }
                for table in section.tables
            ],
            "notes": section.notes,
        }
        for section in explanation.sections
    ]
    finite: dict[str, Any] = _stringify_non_finite(
        {"title": explanation.title, "values": explanation.values, "sections": sections}
    )
    return finite


def terminal_width(fallback: int = 100) -> int:
    """Columns of the terminal, or of COLUMNS if set; 100 for a pipe or file."""
    return shutil.get_terminal_size((fallback, 24)).columns


def can_style(stream: TextIO | None = None) -> bool:
    """Whether to print bold text: on a capable terminal, unless NO_COLOR is set."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _stringify_non_finite(value: Any) -> Any:
    """JSON has no -inf, inf and nan: they become strings."""
    if isinstance(value, Mapping):
        return {str(key): _stringify_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stringify_non_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def round_floats(value: Any) -> Any:
    """Round to nine significant digits: exact for float32, in half the characters."""
    if isinstance(value, dict):
        return {name: round_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [round_floats(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _arrange_tables(tables: Sequence[Table], width: int, digits: int) -> list[list[str]]:
    """The lines of each table; a table that may be beside the previous one is joined to it if it fits."""
    groups: list[list[str]] = []
    for table in tables:
        lines = list(_render_table(table, width, digits))
        if table.beside and groups:
            left_width = max(map(cell_len, groups[-1]))
            joined = [
                left + " " * (left_width - cell_len(left)) + TABLE_GAP + right
                for left, right in zip_longest(groups[-1], lines, fillvalue="")
            ]
            if max(map(cell_len, joined)) <= width:
                groups[-1] = joined
                continue
        groups.append(lines)
    return groups


def _render_table(table: Table, width: int, digits: int) -> Iterator[str]:
    if table.title:
        yield from _wrap_text(table.title, width)
    if not table.rows:
        yield "(nothing)"
        return
    digits = max(digits, table.min_digits) if table.digits is None else table.digits
    header = [_replace_control_characters(column) for column in table.columns]
    labels = [_replace_control_characters(label) for label in (*table.rows, *(label for label, _ in table.footer))]
    rows = [
        [_replace_control_characters(format_cell(cell, digits, table.scientific)) for cell in row]
        for row in (*table.cells, *(row for _, row in table.footer))
    ]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    is_text = [all(isinstance(cell, str) for cell in column) for column in zip(*table.cells, strict=True)]
    label_width = max(map(cell_len, labels))

    def render_row(label: str, row: Sequence[str], block: range) -> str:
        cells = [_pad_text(row[column], widths[column], align_left=is_text[column]) for column in block]
        return COLUMN_GAP.join([_pad_text(label, label_width, align_left=True), *cells])

    for number, block in enumerate(_split_columns(widths, width - label_width)):
        rule = "─" * (label_width + sum(len(COLUMN_GAP) + widths[column] for column in block))
        if number:
            yield ""
        if any(header):
            yield render_row("", header, block)
            yield rule
        for row_number, (label, row) in enumerate(zip(labels, rows, strict=True)):
            if row_number == len(table.rows):
                yield rule
            yield render_row(label, row, block)


def _split_columns(widths: Sequence[int], available_width: int) -> list[range]:
    """Blocks of columns that fit side by side, of about equal size; no columns are one block as well."""
    blocks = list(_fill_blocks(widths, available_width, len(widths)))
    return list(_fill_blocks(widths, available_width, -(-len(widths) // len(blocks))))


def _fill_blocks(widths: Sequence[int], available_width: int, max_columns: int) -> Iterator[range]:
    start = used_width = 0
    for column, width in enumerate(widths):
        if column > start and (used_width + len(COLUMN_GAP) + width > available_width or column - start == max_columns):
            yield range(start, column)
            start, used_width = column, 0
        used_width += len(COLUMN_GAP) + width
    yield range(start, len(widths))


def _pad_text(text: str, width: int, *, align_left: bool) -> str:
    space = " " * (width - cell_len(text))
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text):
        # Otherwise a terminal that writes Arabic from the right would also reverse the numbers after it.
        text = f"{LEFT_TO_RIGHT_MARK}{text}{LEFT_TO_RIGHT_MARK}"
    return text + space if align_left else space + text


def _replace_control_characters(text: str) -> str:
    """Control characters would move the cursor."""
    return "".join("\ufffd" if unicodedata.category(letter) == "Cc" else letter for letter in text)


def _wrap_text(text: str, width: int, prefix: str = "") -> list[str]:
    """Lines of words no wider than ``width``; the first has the prefix, the others its width in spaces."""
    lines, line = [], prefix
    is_empty = True
    for word in _replace_control_characters(text).split(" "):
        if not is_empty and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, is_empty = " " * cell_len(prefix), True
        line += word if is_empty else f" {word}"
        is_empty = False
    return [*lines, line]
