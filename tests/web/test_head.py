"""The map and the head view: queries as rows, keys as columns."""

import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.web.conftest import TIRED
from tests.web.page_driver import TracedSentence, cells, open_table, parse_number, trace_sentence

PAPER, FULL = np.array([255, 255, 255]), np.array([76, 29, 149])
"""The colors of weight 0 and of the largest weight, in the light theme."""


@pytest.fixture(scope="module")
def traced(address: str, demo_model: Path) -> TracedSentence:
    return trace_sentence(address, demo_model, TIRED)


def grid(page: Page) -> Locator:
    return page.locator("#view-head").get_by_role("grid")


def walk(page: Page, row: int, column: int) -> str:
    """Go to a cell with the keyboard, from the first one, and return its label."""
    figure = grid(page)
    figure.press("PageUp")
    figure.press("Home")
    for _ in range(row):
        figure.press("ArrowDown")
    for _ in range(column):
        figure.press("ArrowRight")
    return figure.get_by_role("gridcell").get_attribute("aria-label") or ""


def pixels(page: Page) -> Any:
    """The colors within the active cell: (pixels, 3)."""
    data = page.evaluate(
        """() => {
          const cell = document.querySelector("#view-head .matrix-cell");
          const canvas = document.querySelector("#view-head .matrix canvas");
          const [box, whole] = [cell.getBoundingClientRect(), canvas.getBoundingClientRect()];
          const [x, y] = [box.left - whole.left + 3, box.top - whole.top + 3];
          const often = { willReadFrequently: true };
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", often);
          copy.drawImage(canvas, 0, 0);
          return [...copy.getImageData(x, y, box.width - 6, box.height - 6).data];
        }"""
    )
    return np.array(data).reshape(-1, 4)[:, :3]


def test_first_screen_shows_translation_and_all_heads(page: Page, address: str) -> None:
    """The translation and every head, with no click."""
    page.goto(address)
    expect(page.locator(".result")).to_contain_text("fatigué")
    expect(page.locator(".map-head")).to_have_count(3 * 2 * 4)


def test_badges_have_explanations(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("map"))
    expect(page.locator("#view-map .map-head")).to_have_count(3 * 2 * 4)
    patterns = {head["pattern"] for head in traced.manifest["heads"] if head["pattern"]}
    assert patterns
    explained = page.locator("#view-map .map-legend dt").all_text_contents()
    assert set(explained) == patterns
    boxes = [page.get_by_role("region", name=name).last.bounding_box() for name in KINDS]
    tops = {round(box["y"]) for box in boxes if box is not None}
    assert len(tops) == 1  # side by side on a wide screen
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


KINDS = ("Encoder self-attention", "Decoder self-attention", "Cross-attention")


@pytest.mark.long
def test_rows_are_queries_columns_are_keys(page: Page, traced: TracedSentence) -> None:
    """A matrix that is not square: labels, weights and colors of random cells."""
    rows, columns = traced.sides("cross")
    assert len(rows) != len(columns)
    weights = traced.tensor("decoder.1.cross.weights")[2]
    np.testing.assert_allclose(weights, traced.numpy.attention["cross", 1].weights[2], atol=1e-3)
    page.goto(traced.url("head", kind="cross", layer=2, head=3, words="no"))
    expect(page.get_by_role("heading", name="Cross-attention, layer 2, head 3")).to_be_visible()
    expect(grid(page)).to_have_attribute("aria-rowcount", str(len(rows)))
    expect(grid(page)).to_have_attribute("aria-colcount", str(len(columns)))
    rng = random.Random(3)
    random_cells = [(rng.randrange(len(rows)), rng.randrange(len(columns))) for _ in range(6)]
    strongest = np.unravel_index(weights.argmax(), weights.shape)
    for row, column in [*random_cells, (int(strongest[0]), int(strongest[1])), (len(rows) - 1, 0)]:
        label = walk(page, row, column)
        pair_label, separator, rest = label.partition(": ")
        assert pair_label == f"{rows[row]} attends to {columns[column]}", label
        assert separator
        value, _, head_label = rest.partition(", ")
        assert abs(parse_number(value) - weights[row, column]) < 1e-4
        assert head_label == "Cross-attention, layer 2, head 3"
        fraction = weights[row, column] / weights.max()
        np.testing.assert_allclose(pixels(page), PAPER + (FULL - PAPER) * fraction + 0 * pixels(page), atol=2)


def test_figure_table_matches_numpy(page: Page, traced: TracedSentence) -> None:
    """The same numbers as a table: names of rows and columns, and rows that sum to 1."""
    rows, columns = traced.sides("cross")
    weights = traced.numpy.attention["cross", 0].weights[1]
    page.goto(traced.url("head", kind="cross", layer=1, head=2, words="no"))
    open_table(page.locator("#view-head .figure").first)
    header, *body = cells(page.locator("#view-head .as-table table"))
    assert header[1:] == columns
    assert [line[0] for line in body] == rows
    values = np.array([[parse_number(cell) for cell in line[1:]] for line in body])
    np.testing.assert_allclose(values, weights, atol=6e-4)  # tensors are float16
    np.testing.assert_allclose(values.sum(axis=1), 1, atol=2e-3)


