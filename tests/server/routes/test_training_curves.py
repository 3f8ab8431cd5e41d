"""GET /api/training: curves as they are now, never too many points, never a 500."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.server.routes import trace as training
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


def write(folder: Path, *lines: dict[str, Any], more: str = "") -> Path:
    path = folder / "training" / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + more)
    return path


def test_training_absent_returns_empty(address: str) -> None:
    assert ask(address, "/api/training").json == {"metrics": [], "running": False, "checkpoints": []}


def test_training_returns_metrics_and_checkpoints(address: str, folder: Path) -> None:
    line = {"update": 10, "loss": 5.5}
    write(folder, line, {"update": 20, "loss": float("nan"), "learning_rate": 0.5}, more='{"update": 30, "lo')
    (folder / "training" / "snapshots").mkdir()
    for name in ("000000007.safetensors", "000000000.safetensors", "notes.txt"):
        (folder / "training" / "snapshots" / name).touch()
    result = ask(address, "/api/training?model=en-fr").json
    assert result["metrics"] == [line, {"update": 20, "learning_rate": 0.5}]
    assert result["checkpoints"] == [0, 7]


def test_training_nonfinite_values_dropped(address: str, folder: Path) -> None:
    line = '{"update": 10, "loss": Infinity, "learning_rate": true, "name": "x", "tokens": ' + "9" * 400 + "}"
    write(folder, {"update": "ten"}, {"loss": 1.0}, {"update": 20, "loss": 1.5}, more=line + "\n[]\n5\n")
    result = ask(address, "/api/training").json["metrics"]
    assert result == [{"update": 20, "loss": 1.5}, {"update": 10, "tokens": int("9" * 400)}]


def test_training_running_by_file_times(address: str, folder: Path) -> None:
    def running(written: float, finished: float) -> bool:
        now = time.time()
        os.utime(path, (now + written, now + written))
        os.utime(folder / "weights.safetensors", (now + finished, now + finished))
        return bool(ask(address, "/api/training").json["running"])

    path = write(folder, {"update": 10, "loss": 5.5})
    assert running(written=-5, finished=-500)
    assert not running(written=-5, finished=-1)
    assert not running(written=-100, finished=-500)


def test_training_long_curve_subsampled(address: str, folder: Path) -> None:
    lines: list[dict[str, Any]] = [{"update": update, "loss": 1.0} for update in range(1, 7919)]
    lines.insert(4000, {"update": 4000, "validation_loss": 2.0})
    write(folder, *lines)
    result = ask(address, "/api/training").json["metrics"]
    assert 500 < len(result) <= 2000
    assert result[-1] == lines[-1]
    assert lines[4000] in result
    assert [item["update"] for item in result] == sorted(item["update"] for item in result)


def test_training_unchanged_file_read_once(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every viewer asks every two seconds, and the file of a long training is long."""
    read: list[Path] = []

    def counted(path: Path) -> Metrics:
        read.append(path)
        return read_metrics(path)

    monkeypatch.setattr(training, "read_metrics", counted)
    lines: list[dict[str, Any]] = [{"update": 10, "loss": 5.5}, {"update": 20, "loss": 5.0}]
    for count in (1, 2):
        write(folder, *lines[:count])
        for _ in range(3):
            assert ask(address, "/api/training").json["metrics"] == lines[:count]
        assert len(read) == count


def test_training_rejects_missing_key_and_unknown_model(folder: Path) -> None:
    with served(FakeTranslator(), api_keys=("secret",)) as running:
        assert ask(running.address, "/api/training").status == 403
        headers = {"Authorization": "Bearer secret"}
        assert ask(running.address, "/api/training", headers=headers).status == 200
        unknown = ask(running.address, "/api/training?model=xx-yy", headers=headers)
        assert unknown.status == 400
        assert "en-fr" in unknown.error
        assert ask(running.address, f"/api/training?model={'x' * 5000}", headers=headers).status == 400
