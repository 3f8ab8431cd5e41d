"""The training view: curves are the metrics, a slider asks earlier weights, a live training is followed."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.training.checkpoint import list_saved_weights, load_snapshot
from tests.server.server_process import serve_process
from tests.web.conftest import TIRED
from tests.web.page_driver import cells, number

MOMENT = "before the first update|after [0-9,]+ update"
SERIES = {
    "training": "loss",
    "validation": "validation_loss",
    "BLEU": "BLEU",
    "chrF": "chrF",
    "learning rate": "learning_rate",
    "tokens/s": "tokens_per_second",
}


@pytest.fixture(scope="module")
def metrics(demo_model: Path) -> list[dict[str, Any]]:
    """What the training of the demo model has written."""
    lines = (demo_model / "training" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_curves_are_the_metrics(page: Page, address: str, metrics: list[dict[str, Any]]) -> None:
    """Every point of every curve, the ticks, and what the slider reads."""
    page.goto(f"{address}/#/training")
    expect(page.locator(".curve")).to_have_count(4)
    for name, key in SERIES.items():
        expected = np.array([(line["update"], line[key]) for line in metrics if key in line])
        path = page.locator(f'.series[data-name="{name}"]').get_attribute("d") or ""
        points = np.array([[float(x) for x in point.split()] for point in re.split("[ML]", path)[1:]])
        assert len(points) == len(expected)
        for axis in (0, 1):  # pixels are a straight line of the numbers
            slope, start = np.polyfit(expected[:, axis], points[:, axis], 1)
            assert np.allclose(slope * expected[:, axis] + start, points[:, axis], atol=0.02)
            assert (slope > 0) == (axis == 0)
    slider = page.get_by_label("Show values at update")
    last = next(line for line in reversed(metrics) if "loss" in line)
    expect(page.locator(".curve .status-line").first).to_contain_text(f"training {last['loss']:.4g} ")
    slider.press("Home")
    slider.press("ArrowRight")
    expect(page.locator(".slider output").first).to_have_text("1")
    expect(page.locator(".curve .status-line").first).to_contain_text(f"training {metrics[0]['loss']:.4g} (update 10)")
    page.locator(".curve svg").first.hover(position={"x": 300, "y": 100})
    expect(page.locator(".slider output").first).not_to_have_text("1")


def test_curves_as_a_table(page: Page, address: str, metrics: list[dict[str, Any]]) -> None:
    page.goto(f"{address}/#/training")
    page.locator("#view-training details", has=page.get_by_label("Training metrics")).locator("summary").click()
    rows = cells(page.get_by_label("Training metrics").locator("table"))
    assert number(rows[1][0]) == metrics[0]["update"]
    assert number(rows[1][1]) == pytest.approx(metrics[0]["loss"], rel=1e-5)
    validated = [row for row in rows[1:] if row[2]]
    expected = [line["validation_loss"] for line in metrics if "validation_loss" in line]
    assert [number(row[2]) for row in validated] == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_earlier_checkpoint_traces_same_sentence(page: Page, address: str, demo_model: Path) -> None:
    """The slider's first stop is the earliest update that is kept; Python translates the same with it."""
    update = min(list_saved_weights(demo_model))
    bundle = load_snapshot(ModelFolder.load(demo_model), demo_model, update)
    early = compute_trace(bundle, TraceRequest(source=TIRED))
    page.goto(f"{address}/#/training?kind=encoder&layer=2&head=3")
    slider = page.get_by_label("Checkpoint")
    expect(slider).to_have_attribute("aria-valuetext", "Finished model")
    slider.press("Home")
    expect(page).to_have_url(re.compile(f"&checkpoint={update}$"))
    expect(page.locator(".matrix").last).to_have_attribute("aria-label", re.compile(MOMENT))
    expect(page.locator(".checkpoint-text")).to_have_text(early.manifest["translation"]["text"])
    expect(slider).to_have_attribute("aria-valuetext", re.compile(f"({MOMENT}).*", re.I))
    expect(slider).to_be_focused()

    details = page.locator("#view-training .figure details")
    details.locator("summary").click()
    table = np.array([[number(cell) for cell in row[1:]] for row in cells(details.locator("table"))[1:]])
    assert np.allclose(table, early.activations.weights("encoder", 1)[2], atol=1e-3)

    slider.press("End")
    expect(page.locator(".checkpoint-text")).to_have_text(
        compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED)).manifest["translation"]["text"]
    )
    expect(page).not_to_have_url(re.compile("checkpoint"))


def test_watch_a_head_form(page: Page, address: str, demo_model: Path) -> None:
    """A small picture for each checkpoint; all read the same translation, whose probability is Python's."""
    bundle = ModelFolder.load(demo_model)
    kept = list(list_saved_weights(demo_model))
    ids = tuple(compute_trace(bundle, TraceRequest(source=TIRED)).manifest["translation"]["ids"])
    page.goto(f"{address}/#/training")
    frames = page.locator(".checkpoint-frame")
    expect(frames).to_have_count(len(kept) + 1)
    for place in (0, len(kept) - 1):
        then = compute_trace(load_snapshot(bundle, demo_model, kept[place]), TraceRequest(source=TIRED, target_ids=ids))
        likely = then.manifest["translation"]["log_probability"]
        shown = frames.nth(place).locator("small").inner_text()
        assert number(shown.removeprefix("log P")) == pytest.approx(likely, abs=6e-3)
    expect(frames.last).to_have_attribute("aria-pressed", "true")
    frames.first.click()
    expect(frames.first).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile(f"&checkpoint={kept[0]}$"))


@pytest.mark.long
def test_running_training_is_polled(page: Page, quick_model: Path, tmp_path: Path) -> None:
    """New lines appear without a click while the training goes on, and nobody asks after its end."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    metrics = folder / "training" / "metrics.jsonl"
    os.utime(folder / "weights.safetensors", (1e9, 1e9))
    metrics.touch()
    asked: list[float] = []
    page.on("request", lambda request: asked.append(time.monotonic()) if "/api/training" in request.url else None)
    with serve_process(folder, "--device", "cpu") as process:
        page.goto(f"{process.address}/#/training")
        expect(page.locator("#view-training .intro").first).to_contain_text("Training: 24 updates")
        with metrics.open("a") as file:
            file.write(json.dumps({"update": 5003, "epoch": 9.0, "seconds": 9.0, "loss": 0.5}) + "\n")
        expect(page.locator("#view-training .intro").first).to_contain_text("Training: 5,003 updates")
        expect(page.locator(".slider output").first).to_have_text("5,003")
        (folder / "weights.safetensors").touch()
        expect(page.locator("#view-training .intro").first).to_contain_text("Trained: 5,003 updates")
        before = len(asked)
        page.wait_for_timeout(2_500)  # longer than from one look to the next
        assert len(asked) == before
        page.goto("about:blank")
