"""Any sentence, any screen: no view fails, overflows, or grows with the sentence."""

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from tests.server.server_process import ask, wait_until
from tests.web.views import DRAWN, MOST_NODES, link, nodes, overflow, visit

pytestmark = pytest.mark.long  # every view at several sizes and themes

FORTY = "The animal didn't cross the street because it was too tired" + " and the dog was tired" * 5 + "."
STRANGE = {
    "arabic": "الحيوان متعب.",
    "chinese": "动物太累了，所以没有过马路。",
    "emoji": "The 🐘 was too tired 😴👨‍👩‍👧.",
    "combining": "Le caf\u0065\u0301 e\u0301tait ferme\u0301.",
    "zero width": "tired\u200b\u2060 dog\u00ad",
    "markup": "<b>tired</b> &amp; <script>alert(1)</script>",
}

MOVING = """[...document.querySelectorAll("*")].map(each => getComputedStyle(each)).filter(
  ({ transitionDuration, animationName }) => parseFloat(transitionDuration) > 0 || animationName !== "none"
).length"""


def test_every_view_logs_no_error(page: Page, address: str) -> None:
    """Console and requests are watched by the fixture."""
    for view in DRAWN:
        visit(page, address, view)
    for place in (
        {"kind": "encoder", "layer": 1, "head": 2, "query": 8, "key": 2, "words": "no"},
        {"kind": "decoder", "layer": 2, "head": "mean", "rows": "2.3", "also": "1.2"},
        {"beam": 4, "step": 3, "temperature": 2, "off": "cross.2.1", "lesson": 13, "checkpoint": ""},
    ):
        for view in DRAWN:
            page.goto(address + link(view, **place))
            expect(page.locator(f"#view-{view}")).to_be_visible()
    visit(page, address, "lesson", lesson=99)


