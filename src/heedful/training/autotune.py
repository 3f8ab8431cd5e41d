"""The fastest precision and number of processes of a run, measured on its own first batches.

What is fastest depends on the machine (few CPUs have fast bfloat16) and on the model (small matrices gain
from processes, large ones from threads). Only long runs measure; for short ones it would not pay off.
"""

import time
from collections.abc import Sequence
from typing import Literal

from heedful.devices import use_threads
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.distributed import ProcessGroup, Replica
from heedful.training.launcher import launch
from heedful.training.trainer import ComputeConfig, Trainer

PROBE_SECONDS = 2.0
"""Time limit per candidate; at least one batch after a warm-up batch is measured."""

MIN_SPEEDUP = 1.05
"""How much faster a candidate must be to replace the one before it."""


def autotune(
    trainer: Trainer,
    group: ProcessGroup,
    threads: int,
    precisions: Sequence[Literal["float32", "bfloat16"]],
    process_counts: Sequence[int],
    report: Reporter,
) -> ComputeConfig:
    """The fastest combination; process counts that fail are skipped, unless there is only one.

    Under torchrun this rank measures alone, with its part of the threads.
    """
    report.info("measuring which precision and number of processes train fastest")
    trials: list[ComputeConfig] = []
    for process_count in process_counts:
        under_torchrun = group.size > 1
        process_threads = max(1, threads // (group.local_size if under_torchrun else process_count))
        try:
            if process_count == 1 or under_torchrun:
                with use_threads(process_threads):
                    replica = Replica(trainer.batch_schedule, trainer.model, trainer.optimizer)
                    speeds = measure_speeds(replica, precisions)
            else:
                speeds = launch(process_count, "measure", trainer.folder, process_threads, *precisions)
        except HeedfulError as error:
            if len(process_counts) == 1 or not trials:
                raise
            report.info(f"  {process_count} processes failed: {error.problem}")
            continue
        for precision in precisions:
            trial = ComputeConfig(
                precision=precision,
                processes=process_count,
                threads=process_threads,
                tokens_per_second=speeds[precision],
            )
            trials.append(trial)
            report.info(f"  {trial}: {trial.tokens_per_second:,.0f} tokens/s")
    best = trials[0]
    for trial in trials[1:]:
        best = trial if trial.tokens_per_second > MIN_SPEEDUP * best.tokens_per_second else best
    return best


def measure_speeds(replica: Replica, precisions: Sequence[str]) -> dict[str, float]:
    """Highest rate over several gradients of the first batch, in target tokens per second; no update is made."""
    speeds = {}
    for precision in precisions:
        replica.compute_gradient(1, precision, batches=1)
        best, start_time = 0.0, time.monotonic()
        for _ in range(100):
            gradient_start = time.monotonic()
            tokens = replica.compute_gradient(1, precision, batches=1).tokens
            best = max(best, tokens / (time.monotonic() - gradient_start))
            if replica.group.share({"stop": time.monotonic() - start_time > PROBE_SECONDS})["stop"]:
                break
        speeds[precision] = best
    replica.model.zero_grad(set_to_none=True)
    return speeds
