"""Speed of the page: from Ctrl+Enter to the translation and the map, bytes of the first screen, nodes.

    python benchmarks/page_speed.py MODEL [--tries 20]

A real ``heedful serve`` and a real Chromium on this machine, 1280 x 900. Bytes are those transferred, with headers
and an empty cache. Sentences have 12, 60 and 200 words: a model with a smaller maximum length splits the text, so
the number of words of one trace is printed.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

NOUNS = ["animal", "dog", "cat", "girl", "boy", "bird", "horse"]
ADJECTIVES = ["tired", "hungry", "wide", "open"]
LENGTHS = (12, 60, 200)
WAIT_UNTIL_DRAWN = """() => new Promise(resolve => {
  const check = () => {
    const first = document.querySelector("#view-translate .map-head");
    const ready = first && !first.dataset.old && !document.querySelector(".workbench [aria-busy=true]");
    requestAnimationFrame(ready ? () => resolve(performance.now()) : check);
  };
  check();
})"""
"""Wait until the translation is shown, the map is redrawn and a frame is painted."""
PREPARE = """() => {
  document.querySelector("#view-translate .map-head").dataset.old = "yes";
  addEventListener("keydown", ({ key }) => { if (key === "Enter") window.startTime = performance.now(); }, true);
}"""


@contextmanager
def run_server(model: str) -> Iterator[str]:
    """The address of a server."""
    command = [sys.executable, "-m", "heedful", "serve", model, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        for line in process.stderr:
            if match := re.search(r"serving on (http://\S+?);", line):
                yield match[1]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(30)


def measure_first_screen(browser: Browser, address: str) -> tuple[int, int, float]:
    """Bytes and requests of the first screen with an empty cache, and milliseconds until the map is drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    received: list[int] = []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    start_time = time.perf_counter()
    page.goto(address)
    page.locator("#view-translate .map-head canvas").first.wait_for()
    milliseconds = (time.perf_counter() - start_time) * 1000
    page.wait_for_load_state("networkidle")
    context.close()
    return int(sum(received)), len(received), milliseconds


def measure_enter(page: Page, number: int) -> float:
    """Milliseconds from Ctrl+Enter in the field to the translation and the map of a new sentence."""
    noun, adjective = NOUNS[number % len(NOUNS)], ADJECTIVES[number % len(ADJECTIVES)]
    field = page.get_by_label("Text to translate")
    page.evaluate("window.held ??= window.setTimeout, window.setTimeout = () => 1")  # typing sends no request
    field.fill(f"The {noun} didn't cross the street because it was too {adjective}.")
    page.evaluate("window.setTimeout = window.held")
    page.evaluate(PREPARE)
    field.press("Control+Enter")
    end_time: float = page.evaluate(WAIT_UNTIL_DRAWN)
    start_time: float = page.evaluate("window.startTime")
    return end_time - start_time


def count_nodes(page: Page, address: str, word_count: int) -> tuple[int, int]:
    """Tokens of a sentence as the model reads it, and elements of its first screen."""
    text = "The animal " + "and the dog " * ((word_count - 8) // 3) + "was too tired to cross"
    page.goto("about:blank")
    page.goto(f"{address}/#/translate?text={'+'.join(text.split())}")
    page.locator("#view-translate .map-head canvas").first.wait_for()
    page.wait_for_load_state("networkidle")
    tokens: int = page.locator(".source-word").count()
    elements: int = page.evaluate("document.querySelectorAll('*').length")
    return tokens, elements


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder, as for heedful serve")
    parser.add_argument("--tries", type=int, default=20)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with run_server(options.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        size, requests, milliseconds = measure_first_screen(browser, address)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.locator("#view-translate .map-head canvas").first.wait_for()
        measure_enter(page, 1)  # warm; 0 is the sentence that the page opens with
        times = [measure_enter(page, number) for number in range(2, options.tries + 2)]
        middle, slow = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        print(f"{Path(options.model).name}, {options.tries} tries")
        print(f"| Enter to translation and map | p50 {middle:.0f} ms | p95 {slow:.0f} ms |")
        print(f"| first screen, empty cache | {size / 1000:.0f} kB | {requests} requests, {milliseconds:.0f} ms |")
        for length in LENGTHS:
            tokens, elements = count_nodes(page, address, length)
            print(f"| nodes, {length} tokens requested | {elements} | {tokens} words in one trace |")
        browser.close()


if __name__ == "__main__":
    main()
