"""metrics.jsonl: the training curves, one JSON object per line; written by the trainer, read by figures."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.errors import DiskError, HeedfulError
from heedful.files import append_text, write_text
from heedful.progress import Reporter

Metrics = list[dict[str, Any]]


def metrics_path(folder: Path | str) -> Path:
    """Path of metrics.jsonl in a model folder."""
    return Path(folder) / "training" / "metrics.jsonl"


class MetricsLog:
    """Averages loss and speed over the updates since the last line, and appends lines."""

    def __init__(
        self, path: Path, updates_per_epoch: int, report: Reporter, *, tokens: int = 0, seconds: float = 0.0
    ) -> None:
        self.path, self.updates_per_epoch, self.report = path, updates_per_epoch, report
        self.total_tokens, self.total_seconds = tokens, seconds
        self.note = ""
        """Loss and speed, for the progress bar."""
        self._learning_rate = 0.0
        self._pending_lines = ""
        self.start_interval()

    def start_interval(self) -> None:
        """Start measuring now: time spent elsewhere (validating) does not count as training time."""
        self._losses: list[float] = []
        self._tokens = 0
        self._interval_start = time.monotonic()

    def add(self, loss: float, tokens: int, learning_rate: float) -> None:
        """Record one update."""
        self._losses.append(loss)
        self._tokens += tokens
        self.total_tokens += tokens
        self._learning_rate = learning_rate
        speed = self._tokens / max(time.monotonic() - self._interval_start, 1e-9)
        self.note = f"loss {loss:.3f}  {speed:,.0f} tokens/s"

    def write(self, update: int) -> None:
        """Append a line about the updates since the last one, if any."""
        if not self._losses:
            return
        seconds = time.monotonic() - self._interval_start
        self.total_seconds += seconds
        metrics = {
            "loss": sum(self._losses) / len(self._losses),
            "learning_rate": self._learning_rate,
            "tokens": self.total_tokens,
            "tokens_per_second": round(self._tokens / seconds),
        }
        self.append(update, metrics)
        self.start_interval()

    def append(self, update: int, values: Mapping[str, float]) -> None:
        """Append a line with these values; a line that could not be written is retried with the next."""
        epoch, seconds = round(update / self.updates_per_epoch, 4), round(self.total_seconds, 2)
        self._pending_lines += json.dumps({"update": update, "epoch": epoch, "seconds": seconds, **values}) + "\n"
        try:
            append_text(self.path, self._pending_lines)
            self._pending_lines = ""
        except DiskError as error:
            self.report.warning(f"{error.problem}; will retry with the next line")


def read_metrics(path: Path) -> Metrics:
    """The lines of metrics.jsonl in order, without a line cut short by a kill."""
    try:
        metrics = _parse_metrics(path)
    except OSError as error:
        raise HeedfulError(
            f"no training curves: cannot read {path}: {error.strerror}",
            hint="give a model folder written by `heedful train`, with its subfolder training/",
        ) from None
    if not metrics:
        raise HeedfulError(f"{path} is empty", hint="the first line is written after ten updates")
    return metrics


def truncate_metrics(path: Path, update: int) -> None:
    """Drop lines of updates after this one, which will be repeated, and a line cut short by a kill."""
    if path.exists():
        metrics = [values for values in _parse_metrics(path) if values["update"] <= update]
        write_text(path, "".join(json.dumps(values) + "\n" for values in metrics))


def _parse_metrics(path: Path) -> Metrics:
    metrics = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and isinstance(values.get("update"), (int, float)):
            metrics.append(values)
    return metrics
