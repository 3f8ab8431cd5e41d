"""Errors show a message, and one click recovers."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.server.server_process import ServeProcess, serve_process
from tests.web.conftest import TIRED
from tests.web.views import VIEW_SELECTORS, build_link, open_view

pytestmark = pytest.mark.long

RESET_LABEL = "Translate with default settings"


def test_invalid_url_parameters_fall_back(page: Page, address: str) -> None:
    """A link from another model or sentence falls back to valid values, which the URL then shows."""
    page.goto(address + build_link("nowhere", model="xx-yy", layer=99, head=99, kind="middle"))
    expect(page.locator("#view-translate .map-head").first).to_be_visible()
    assert "/#/translate?model=en-fr&" in page.url
    assert "kind=cross&layer=2&head=4" in page.url
    page.goto(address + build_link("head", layer=99, head=99, query=99, key=99, rows="2.99", also="1.99", step=99))
    expect(page.locator("#view-head h3").first).to_have_text("Cross-attention, layer 2, head 4")
    expect(page.locator("#view-head").get_by_label("Layer", exact=True)).to_have_value("1")
    assert page.url.endswith("kind=cross&layer=2&head=4&also=1&rows=2&step=16")
    page.goto(address + build_link("cell", kind="encoder", layer="1.5", head="-3", query="1e400", key="\u0661"))
    expect(page.locator("#view-cell [data-step=norm]")).to_be_visible()
    page.goto(address + build_link("nowhere", "The dog was tired.", model="xx-yy"))  # within the page
    expect(page.locator(".source-word").nth(1)).to_have_text("dog")
    expect(page.get_by_label("Model")).to_have_value("en-fr")
    page.goto(address + "/#/head?%E0%A4%A=%&text=%FF&head=")
    expect(page.locator("#view-head")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize(
    ("parameter", "message"),
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
def test_invalid_request_shows_error_and_reset(page: Page, address: str, parameter: str, message: str) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    page.goto(address + build_link("head") + f"&{parameter}")
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator(".result")).to_contain_text("No translation")
    page.get_by_role("link", name="Map", exact=True).click()  # does not show another sentence instead
    expect(page.locator(".map-head")).to_have_count(0)
    page.get_by_role("button", name=RESET_LABEL).click()
    expect(page.locator("#view-map .map-head").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".result")).to_contain_text("fatigué")


def test_invalid_prefix_chip_removes_it(page: Page, address: str) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]
    page.goto(address + build_link("translate", prefix="999999"))
    page.get_by_role("button", name="Remove: Forced start: 1 token").click()
    expect(page.locator(".result")).to_contain_text("fatigué")
    expect(page.get_by_role("alert")).to_be_hidden()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def serve_on_port(port: int, model: Path) -> Iterator[ServeProcess]:
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
    with serve_on_port(port, demo_model) as process:
        open_view(page, address, "translate")
        process.stop(signal.SIGTERM)
        page.get_by_role("link", name="Word path").click()  # requests tensors
        expect(alert).to_contain_text("The server does not respond")
        page.get_by_label("Text to translate").fill("The dog was tired.")
        expect(page.locator(".result")).to_contain_text("No translation")
        expect(alert).to_contain_text("heedful serve")
        page.get_by_role("button", name="Try again").click()
        expect(alert).to_be_visible()  # still no server
    with serve_on_port(port, demo_model) as process:
        page.get_by_role("button", name="Try again").press("Enter")
        expect(page.locator("#view-path .last")).to_be_visible()
        expect(alert).to_be_hidden()
        expect(page.locator("main")).to_be_focused()  # the focus moves on when the button disappears
        process.stop(signal.SIGTERM)
    with serve_on_port(port, demo_model):  # a new server does not have the trace
        for view in ("positions", "cell", "decode"):
            page.get_by_role("navigation", name="Views").locator(f"a[href*='/{view}?']").click()
            expect(page.locator(f"#view-{view} {VIEW_SELECTORS[view]}").first).to_be_visible()
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
        page.reload()  # the key is stored for this tab
        expect(page.locator(".map-head").first).to_be_visible()


def test_busy_server_shows_error_and_retry(page: Page, address: str) -> None:
    """The server's message is shown; a click retries the failed view, and other views work without one."""
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
    """If the server evicts traces immediately, the page does not request them forever."""
    page.expects_errors = True  # type: ignore[attr-defined]
    trace_requests: list[str] = []
    page.on(
        "request", lambda request: trace_requests.append(request.url) if request.url.endswith("/api/trace") else None
    )
    page.route("**/tensors?*", lambda route: route.fulfill(status=404, json={"error": "no longer kept"}))
    page.goto(address + build_link("head"))
    expect(page.get_by_role("alert")).to_contain_text("No longer kept.")
    assert len(trace_requests) == 2
    page.unroute("**/tensors?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#view-head .strongest li").first).to_be_visible()


def test_first_trace_is_requested_once(page: Page, address: str) -> None:
    trace_requests: list[str] = []
    page.on(
        "request", lambda request: trace_requests.append(request.url) if request.url.endswith("/api/trace") else None
    )
    page.goto(address)
    expect(page.locator(".map-head").first).to_be_visible()
    assert len(trace_requests) == 1
    assert TIRED.split()[1] in (page.locator("textarea").input_value())


def test_server_without_pytorch_translates_and_names_extra(page: Page, demo_model: Path) -> None:
    page.expects_errors = True  # type: ignore[attr-defined]  # the browser logs the 501
    with serve_process(demo_model, missing=("torch", "matplotlib")) as process:
        page.goto(process.address)
        expect(page.get_by_text("Inspecting a model needs torch (pip install 'heedful[train]').")).to_be_visible()
        page.get_by_label("Text", exact=True).fill(TIRED)
        page.get_by_role("button", name="Translate").click()
        expect(page.locator(".workbench .result")).to_contain_text("fatigué")
        expect(page.get_by_label("Languages")).to_have_text("en → fr")
        expect(page.locator("header")).to_have_text("Heedful")
        expect(page.get_by_role("alert")).to_be_hidden()
        page.get_by_label("Text", exact=True).fill("x " * 5_000)
        page.get_by_role("button", name="Translate").click()
        expect(page.locator(".workbench .result")).not_to_contain_text("fatigué")
