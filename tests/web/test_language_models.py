"""Language models on the page: every listed view opens and shows the values of the model."""

import re
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
from tests.server.server_process import serve_folders
from tests.web import views
from tests.web.page_driver import cells, open_table, parse_number
from tests.web.test_standalone import open_from_disk
from tests.web.views import build_link, measure_overflow

pytestmark = pytest.mark.long  # trains two language models

TEXTS = {"writer": "The animal didn't", "filler": "The __ didn't cross the __ because it was tired."}
KINDS = {"writer": "decoder", "filler": "encoder"}
VIEW_SELECTORS = {
    **views.VIEW_SELECTORS,
    "positions": "[data-figure=products] .legend:not(:empty)",
    "experiments": ".head-ranking button",
    "training": ".intro",
}
"""The selector of what a view draws last; these models have no padding figure and no snapshots."""
LISTED_VIEWS = {
    "writer": [view for view in views.VIEW_SELECTORS if view not in views.UNSUPPORTED_VIEWS["causal_lm"]],
    "filler": [view for view in views.VIEW_SELECTORS if view not in views.UNSUPPORTED_VIEWS["masked_lm"]],
}
both_models = pytest.mark.parametrize("name", TEXTS)


@pytest.fixture(scope="module")
def model_folders() -> dict[str, ModelFolder]:
    """Untrained models: one that generates text, and one that fills in blanks."""
    writer = new_model_folder("bpe", layers=(2, 2), architecture="causal_lm")
    short = writer.config.model_copy(update={"generation": GenerationConfig(max_length_offset=12)})
    return {
        "writer": replace(writer, config=short),
        "filler": new_model_folder("bpe", layers=(2, 2), architecture="masked_lm"),
    }


