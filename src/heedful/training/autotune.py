"""The fastest precision and number of processes of a run, measured on its own first batches.

What is fastest depends on the machine (few CPUs have fast bfloat16) and on the model (small matrices gain
from processes, large ones from threads). Only long runs measure; for short ones it would not pay off.
"""

import time
from collections.abc import Sequence
from typing import Literal

from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.distributed.group import ProcessGroup
from heedful.training.distributed.leader import WorkerGroup, open_workers
from heedful.training.step import TrainState
from heedful.training.trainer import ComputeConfig

PROBE_SECONDS = 2.0
"""Time limit per candidate; at least one batch after a warm-up batch is measured."""

MIN_SPEEDUP = 1.05
"""How much faster a candidate must be to replace the one before it."""


def autotune(
    train_state: TrainState,
    group: ProcessGroup | None,
    threads: int,
    precisions: Sequence[Literal["float32", "bfloat16"]],
    process_counts: Sequence[int],
    report: Reporter,
) -> ComputeConfig:
    """The fastest combination; process counts that fail are skipped, unless there is only one."""
    report.info("measuring which precision and number of processes train fastest")
    trials: list[ComputeConfig] = []
    for process_count in process_counts:
        process_threads = max(1, threads // (group.local_size if group else process_count))
        try:
            with open_workers(train_state, group, process_count, process_threads, report) as workers:
                for precision in precisions:
                    trial = ComputeConfig(
                        precision=precision,
                        processes=process_count,
                        threads=process_threads,
                        tokens_per_second=_measure_tokens_per_second(workers, precision),
                    )
                    trials.append(trial)
                    report.info(f"  {trial}: {trial.tokens_per_second:,.0f} tokens/s")
        except HeedfulError as error:
            if len(process_counts) == 1 or not trials:
                raise
            report.info(f"  {process_count} processes failed: {error.problem}")
    best = trials[0]
    for trial in trials[1:]:
        best = trial if trial.tokens_per_second > MIN_SPEEDUP * best.tokens_per_second else best
    return best


def _measure_tokens_per_second(workers: WorkerGroup, precision: str) -> float:
    """Highest rate over several gradients of the first batch; no update is made."""
    workers.gradient(1, precision, batches=1)
    best, start_time = 0.0, time.monotonic()
    for _ in range(100):
        update_start = time.monotonic()
        tokens = workers.gradient(1, precision, batches=1).sums.tokens
        best = max(best, tokens / (time.monotonic() - update_start))
        if time.monotonic() - start_time > PROBE_SECONDS:
            break
    workers.train_state.model.zero_grad(set_to_none=True)
    return best
