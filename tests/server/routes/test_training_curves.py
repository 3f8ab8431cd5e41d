"""GET /api/training: current curves, a bounded number of points, never a 500."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.server.routes import trace
from heedful.training.metrics_log import Metrics, read_metrics
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import ask, served


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model folder of ``served``, which is named relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake" / "training").mkdir(parents=True)
    (tmp_path / "fake" / "weights.safetensors").touch()
    return tmp_path / "fake"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """A server of that folder."""
    with served(FakeTranslator()) as running:
        yield running.address


def write_metrics(folder: Path, *lines: dict[str, Any], incomplete_line: str = "") -> Path:
    path = folder / "training" / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + incomplete_line)
    return path


def test_training_absent_returns_empty(address: str) -> None:
    assert ask(address, "/api/training").json == {"metrics": [], "running": False, "checkpoints": []}


def test_training_returns_metrics_and_checkpoints(address: str, folder: Path) -> None:
    line = {"update": 10, "loss": 5.5}
    write_metrics(
        folder, line, {"update": 20, "loss": float("nan"), "learning_rate": 0.5}, incomplete_line='{"update": 30, "lo'
    )
    (folder / "training" / "snapshots").mkdir()
    for name in ("000000007.safetensors", "000000000.safetensors", "notes.txt"):
        (folder / "training" / "snapshots" / name).touch()
    result = ask(address, "/api/training?model=en-fr").json
    assert result["metrics"] == [line, {"update": 20, "learning_rate": 0.5}]
    assert result["checkpoints"] == [0, 7]


def test_training_nonfinite_values_dropped(address: str, folder: Path) -> None:
    line = '{"update": 10, "loss": Infinity, "learning_rate": true, "name": "x", "tokens": ' + "9" * 400 + "}"
    write_metrics(
        folder, {"update": "ten"}, {"loss": 1.0}, {"update": 20, "loss": 1.5}, incomplete_line=line + "\n[]\n5\n"
    )
    result = ask(address, "/api/training").json["metrics"]
    assert result == [{"update": 20, "loss": 1.5}, {"update": 10, "tokens": int("9" * 400)}]


def test_training_running_by_file_times(address: str, folder: Path) -> None:
    def request_running_state(metrics_offset: float, weights_offset: float) -> bool:
        now = time.time()
        os.utime(path, (now + metrics_offset, now + metrics_offset))
        os.utime(folder / "weights.safetensors", (now + weights_offset, now + weights_offset))
        return bool(ask(address, "/api/training").json["running"])

    path = write_metrics(folder, {"update": 10, "loss": 5.5})
    assert request_running_state(metrics_offset=-5, weights_offset=-500)
    assert not request_running_state(metrics_offset=-5, weights_offset=-1)
    assert not request_running_state(metrics_offset=-100, weights_offset=-500)


def test_training_long_curve_subsampled(address: str, folder: Path) -> None:
    lines: list[dict[str, Any]] = [{"update": update, "loss": 1.0} for update in range(1, 7919)]
    lines.insert(4000, {"update": 4000, "validation_loss": 2.0})
    write_metrics(folder, *lines)
    result = ask(address, "/api/training").json["metrics"]
    assert 500 < len(result) <= 2000
    assert result[-1] == lines[-1]
    assert lines[4000] in result
    assert [item["update"] for item in result] == sorted(item["update"] for item in result)


def test_training_unchanged_file_read_once(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every open page polls every two seconds, and the file of a long training is large."""
    read_paths: list[Path] = []

    def record_read(path: Path) -> Metrics:
        read_paths.append(path)
        return read_metrics(path)

    monkeypatch.setattr(trace, "read_metrics", record_read)
    lines: list[dict[str, Any]] = [{"update": 10, "loss": 5.5}, {"update": 20, "loss": 5.0}]
    for count in (1, 2):
        write_metrics(folder, *lines[:count])
        for _ in range(3):
            assert ask(address, "/api/training").json["metrics"] == lines[:count]
        assert len(read_paths) == count


def test_training_rejects_missing_key_and_unknown_model(folder: Path) -> None:
    with served(FakeTranslator(), api_keys=("secret",)) as running:
        assert ask(running.address, "/api/training").status == 403
        headers = {"Authorization": "Bearer secret"}
        assert ask(running.address, "/api/training", headers=headers).status == 200
        unknown = ask(running.address, "/api/training?model=xx-yy", headers=headers)
        assert unknown.status == 400
        assert "en-fr" in unknown.error
        assert ask(running.address, f"/api/training?model={'x' * 5000}", headers=headers).status == 400
