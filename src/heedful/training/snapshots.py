"""Weights kept for looking back: small files, never deleted, that show how the heads of a model formed.

    snapshots/000000144.safetensors

Nothing goes on from them: that is what checkpoints are for.
"""

from pathlib import Path

from heedful.bundle import named_parameters, write_tensors
from heedful.errors import DiskError
from heedful.files import writing
from heedful.model.predictor import Predictor
from heedful.progress import Reporter

FOLDER = "snapshots"


def snapshot_updates(total: int, count: int) -> frozenset[int]:
    """After which updates weights are kept: densely at first, since that is when heads form.

    >>> sorted(snapshot_updates(1535, 12))
    [0, 1, 9, 31, 74, 144, 249, 396, 590, 841, 1153, 1535]
    """
    return frozenset(round(total * (number / max(count - 1, 1)) ** 3) for number in range(count))


def save_snapshot(training: Path, model: Predictor, update: int, report: Reporter) -> None:
    """Write the weights of this update, whole or not at all; training does not end for lack of room."""
    folder = training / FOLDER
    try:
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_tensors(folder / f"{update:09}.safetensors", named_parameters(model))
    except DiskError as error:
        report.warn(f"{error.problem}: there will be no snapshot of update {update:,}")


def saved_snapshots(training: Path) -> dict[int, Path]:
    """All of them, by the number of updates that they had seen."""
    found = (training / FOLDER).glob("*.safetensors")
    return {int(path.stem): path for path in found if path.stem.isdecimal()}
