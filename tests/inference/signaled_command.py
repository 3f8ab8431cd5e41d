"""The command line in a process that sends itself a signal at a known point: a test does not race it.

usage: python signaled_command.py SIGNAL (lines | updates) COUNT ARGS...
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heedful.cli.main import main
from heedful.inference import bulk
from heedful.inference.translation import Translation
from heedful.training.trainer import Trainer
from heedful.workflows import back_translate


def run_signaled(
    number: signal.Signals, unit: str, count: int, args: list[str | Path]
) -> "subprocess.CompletedProcess[str]":
    """Run a command that gets the signal when so many ``lines`` are translated and written, or ``updates`` done."""
    return subprocess.run(
        [sys.executable, __file__, number.name, unit, str(count), *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        timeout=600,
    )


def patch_commands(number: signal.Signals, unit: str, count: int) -> None:
    """Make translation or training send the signal."""
    translate_lines, run_update = bulk.translate_lines, Trainer._run_update

    def translate_and_signal(*args: Any, **options: Any) -> Iterator[Translation]:
        for lines_written, translation in enumerate(translate_lines(*args, **options)):
            if lines_written == count:
                os.kill(os.getpid(), number)
            yield translation

    def update_and_signal(trainer: Trainer, *args: Any) -> None:
        run_update(trainer, *args)
        if trainer.state.update == count:
            os.kill(os.getpid(), number)

    if unit == "lines":
        bulk.translate_lines = back_translate.translate_lines = translate_and_signal
    else:
        Trainer._run_update = update_and_signal  # type: ignore[method-assign]


if __name__ == "__main__":
    signal_name, unit, count = sys.argv[1:4]
    del sys.argv[1:4]
    patch_commands(signal.Signals[signal_name], unit, int(count))
    main()
