"""Language models and masked models on the page: every view on offer opens, with the model's own numbers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from heedful.generation.config import GenerationConfig
from heedful.inference.text_generation import fill_blanks
from heedful.interpret.arithmetic import build_model_attention
from heedful.interpret.trace import Trace, compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.web.standalone import pack_trace, render_standalone_page
from tests.interpret.small_models import new_model_folder
from tests.server.server_process import serve_process
from tests.web import views
from tests.web.page_driver import cells, number, open_table
from tests.web.test_standalone import from_disk
from tests.web.views import link, overflow

pytestmark = pytest.mark.long  # trains two language models

TEXTS = {"writer": "The animal didn't", "filler": "The __ didn't cross the __ because it was tired."}
KINDS = {"writer": "decoder", "filler": "encoder"}
DRAWN = {
    **{view: drawn for view, drawn in views.DRAWN.items() if view != "lesson"},
    "positions": "[data-figure=products] .legend:not(:empty)",
    "experiments": ".head-ranking button",
    "training": ".intro",
}
"""The views with what they draw last; there is no padding to see in one, and no snapshot of either."""
OFFERED = {
    "writer": ["Generate", "Map", "Head", "Cell", "Word path", "Decode", "Positions", "Experiments", "Training"],
    "filler": ["Fill in", "Map", "Head", "Cell", "Word path", "Positions", "Experiments", "Training"],
}
BOTH = pytest.mark.parametrize("name", TEXTS)


@pytest.fixture(scope="module")
def bundles() -> dict[str, ModelFolder]:
    """Untrained models: one that generates text, and one that fills in blanks."""
    writer = new_model_folder("bpe", layers=(2, 2), architecture="causal_lm")
    short = writer.config.model_copy(update={"generation": GenerationConfig(max_length_offset=12)})
    return {
        "writer": replace(writer, config=short),
        "filler": new_model_folder("bpe", layers=(2, 2), architecture="masked_lm"),
    }


@pytest.fixture(scope="module")
def plain(bundles: dict[str, ModelFolder], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with both."""
    folder = tmp_path_factory.mktemp("plain")
    for name, bundle in bundles.items():
        bundle.save(folder / name)
    with serve_process(*(folder / name for name in bundles), "--device", "cpu") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output


@pytest.fixture(scope="module")
def made(bundles: dict[str, ModelFolder]) -> dict[str, Trace]:
    """The same passes, recomputed."""
    return {name: compute_trace(bundle, TraceRequest(source=TEXTS[name])) for name, bundle in bundles.items()}


def visit(page: Page, address: str, name: str, view: str, **place: object) -> Locator:
    page.goto(address + link(view, TEXTS[name], model=name, **place))
    shown = page.locator(f"#view-{view}")
    expect(shown.locator(DRAWN[view]).first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    return shown


@BOTH
def test_every_listed_view_opens(name: str, page: Page, plain: str) -> None:
    """No console error on any (the page fixture listens), and nothing of a translation."""
    offered = [view for view in DRAWN if view != "decode" or name == "writer"]
    for view in offered:
        visit(page, plain, name, view)
        assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == OFFERED[name]
        expect(page.get_by_label("Attention", exact=True).get_by_text("Cross-attention")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 800})
    for view in ("translate", "positions", "path"):
        visit(page, plain, name, view)
        assert overflow(page) == 0, view
    for view in ("lesson", *(["decode"] if name == "filler" else [])):  # a link to what there is not
        page.goto(plain + link(view, TEXTS[name], model=name))
        expect(page.locator("#view-translate .map-head").first).to_be_visible()


@BOTH
def test_numbers_match_model(name: str, page: Page, plain: str, made: dict[str, Trace]) -> None:
    seen, kind, bundle = made[name].activations, KINDS[name], made[name].model_folder
    step = build_model_attention(bundle, seen, kind, 1)
    weights = step.heads[2].attention.weights.numpy()
    head = visit(page, plain, name, "head", kind=kind, layer=2, head=3, words="no")
    figure = head.locator(".figure").first
    open_table(figure)
    expect(figure.locator(".as-table td").first).to_be_visible()
    header, *body = cells(figure.locator(".as-table table"))
    rows, columns = seen.queries_and_keys(kind)
    assert header[1:] == list(columns.subwords)
    assert [line[0] for line in body] == list(rows.subwords)
    future = np.triu(np.ones_like(weights), 1) > 0 if name == "writer" else np.zeros_like(weights) > 0
    assert [[cell == "masked" for cell in line[1:]] for line in body] == future.tolist()
    shown = [[0.0 if cell == "masked" else number(cell) for cell in line[1:]] for line in body]
    np.testing.assert_allclose(shown, weights, atol=1e-3)
    row, key = 4, int(weights[4].argmax())
    cell = visit(page, plain, name, "cell", kind=kind, layer=2, head=3, query=row + 1, key=key + 1)
    told = cell.locator(".cell-summary strong").inner_text()
    assert number(told) == pytest.approx(weights[row, key], abs=1e-3)


