"""A process that prepares parts of a corpus for another (crew.py).

python -m heedful.training.preparer FOLDER
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.errors import DiskError, HeedfulError
from heedful.files import disk_error

Advance = Callable[[int], None]


def carry_out(folder: Path, order: dict[str, Any], advance: Advance) -> Any:
    """Do one of the things that can be asked for, and say what came of it."""
    from heedful.training.encoding import encode_shard
    from heedful.training.gathering import clean_piece
    from heedful.training.survey import survey_shard

    tasks = {"clean": clean_piece, "survey": survey_shard, "encode": encode_shard}
    try:
        return tasks[order["task"]](folder, order["number"], advance)
    except OSError as error:
        raise disk_error(error.filename or folder, error) from None


def main() -> None:
    """Do what is asked for, line by line, until there is nobody to ask."""
    # When to stop is the leader's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=[orders], daemon=True).start()
    folder = Path(sys.argv[1])
    while True:
        order = json.loads(orders.get())
        try:
            _answer({"result": carry_out(folder, order, lambda count: _answer({"advance": count}))})
        except HeedfulError as error:
            disk = isinstance(error, DiskError)
            _answer({"problem": error.problem, "hint": error.hint, "disk": disk})


def _listen(orders: "queue.Queue[bytes]") -> None:
    """Standard input is a pipe from the leader: it ends when the leader does, and so does this process."""
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(1)


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
