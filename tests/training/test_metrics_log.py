"""metrics.jsonl: written and read back, with unwritable files, partial lines and resumed runs."""

import json
from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.metrics_log import MetricsLog, read_metrics, truncate_metrics


def write_log(path: Path) -> None:
    log = MetricsLog(path, updates_per_epoch=4, report=Reporter(quiet=True), tokens=100, seconds=7.0)
    log.write(5)  # no updates yet: no line
    log.add(3.0, 20, 0.1)
    log.add(1.0, 30, 0.2)
    log.write(6)
    log.append(6, {"validation_loss": 2.5})
    assert (log.total_tokens, log.note.split()[1]) == (150, "1.000")


def test_metrics_log_averages_losses_and_sums_tokens(tmp_path: Path) -> None:
    write_log(tmp_path / "metrics.jsonl")
    training, validation = read_metrics(tmp_path / "metrics.jsonl")
    assert (training["update"], training["epoch"], training["loss"]) == (6, 1.5, 2.0)
    assert (training["learning_rate"], training["tokens"]) == (0.2, 150)
    assert training["seconds"] >= 7
    assert (validation["update"], validation["validation_loss"]) == (6, 2.5)


def test_metrics_log_unwritable_retries_with_the_next_line(tmp_path: Path) -> None:
    write_log(tmp_path / "missing" / "metrics.jsonl")  # only warns
    log = MetricsLog(tmp_path / "later" / "metrics.jsonl", 1, Reporter(quiet=True))
    log.append(1, {"validation_loss": 4.0})
    (tmp_path / "later").mkdir()
    log.append(2, {"validation_loss": 3.0})
    assert [line["update"] for line in read_metrics(log.path)] == [1, 2]


def test_truncate_metrics_drops_later_updates_and_partial_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"update": update}) + "\n" for update in (1, 2, 3)) + '{"upd')
    assert [line["update"] for line in read_metrics(path)] == [1, 2, 3]
    truncate_metrics(path, 2)
    assert path.read_text() == '{"update": 1}\n{"update": 2}\n'
    truncate_metrics(tmp_path / "missing.jsonl", 2)


def test_read_metrics_empty_or_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no training curves"):
        read_metrics(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(HeedfulError, match="is empty"):
        read_metrics(tmp_path / "metrics.jsonl")
