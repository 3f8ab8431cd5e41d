"""Take the screenshots of the page for the documents in a real browser; `make figures` runs this.

python docs/figures/page_pictures.py MODEL FOLDER
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

SENTENCE = "The animal didn't cross the street because it was too tired."
SCREENSHOTS = {
    # name: view and selection, width, height, dark theme
    "page-translate": ("translate?step=11", 1200, 900, False),
    "page-cell": ("cell?kind=cross&layer=2&head=4&query=11&key=2&step=11", 1200, 1500, False),
    "page-decode": ("decode?beam=4&step=11", 1200, 1080, True),
    "page-experiments": ("experiments?off=cross.1.4&step=11", 1200, 1130, False),
    "page-path": ("path?step=11", 1200, 1300, False),
}


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    server = subprocess.Popen(
        [sys.executable, "-m", "heedful", "serve", model, "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr
        address = next(match[1] for line in server.stderr if (match := re.search(r"serving on (http://[^;\s]+)", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            for name in SCREENSHOTS:
                take_screenshot(browser, address, name, folder / f"{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


def take_screenshot(browser: Browser, address: str, name: str, path: Path) -> None:
    """Open the view, wait until everything is drawn, and save the screenshot."""
    view, width, height, dark = SCREENSHOTS[name]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    for _ in range(100):  # the server may still be loading the model
        if page.request.get(f"{address}/ready").ok:
            break
        page.wait_for_timeout(100)
    page.goto(f"{address}/#/{view}&text={quote(SENTENCE)}")
    page.locator(".view:not([hidden]) :is(canvas, table, svg)").filter(visible=True).first.wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