def test_masked_cells_are_hatched_and_labeled(page: Page, traced: TracedSentence) -> None:
    """A masked cell is labeled "masked" and hatched; others have one color."""
    rows, columns = traced.sides("decoder")
    page.goto(traced.url("head", kind="decoder", layer=1, head=1, words="no"))
    expect(page.get_by_role("heading", name="Decoder self-attention, layer 1, head 1")).to_be_visible()
    assert walk(page, 2, 5).startswith(f"{rows[2]} may not attend to {columns[5]}: masked")
    assert len(np.unique(pixels(page), axis=0)) > 1
    assert walk(page, 5, 2).startswith(f"{rows[5]} attends to {columns[2]}: 0.")
    assert len(np.unique(pixels(page), axis=0)) == 1
    open_table(page.locator("#view-head .figure").first)
    _, *body = cells(page.locator("#view-head .as-table table"))
    for row, line in enumerate(body):
        assert [cell == "masked" for cell in line[1:]] == [column > row for column in range(len(columns))]


def test_selected_heads_and_words_are_in_url(page: Page, traced: TracedSentence) -> None:
    """Heads side by side, with lines of the selected words only; the URL holds the state."""
    rows, columns = traced.sides("cross")
    page.goto(traced.url("head", kind="cross", layer=2, head=1, words="no"))
    view = page.locator("#view-head")
    view.get_by_role("button", name="Head 3", exact=True).click()
    expect(view.locator("figcaption")).to_have_text(["Head 1", "Head 3"])
    query_buttons = view.get_by_role("group", name="Query words")
    for row in (1, 4):
        query_buttons.get_by_role("button").nth(row).click()
    expect(query_buttons.get_by_role("button", pressed=True)).to_have_count(2)
    page.reload()
    expect(view.locator("figcaption")).to_have_text(["Head 1", "Head 3"])
    expect(query_buttons.get_by_role("button", pressed=True)).to_have_text([rows[1], rows[4]])
    for panel, head in enumerate((0, 2)):
        weights = traced.tensor("decoder.1.cross.weights")[head]
        titles = view.locator("svg.lines").nth(panel).locator("line title").all_text_contents()
        labels = {tuple(title.rsplit(": ", 1)) for title in titles}
        expected = {
            (f"{rows[row]} attends to {columns[column]}", f"{weights[row, column]:.4f}")
            for row in (1, 4)
            for column in range(len(columns))
            if weights[row, column] >= 0.04 * weights[[1, 4]].max()
        }
        assert labels == expected
    query_buttons.get_by_role("button", name="All words").click()
    expect(query_buttons.get_by_role("button", pressed=True)).to_have_count(0)


def test_head_summary_describes_pattern(page: Page, traced: TracedSentence) -> None:
    """Pattern, entropy, and the explanation of attention sinks."""
    heads = traced.manifest["heads"]
    broad = next(head for head in heads if head["pattern"] == "broad")
    most = max((head for head in heads if head["kind"] == "decoder"), key=lambda head: head["sink_weight"])
    assert most["sink_weight"] >= 0.3
    for head, text in ((broad, "attends broadly"), (most, "an attention sink")):
        page.goto(traced.url("head", kind=head["kind"], layer=head["layer"] + 1, head=head["head"] + 1))
        intro = page.locator("#view-head > .intro")
        expect(intro).to_contain_text(text)
        expect(intro).to_contain_text(f"entropy {head['entropy']:.2f} bits")


def test_keyboard_opens_cell_from_map(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("map"))
    page.get_by_role("button", name="Encoder self-attention, layer 2, head 4").last.press("Enter")
    expect(page.get_by_role("heading", name="Encoder self-attention, layer 2, head 4")).to_be_visible()
    grid(page).focus()
    walk(page, 7, 1)
    page.keyboard.press("Enter")
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("it attends to animal")
    assert "query=8&key=2" in page.url
    page.go_back()
    expect(grid(page)).to_be_visible()


def test_controls_keep_the_focus(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("head", kind="encoder", layer=1, head=1))
    choice = page.locator("#view-head").get_by_label("Head", exact=True)
    choice.focus()
    choice.select_option("2")
    expect(page.get_by_role("heading", name="Encoder self-attention, layer 1, head 3")).to_be_visible()
    expect(choice).to_be_focused()


