"""The positions view: positional encodings and masks of the model for a sentence."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import TIRED
from tests.web.numpy_model import sinusoids
from tests.web.page_driver import TracedSentence, cells, open_table, parse_number, trace_sentence


@pytest.fixture(scope="module")
def traced(address: str, demo_model: Path) -> TracedSentence:
    return trace_sentence(address, demo_model, TIRED)


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"#view-positions [data-figure={name}]")


def table(page: Page, name: str) -> list[list[str]]:
    open_table(figure(page, name))
    return cells(figure(page, name).locator("table"))


def read_cell(page: Page, name: str, *keys: str) -> str:
    grid = figure(page, name).get_by_role("grid")
    for key in ("PageUp", "Home", *keys):
        grid.press(key)
    return grid.get_by_role("gridcell").get_attribute("aria-label") or ""


@pytest.mark.long
def test_position_matrix_and_products_match_paper(page: Page, traced: TracedSentence) -> None:
    """The matrix equals the paper's; the dot product of two positions adds up."""
    page.goto(traced.url("positions", kind="encoder", layer=1, head=1, query=3, key=7))
    expect(page.locator("#view-positions")).to_contain_text("sinusoidal positions")
    expected = sinusoids(13, 64)
    header, *rows = table(page, "positions")
    assert header[1:] == [str(channel) for channel in range(1, 65)]
    assert rows[7][0] == "7 it"
    np.testing.assert_allclose([[parse_number(text) for text in row[1:]] for row in rows], expected, atol=1e-4)
    assert (
        read_cell(page, "positions", "ArrowDown", "ArrowRight") == f"position 1 animal, channel 2: {expected[1, 1]:.4f}"
    )
    _, _, _, product = cells(page.locator("#view-positions .numbers table"))
    values = [parse_number(text) for text in product[1:]]
    assert abs(sum(values[:-1]) - values[-1]) < 1e-3
    assert values[-1] == pytest.approx(expected[2] @ expected[6], abs=1e-3)
    _, *products = table(page, "products")
    np.testing.assert_allclose(
        [[parse_number(text) for text in row[1:]] for row in products], expected @ expected.T, atol=1e-3
    )


def test_position_menus_select_pair(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("positions", kind="decoder", layer=1, head=1))
    page.locator("#view-positions").get_by_label("First position").select_option("4")
    other = page.locator("#view-positions").get_by_label("Second position")
    other.focus()
    other.select_option("9")
    expect(page.get_by_text("Position 4 times position 9")).to_be_visible()
    expect(other).to_be_focused()


def test_causal_mask_is_shown(page: Page, traced: TracedSentence) -> None:
    subwords, _ = traced.sides("decoder")
    page.goto(traced.url("positions", kind="decoder", layer=1, head=1))
    header, *rows = table(page, "mask")
    assert header[1:] == subwords
    assert [row[0] for row in rows] == subwords
    for row, line in enumerate(rows):
        assert line[1:] == ["1.0000"] * (row + 1) + ["masked"] * (len(subwords) - row - 1)
    assert read_cell(page, "mask", "ArrowRight") == f"{subwords[0]} may not attend to {subwords[1]}: masked"
    assert read_cell(page, "mask", "ArrowDown") == f"{subwords[1]} may attend to {subwords[0]}"


def test_padding_mask_changes_no_weights(page: Page, traced: TracedSentence) -> None:
    """The sentence padded to a longer one: padding is masked, the other weights do not change."""
    subwords, _ = traced.sides("encoder")
    page.goto(traced.url("positions", kind="encoder", layer=1, head=1))
    header, *rows = table(page, "padding")
    assert header[1:] == [*subwords, *["<pad>"] * 3]
    assert all(row[-3:] == ["masked"] * 3 for row in rows)
    weights = np.array([[parse_number(text) for text in row[1:-3]] for row in rows])
    np.testing.assert_allclose(weights, traced.numpy.attention["encoder", 0].weights.mean(axis=0), atol=6e-4)
    expect(page.locator("#view-positions")).to_contain_text("Padding changes nothing")
    assert read_cell(page, "padding", "End") == f"{subwords[0]} may not attend to <pad>: masked"


def test_positions_fit_phone(page: Page, traced: TracedSentence) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(traced.url("positions", kind="encoder", layer=1, head=1))
    expect(page.get_by_text("Padding changes nothing")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
