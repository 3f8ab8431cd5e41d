"""The command line, whose training waits at an update until it is released or gets a signal.

A test that kills one of its processes at a known update does not race it. Run as a script: by a test, by torchrun,
and by the launcher of --processes as a rank.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from heedful.cli.main import main
from heedful.data.collate import Batch
from heedful.devices import LAUNCHER_VARIABLE
from heedful.training import launcher, rank
from heedful.training.step import BatchLoss
from heedful.training.trainer import Trainer

HOLD_FILE_VARIABLE = "HEEDFUL_HOLD_FILE"
"""Names a file with the update to wait at; without the file, training continues."""

OUT_OF_MEMORY_VARIABLE = "HEEDFUL_OUT_OF_MEMORY_RANK"
"""Names a rank whose batches of more than five pairs do not fit in memory."""


def read_hold_update(path: Path) -> float:
    """The update to wait at."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # removed, or just being written
        return float("inf")


def hold_training(path: Path) -> None:
    """Make every rank wait after the update that the file names."""
    run_update = Trainer._run_update

    def update_and_wait(trainer: Trainer, *args: Any) -> None:
        run_update(trainer, *args)
        while trainer.state.update >= read_hold_update(path) and not trainer._signals:
            time.sleep(0.01)

    Trainer._run_update = update_and_wait  # type: ignore[method-assign]


def limit_memory() -> None:
    """Make larger batches fail in this rank."""
    forward = BatchLoss.forward

    def check_and_forward(loss: BatchLoss, batch: Batch, precision: str) -> tuple[Tensor, Tensor]:
        if len(batch.source) > 5:
            raise MemoryError
        return forward(loss, batch, precision)

    BatchLoss.forward = check_and_forward  # type: ignore[method-assign]


if __name__ == "__main__":
    hold_training(Path(os.environ[HOLD_FILE_VARIABLE]))
    if os.environ.get("RANK") == os.environ.get(OUT_OF_MEMORY_VARIABLE, "none"):
        limit_memory()
    launcher.RANK_PROGRAM = ("-P", __file__)
    if LAUNCHER_VARIABLE in os.environ:
        os._exit(rank.main(sys.argv[1:]))
    main()
