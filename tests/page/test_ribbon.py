"""The ribbon: words that are hardly drawn from, and sentences that are longer than the window is wide."""

import re
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, expect

from heedful.bundle import Bundle
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.inspection.trace import by_words
from tests.page.conftest import TIRED

LONG = " ".join(["The animal didn't cross the street because it was too tired"] * 4)


def test_words_that_hardly_any_draws_from_are_dashed(page: Page, address: str, demo_model: Path) -> None:
    found = record(Bundle.load(demo_model), Asked(source=TIRED))
    layer = found.manifest["ribbon"]["layer"]
    weights = by_words(found.seen.weights("cross", layer).mean(0), found.seen.written, found.seen.source)
    drawn = weights[:-1].sum(0).tolist()  # without the end's row
    words = found.seen.source.words
    expected = [
        word for word, sum_ in zip(words, drawn, strict=True) if sum_ < 0.3 and word not in (".", "</s>")
    ]
    page.goto(address)
    expect(page.locator(".band.strong").first).to_be_attached()
    dashed = page.locator(".source-word.left-out")
    expect(dashed).to_have_text(expected)
    caption = page.locator(".ribbon .legend")
    if expected:
        expect(dashed.first).to_have_css("border-top-style", "dashed")
        expect(caption).to_contain_text(f"“{expected[0]}”")
        expect(caption).to_contain_text("hardly any word of the translation draws from it")
    else:
        expect(caption).not_to_contain_text("Dashed")


def test_a_long_ribbon_says_that_it_goes_on(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 1400})
    page.goto(f"{address}/#/map?{urlencode({'text': LONG})}")
    frame, scroller = page.locator(".ribbon-frame"), page.locator(".ribbon-scroll")
    expect(frame).to_have_class("ribbon-frame more-right")
    scroller.evaluate("(box) => (box.scrollLeft = box.scrollWidth)")
    expect(frame).to_have_class("ribbon-frame more-left")
    steps = page.locator(".target-word").count()
    page.goto(f"{address}/#/map?{urlencode({'text': LONG, 'step': steps // 2})}")
    chosen = page.locator(".target-word[aria-pressed=true]")
    expect(frame).to_have_class(re.compile("more-left more-right|more-right more-left"))
    expect(chosen).to_be_in_viewport(ratio=1)
    before = scroller.evaluate("(box) => box.scrollLeft")
    with page.expect_download():
        page.get_by_role("button", name="Download SVG of the ribbon").click()
    assert (
        scroller.evaluate("(box) => box.scrollLeft") == before
    )  # a picture shows all of it, and moves nothing
