"""Every view of the page, and what stands there when it is drawn."""

from urllib.parse import quote

from playwright.sync_api import Page, expect

from tests.web.conftest import TIRED

DRAWN = {
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
"""The views with what they draw last."""
MOST_NODES = 5000


def link(view: str, text: str = TIRED, **place: object) -> str:
    """The path of a view; numbers count from 1."""
    return f"/#/{view}?text={quote(text)}" + "".join(f"&{name}={value}" for name, value in place.items())


def visit(page: Page, address: str, view: str, text: str = TIRED, **place: object) -> None:
    """Go there, by a link within the page if it is open, and wait until all is drawn."""
    page.goto(address + link(view, text, **place))
    expect(page.locator(f"#view-{view} {DRAWN[view]}").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def nodes(page: Page) -> int:
    """Elements of the page."""
    found: int = page.evaluate("document.querySelectorAll('*').length")
    return found


def overflow(page: Page) -> int:
    """Pixels that stand out at the side of the window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found