@pytest.fixture(scope="module")
def language_model_address(
    model_folders: dict[str, ModelFolder], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a server with both models."""
    folder = tmp_path_factory.mktemp("plain")
    for name, model_folder in model_folders.items():
        model_folder.save(folder / name)
    with serve_folders(*(folder / name for name in model_folders)) as address:
        yield address


@pytest.fixture(scope="module")
def traces(model_folders: dict[str, ModelFolder]) -> dict[str, Trace]:
    """The same traces, computed in Python."""
    return {
        name: compute_trace(model_folder, TraceRequest(source=TEXTS[name]))
        for name, model_folder in model_folders.items()
    }


def open_view(page: Page, address: str, name: str, view: str, **selection: object) -> Locator:
    page.goto(address + build_link(view, TEXTS[name], model=name, **selection))
    view_locator = page.locator(f"#view-{view}")
    expect(view_locator.locator(VIEW_SELECTORS[view]).first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    return view_locator


@both_models
def test_every_listed_view_opens(name: str, page: Page, language_model_address: str) -> None:
    """Without console errors (checked by the page fixture) and without controls of translation models."""
    for view in LISTED_VIEWS[name]:
        open_view(page, language_model_address, name, view)
        links = page.get_by_role("navigation").get_by_role("link").all()
        assert [re.findall(r"#/(\w+)", str(link.get_attribute("href"))) for link in links] == [
            [listed] for listed in LISTED_VIEWS[name]
        ]
        expect(page.get_by_label("Attention", exact=True).get_by_text("Cross-attention")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 800})
    for view in ("translate", "positions", "path"):
        open_view(page, language_model_address, name, view)
        assert measure_overflow(page) == 0, view
    for view in views.VIEW_SELECTORS.keys() - LISTED_VIEWS[name]:
        page.goto(language_model_address + build_link(view, TEXTS[name], model=name))
        expect(page.locator("#view-translate .map-head").first).to_be_visible()


@both_models
def test_numbers_match_model(name: str, page: Page, language_model_address: str, traces: dict[str, Trace]) -> None:
    activations, kind, model_folder = traces[name].activations, KINDS[name], traces[name].model_folder
    step = build_model_attention(model_folder, activations, kind, 1)
    weights = step.heads[2].attention.weights.numpy()
    head = open_view(page, language_model_address, name, "head", kind=kind, layer=2, head=3, words="no")
    figure = head.locator(".figure").first
    open_table(figure)
    expect(figure.locator(".as-table td").first).to_be_visible()
    header, *body = cells(figure.locator(".as-table table"))
    rows, columns = activations.queries_and_keys(kind)
    assert header[1:] == list(columns.subwords)
    assert [line[0] for line in body] == list(rows.subwords)
    future = np.triu(np.ones_like(weights), 1) > 0 if name == "writer" else np.zeros_like(weights) > 0
    assert [[cell == "masked" for cell in line[1:]] for line in body] == future.tolist()
    values = [[0.0 if cell == "masked" else parse_number(cell) for cell in line[1:]] for line in body]
    np.testing.assert_allclose(values, weights, atol=1e-3)
    row, key = 4, int(weights[4].argmax())
    cell = open_view(page, language_model_address, name, "cell", kind=kind, layer=2, head=3, query=row + 1, key=key + 1)
    weight_text = cell.locator(".cell-summary strong").inner_text()
    assert parse_number(weight_text) == pytest.approx(weights[row, key], abs=1e-3)


def test_causal_lm_generates_text(page: Page, language_model_address: str, traces: dict[str, Trace]) -> None:
    manifest = traces["writer"].manifest
    view = open_view(page, language_model_address, "writer", "translate")
    result = page.get_by_role("region", name="Text", exact=True)
    expect(result).to_have_text(manifest["translation"]["text"])
    added = result.locator("mark").inner_text()
    assert manifest["translation"]["text"].removeprefix(TEXTS["writer"]).strip() == added.strip()
    step = manifest["translation"]["prefix_length"]
    expect(view.locator(".step-status")).to_contain_text(f"Step {step + 1} of {len(manifest['steps'])}")
    for line, expected in zip(
        cells(view.locator(".probability-table").first)[1:], manifest["steps"][step]["top"], strict=False
    ):
        assert parse_number(line[2]) == pytest.approx(expected["probability"], abs=1e-4)
    word_buttons = page.get_by_role("group", name="Words of the text").get_by_role("button")
    expect(word_buttons).to_have_count(len(traces["writer"].activations.target.words))
    expect(page.get_by_role("group", name="Source words")).to_be_hidden()


def test_sampling_draws_random_words(
    page: Page, language_model_address: str, model_folders: dict[str, ModelFolder]
) -> None:
    """The same seed and settings give the same text as Python; removing the chip undoes it."""
    view = open_view(page, language_model_address, "writer", "translate")
    result = page.get_by_role("region", name="Text", exact=True)
    before = result.inner_text()
    view.get_by_role("button", name="Random sampling").click()
    view.get_by_label("Top k").fill("20")
    view.get_by_label("Top k").press("Tab")
    view.get_by_role("button", name="Sample again").click()
    sampled = compute_trace(model_folders["writer"], TraceRequest(source=TEXTS["writer"], seed=1, top_k=20))
    expect(result).to_have_text(sampled.manifest["translation"]["text"])
    assert "seed=1" in page.url
    expect(view.locator(".next-word")).to_contain_text("sampled at this temperature")
    page.get_by_role("button", name="Remove: Random sampling").click()
    expect(result).to_have_text(before)


def test_forced_word_changes_translation(
    page: Page, language_model_address: str, model_folders: dict[str, ModelFolder]
) -> None:
    view = open_view(page, language_model_address, "writer", "translate")
    other = view.locator(".probability-table button").nth(2)
    other.click()
    expect(page.get_by_role("button", name="Remove: Forced start")).to_be_visible()
    manifest = compute_trace(model_folders["writer"], TraceRequest(source=TEXTS["writer"])).manifest
    step = manifest["translation"]["prefix_length"]
    forced = (*manifest["translation"]["ids"][:step], manifest["steps"][step]["top"][2]["id"])
    forced_manifest = compute_trace(
        model_folders["writer"], TraceRequest(source=TEXTS["writer"], prefix_ids=forced)
    ).manifest
    expect(page.get_by_role("region", name="Text", exact=True)).to_have_text(forced_manifest["translation"]["text"])


def test_blanks_show_guesses(page: Page, language_model_address: str, model_folders: dict[str, ModelFolder]) -> None:
    """For every blank, the predictions of `heedful fill`."""
    view = open_view(page, language_model_address, "filler", "translate")
    for blank, predictions in enumerate(fill_blanks(model_folders["filler"], TEXTS["filler"], 10), start=1):
        expect(view.locator(".step-status")).to_contain_text(f"Blank {blank} of 2")
        body = cells(view.locator(".probability-table").first)[1:]
        assert [line[0].replace(" ✓", "").replace("▁", " ").strip() for line in body] == [
            prediction.text for prediction in predictions
        ]
        probabilities = [prediction.probability for prediction in predictions]
        assert [parse_number(line[2]) for line in body] == pytest.approx(probabilities, abs=1e-4)
        if blank == 1:
            view.get_by_role("button", name="Next step").click()


def test_missing_text_or_blank_shows_hint(page: Page, language_model_address: str) -> None:
    """Without text, or without a blank in it, the page shows a hint and sends no request."""
    page.goto(f"{language_model_address}/#/translate?model=filler&text=no%20blank")
    expect(page.locator(".result")).to_contain_text("__ where a word is missing")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Text with blanks, written __").fill("a __ b")
    expect(page.locator("#view-translate .map-head").first).to_be_visible()
    page.goto(f"{language_model_address}/#/translate?model=writer")
    expect(page.locator(".result")).to_contain_text("Type a prompt")


def test_ablated_head_changes_translation(page: Page, language_model_address: str, traces: dict[str, Trace]) -> None:
    for name in TEXTS:
        view = open_view(page, language_model_address, name, "experiments", off=f"{KINDS[name]}.1.1")
        word_count = len(traces[name].activations.target.words) - 1  # the generated text is truncated, without END
        expect(view.locator(".changes tbody tr")).to_have_count(2 if name == "filler" else word_count)
        expect(view.locator(".word-toggles")).to_be_visible(visible=name == "filler")


@both_models
def test_export_file_contains_figure(name: str, browser: Browser, traces: dict[str, Trace], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_standalone_page(pack_trace(traces[name], name=name)), encoding="utf-8")
    with open_from_disk(browser, path) as tab:
        expect(tab.locator("#view-translate .map-head").first).to_be_visible()
        expect(tab.locator(".result")).to_have_text(traces[name].manifest["translation"]["text"])
        for view in ("Head", "Cell", "Word path", "Positions"):
            tab.get_by_role("link", name=view, exact=True).click()
            view_locator = tab.locator(".view:visible")
            drawn = view_locator.locator("canvas:visible, .path .last, [data-step=residual]")
            expect(drawn.first).to_be_visible()
            expect(tab.get_by_role("alert")).to_be_hidden()
