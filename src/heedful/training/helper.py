"""A process that helps another to train.

python -m heedful.training.helper FOLDER RANK SIZE THREADS PORT
"""

import os
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    """Join the team and compute gradients until the leader ends this process, or itself."""
    from heedful.process import prepare as prepare_process

    # When to stop is the leader's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_leader, daemon=True).start()
    prepare_process()
    import torch

    from heedful.progress import Reporter
    from heedful.training.plan import Plan
    from heedful.training.preparation import load_prepared
    from heedful.training.run import new_predictor
    from heedful.training.team import help_out, join

    folder, (rank, size, threads, port) = Path(sys.argv[1]), map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    prepared = load_prepared(folder / "data")
    model = new_predictor(prepared).train()
    plan = Plan(prepared, folder, Reporter(quiet=True))
    join(rank, size, port)
    help_out(model, plan.gradient_of(model), rank, size)


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
