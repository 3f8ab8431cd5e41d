"""The path of a word: its vector after each sublayer, and the predictions of the model there."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import TIRED
from tests.web.page_driver import TracedSentence, cells, parse_number, trace_sentence


@pytest.fixture(scope="module")
def traced(address: str, demo_model: Path) -> TracedSentence:
    return trace_sentence(address, demo_model, TIRED)


def test_path_of_target_word_is_drawn(page: Page, traced: TracedSentence) -> None:
    """The predictions of each stage equal NumPy's, the last ones those of the model; the target word is marked."""
    row = 7
    page.goto(traced.url("path", kind="cross", layer=1, head=1, query=row + 1))
    stages = page.locator("#view-path .path > li")
    expect(stages).to_have_count(1 + 2 * 3)
    input_subword, target_subword = (
        traced.manifest["sides"][side]["subwords"][row] for side in ("decoder_input", "target")
    )
    expect(page.locator("#view-path .description")).to_contain_text(
        f"reads {input_subword} and writes {target_subword}"
    )
    table = traced.numpy.tensors["decoder.embedding.table.weight"]
    names = [
        "decoder.embedding",
        *(f"decoder.{n}.{sublayer}" for n in range(2) for sublayer in ("self", "cross", "feed_forward")),
    ]
    for index, name in enumerate(names):
        logits = traced.numpy.streams[name][row] @ table.T
        logits[0] = -np.inf
        expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        best = expected.argsort()[::-1][:5]
        texts = stages.nth(index).locator(".predictions li").all_inner_texts()
        subwords = [traced.manifest["subwords"][str(token_id)] for token_id in best]
        assert [text.split(" ")[0] for text in texts] == subwords
        probabilities = [parse_number(text.split(" ")[1]) for text in texts]
        np.testing.assert_allclose(probabilities, expected[best], atol=2e-4)
    last = stages.last
    step = traced.manifest["steps"][row]
    assert parse_number(last.locator(".predictions li").first.inner_text().split(" ")[1]) == pytest.approx(
        step["top"][0]["probability"], abs=1e-4
    )
    expect(last.locator(".predictions .written")).to_contain_text("✓")
    expect(last).to_contain_text("output")


@pytest.mark.long
def test_path_of_source_word_shows_lengths_and_changes(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("path", kind="encoder", layer=1, head=1, query=8))
    stages = page.locator("#view-path .path > li")
    expect(stages).to_have_count(1 + 2 * 2)
    expect(page.locator("#view-path .description")).to_contain_text("The path of it through the encoder")
    expect(page.locator("#view-path .description")).to_contain_text("There are no predictions here")
    expect(page.locator("#view-path .predictions")).to_have_count(0)
    streams = [
        traced.numpy.streams[name][7] for name in ("encoder.embedding", "encoder.0.self", "encoder.0.feed_forward")
    ]
    for index, after in enumerate(streams):
        expect(stages.nth(index)).to_contain_text(f"length {np.linalg.norm(after):.2f}")
        if index:
            before = streams[index - 1]
            cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
            change = np.linalg.norm(after - before) / np.linalg.norm(before)
            expect(stages.nth(index)).to_contain_text(f"changed by {change:.0%}, cosine to previous {cosine:.2f}")
    page.get_by_text("Show the numbers as a table").click()
    lines = cells(page.locator("#view-path table"))[1:]
    for line, stream in zip(lines, streams, strict=False):
        np.testing.assert_allclose([parse_number(text) for text in line[1:9]], stream[:8], atol=2e-3)


def test_path_next_button_and_menus_select_word(page: Page, traced: TracedSentence) -> None:
    page.goto(traced.url("path", kind="encoder", layer=1, head=1, query=1))
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
