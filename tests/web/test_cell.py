"""One weight in full: the numbers on the screen against NumPy, and sums that add up."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import TIRED
from tests.web.page_driver import Pass, cells, number, passed

ROWS, KEYS = 17, 3
"""Random rows of random heads, and keys of each that are looked at."""
ROUNDED = 0.5e-4
"""How far a printed number is from the real one, at most."""


@pytest.fixture(scope="module")
def tired(address: str, demo_model: Path) -> Pass:
    return passed(address, demo_model, TIRED)


def step(page: Page, name: str) -> Locator:
    return page.locator(f"#view-cell [data-step={name}]")


def go(page: Page, tired: Pass, kind: str, layer: int, head: int, row: int, key: int) -> None:
    """Look at a cell without loading the page anew."""
    place = {"kind": kind, "layer": layer + 1, "head": head + 1, "query": row + 1, "key": key + 1}
    page.evaluate("hash => { location.hash = hash; }", tired.hash("cell", **place)[1:])
    name = f"{kind}.{layer}.{head}.{row}.{key}"
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", name)


def printed(texts: list[str]) -> list[float]:
    return [number(text) for text in texts]


@pytest.mark.long
def test_random_cells_are_the_weights_files(page: Page, tired: Pass) -> None:
    """Score, division, mask, weight, q, k, v, z and the result of random cells, from the file of weights."""
    page.goto(tired.url("cell", kind="encoder", layer=1, head=1))
    expect(step(page, "softmax")).to_be_visible()
    chance = random.Random(11)
    hidden = 0
    for place in range(ROWS * KEYS):
        if place % KEYS == 0:
            kind = ("encoder", "decoder", "cross")[place // KEYS % 3]
            rows, columns = tired.sides(kind)
            layer, head, row = chance.randrange(2), chance.randrange(4), chance.randrange(len(rows))
        key = chance.randrange(len(columns))
        own = tired.numpy.attention[kind, layer]
        go(page, tired, kind, layer, head, row, key)
        summary = page.locator("#view-cell .cell-summary").inner_text()
        found = [number(text) for text in re.findall(r"[\u2212]?\d+\.\d+(?:e[\u2212]?\d+)?", summary)]
        score, scaled = own.scores[head, row, key], own.scaled[head, row, key]
        np.testing.assert_allclose(found[:3], [score, score, scaled], atol=2e-4)
        if kind == "decoder" and key > row:
            hidden += 1
            assert summary.startswith(f"{rows[row]} may not attend to {columns[key]}")
            assert summary.endswith("weight 0")
        else:
            assert summary.startswith(f"{rows[row]} attends to {columns[key]}")
            np.testing.assert_allclose(found[-1], own.weights[head, row, key], atol=1e-4)
        lines = {line[0]: line[1:] for line in cells(step(page, "values").locator("table"))}
        np.testing.assert_allclose(printed(lines["output z"][:8]), own.z[head, row, :8], atol=2e-4)
        last = cells(step(page, "norm").locator("table").last)[-1]
        np.testing.assert_allclose(printed(last[1:9]), own.result[row, :8], atol=2e-4)
    assert hidden > 2


@pytest.mark.long
def test_vectors(page: Page, tired: Pass) -> None:
    """q, k and v of every word, all channels, unfolded."""
    page.goto(tired.url("cell", kind="cross", layer=2, head=2, query=4, key=3))
    own = tired.numpy.attention["cross", 1]
    part = step(page, "projections")
    for _ in range(3):
        part.get_by_role("button", name="Show all 16 channels").first.click()
    for table, expected in zip(part.locator("table").all()[:3], (own.q[1, 3:4], own.k[1], own.v[1]), strict=True):
        shown = np.array([printed(line[1:]) for line in cells(table)[1:]])
        np.testing.assert_allclose(shown, expected, atol=2e-4)


def test_sums_add_up(page: Page, tired: Pass) -> None:
    """Every printed sum is the sum of the printed numbers, folded and unfolded."""
    page.goto(tired.url("cell", kind="encoder", layer=1, head=2, query=8, key=2))
    expect(step(page, "norm")).to_be_visible()
    for unfold in (False, True):
        if unfold:
            step(page, "score").get_by_role("button", name="Show all 16 channels").click()
        _, left, right, product = cells(step(page, "score").locator("table"))
        values = printed(product[1:])
        assert abs(sum(values[:-1]) - values[-1]) <= len(values) * ROUNDED
        for one, other, both in zip(printed(left[1:9]), printed(right[1:9]), values, strict=False):
            assert abs(one * other - both) <= (abs(one) + abs(other) + 1.1) * ROUNDED

    *rows, total = cells(step(page, "softmax").locator("table"))[1:]
    for column in (3, 4):
        summed = sum(number(row[column]) for row in rows)
        assert abs(summed - number(total[column])) <= len(rows) * ROUNDED
    *rows, total = cells(step(page, "values").locator("table"))[1:]
    columns_add_up(rows, total)
    *rows, total = cells(step(page, "joined").locator("table").nth(1))[1:]
    columns_add_up(rows, total)
    *rows, total = cells(step(page, "residual").locator("table"))[1:]
    columns_add_up(rows, total)
    _, *rows, total = cells(step(page, "x").locator("table"))[1:]
    columns_add_up(rows, total)
    centred, divided, gain, bias, result = cells(step(page, "norm").locator("table").last)[1:]
    for place in range(1, 9):
        made = number(divided[place]) * number(gain[place]) + number(bias[place])
        assert abs(made - number(result[place])) < 5e-4, centred


def columns_add_up(rows: list[list[str]], total: list[str]) -> None:
    for place in range(1, 9):
        summed = sum(number(row[place]) for row in rows)
        assert abs(summed - number(total[place])) <= (len(rows) + 1) * ROUNDED, (total[0], place)


def test_query_channel_shows_products(page: Page, tired: Pass) -> None:
    """x times a column of W^Q, any column; what is folded away is summed up."""
    page.goto(tired.url("cell", kind="decoder", layer=1, head=3, query=5, key=2))
    part = step(page, "projections")
    part.get_by_label("Another channel of q").select_option("6")
    expect(part.get_by_text("Channel 7 of q in full")).to_be_visible()
    product = printed(cells(part.locator("table").last)[-1][1:])
    *products, total, bias, q = product
    assert abs(sum(products) - total) <= 64 * ROUNDED
    assert abs(total + bias - q) <= 3 * ROUNDED
    assert abs(q - tired.numpy.attention["decoder", 0].q[2, 4, 6]) < 2e-4


def test_masked(page: Page, tired: Pass) -> None:
    page.goto(tired.url("cell", kind="decoder", layer=1, head=1, query=3, key=6))
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("may not attend to")
    part = step(page, "softmax")
    part.get_by_role("button", name="Show all").click()
    _, *rows, _ = cells(part.locator("table"))
    assert [row[3] == "masked" for row in rows] == [place > 2 for place in range(len(rows))]
    assert all(number(row[5]) == 0 for row in rows[3:])


@pytest.mark.long
def test_strongest_cell_selected_by_default(page: Page, tired: Pass) -> None:
    # Of those that are equal in the sixteen bits that the page has, it takes the first.
    weights = tired.numpy.attention["cross", 1].weights[0].astype(np.float16)
    page.goto(tired.url("cell", kind="cross", layer=2, head=1, query=3))
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", f"cross.1.0.2.{weights[2].argmax()}")
    row, key = np.unravel_index(weights[:-1, :-1].argmax(), weights[:-1, :-1].shape)  # </s> is no word
    page.goto(tired.url("cell", kind="cross", layer=2, head=1))
    expect(page.locator("#view-cell .steps")).to_have_attribute("data-cell", f"cross.1.0.{row}.{key}")


def test_other_keys_and_rows(page: Page, tired: Pass) -> None:
    """Previous and next, and two lists; the focus stays where it is."""
    page.goto(tired.url("cell", kind="encoder", layer=1, head=1, query=8, key=1))
    view, steps = page.locator("#view-cell"), page.locator("#view-cell .steps")
    expect(view.get_by_role("button", name="← Previous")).to_be_disabled()
    view.get_by_role("button", name="Next →").press("Enter")
    expect(steps).to_have_attribute("data-cell", "encoder.0.0.7.1")
    expect(view.get_by_role("button", name="Next →")).to_be_focused()
    view.get_by_label("Key", exact=True).select_option("4")
    expect(steps).to_have_attribute("data-cell", "encoder.0.0.7.4")
    view.get_by_label("Query").select_option("1")
    expect(steps).to_have_attribute("data-cell", re.compile(r"encoder\.0\.0\.1\.\d+"))


def test_mean_of_heads_has_no_arithmetic(page: Page, tired: Pass) -> None:
    page.goto(tired.url("cell", kind="cross", layer=1, head="mean"))
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("Choose a head")
    page.locator("#view-cell .steps").get_by_role("button", name="Head 2").click()
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("attends to")


def test_ablated_head_is_marked(page: Page, tired: Pass) -> None:
    page.goto(tired.url("cell", kind="cross", layer=1, head=2, off="cross.1.2"))
    expect(page.locator("#view-cell .steps")).to_contain_text("This head is switched off")
    shares = cells(step(page, "joined").locator("table").nth(1))
    assert [number(text) for text in shares[2][1:9]] == [0] * 8


def test_phone_layout(page: Page, tired: Pass) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(tired.url("cell", kind="cross", layer=1, head=2))
    expect(step(page, "norm")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