def test_phone_layout(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for view in DRAWN:
        visit(page, address, view)
        assert overflow(page) == 0, view
        tabs = page.locator(".tabs")
        assert tabs.evaluate("tabs => tabs.scrollWidth <= tabs.clientWidth"), view  # all views are seen
    visit(page, address, "head", FORTY, kind="encoder", also="2.3.4")
    assert overflow(page) == 0


@pytest.mark.parametrize("name", STRANGE)
def test_unknown_scripts_show_warning(page: Page, address: str, name: str) -> None:
    for view in ("translate", "head", "cell", "path"):
        visit(page, address, view, STRANGE[name])
        expect(page.get_by_label("Text to translate")).to_have_value(STRANGE[name])
    expect(page.locator(".source-word").last).to_have_text("</s>")


def left(place: Locator) -> float:
    box = place.bounding_box()
    assert box
    return box["x"]


def test_right_to_left_text(page: Page, address: str) -> None:
    """Arabic words run to the left; the English and the numbers around them do not."""
    arabic = STRANGE["arabic"]
    visit(page, address, "head", arabic, kind="cross", layer=2, head=1, query=1, key=1)
    told = page.locator("#view-head .status-line").first
    expect(told).to_contain_text("attends to \u2068")  # a word that stands for itself
    words = page.locator("#view-head .strongest button").first
    parts = words.evaluate(
        """button => {
          const range = document.createRange();
          return [...button.childNodes].map(part => {
            range.selectNodeContents(part);
            return range.getBoundingClientRect().left;
          });
        }"""
    )
    assert parts == sorted(parts)  # who, "looks at", what, the weight
    visit(page, address, "cell", arabic, kind="encoder", layer=1, head=1)
    summary = page.locator("#view-cell .cell-summary b[dir=auto]")
    assert left(summary.nth(0)) < left(summary.nth(1))
    assert page.evaluate("getComputedStyle(document.body).direction") == "ltr"
    field = page.get_by_label("Text to translate")
    assert field.evaluate("field => getComputedStyle(field).direction") == "rtl"


def test_views_with_two_hundred_tokens_are_drawn(page: Page, untrained: str) -> None:
    """Every view of a very long sentence, as it opens and with all that can be unfolded."""
    text = " ".join(["The animal didn't cross the street because it was too tired"] * 18) + "."
    for view in (each for each in DRAWN if each != "training"):  # of which it has none
        visit(page, untrained, view, text, kind="encoder", beam=4)
        assert page.locator(".source-word").count() >= 199
        assert nodes(page) < MOST_NODES, view
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert nodes(page) < MOST_NODES, f"{view}, unfolded"
        assert overflow(page) == 0, view


def test_bytes_of_a_manifest(demo_model: Path) -> None:
    """At 40 tokens at most 60 kB, with a beam of 4, from a model that ends its sentences."""
    manifest = compute_trace(ModelFolder.load(demo_model), TraceRequest(source=FORTY, beam_size=4)).manifest
    assert 36 <= len(manifest["sides"]["source"]["ids"]) <= 44
    assert manifest["translation"]["complete"]
    assert len(gzip.compress(json.dumps(manifest).encode())) <= 60_000


def test_bytes_of_the_first_screen(page: Page, untrained: str) -> None:
    """Squeezed on the way; the small matrices have at most 150 kB, and the page is light too."""
    question = {"source": FORTY}
    packed = ask(untrained, "/api/trace", question, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    manifest: dict[str, Any] = json.loads(ask(untrained, "/api/trace", question).body)
    assert 36 <= len(manifest["sides"]["source"]["ids"]) <= 44
    assert len(packed.body) <= 1_000 * len(manifest["steps"])  # it knows nothing, not even when to stop
    names = ",".join(f"thumbnails.{kind}" for kind in ("encoder", "decoder", "cross"))
    assert len(ask(untrained, f"/api/trace/{manifest['id']}/tensors?names={names}").body) <= 150_000

    received: list[int] = []
    browser = page.context.new_cdp_session(page)
    browser.send("Network.enable")
    browser.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    visit(page, untrained, "translate", FORTY)
    expect(page.locator(".band").first).to_be_attached()
    assert 20_000 < sum(received) <= 500_000


def test_dark_and_light(page: Page, address: str) -> None:
    """The page follows the system, at once and in canvases too."""
    paper = "getComputedStyle(document.body).backgroundColor"
    darkest = """() => {
      const canvas = document.querySelector("#view-head .matrix canvas");
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(canvas.width / 2, canvas.height / 2, 1, 1);
      return data[0] + data[1] + data[2];
    }"""
    page.emulate_media(color_scheme="light")
    visit(page, address, "head", kind="encoder", layer=1, head=1)
    light, drawn = page.evaluate(paper), page.evaluate(darkest)
    page.emulate_media(color_scheme="dark")
    # Asked from here: a function that waits in the page would be against its security policy.
    wait_until(lambda: page.evaluate(paper) != light)
    wait_until(lambda: page.evaluate(darkest) != drawn)
    assert light == "rgb(255, 255, 255)"


def test_reduced_motion(browser: Browser, address: str) -> None:
    context = browser.new_context(reduced_motion="reduce")
    tab = context.new_page()
    tab.goto(f"{address}/#/translate?text={quote(FORTY)}")
    expect(tab.locator(".map-head").first).to_be_visible()
    tab.evaluate("document.querySelector('.result').setAttribute('aria-busy', 'true')")
    assert tab.evaluate(MOVING) == 0
    tab.emulate_media(reduced_motion="no-preference")
    assert tab.evaluate(MOVING) > 0
    context.close()


SMALL = """[...document.querySelectorAll("button, select, input, summary, [role=button]")].filter(
  each => each.offsetParent && Math.min(each.offsetWidth, each.offsetHeight) < 24
).map(each => each.outerHTML.slice(0, 80))"""


def test_targets_are_large_enough_for_a_finger(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("translate", "head"):
        visit(page, address, view, kind="encoder", words="no")
        assert page.evaluate(SMALL) == [], view
