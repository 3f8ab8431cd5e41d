"""Every view of the page, with a selector that is visible when it is drawn."""

from urllib.parse import quote

from playwright.sync_api import Page, expect

from tests.web.conftest import TIRED

VIEW_SELECTORS = {
    "translate": ".map-head",
    "map": ".map-head",
    "head": ".strongest li",
    "cell": "[data-step=residual]",
    "path": ".path .last",
    "decode": ".tree .node",
    "positions": "[data-figure=padding] .legend:not(:empty)",
    "experiments": ".word-link",
    "training": ".checkpoint-frame[aria-pressed=true]",
    "lesson": ".question",
}
"""The selector of what a view draws last."""
UNSUPPORTED_VIEWS = {"causal_lm": {"lesson"}, "masked_lm": {"decode", "lesson"}}
"""Views that a language model does not have."""
MAX_NODES = 5000


def build_link(view: str, text: str = TIRED, **selection: object) -> str:
    """The path of a view; numbers count from 1."""
    return f"/#/{view}?text={quote(text)}" + "".join(f"&{name}={value}" for name, value in selection.items())


def open_view(page: Page, address: str, view: str, text: str = TIRED, **selection: object) -> None:
    """Open a view, within the page if it is open already, and wait until it is drawn."""
    page.goto(address + build_link(view, text, **selection))
    expect(page.locator(f"#view-{view} {VIEW_SELECTORS[view]}").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def count_nodes(page: Page) -> int:
    """The number of elements of the page."""
    count: int = page.evaluate("document.querySelectorAll('*').length")
    return count


def measure_overflow(page: Page) -> int:
    """How many pixels the page is wider than the window."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return pixels