def test_causal_lm_generates_text(page: Page, plain: str, made: dict[str, Trace]) -> None:
    manifest = made["writer"].manifest
    view = visit(page, plain, "writer", "translate")
    result = page.get_by_role("region", name="Text", exact=True)
    expect(result).to_have_text(manifest["translation"]["text"])
    added = result.locator("mark").inner_text()
    assert manifest["translation"]["text"].removeprefix(TEXTS["writer"]).strip() == added.strip()
    step = manifest["translation"]["prefix_length"]
    expect(view.locator(".step-status")).to_contain_text(f"Step {step + 1} of {len(manifest['steps'])}")
    for line, expected in zip(
        cells(view.locator(".probability-table").first)[1:], manifest["steps"][step]["top"], strict=False
    ):
        assert number(line[2]) == pytest.approx(expected["probability"], abs=1e-4)
    words = page.get_by_role("group", name="Words of the text").get_by_role("button")
    expect(words).to_have_count(len(made["writer"].activations.target.words))
    expect(page.get_by_role("group", name="Source words")).to_be_hidden()


def test_sampling_draws_random_words(page: Page, plain: str, bundles: dict[str, ModelFolder]) -> None:
    """The same seed writes the same, by the settings that the page shows; Back undoes it."""
    view = visit(page, plain, "writer", "translate")
    result = page.get_by_role("region", name="Text", exact=True)
    before = result.inner_text()
    view.get_by_role("button", name="Random sampling").click()
    view.get_by_label("Top k").fill("20")
    view.get_by_label("Top k").press("Tab")
    view.get_by_role("button", name="Sample again").click()
    drawn = compute_trace(bundles["writer"], TraceRequest(source=TEXTS["writer"], seed=1, top_k=20))
    expect(result).to_have_text(drawn.manifest["translation"]["text"])
    assert "seed=1" in page.url
    expect(view.locator(".next-word")).to_contain_text("sampled at this temperature")
    page.get_by_role("button", name="Remove: Random sampling").click()
    expect(result).to_have_text(before)


def test_forced_word_changes_translation(page: Page, plain: str, bundles: dict[str, ModelFolder]) -> None:
    view = visit(page, plain, "writer", "translate")
    other = view.locator(".probability-table button").nth(2)
    other.click()
    expect(page.get_by_role("button", name="Remove: Forced start")).to_be_visible()
    made = compute_trace(bundles["writer"], TraceRequest(source=TEXTS["writer"])).manifest
    step = made["translation"]["prefix_length"]
    forced = (*made["translation"]["ids"][:step], made["steps"][step]["top"][2]["id"])
    again = compute_trace(bundles["writer"], TraceRequest(source=TEXTS["writer"], prefix_ids=forced)).manifest
    expect(page.get_by_role("region", name="Text", exact=True)).to_have_text(again["translation"]["text"])


def test_blanks_show_guesses(page: Page, plain: str, bundles: dict[str, ModelFolder]) -> None:
    """For every blank the guesses of `heedful fill`."""
    view = visit(page, plain, "filler", "translate")
    for blank, guesses in enumerate(fill_blanks(bundles["filler"], TEXTS["filler"], 10), start=1):
        expect(view.locator(".step-status")).to_contain_text(f"Blank {blank} of 2")
        body = cells(view.locator(".probability-table").first)[1:]
        assert [line[0].replace(" ✓", "").replace("▁", " ").strip() for line in body] == [
            guess.text for guess in guesses
        ]
        chances = [guess.probability for guess in guesses]
        assert [number(line[2]) for line in body] == pytest.approx(chances, abs=1e-4)
        if blank == 1:
            view.get_by_role("button", name="Next step").click()


def test_step_without_question(page: Page, plain: str) -> None:
    """While there is no text, or no blank in it, the page says what is missing and asks for nothing."""
    page.goto(f"{plain}/#/translate?model=filler&text=no%20blank")
    expect(page.locator(".result")).to_contain_text("__ where a word is missing")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Text with blanks, written __").fill("a __ b")
    expect(page.locator("#view-translate .map-head").first).to_be_visible()
    page.goto(f"{plain}/#/translate?model=writer")
    expect(page.locator(".result")).to_contain_text("Type a prompt")


def test_ablated_head_changes_translation(page: Page, plain: str, made: dict[str, Trace]) -> None:
    for name in TEXTS:
        view = visit(page, plain, name, "experiments", off=f"{KINDS[name]}.1.1")
        words = len(made[name].activations.target.words) - 1  # the text of the one is cut and has no end
        expect(view.locator(".changes tbody tr")).to_have_count(2 if name == "filler" else words)
        expect(view.locator(".word-toggles")).to_be_visible(visible=name == "filler")


@BOTH
def test_export_file_contains_figure(name: str, browser: Browser, made: dict[str, Trace], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(pack_trace(made[name], name=name)), encoding="utf-8")
    with from_disk(browser, path) as tab:
        expect(tab.locator("#view-translate .map-head").first).to_be_visible()
        expect(tab.locator(".result")).to_have_text(made[name].manifest["translation"]["text"])
        for view in ("Head", "Cell", "Word path", "Positions"):
            tab.get_by_role("link", name=view, exact=True).click()
            shown = tab.locator(".view:visible")
            drawn = shown.locator("canvas:visible, .path .last, [data-step=residual]")
            expect(drawn.first).to_be_visible()
            expect(tab.get_by_role("alert")).to_be_hidden()
