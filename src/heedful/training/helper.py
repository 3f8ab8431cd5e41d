"""A process that helps another to train.

python -m heedful.training.helper FOLDER RANK SIZE THREADS PORT
"""

import os
import signal
import sys
from pathlib import Path


def main() -> int:
    """Join the team, compute gradients until it is over; 1 if the leader has gone."""
    from heedful.process import prepare as prepare_process

    # Ctrl-C reaches every process of a terminal; when to stop is the leader's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    prepare_process()
    import torch

    from heedful.progress import Reporter
    from heedful.training.plan import Plan
    from heedful.training.preparation import load_prepared
    from heedful.training.run import new_model
    from heedful.training.team import help_out, join

    folder, (rank, size, threads, port) = Path(sys.argv[1]), map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    prepared = load_prepared(folder / "data")
    model = new_model(prepared)
    plan = Plan(prepared, folder, Reporter(quiet=True))
    try:
        join(rank, size, port)
        help_out(model.train(), plan.gradient_of(model), rank, size)
    except RuntimeError:
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # torch.distributed's threads need no farewell
