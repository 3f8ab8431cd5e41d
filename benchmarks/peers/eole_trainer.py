"""Run eole's own trainer, and write down after every report how many target tokens it has seen.

    python eole_trainer.py CONFIG PROGRESS

Its log rounds the tokens of a batch; the number itself (target tokens without padding, END included) stands
in the statistics that it is about to log, and is read there. Nothing else of eole is touched.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from eole.bin.main import main as eole
from eole.utils.statistics import Statistics


def write_down(progress: Path) -> None:
    """Have every report of eole's write a line of ours too."""
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
    write_down(Path(sys.argv[2]))
    sys.argv = ["eole", "train", "-config", sys.argv[1]]
    eole()
