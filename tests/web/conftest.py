"""A real server with the demo model, and a real browser."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.interpret.small_models import new_model_folder
from tests.server.server_process import serve_folders, serve_process

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REQUIRED = "HEEDFUL_BROWSER_REQUIRED"
"""Set where a missing browser is a failure, not a reason to skip."""
expect.set_options(timeout=60_000)  # milliseconds: the page may wait for a model on a busy machine
TIRED = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="session")
def address(demo_model: Path) -> Iterator[str]:
    """A server with the demo model."""
    with serve_process(demo_model, "--device", "cpu") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output


@pytest.fixture(scope="session")
def untrained_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with an untrained model, which accepts sentences of any length."""
    folder = tmp_path_factory.mktemp("untrained")
    new_model_folder(layers=(2, 2)).save(folder)
    with serve_folders(folder) as address:
        yield address


@pytest.fixture(scope="package")  # no longer: while it runs no other test can have an event loop
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or another one on the path."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        assert REQUIRED not in os.environ, "no browser: apt-get install chromium"
        pytest.skip("no browser on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """An empty tab; at the end there was no console error, and no request to any other host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    tab = context.new_page()
    problems: list[str] = []

    def record_message(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not getattr(tab, "expects_errors", False):
            problems.append(message.text)

    def record_request(request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob", "file") and url.hostname != "127.0.0.1":
            problems.append(f"requested {request.url}")

    tab.on("console", record_message)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", record_request)
    tab.set_default_timeout(60_000)
    yield tab
    context.close()
    assert not problems, problems
