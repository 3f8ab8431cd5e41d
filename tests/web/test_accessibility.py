"""Accessibility: no axe violations, keyboard navigation, and links that restore the complete state."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import TIRED
from tests.web.views import VIEW_SELECTORS, build_link, open_view

pytestmark = pytest.mark.long  # keyboard and screen reader through all views

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
SELECTION = {
    "sentence": 2,
    "kind": "encoder",
    "layer": 2,
    "head": 3,
    "query": 4,
    "key": 2,
    "also": "1.4",
    "rows": "1.6",
    "words": "no",
    "step": 5,
    "beam": 3,
    "temperature": 1.5,
    "off": "cross.1.2,encoder.1.3",
    "hidden": "2.11",
    "checkpoint": 1228,
    "lesson": 3,
}
"""Every field of the selection but the view, the model, the text and the forced start."""
STOPS = "a[href], button, select, input, textarea, summary, [tabindex='0']"
VALUES = "all => all.map(each => each.value)"
TWO_SENTENCES = f"The dog was tired. {TIRED}"


def find_violations(page: Page, rules: str = "") -> list[str]:
    """The violations that axe reports, with the first element of each."""
    page.evaluate(AXE)
    result: dict[str, Any] = page.evaluate(f"axe.run(document, {{ resultTypes: ['violations'] {rules} }})")
    return [
        f"{violation['impact']} {violation['id']}: {violation['nodes'][0]['html']}"
        for violation in result["violations"]
    ]


def test_every_view_has_no_axe_violations(page: Page, address: str) -> None:
    for view in VIEW_SELECTORS:
        open_view(page, address, view)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert not find_violations(page), view
    open_view(page, address, "experiments", off="cross.1.2", beam=3)
    assert not find_violations(page)
    page.locator(".target-word").nth(3).click()
    expect(page.locator("button.alternative").first).to_be_visible()
    assert not find_violations(page)
    page.expects_errors = True  # type: ignore[attr-defined]
    page.goto(address + build_link("head", prefix="9999"))
    expect(page.get_by_role("alert")).to_be_visible()
    assert not find_violations(page)


def test_dark_theme_has_contrast(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="dark")
    for view in VIEW_SELECTORS:
        open_view(page, address, view)
        assert not find_violations(page, ", runOnly: ['color-contrast']"), view


def describe_focus(page: Page) -> str:
    """The focused element and its outline."""
    description: str = page.evaluate(
        """() => {
          const { activeElement: at } = document;
          const box = at.querySelector(":scope > .ring"); // of a drawing, which has no outline
          const { outlineStyle, outlineWidth } = getComputedStyle(at);
          const name = at.getAttribute("aria-label") ?? at.closest("label")?.textContent ?? at.textContent;
          const ring = box && getComputedStyle(box).strokeWidth;
          return `${at.tagName} ${name} | ${ring ? `solid ${ring}` : `${outlineStyle} ${outlineWidth}`}`;
        }"""
    )
    return description


def test_keyboard_focus_is_visible(page: Page, address: str) -> None:
    """Tab goes through each view and leaves it again; the focused element is outlined."""
    for view in ("translate", "head", "cell", "decode", "experiments", "training", "lesson"):
        page.goto("about:blank")  # Tab starts at the top
        open_view(page, address, view)
        stops = page.locator(STOPS).evaluate_all(
            "all => all.filter(each => each.checkVisibility() && !each.disabled).length"
        )
        visited = []
        for _ in range(min(stops, 90)):
            page.keyboard.press("Tab")
            stop = describe_focus(page)
            if stop.startswith("BODY"):
                break
            assert stop.endswith("| solid 3px"), stop
            visited.append(stop)
        assert len(visited) >= min(stops, 90) * 0.9, (view, stops, len(visited))  # radio buttons share one stop
        page.keyboard.press("Shift+Tab")
        assert describe_focus(page) != visited[-1] or len(visited) == 1


def tab_to(page: Page, name: str) -> None:
    for _ in range(150):
        if describe_focus(page).split(" | ")[0] == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {name}")


def test_keyboard_only_reaches_cell(page: Page, address: str) -> None:
    """From an empty tab: type a sentence, open the map, a head, a cell."""
    page.goto(address)
    expect(page.locator(".map-head").first).to_be_visible()
    tab_to(page, "TEXTAREA Text to translate")
    page.keyboard.press("Control+A")
    page.keyboard.type("The dog was tired.")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".source-word")).to_have_count(6)
    tab_to(page, "A Map")
    page.keyboard.press("Enter")
    expect(page.locator("#view-map .map-head").first).to_be_visible()
    assert describe_focus(page).startswith("A Map")  # the link keeps the focus
    head = page.locator("#view-map .map-head").nth(1).get_attribute("aria-label")
    tab_to(page, f"BUTTON {head}")
    page.keyboard.press("Enter")
    expect(page.locator("#view-head .strongest li").first).to_be_visible()
    expect(page.locator("#view-head")).to_be_focused()  # the focus moves to the view
    tab_to(page, f"DIV {page.get_by_role('grid').get_attribute('aria-label')}")
    for key in ("Home", "PageUp", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#view-cell .cell-summary")).to_contain_text("dog attends to was")
    expect(page.locator("#view-cell")).to_be_focused()
    page.keyboard.press("Tab")
    assert describe_focus(page).startswith("SELECT Attention")
    page.go_back()
    expect(page.get_by_role("grid")).to_be_visible()


def parameters(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).fragment.partition("?")[2])


def test_shared_link_shows_same_view(page: Page, address: str) -> None:
    for view in ("translate", "head", "cell", "decode", "positions"):
        page.goto(address + build_link(view, TWO_SENTENCES, **SELECTION))
        expect(page.locator(f"#view-{view} {VIEW_SELECTORS[view]}").first).to_be_visible()
        url_parameters = parameters(page)
        assert {name: url_parameters[name] for name in SELECTION} == {n: [str(v)] for n, v in SELECTION.items()}
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.locator(f"#view-{view} {VIEW_SELECTORS[view]}").first).to_be_visible()
        expect(other.locator("main")).to_have_text(page.locator("main").text_content() or "")
        assert parameters(other) == url_parameters
        controls = f"#view-{view} select, #view-{view} input"
        values = [tab.locator(controls).evaluate_all(VALUES) for tab in (page, other)]
        assert values[0] == values[1]
        other.close()


def test_back_and_forward_restore_selection(page: Page, address: str) -> None:
    open_view(page, address, "translate")
    page.get_by_role("link", name="Head", exact=True).click()
    heading = page.locator("#view-head h3").first
    expect(heading).to_have_text("Cross-attention, layer 2, head 1")
    page.locator("#view-head").get_by_label("Head", exact=True).select_option("2")
    expect(heading).to_have_text("Cross-attention, layer 2, head 3")
    page.locator(".target-word").nth(10).click()
    page.locator("button.alternative", has_text="elle").first.click()
    expect(page.locator(".chip")).to_have_count(1)
    page.go_back()
    expect(page.locator(".chip")).to_have_count(0)
    expect(heading).to_have_text("Cross-attention, layer 2, head 3")
    page.go_back()
    expect(heading).to_have_text("Cross-attention, layer 2, head 1")
    expect(page.locator("#view-head").get_by_label("Head", exact=True)).to_have_value("0")
    page.go_back()
    expect(page.locator("#view-translate")).to_be_visible()
    for _ in range(3):
        page.go_forward()
    expect(page.locator(".chip")).to_have_count(1)
    expect(heading).to_have_text("Cross-attention, layer 2, head 3")
