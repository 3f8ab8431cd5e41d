"""Members of the family on the page: every view opens, and a cell's arithmetic ends in the model's weight."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.interpret.small_models import new_model_folder
from tests.models.variants import VARIANTS
from tests.server.server_process import serve_process
from tests.web.page_driver import asked, cells, number, open_table, tensor
from tests.web.views import DRAWN, link, visit

pytestmark = pytest.mark.long

TEXT = "The animals crossed the street because they were tired."
SHOWN = [
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
ABOUT = {"relative": "per distance", "rotary": "rotates pairs", "alibi": "slope per head"}
ABOUT |= {"dependency": "depth in the dependency tree", "relative-dependency": "distance in the dependency tree"}
WITHOUT = {"training"}
"""Views that a model without snapshots of its training leaves empty."""


@pytest.mark.parametrize("name", SHOWN)
def test_every_view_shows_it(name: str, page: Page, tmp_path: Path) -> None:
    settings = dict(VARIANTS[name])
    new_model_folder("bpe", settings.pop("norm_placement", "post"), d_model=24, heads=3, **settings).save(
        tmp_path / "model"
    )
    with serve_process(tmp_path / "model", "--device", "cpu") as process:
        for view in DRAWN.keys() - WITHOUT - ({"positions"} if name == "linformer" else set()):
            visit(page, process.address, view, TEXT)
        page.goto(process.address + link("positions", TEXT))
        expect(page.locator("#view-positions")).to_contain_text(ABOUT.get(name, "sinusoidal"))
        manifest = asked(process.address, TEXT)
        for kind, where in (("encoder", "encoder.1.self"), ("decoder", "decoder.1.self"), ("cross", "decoder.1.cross")):
            weights = tensor(process.address, manifest["id"], f"{where}.weights")[2]
            row = 3
            key = int(weights[row].argmax())
            visit(page, process.address, "cell", TEXT, kind=kind, layer=2, head=3, query=row + 1, key=key + 1)
            steps = page.locator("#view-cell .steps")
            expect(steps).to_have_attribute("data-cell", f"{kind}.1.2.{row}.{key}")
            shown = number(page.locator("#view-cell .cell-summary strong").inner_text())
            assert shown == pytest.approx(weights[row, key], abs=1e-3)
        if name == "bigbird":
            pattern = tensor(process.address, manifest["id"], "encoder.1.self.pattern")
            visit(page, process.address, "head", TEXT, kind="encoder", layer=2, head=3, words="no")
            figure = page.locator("#view-head .figure").first
            open_table(figure)
            expect(figure.locator(".as-table td").first).to_be_visible()
            _, *body = cells(figure.locator(".as-table table"))
            assert [[cell == "masked" for cell in line[1:]] for line in body] == (pattern == 0).tolist()
            grid = figure.get_by_role("grid")
            for key in ("PageDown", "End", "ArrowUp"):
                grid.press(key)
            seen = pattern[-2, -1] > 0
            expect(grid.get_by_role("gridcell")).to_have_attribute(
                "aria-label", re.compile("attends to" if seen else "does not attend to .*: no attention")
            )
            blocks_are_shown(page, process.address, manifest)
        if name == "linformer":
            page.goto(process.address + link("positions", TEXT, kind="encoder", layer=1, head=1))
            expect(page.locator("#view-positions")).to_contain_text("keys of this encoder are not words")
            visit(page, process.address, "head", TEXT, kind="encoder", layer=1, head=1)
            expect(page.locator("#view-head")).to_contain_text("each Σ is a sum of all words")


def blocks_are_shown(page: Page, address: str, manifest: dict[str, Any]) -> None:
    """Which blocks see which, with the reason; both for the encoder and from left to right."""
    names = {"first": "global", "window": "window", "random": "random"}
    for kind in ("encoder", "decoder"):
        page.goto(address + link("positions", TEXT, kind=kind, layer=2, head=1))
        expect(page.locator("#view-positions .block-key")).to_contain_text("no attention")
        figure = page.locator("#view-positions [data-figure=blocks]")
        expect(figure.get_by_role("grid")).to_have_attribute("aria-rowcount", str(len(rows(manifest, kind))))
        grid = figure.get_by_role("grid")
        for key in ("PageUp", "End"):
            grid.press(key)
        last = len(rows(manifest, kind))
        said = f"attends to block {last}: {names['first']}" if kind == "encoder" else f"does not attend to block {last}"
        expect(grid.get_by_role("gridcell")).to_have_attribute("aria-label", f"block 1 {said}")
        if kind == "encoder":  # the other is too long for a table of all
            open_table(figure)
            _, *body = cells(figure.locator(".as-table table"))
            assert [line[1:] for line in body] == [
                [names[found[other]] if other in found else "no attention" for other in range(last)]
                for found in rows(manifest, kind)
            ]


def rows(manifest: dict[str, Any], kind: str) -> list[dict[int, str]]:
    """For each block the blocks that it sees, with the reasons."""
    pattern = manifest["sparse_patterns"][f"{kind}.1.self"]
    return [dict(zip(*each, strict=True)) for each in zip(pattern["rows"], pattern["reasons"], strict=True)]


def test_recurrent_model_shows_attention(page: Page, tmp_path: Path) -> None:
    """What it has to show is shown; views of queries and keys are not offered."""
    new_model_folder("bpe", architecture="gru").save(tmp_path / "model")
    with serve_process(tmp_path / "model", "--device", "cpu") as process:
        for view in ("translate", "map", "head", "decode"):
            visit(page, process.address, view, TEXT)
        page.goto(process.address + link("cell", TEXT, kind="encoder", layer=1, head=1))
        expect(page.locator("#view-translate")).to_be_visible()
        expect(page.get_by_role("link", name="Cell")).to_be_hidden()
        expect(page.locator("header")).to_contain_text("GRU with attention, 3+2 layers, 1 head,")
        manifest = asked(process.address, TEXT)
        weights = tensor(process.address, manifest["id"], "decoder.0.cross.weights")[0]
        visit(page, process.address, "head", TEXT, kind="cross", layer=1, head=1, words="no")
        figure = page.locator("#view-head .figure").first
        open_table(figure)
        expect(figure.locator(".as-table td").first).to_be_visible()
        _, *body = cells(figure.locator(".as-table table"))
        shown = [[number(cell) for cell in line[1:]] for line in body]
        assert shown == pytest.approx(weights, abs=1e-3)
