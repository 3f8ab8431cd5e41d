"""The training view: curves of the metrics, a slider for earlier checkpoints, and polling of a running training."""

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
from tests.web.page_driver import cells, parse_number

CHECKPOINT_LABEL = "before the first update|after [0-9,]+ update"
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
    """The metrics of the demo model's training."""
    lines = (demo_model / "training" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_curves_show_the_metrics(page: Page, address: str, metrics: list[dict[str, Any]]) -> None:
    """Every point of every curve, the ticks, and the values at the slider."""
    page.goto(f"{address}/#/training")
    expect(page.locator(".curve")).to_have_count(4)
    for name, key in SERIES.items():
        expected = np.array([(line["update"], line[key]) for line in metrics if key in line])
        path = page.locator(f'.series[data-name="{name}"]').get_attribute("d") or ""
        points = np.array([[float(x) for x in point.split()] for point in re.split("[ML]", path)[1:]])
        assert len(points) == len(expected)
        for axis in (0, 1):  # pixels are a linear function of the values
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


def test_curves_table_shows_the_metrics(page: Page, address: str, metrics: list[dict[str, Any]]) -> None:
    page.goto(f"{address}/#/training")
    page.locator("#view-training details", has=page.get_by_label("Training metrics")).locator("summary").click()
    rows = cells(page.get_by_label("Training metrics").locator("table"))
    assert parse_number(rows[1][0]) == metrics[0]["update"]
    assert parse_number(rows[1][1]) == pytest.approx(metrics[0]["loss"], rel=1e-5)
    validated = [row for row in rows[1:] if row[2]]
    expected = [line["validation_loss"] for line in metrics if "validation_loss" in line]
    assert [parse_number(row[2]) for row in validated] == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_earlier_checkpoint_traces_same_sentence(page: Page, address: str, demo_model: Path) -> None:
    """The slider starts at the earliest snapshot; Python computes the same trace with it."""
    update = min(list_saved_weights(demo_model))
    model_folder = load_snapshot(ModelFolder.load(demo_model), demo_model, update)
    early = compute_trace(model_folder, TraceRequest(source=TIRED))
    page.goto(f"{address}/#/training?kind=encoder&layer=2&head=3")
    slider = page.get_by_label("Checkpoint")
    expect(slider).to_have_attribute("aria-valuetext", "Finished model")
    slider.press("Home")
    expect(page).to_have_url(re.compile(f"&checkpoint={update}$"))
    expect(page.locator(".matrix").last).to_have_attribute("aria-label", re.compile(CHECKPOINT_LABEL))
    expect(page.locator(".checkpoint-text")).to_have_text(early.manifest["translation"]["text"])
    expect(slider).to_have_attribute("aria-valuetext", re.compile(f"({CHECKPOINT_LABEL}).*", re.I))
    expect(slider).to_be_focused()

    details = page.locator("#view-training .figure details")
    details.locator("summary").click()
    table = np.array([[parse_number(cell) for cell in row[1:]] for row in cells(details.locator("table"))[1:]])
    assert np.allclose(table, early.activations.weights("encoder", 1)[2], atol=1e-3)

    slider.press("End")
    expect(page.locator(".checkpoint-text")).to_have_text(
        compute_trace(ModelFolder.load(demo_model), TraceRequest(source=TIRED)).manifest["translation"]["text"]
    )
    expect(page).not_to_have_url(re.compile("checkpoint"))


def test_checkpoint_frames_show_log_probability_of_translation(page: Page, address: str, demo_model: Path) -> None:
    """One frame per checkpoint, each with the log-probability of the same translation."""
    model_folder = ModelFolder.load(demo_model)
    updates = list(list_saved_weights(demo_model))
    ids = tuple(compute_trace(model_folder, TraceRequest(source=TIRED)).manifest["translation"]["ids"])
    page.goto(f"{address}/#/training")
    frames = page.locator(".checkpoint-frame")
    expect(frames).to_have_count(len(updates) + 1)
    for index in (0, len(updates) - 1):
        snapshot_trace = compute_trace(
            load_snapshot(model_folder, demo_model, updates[index]), TraceRequest(source=TIRED, target_ids=ids)
        )
        expected = snapshot_trace.manifest["translation"]["log_probability"]
        label = frames.nth(index).locator("small").inner_text()
        assert parse_number(label.removeprefix("log P")) == pytest.approx(expected, abs=6e-3)
    expect(frames.last).to_have_attribute("aria-pressed", "true")
    frames.first.click()
    expect(frames.first).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile(f"&checkpoint={updates[0]}$"))


@pytest.mark.long
def test_running_training_is_polled(page: Page, quick_model: Path, tmp_path: Path) -> None:
    """New lines appear while the training runs, and polling stops when it ends."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    metrics = folder / "training" / "metrics.jsonl"
    os.utime(folder / "weights.safetensors", (1e9, 1e9))
    metrics.touch()
    request_times: list[float] = []
    page.on(
        "request", lambda request: request_times.append(time.monotonic()) if "/api/training" in request.url else None
    )
    with serve_process(folder, "--device", "cpu") as process:
        page.goto(f"{process.address}/#/training")
        expect(page.locator("#view-training .intro").first).to_contain_text("Training: 24 updates")
        with metrics.open("a") as file:
            file.write(json.dumps({"update": 5003, "epoch": 9.0, "seconds": 9.0, "loss": 0.5}) + "\n")
        expect(page.locator("#view-training .intro").first).to_contain_text("Training: 5,003 updates")
        expect(page.locator(".slider output").first).to_have_text("5,003")
        (folder / "weights.safetensors").touch()
        expect(page.locator("#view-training .intro").first).to_contain_text("Trained: 5,003 updates")
        before = len(request_times)
        page.wait_for_timeout(2_500)  # longer than the polling interval
        assert len(request_times) == before
        page.goto("about:blank")
