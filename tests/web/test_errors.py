"""What can go wrong does so in words, and one click leads on."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.server.server_process import ServeProcess, serve_process
from tests.web.conftest import TIRED
from tests.web.views import DRAWN, link, visit

pytestmark = pytest.mark.long

PLAIN = "Translate with default settings"


def test_invalid_url_parameters_fall_back(page: Page, address: str) -> None:
    """A link from another model or sentence leads to the nearest thing there is, and says it in the URL."""
    page.goto(address + link("nowhere", model="xx-yy", layer=99, head=99, kind="middle"))
    expect(page.locator("#view-translate .map-head").first).to_be_visible()
    assert "/#/translate?model=en-fr&" in page.url
    assert "kind=cross&layer=2&head=4" in page.url
    page.goto(address + link("head", layer=99, head=99, query=99, key=99, rows="2.99", also="1.99", step=99))
    expect(page.locator("#view-head h3").first).to_have_text("Cross-attention, layer 2, head 4")
    expect(page.locator("#view-head").get_by_label("Layer", exact=True)).to_have_value("1")
    assert page.url.endswith("kind=cross&layer=2&head=4&also=1&rows=2&step=16")
    page.goto(address + link("cell", kind="encoder", layer="1.5", head="-3", query="1e400", key="\u0661"))
    expect(page.locator("#view-cell [data-step=norm]")).to_be_visible()
    page.goto(address + link("nowhere", "The dog was tired.", model="xx-yy"))  # within the page
    expect(page.locator(".source-word").nth(1)).to_have_text("dog")
    expect(page.get_by_label("Model")).to_have_value("en-fr")
    page.goto(address + "/#/head?%E0%A4%A=%&text=%FF&head=")
    expect(page.locator("#view-head")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("prefix=999999.3", "prefix_ids contains an invalid token id"),
        ("prefix=-4", "prefix_ids contains an invalid token id"),
        ("off=cross.10.10", "Layer 10 does not exist"),
        ("off=cross.2.10", "Head 10 does not exist"),
        ("hidden=99", "masked_source has position 98, which does not exist"),
        ("checkpoint=77", "There is no checkpoint of update 77"),
        ("sentence=99", "Segment 98 does not exist"),
    ],
)
def test_invalid_request_shows_error_and_reset(page: Page, address: str, asked: str, said: str) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    page.goto(address + link("head") + f"&{asked}")
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator(".result")).to_contain_text("No translation")
    page.get_by_role("link", name="Map", exact=True).click()  # shows no other sentence as if it were this one
    expect(page.locator(".map-head")).to_have_count(0)
    page.get_by_role("button", name=PLAIN).click()
    expect(page.locator("#view-map .map-head").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".result")).to_contain_text("fatigué")


def test_invalid_prefix_chip_removes_it(page: Page, address: str) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    page.goto(address + link("translate", prefix="999999"))
    page.get_by_role("button", name="Remove: Forced start: 1 token").click()
    expect(page.locator(".result")).to_contain_text("fatigué")
    expect(page.get_by_role("alert")).to_be_hidden()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def serving(port: int, model: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(model, "--device", "cpu", "--port", str(port))
    try:
        assert process.address.endswith(str(port))
        yield process
    finally:
        process.close()


def test_restarted_server_page_recovers(page: Page, demo_model: Path) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    alert = page.get_by_role("alert")
    with serving(port, demo_model) as process:
        visit(page, address, "translate")
        process.end(signal.SIGTERM)
        page.get_by_role("link", name="Word path").click()  # asks for tensors
        expect(alert).to_contain_text("The server does not respond")
        page.get_by_label("Text to translate").fill("The dog was tired.")
        expect(page.locator(".result")).to_contain_text("No translation")
        expect(alert).to_contain_text("heedful serve")
        page.get_by_role("button", name="Try again").click()
        expect(alert).to_be_visible()  # still no server
    with serving(port, demo_model) as process:
        page.get_by_role("button", name="Try again").press("Enter")
        expect(page.locator("#view-path .last")).to_be_visible()
        expect(alert).to_be_hidden()
        expect(page.locator("main")).to_be_focused()  # the button is gone, the keyboard is not
        process.end(signal.SIGTERM)
    with serving(port, demo_model):  # knows nothing of the trace
        for view in ("positions", "cell", "decode"):
            page.get_by_role("navigation", name="Views").locator(f"a[href*='/{view}?']").click()
            expect(page.locator(f"#view-{view} {DRAWN[view]}").first).to_be_visible()
        expect(alert).to_be_hidden()


def test_unreachable_server_shows_error(page: Page, address: str) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    page.route("**/api/models", lambda route: route.abort(), times=1)
    page.goto(address)
    expect(page.get_by_role("alert")).to_contain_text("The server does not respond")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".result")).to_contain_text("fatigué")


def test_missing_api_key_shows_key_field(page: Page, demo_model: Path, tmp_path: Path) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    with serve_process(demo_model, "--device", "cpu", "--api-key-file", keys) as process:
        page.goto(process.address)
        field = page.get_by_label("API key")
        expect(field).to_be_visible()
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("key")
        field.fill("sesame")
        page.get_by_role("button", name="Use key").click()
        expect(page.locator(".result")).to_contain_text("fatigué")
        expect(page.get_by_role("alert")).to_be_hidden()
        page.reload()  # the key is kept for this tab
        expect(page.locator(".map-head").first).to_be_visible()


def test_busy_server_shows_error_and_retry(page: Page, address: str) -> None:
    """Said as the server says it; the view that failed comes with a click, and other views without one."""
    page.expects_errors = True  # type: ignore[attr-defined]

    def busy(route: Route) -> None:
        route.fulfill(status=503, json={"error": "too many trace requests"}, headers={"Retry-After": "1"})

    page.route("**/api/trace", busy, times=1)
    page.goto(f"{address}/")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Too many trace requests.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".result")).to_contain_text("fatigué")
    page.route("**/cell?*", busy, times=1)
    page.get_by_role("link", name="Cell", exact=True).click()
    expect(alert).to_contain_text("Too many trace requests.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#view-cell [data-step=norm]")).to_be_visible()
    expect(alert).to_be_hidden()
    page.route("**/tensors?*", busy, times=1)
    page.get_by_role("link", name="Positions", exact=True).click()
    expect(alert).to_be_visible()
    page.get_by_role("link", name="Decode", exact=True).click()
    expect(page.locator("#view-decode .node").first).to_be_visible()
    expect(alert).to_be_hidden()


def test_unknown_trace_is_requested_once(page: Page, address: str) -> None:
    """A server that forgets at once, or another one that answers, is no reason to ask for ever."""
    page.expects_errors = True  # type: ignore[attr-defined]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/api/trace") else None)
    page.route("**/tensors?*", lambda route: route.fulfill(status=404, json={"error": "no longer kept"}))
    page.goto(address + link("head"))
    expect(page.get_by_role("alert")).to_contain_text("No longer kept.")
    assert len(asked) == 2
    page.unroute("**/tensors?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#view-head .strongest li").first).to_be_visible()


def test_first_trace_is_requested_once(page: Page, address: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/api/trace") else None)
    page.goto(address)
    expect(page.locator(".map-head").first).to_be_visible()
    assert len(asked) == 1
    assert TIRED.split()[1] in (page.locator("textarea").input_value())
