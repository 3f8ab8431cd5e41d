"""The ribbon: source words with little attention, and sentences wider than the window."""

import re
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, expect

from heedful.interpret.activations import aggregate_to_words
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from tests.web.conftest import TIRED

LONG = " ".join(["The animal didn't cross the street because it was too tired"] * 4)


def test_words_with_little_weight_are_dashed(page: Page, address: str, demo_model: Path) -> None:
    trace = compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED))
    layer = trace.manifest["alignment"]["layer"]
    weights = aggregate_to_words(
        trace.activations.weights("cross", layer).mean(0), trace.activations.target, trace.activations.source
    )
    coverage = weights[:-1].sum(0).tolist()  # without the row of END
    words = trace.activations.source.words
    expected = [word for word, sum_ in zip(words, coverage, strict=True) if sum_ < 0.3 and word not in (".", "</s>")]
    page.goto(address)
    expect(page.locator(".band.strong").first).to_be_attached()
    dashed = page.locator(".source-word.low-coverage")
    expect(dashed).to_have_text(expected)
    caption = page.locator(".ribbon .legend")
    if expected:
        expect(dashed.first).to_have_css("border-top-style", "dashed")
        expect(caption).to_contain_text(f"“{expected[0]}”")
        expect(caption).to_contain_text("almost no target word attends to it")
    else:
        expect(caption).not_to_contain_text("Dashed")


def test_long_ribbon_shows_overflow(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 1400})
    page.goto(f"{address}/#/map?{urlencode({'text': LONG})}")
    frame, scroller = page.locator(".ribbon-frame"), page.locator(".ribbon-scroll")
    expect(frame).to_have_class("ribbon-frame more-right")
    scroller.evaluate("(box) => (box.scrollLeft = box.scrollWidth)")
    expect(frame).to_have_class("ribbon-frame more-left")
    steps = page.locator(".target-word").count()
    page.goto(f"{address}/#/map?{urlencode({'text': LONG, 'step': steps // 2})}")
    selected_word = page.locator(".target-word[aria-pressed=true]")
    expect(frame).to_have_class(re.compile("more-left more-right|more-right more-left"))
    expect(selected_word).to_be_in_viewport(ratio=1)
    before = scroller.evaluate("(box) => box.scrollLeft")
    with page.expect_download():
        page.get_by_role("button", name="Download SVG of the ribbon").click()
    assert scroller.evaluate("(box) => box.scrollLeft") == before  # the export does not scroll the page
