"""Run the trainer of eole, and log the number of target tokens after every report.

    python eole_trainer.py CONFIG PROGRESS

The log of eole rounds the tokens of a batch; the exact number (target tokens without padding, with END) is read
from the statistics that it logs. Nothing else of eole is changed.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from eole.bin.main import main as eole
from eole.utils.statistics import Statistics


def log_progress(progress: Path) -> None:
    """Make every report of eole write a line to the file."""
    log, tokens = Statistics.output, 0

    def output(self: Any, step: int, num_steps: int, learning_rate: float, start: float) -> None:
        nonlocal tokens
        tokens += int(self.n_tokens)
        line = {"update": step, "tokens": tokens, "seconds": time.time() - start, "sentences": self.n_sents}
        with progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        log(self, step, num_steps, learning_rate, start)

    Statistics.output = output


if __name__ == "__main__":
    log_progress(Path(sys.argv[2]))
    sys.argv = ["eole", "train", "-config", sys.argv[1]]
    eole()
