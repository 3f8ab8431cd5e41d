"""A worker process started by the leader on the same machine.

python -m heedful.training.distributed.worker_process FOLDER RANK SIZE THREADS PORT TIMEOUT_SECONDS
"""

import os
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    """Join the leader and execute its commands until it kills this process or exits."""
    from heedful.devices import configure_process as prepare_process

    # The leader decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_exit_with_leader, daemon=True).start()
    prepare_process()
    import torch

    from heedful.training.distributed.leader import join_leader
    from heedful.training.distributed.worker import execute_commands

    folder, timeout_seconds = Path(sys.argv[1]), float(sys.argv[6])
    rank, size, threads, port = map(int, sys.argv[2:6])
    torch.set_num_threads(threads)
    execute_commands(join_leader(rank, size, port, timeout_seconds), folder)


def _exit_with_leader() -> None:
    """Standard input is a pipe that closes when the leader exits."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the leader reports what to do; this is only the reason
        print(f"worker process failed: {error}", file=sys.stderr, flush=True)
    os._exit(1)  # do not wait for threads of torch.distributed
