"""Tables as text and as JSON: aligned in every script, complete, without loss of digits."""

import io
import json
import math

import pytest
from rich.cells import cell_len

from heedful.interpret.tables import (
    Explanation,
    Section,
    Table,
    can_style,
    format_cell,
    matrix_table,
    number_labels,
    render_text,
    terminal_width,
    to_json,
)


def render_lines(*tables: Table, width: int = 100, digits: int = 4, styled: bool = False) -> list[str]:
    explanation = Explanation("Title", (Section("Heading", "a = b", tables, ("A note.",)),))
    return render_text(explanation, width=width, digits=digits, use_style=styled).split("\n")


def test_render_text_prints_sections_tables_and_notes() -> None:
    table = matrix_table("Scores", ["q1", "q2"], ["k1", "k2"], [[0.5, -12.25], [math.inf, 1e-9]]).with_sum_column()
    assert render_lines(table) == [
        "Title",
        "",
        "1. Heading",
        "   a = b",
        "",
        "   Scores",
        "           k1        k2       sum",
        "   ──────────────────────────────",
        "   q1  0.5000  -12.2500  -11.7500",
        "   q2     inf   1.0e-09       inf",
        "",
        "   * A note.",
        "",
    ]


def test_table_sums_skip_words_and_keep_integers() -> None:
    table = Table("", ("a", "b"), ("n", "word", "x"), ((1, "yes", 0.25), (2, "no", 0.5)))
    assert table.with_sum_row(only=("n", "word")).footer == (("sum", (3, "", "")),)
    assert table.with_sum_row("total").footer == (("total", (3, "", 0.75)),)
    assert table.with_sum_row().with_sum_column().footer[0][1][-1] == 3.75


def test_render_text_splits_wide_tables() -> None:
    table = matrix_table("Wide", ["row"], number_labels(30), [[n + 0.5 for n in range(30)]])
    lines = render_lines(table, width=80)
    assert all(cell_len(line) <= 80 for line in lines)
    numbers = [word for line in lines if line.strip().startswith("row") for word in line.split()[1:]]
    assert numbers == [f"{n + 0.5:.4f}" for n in range(30)]
    sizes = [len(line.split()) - 1 for line in lines if line.strip().startswith("row")]
    assert sizes == [8, 8, 8, 6]


def test_render_text_blocks_have_similar_sizes() -> None:
    lines = render_lines(matrix_table("", ["row"], number_labels(9), [[0.5] * 9]), width=3 + 3 + 8 * 8)
    assert [len(line.split()) - 1 for line in lines if line.strip().startswith("row")] == [5, 4]


def test_render_text_keeps_column_wider_than_terminal() -> None:
    word = "x" * 130
    assert any(word in line for line in render_lines(Table("", ("a",), ("w",), ((word,),)), width=40))


def test_render_text_places_tables_beside_if_they_fit() -> None:
    left, right = (
        matrix_table("A", ["a"], ["1"], [[1]]),
        matrix_table("B", ["b"], ["1"], [[2]], beside=True),
    )
    assert "   A         B" in render_lines(left, right)
    wide_table = matrix_table("B", ["b" * 60], ["1"], [[2]], beside=True)
    assert not any("A" in line and "B" in line for line in render_lines(left, wide_table, width=60))


@pytest.mark.parametrize("label", ["猫が好き", "القطة", "👩‍👩‍👧‍👦", "e\u0301te\u0301", "▁the", "", "a\x1b[31m\nb"])
def test_render_text_columns_align_in_every_script(label: str) -> None:
    table = matrix_table("", ["plain", label], ["one", label], [[1.5, 2.5], [3.5, 4.5]])
    lines = [line for line in render_lines(table) if ".5000" in line]
    assert len(lines) == 2
    assert len({cell_len(line) for line in lines}) == 1
    assert len({cell_len(line[: line.index(".5000")]) for line in lines}) == 1
    assert not any("\x1b" in line for line in lines)


def test_render_text_marks_right_to_left_labels() -> None:
    line = next(line for line in render_lines(matrix_table("", ["القطة"], ["1"], [[1.0]])) if "القطة" in line)
    assert "\u200eالقطة\u200e" in line


def test_render_text_empty_tables_print_placeholder() -> None:
    assert "   (nothing)" in render_lines(Table("Empty", (), ("a",), ()))
    assert any(line.strip() == "alone" for line in render_lines(Table("", ("alone",), (), ((),))))
    assert render_text(Explanation("Only a title", ())) == "Only a title\n"


def test_table_missing_cell_fails_assertion() -> None:
    with pytest.raises(AssertionError, match="a cell for every column"):
        Table("T", ("a",), ("1", "2"), ((1.0,),))


@pytest.mark.parametrize(
    ("cell", "digits", "expected"),
    [(0.37754, 2, "0.38"), (-0.0, 4, "0.0000"), (-0.00004, 4, "-4.0e-05"), (0.00005, 4, "0.0001")],
)
def test_format_cell_rounds_to_digits(cell: float, digits: int, expected: str) -> None:
    assert format_cell(cell, digits) == expected


def test_render_text_respects_digits_of_table() -> None:
    cells = [[1 / 3]]
    assert "0.333333" in "".join(render_lines(matrix_table("", ["a"], ["b"], cells), digits=6))
    assert "0.33333333" in "".join(render_lines(matrix_table("", ["a"], ["b"], cells, min_digits=8), digits=2))
    assert "0.3\n" in "\n".join(render_lines(matrix_table("", ["a"], ["b"], cells, digits=1), digits=6))


def test_render_text_bold_only_with_style() -> None:
    table = matrix_table("", ["a"], ["b"], [[1]])
    assert not any("\x1b" in line for line in render_lines(table))
    bold = render_lines(table, styled=True)
    assert "\x1b[1m1. Heading\x1b[0m" in bold
    assert [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in bold] == render_lines(table)


def test_can_style_and_terminal_width_read_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert can_style(Terminal())
    assert not can_style(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not can_style(Terminal())
    monkeypatch.setenv("COLUMNS", "87")
    assert terminal_width() == 87


def test_to_json_has_every_digit_and_no_nan() -> None:
    table = Table("T", ("a",), ("1", "2"), ((1 / 3, -math.inf),), (("sum", (0.1 + 0.2, "")),))
    values = {"nan": math.nan, "deep": {"list": [(math.inf, 2)]}, "text": "猫"}
    text = to_json(Explanation("Title", (Section("H", "f", (table,), ("n",)),), values))
    data = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert data["values"] == {"nan": "nan", "deep": {"list": [["inf", 2]]}, "text": "猫"}
    assert data["sections"][0]["tables"][0] == {
        "title": "T",
        "rows": ["a"],
        "columns": ["1", "2"],
        "cells": [[1 / 3, "-inf"]],
        "footer": [{"row": "sum", "cells": [0.1 + 0.2, ""]}],
    }