@pytest.mark.long
def test_long_sentence_has_few_elements(page: Page, untrained_address: str) -> None:
    """More than 80 words: few elements, row labels, the strongest weights, words selected from a menu."""
    text = " ".join([TIRED.rstrip(".")] * 18) + "."
    page.goto(f"{untrained_address}/#/head?text={quote(text)}&kind=encoder&layer=1&head=1&also=2.3.4&beam=1")
    view = page.locator("#view-head")
    expect(grid(page)).to_have_attribute("aria-rowcount", re.compile(r"^(19|2\d)\d$"))
    expect(view.locator(".panel").first).to_be_visible()
    expect(view.locator(".strongest li")).to_have_count(8)
    view.get_by_label("Add a word").select_option("7")
    expect(view.locator(".lines text.chosen").first).to_have_text("it")
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    view.locator(".strongest button").first.click()
    expect(page.locator("#view-cell [data-step=norm]")).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < 5000


def test_head_target_word_selects_its_row(page: Page, traced: TracedSentence) -> None:
    """The decoder reads a subword one row after it writes it; END is never read."""
    target_subwords = traced.manifest["sides"]["target"]["subwords"]
    for kind, row in (("decoder", 6), ("cross", 5)):
        page.goto(traced.url("head", kind=kind, layer=1, head=1, words="no"))
        expect(grid(page)).to_have_attribute("aria-rowcount", str(len(target_subwords)))
        page.locator(".target-word").nth(5).click()
        expect(page).to_have_url(re.compile(f"query={row + 1}&"))
        assert traced.sides(kind)[0][row] == target_subwords[5]
        expect(page.locator("#view-head .status-line").first).to_have_text(
            re.compile(f"^{re.escape(target_subwords[5])} attends to")
        )
    page.goto(traced.url("head", kind="decoder", layer=1, head=1, words="no"))
    page.locator(".target-word").last.click()
    expect(page).to_have_url(re.compile(f"step={len(target_subwords)}"))
    assert "query=" not in page.url
    page.goto(traced.url("decode", kind="decoder", layer=1, head=1, step=2))
    page.get_by_role("button", name="Next step").click()
    expect(page).to_have_url(re.compile("query=4&.*step=3"))


def test_large_matrix_table_follows_selection(page: Page, untrained_address: str) -> None:
    """The table has one row: that of the active cell."""
    text = "The animal didn't cross the street because it was too tired" + " and the dog was tired" * 5 + "."
    page.goto(f"{untrained_address}/#/head?text={quote(text)}&kind=encoder&layer=1&head=1&query=1")
    figure = page.locator("#view-head .figure").first
    open_table(figure)
    row = figure.locator(".as-table p")
    expect(row).to_contain_text("Row 1 of")
    grid(page).press("ArrowDown")
    expect(row).to_contain_text("Row 2 of")
    expect(figure.locator(".as-table thead th").last).to_have_text("animal")
    box = figure.get_by_role("gridcell").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 1.5)
    expect(row).to_contain_text("Row 3 of")


def test_touch_first_tap_shows_value(browser: Browser, traced: TracedSentence) -> None:
    """The first tap shows a value, the second opens its arithmetic, as a button does."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    tab = context.new_page()
    tab.goto(traced.url("head", kind="encoder", layer=1, head=1, words="no", query=1, key=1))
    status = tab.locator("#view-head .status-line").first
    expect(status).to_contain_text("attends to")
    cell = tab.locator("#view-head .matrix-cell")
    cell.scroll_into_view_if_needed()
    box = cell.bounding_box()
    assert box
    first = status.inner_text()
    x, y = box["x"] + box["width"] * 2.5, box["y"] + box["height"] / 2
    tab.touchscreen.tap(x, y)
    expect(status).not_to_have_text(first)
    assert "#/head?" in tab.url
    expect(tab.get_by_role("button", name="Open the arithmetic of this cell")).to_be_visible()
    tab.touchscreen.tap(x, y)
    expect(tab.locator("#view-cell .steps")).to_have_attribute("data-cell", "encoder.0.0.0.2")
    tab.go_back()
    tab.get_by_role("button", name="Open the arithmetic of this cell").tap()
    expect(tab.locator("#view-cell .steps")).to_have_attribute("data-cell", re.compile(r"encoder\.0\.0\.0"))
    context.close()


def test_small_matrices_have_legend(page: Page, traced: TracedSentence, untrained_address: str) -> None:
    page.goto(traced.url("map"))
    scale = page.locator("#view-map .map-scale")
    expect(scale).to_contain_text("weight^0.6")
    expect(scale).not_to_contain_text("largest weight")
    text = TIRED.replace(".", " and the dog was tired and the dog was tired and the dog was tired.")
    page.goto(f"{untrained_address}/#/map?text={quote(text)}")
    expect(scale).to_contain_text("each cell shows the largest of several weights")


def test_phone_four_heads_side_by_side(page: Page, traced: TracedSentence) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(traced.url("map"))
    heads = page.locator("#view-map .map-heads").first.locator(".map-head")
    expect(heads).to_have_count(4)
    tops = {round(box["y"]) for head in heads.all() if (box := head.bounding_box())}
    assert len(tops) == 1
