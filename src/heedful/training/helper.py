"""A process that helps another on the same machine to train.

python -m heedful.training.helper FOLDER RANK SIZE THREADS PORT SILENCE
"""

import os
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    """Join the leader and follow it until it ends this process, or itself."""
    from heedful.process import prepare as prepare_process

    # When to stop is the leader's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_leader, daemon=True).start()
    prepare_process()
    import torch

    from heedful.training.follower import follow
    from heedful.training.team import join_leader

    folder, silence = Path(sys.argv[1]), float(sys.argv[6])
    rank, size, threads, port = map(int, sys.argv[2:6])
    torch.set_num_threads(threads)
    follow(join_leader(rank, size, port, silence), folder)


def _end_with_the_leader() -> None:
    """Standard input is a pipe from the leader, who never writes: it ends when the leader does."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the leader says what to do; this is only why
        print(f"a helping process has ended: {error}", file=sys.stderr, flush=True)
    os._exit(1)  # torch.distributed's threads need no farewell
