"""The cell view: the printed numbers against NumPy, and sums that add up."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import TIRED
from tests.web.page_driver import TracedSentence, cells, parse_number, trace_sentence

ROWS, KEYS = 17, 3
"""Random rows of random heads, and random keys per row."""
ROUNDING_ERROR = 0.5e-4
"""Maximum rounding error of a printed number."""


@pytest.fixture(scope="module")
def traced(address: str, demo_model: Path) -> TracedSentence:
    return trace_sentence(address, demo_model, TIRED)


def step(page: Page, name: str) -> Locator:
    return page.locator(f"#view-cell [data-step={name}]")


def open_cell(page: Page, traced: TracedSentence, kind: str, layer: int, head: int, row: int, key: int) -> None:
    """Open a cell without reloading the page."""
    selection = {"kind": kind, "layer": layer + 1, "head": head + 1, "query": row + 1, "key": key + 1}
    page.evaluate("hash => { location.hash = hash; }", traced.hash("cell", **selection)[1:])
    name = f"{kind}.{layer}.{head}.{row}.{key}"
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", name)


def parse_numbers(texts: list[str]) -> list[float]:
    return [parse_number(text) for text in texts]


@pytest.mark.long
def test_random_cells_match_numpy(page: Page, traced: TracedSentence) -> None:
    """Score, scaled score, mask, weight, z and result of random cells, recomputed from the weights file."""
    page.goto(traced.url("cell", kind="encoder", layer=1, head=1))
    expect(step(page, "softmax")).to_be_visible()
    rng = random.Random(11)
    masked_count = 0
    for index in range(ROWS * KEYS):
        if index % KEYS == 0:
            kind = ("encoder", "decoder", "cross")[index // KEYS % 3]
            rows, columns = traced.sides(kind)
            layer, head, row = rng.randrange(2), rng.randrange(4), rng.randrange(len(rows))
        key = rng.randrange(len(columns))
        attention = traced.numpy.attention[kind, layer]
        open_cell(page, traced, kind, layer, head, row, key)
        summary = page.locator("#view-cell .cell-summary").inner_text()
        values = [parse_number(text) for text in re.findall(r"[\u2212]?\d+\.\d+(?:e[\u2212]?\d+)?", summary)]
        score, scaled = attention.scores[head, row, key], attention.scaled[head, row, key]
        np.testing.assert_allclose(values[:3], [score, score, scaled], atol=2e-4)
        if kind == "decoder" and key > row:
            masked_count += 1
            assert summary.startswith(f"{rows[row]} may not attend to {columns[key]}")
            assert summary.endswith("weight 0")
        else:
            assert summary.startswith(f"{rows[row]} attends to {columns[key]}")
            np.testing.assert_allclose(values[-1], attention.weights[head, row, key], atol=1e-4)
        lines = {line[0]: line[1:] for line in cells(step(page, "values").locator("table"))}
        np.testing.assert_allclose(parse_numbers(lines["output z"][:8]), attention.z[head, row, :8], atol=2e-4)
        last = cells(step(page, "norm").locator("table").last)[-1]
        np.testing.assert_allclose(parse_numbers(last[1:9]), attention.result[row, :8], atol=2e-4)
    assert masked_count > 2


@pytest.mark.long
def test_expanded_vectors_match_numpy(page: Page, traced: TracedSentence) -> None:
    """q, k and v of every word, with all channels."""
    page.goto(traced.url("cell", kind="cross", layer=2, head=2, query=4, key=3))
    attention = traced.numpy.attention["cross", 1]
    section = step(page, "projections")
    for _ in range(3):
        section.get_by_role("button", name="Show all 16 channels").first.click()
    for table, expected in zip(
        section.locator("table").all()[:3], (attention.q[1, 3:4], attention.k[1], attention.v[1]), strict=True
    ):
        values = np.array([parse_numbers(line[1:]) for line in cells(table)[1:]])
        np.testing.assert_allclose(values, expected, atol=2e-4)


def test_printed_sums_add_up(page: Page, traced: TracedSentence) -> None:
    """Every printed sum is the sum of the printed numbers, collapsed and expanded."""
    page.goto(traced.url("cell", kind="encoder", layer=1, head=2, query=8, key=2))
    expect(step(page, "norm")).to_be_visible()
    for expand in (False, True):
        if expand:
            step(page, "score").get_by_role("button", name="Show all 16 channels").click()
        _, query_row, key_row, product = cells(step(page, "score").locator("table"))
        values = parse_numbers(product[1:])
        assert abs(sum(values[:-1]) - values[-1]) <= len(values) * ROUNDING_ERROR
        for q_value, k_value, product_value in zip(
            parse_numbers(query_row[1:9]), parse_numbers(key_row[1:9]), values, strict=False
        ):
            assert abs(q_value * k_value - product_value) <= (abs(q_value) + abs(k_value) + 1.1) * ROUNDING_ERROR

    *rows, total = cells(step(page, "softmax").locator("table"))[1:]
    for column in (3, 4):
        summed = sum(parse_number(row[column]) for row in rows)
        assert abs(summed - parse_number(total[column])) <= len(rows) * ROUNDING_ERROR
    *rows, total = cells(step(page, "values").locator("table"))[1:]
    check_column_sums(rows, total)
    *rows, total = cells(step(page, "joined").locator("table").nth(1))[1:]
    check_column_sums(rows, total)
    *rows, total = cells(step(page, "residual").locator("table"))[1:]
    check_column_sums(rows, total)
    _, *rows, total = cells(step(page, "x").locator("table"))[1:]
    check_column_sums(rows, total)
    centered, divided, gain, bias, result = cells(step(page, "norm").locator("table").last)[1:]
    for column in range(1, 9):
        expected = parse_number(divided[column]) * parse_number(gain[column]) + parse_number(bias[column])
        assert abs(expected - parse_number(result[column])) < 5e-4, centered


def check_column_sums(rows: list[list[str]], total: list[str]) -> None:
    for column in range(1, 9):
        summed = sum(parse_number(row[column]) for row in rows)
        assert abs(summed - parse_number(total[column])) <= (len(rows) + 1) * ROUNDING_ERROR, (total[0], column)


def test_query_channel_shows_products(page: Page, traced: TracedSentence) -> None:
    """x times any column of W^Q; collapsed channels are summed."""
    page.goto(traced.url("cell", kind="decoder", layer=1, head=3, query=5, key=2))
    section = step(page, "projections")
    section.get_by_label("Another channel of q").select_option("6")
    expect(section.get_by_text("Channel 7 of q in full")).to_be_visible()
    product = parse_numbers(cells(section.locator("table").last)[-1][1:])
    *products, total, bias, q = product
    assert abs(sum(products) - total) <= 64 * ROUNDING_ERROR
    assert abs(total + bias - q) <= 3 * ROUNDING_ERROR
    assert abs(q - traced.numpy.attention["decoder", 0].q[2, 4, 6]) < 2e-4


def test_masked_key_has_zero_weight(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("cell", kind="decoder", layer=1, head=1, query=3, key=6))
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("may not attend to")
    section = step(page, "softmax")
    section.get_by_role("button", name="Show all").click()
    _, *rows, _ = cells(section.locator("table"))
    assert [row[3] == "masked" for row in rows] == [index > 2 for index in range(len(rows))]
    assert all(parse_number(row[5]) == 0 for row in rows[3:])


@pytest.mark.long
def test_strongest_cell_selected_by_default(page: Page, traced: TracedSentence) -> None:
    # The page has float16 values, and takes the first of equal ones.
    weights = traced.numpy.attention["cross", 1].weights[0].astype(np.float16)
    page.goto(traced.url("cell", kind="cross", layer=2, head=1, query=3))
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", f"cross.1.0.2.{weights[2].argmax()}")
    row, key = np.unravel_index(weights[:-1, :-1].argmax(), weights[:-1, :-1].shape)  # </s> is not a word
    page.goto(traced.url("cell", kind="cross", layer=2, head=1))
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", f"cross.1.0.{row}.{key}")


def test_buttons_and_menus_select_key_and_row(page: Page, traced: TracedSentence) -> None:
    """Previous and next buttons and two menus, which keep the focus."""
    page.goto(traced.url("cell", kind="encoder", layer=1, head=1, query=8, key=1))
    view, steps = page.locator("#view-cell"), page.locator("#view-cell .steps")
    expect(view.get_by_role("button", name="← Previous")).to_be_disabled()
    view.get_by_role("button", name="Next →").press("Enter")
    expect(steps).to_have_attribute("data-cell", "encoder.0.0.7.1")
    expect(view.get_by_role("button", name="Next →")).to_be_focused()
    view.get_by_label("Key", exact=True).select_option("4")
    expect(steps).to_have_attribute("data-cell", "encoder.0.0.7.4")
    view.get_by_label("Query").select_option("1")
    expect(steps).to_have_attribute("data-cell", re.compile(r"encoder\.0\.0\.1\.\d+"))


def test_mean_of_heads_has_no_arithmetic(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("cell", kind="cross", layer=1, head="mean"))
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("Choose a head")
    page.locator("#view-cell .steps").get_by_role("button", name="Head 2").click()
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("attends to")


def test_ablated_head_is_marked(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("cell", kind="cross", layer=1, head=2, off="cross.1.2"))
    expect(page.locator("#view-cell .steps")).to_contain_text("This head is switched off")
    contributions = cells(step(page, "joined").locator("table").nth(1))
    assert [parse_number(text) for text in contributions[2][1:9]] == [0] * 8


def test_cell_fits_phone(page: Page, traced: TracedSentence) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(traced.url("cell", kind="cross", layer=1, head=2))
    expect(step(page, "norm")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
