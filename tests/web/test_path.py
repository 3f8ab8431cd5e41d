"""The path of a word: its vector at each place, and what the model would say there."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import TIRED
from tests.web.page_driver import Pass, cells, number, passed


@pytest.fixture(scope="module")
def tired(address: str, demo_model: Path) -> Pass:
    return passed(address, demo_model, TIRED)


def test_path_of_target_word_is_drawn(page: Page, tired: Pass) -> None:
    """The guesses at each place are NumPy's; the last are the model's own, and the written word is marked."""
    row = 7
    page.goto(tired.url("path", kind="cross", layer=1, head=1, query=row + 1))
    places = page.locator("#view-path .path > li")
    expect(places).to_have_count(1 + 2 * 3)
    read, written = (tired.manifest["sides"][side]["subwords"][row] for side in ("decoder_input", "target"))
    expect(page.locator("#view-path .description")).to_contain_text(f"reads {read} and writes {written}")
    table = tired.numpy.tensors["decoder.embedding.table.weight"]
    names = [
        "decoder.embedding",
        *(f"decoder.{n}.{part}" for n in range(2) for part in ("self", "cross", "feed_forward")),
    ]
    for place, name in enumerate(names):
        logits = tired.numpy.streams[name][row] @ table.T
        logits[0] = -np.inf
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        best = chances.argsort()[::-1][:5]
        told = places.nth(place).locator(".predictions li").all_inner_texts()
        pieces = [tired.manifest["subwords"][str(identity)] for identity in best]
        assert [text.split(" ")[0] for text in told] == pieces
        shown = [number(text.split(" ")[1]) for text in told]
        np.testing.assert_allclose(shown, chances[best], atol=2e-4)
    last = places.last
    own = tired.manifest["steps"][row]
    assert number(last.locator(".predictions li").first.inner_text().split(" ")[1]) == pytest.approx(
        own["top"][0]["probability"], abs=1e-4
    )
    expect(last.locator(".predictions .written")).to_contain_text("✓")
    expect(last).to_contain_text("output")


@pytest.mark.long
def test_lengths_and_changes(page: Page, tired: Pass) -> None:
    page.goto(tired.url("path", kind="encoder", layer=1, head=1, query=8))
    places = page.locator("#view-path .path > li")
    expect(places).to_have_count(1 + 2 * 2)
    expect(page.locator("#view-path .description")).to_contain_text("The path of it through the encoder")
    expect(page.locator("#view-path .description")).to_contain_text("There are no predictions here")
    expect(page.locator("#view-path .predictions")).to_have_count(0)
    streams = [
        tired.numpy.streams[name][7] for name in ("encoder.embedding", "encoder.0.self", "encoder.0.feed_forward")
    ]
    for place, after in enumerate(streams):
        expect(places.nth(place)).to_contain_text(f"length {np.linalg.norm(after):.2f}")
        if place:
            before = streams[place - 1]
            cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
            change = np.linalg.norm(after - before) / np.linalg.norm(before)
            expect(places.nth(place)).to_contain_text(f"changed by {change:.0%}, cosine to previous {cosine:.2f}")
    page.get_by_text("Show the numbers as a table").click()
    lines = cells(page.locator("#view-path table"))[1:]
    for line, stream in zip(lines, streams, strict=False):
        np.testing.assert_allclose([number(text) for text in line[1:9]], stream[:8], atol=2e-3)


def test_from_word_to_word(page: Page, tired: Pass) -> None:
    page.goto(tired.url("path", kind="encoder", layer=1, head=1, query=1))
    view = page.locator("#view-path")
    expect(view.get_by_role("button", name="← Previous")).to_be_disabled()
    view.get_by_role("button", name="Next →").press("Enter")
    expect(view.locator(".description")).to_contain_text("The path of animal")
    expect(view.get_by_role("button", name="Next →")).to_be_focused()
    view.get_by_label("Follow").select_option("decoder")
    expect(view.locator(".predictions").first).to_be_visible()
    view.get_by_label("Word: reads → writes").select_option("3")
    expect(view.locator(".path > li")).to_have_count(7)
    assert "query=4" in page.url
