"""Model variants on the page: every view opens, and the arithmetic of a cell gives the weight of the model."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.interpret.small_models import new_model_folder
from tests.models.variants import VARIANTS
from tests.server.server_process import serve_folders
from tests.web.page_driver import cells, open_table, parse_number, request_manifest, tensor
from tests.web.views import VIEW_SELECTORS, build_link, open_view

pytestmark = pytest.mark.long

TEXT = "The animals crossed the street because they were tired."
SHOWN_VARIANTS = [
    "relative",
    "rotary",
    "alibi",
    "dependency",
    "relative-dependency",
    "rms-pre",
    "unscaled",
    "no-residuals",
    "bigbird",
    "linformer",
]
EVERY_VIEW_VARIANTS = ("rotary", "relative-dependency", "rms-pre", "bigbird", "linformer")
"""Variants whose tensors or labels differ; the others differ in the arithmetic of a cell only."""
POSITION_TEXTS = {"relative": "per distance", "rotary": "rotates pairs", "alibi": "slope per head"}
POSITION_TEXTS |= {
    "dependency": "depth in the dependency tree",
    "relative-dependency": "distance in the dependency tree",
}
EMPTY_VIEWS = {"training"}
"""Views that are empty for a model without snapshots."""


@pytest.mark.parametrize("name", SHOWN_VARIANTS)
def test_views_open_for_variant(name: str, page: Page, tmp_path: Path) -> None:
    settings = dict(VARIANTS[name])
    new_model_folder("bpe", settings.pop("norm_placement", "post"), d_model=24, heads=3, **settings).save(
        tmp_path / "model"
    )
    with serve_folders(tmp_path / "model") as address:
        for view in VIEW_SELECTORS.keys() - EMPTY_VIEWS - ({"positions"} if name == "linformer" else set()):
            if view == "cell" or name in EVERY_VIEW_VARIANTS:
                open_view(page, address, view, TEXT)
        page.goto(address + build_link("positions", TEXT))
        expect(page.locator("#view-positions")).to_contain_text(POSITION_TEXTS.get(name, "sinusoidal"))
        manifest = request_manifest(address, TEXT)
        for kind, name_prefix in (
            ("encoder", "encoder.1.self"),
            ("decoder", "decoder.1.self"),
            ("cross", "decoder.1.cross"),
        ):
            weights = tensor(address, manifest["id"], f"{name_prefix}.weights")[2]
            row = 3
            key = int(weights[row].argmax())
            open_view(page, address, "cell", TEXT, kind=kind, layer=2, head=3, query=row + 1, key=key + 1)
            steps = page.locator("#view-cell .steps")
            expect(steps).to_have_attribute("data-cell", f"{kind}.1.2.{row}.{key}")
            weight = parse_number(page.locator("#view-cell .cell-summary strong").inner_text())
            assert weight == pytest.approx(weights[row, key], abs=1e-3)
        if name == "bigbird":
            pattern = tensor(address, manifest["id"], "encoder.1.self.pattern")
            open_view(page, address, "head", TEXT, kind="encoder", layer=2, head=3, words="no")
            figure = page.locator("#view-head .figure").first
            open_table(figure)
            expect(figure.locator(".as-table td").first).to_be_visible()
            _, *body = cells(figure.locator(".as-table table"))
            assert [[cell == "masked" for cell in line[1:]] for line in body] == (pattern == 0).tolist()
            grid = figure.get_by_role("grid")
            for key in ("PageDown", "End", "ArrowUp"):
                grid.press(key)
            attends = pattern[-2, -1] > 0
            expect(grid.get_by_role("gridcell")).to_have_attribute(
                "aria-label", re.compile("attends to" if attends else "does not attend to .*: no attention")
            )
            check_blocks(page, address, manifest)
        if name == "linformer":
            page.goto(address + build_link("positions", TEXT, kind="encoder", layer=1, head=1))
            expect(page.locator("#view-positions")).to_contain_text("keys of this encoder are not words")
            open_view(page, address, "head", TEXT, kind="encoder", layer=1, head=1)
            expect(page.locator("#view-head")).to_contain_text("each Σ is a sum of all words")


def check_blocks(page: Page, address: str, manifest: dict[str, Any]) -> None:
    """Which blocks attend to which, with the reason, in the encoder and the decoder."""
    names = {"first": "global", "window": "window", "random": "random"}
    for kind in ("encoder", "decoder"):
        page.goto(address + build_link("positions", TEXT, kind=kind, layer=2, head=1))
        expect(page.locator("#view-positions .block-key")).to_contain_text("no attention")
        figure = page.locator("#view-positions [data-figure=blocks]")
        expect(figure.get_by_role("grid")).to_have_attribute("aria-rowcount", str(len(attended_blocks(manifest, kind))))
        grid = figure.get_by_role("grid")
        for key in ("PageUp", "End"):
            grid.press(key)
        last = len(attended_blocks(manifest, kind))
        text = f"attends to block {last}: {names['first']}" if kind == "encoder" else f"does not attend to block {last}"
        expect(grid.get_by_role("gridcell")).to_have_attribute("aria-label", f"block 1 {text}")
        if kind == "encoder":  # the decoder is too long for a complete table
            open_table(figure)
            _, *body = cells(figure.locator(".as-table table"))
            assert [line[1:] for line in body] == [
                [names[blocks[key_block]] if key_block in blocks else "no attention" for key_block in range(last)]
                for blocks in attended_blocks(manifest, kind)
            ]


def attended_blocks(manifest: dict[str, Any], kind: str) -> list[dict[int, str]]:
    """For each block the blocks that it attends to, with the reasons."""
    pattern = manifest["sparse_patterns"][f"{kind}.1.self"]
    return [dict(zip(*row, strict=True)) for row in zip(pattern["rows"], pattern["reasons"], strict=True)]


def test_recurrent_model_shows_attention(page: Page, tmp_path: Path) -> None:
    """Cross-attention is shown; views of queries and keys are not offered."""
    new_model_folder("bpe", architecture="gru").save(tmp_path / "model")
    with serve_folders(tmp_path / "model") as address:
        for view in ("translate", "map", "head", "decode"):
            open_view(page, address, view, TEXT)
        page.goto(address + build_link("cell", TEXT, kind="encoder", layer=1, head=1))
        expect(page.locator("#view-translate")).to_be_visible()
        expect(page.get_by_role("link", name="Cell")).to_be_hidden()
        expect(page.locator("header")).to_contain_text("GRU with attention, 3+2 layers, 1 head,")
        manifest = request_manifest(address, TEXT)
        weights = tensor(address, manifest["id"], "decoder.0.cross.weights")[0]
        open_view(page, address, "head", TEXT, kind="cross", layer=1, head=1, words="no")
        figure = page.locator("#view-head .figure").first
        open_table(figure)
        expect(figure.locator(".as-table td").first).to_be_visible()
        _, *body = cells(figure.locator(".as-table table"))
        values = [[parse_number(cell) for cell in line[1:]] for line in body]
        assert values == pytest.approx(weights, abs=1e-3)
