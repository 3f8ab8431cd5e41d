"""The numbers of a training, from the metrics.jsonl that it writes (training/loop.py)."""

import json
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError

Metrics = list[dict[str, Any]]


def metrics_path(folder: Path | str) -> Path:
    """Where a model folder keeps the numbers of its training."""
    return Path(folder) / "training" / "metrics.jsonl"


def read_metrics(path: Path) -> Metrics:
    """The lines of metrics.jsonl in order; one cut short by a kill is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise HeedfulError(
            f"there are no training curves: cannot read {path}: {error.strerror}",
            hint="give a model folder that `heedful train` wrote, with its folder training/",
        ) from None
    metrics = [values for line in lines if (values := _values(line))]
    if not metrics:
        raise HeedfulError(f"{path} holds no numbers yet", hint="they come after the first ten updates")
    return metrics


def _values(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and "update" in values else {}
