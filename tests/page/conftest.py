"""A real server with the demo model, and a real browser that looks at it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.inspection.models import new_bundle
from tests.server.serving import serve_process

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REQUIRED = "HEEDFUL_BROWSER_REQUIRED"
"""Set where a missing browser is a failure, not a reason to skip."""
TIRED = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="session")
def address(demo_model: Path) -> Iterator[str]:
    """A server with the demo model."""
    with serve_process(demo_model, "--device", "cpu") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output


@pytest.fixture(scope="session")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a model that knows nothing, and so takes sentences of any length whole."""
    folder = tmp_path_factory.mktemp("untaught")
    new_bundle(layers=(2, 2)).save(folder)
    with serve_process(folder, "--device", "cpu") as process:
        yield process.address


@pytest.fixture(scope="package")  # no longer: while it runs no other test can have an event loop
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or another one on the path."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        assert REQUIRED not in os.environ, "no browser: apt-get install chromium"
        pytest.skip("no browser on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """An empty tab; at the end there was no console error, and no request to any other host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    tab = context.new_page()
    troubles: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not getattr(tab, "expects_errors", False):
            troubles.append(message.text)

    def asked(request: Request) -> None:
        host = urlsplit(request.url)
        if host.scheme not in ("data", "blob", "file") and host.hostname != "127.0.0.1":
            troubles.append(f"asked {request.url}")

    tab.on("console", heard)
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("request", asked)
    tab.set_default_timeout(15_000)
    yield tab
    context.close()
    assert not troubles, troubles
