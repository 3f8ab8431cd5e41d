"""How a run computes: precision, processes and threads, chosen by trying them out on its own first batches.

Which is quickest depends on the machine (few CPUs multiply bfloat16 quickly) and on the model (small
products gain from processes, large ones from threads), so a long training measures; a short one is over
before that would pay.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.model.predictor import Predictor
from heedful.progress import Reporter, counted
from heedful.training.checkpoint import checkpoints
from heedful.training.devices import available_cores
from heedful.training.group import Group, check_own_processes
from heedful.training.plan import Plan
from heedful.training.team import Team, team
from heedful.training.worker import Learner

FILE = "arithmetic.json"
LONG = 2e13
"""Multiplications and additions from which a training is long: minutes on a laptop."""
SHORT_MINUTES = 3.0
SECONDS = 2.0
"""Tried at most for so long each, though at least one update after a first one."""
CLEARLY = 1.05
"""So much quicker must a way be to be preferred to the one before it."""


class Arithmetic(Config):
    """As decided at the start of a run, and kept: another way would round otherwise."""

    precision: Literal["auto", "float32", "bfloat16"]
    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    """Of each process."""
    speed: float = Field(0.0, ge=0)
    """Target tokens a second when it was tried; 0 when it was not."""

    def __str__(self) -> str:
        one = f"1 process with {counted(self.threads, 'thread')}"
        several = f"{self.processes} processes with {counted(self.threads, 'thread')} each"
        return f"{self.precision}, {several if self.processes > 1 else one}"


def arithmetic_of(
    learner: Learner, group: Group, threads: int, report: Reporter, processes: int = 0
) -> Arithmetic:
    """What an earlier sitting decided, or what is told, or what is quickest.

    ``processes`` are those asked for in this sitting; those of a group are there already.
    """
    if processes:
        check_own_processes()
    path, plan = learner.folder / FILE, learner.plan
    on_cpu = learner.model.output.weight.device.type == "cpu"
    told = group.size if group.given else processes
    if max(processes, plan.settings.processes) > 1 and not on_cpu:
        raise HeedfulError(
            "training.processes is for CPUs",
            hint="for several GPUs: torchrun --nproc-per-node gpu -m heedful train ...",
        )
    wanted, cores = processes or plan.settings.processes, available_cores()
    if wanted > cores and not group.given:
        report.warn(f"{wanted} processes share {counted(cores, 'core')}: more than one for each gain nothing")
    if path.exists():
        kept = _read(path)
        return _with_processes(kept, told, group, threads) if on_cpu else _alone(kept, threads)
    chosen = _chosen(learner, group, threads, report, told or plan.settings.processes)
    # Who is given by torchrun today may not be there tomorrow.
    write_json(path, (_alone(chosen, threads) if group.given else chosen).model_dump())
    return chosen


def _with_processes(kept: Arithmetic, processes: int, group: Group, threads: int) -> Arithmetic:
    """The same with another number of processes: it rounds sums otherwise, and learns the same."""
    if not processes or processes == kept.processes:
        return kept
    each = _threads_of_each(threads, processes, group)
    return kept.model_copy(update={"processes": processes, "threads": each})


def _threads_of_each(threads: int, size: int, group: Group) -> int:
    """Those of this machine are shared by the processes that are on it."""
    return max(1, threads // (group.neighbours if group.size > 1 else size))


def _alone(kept: Arithmetic, threads: int) -> Arithmetic:
    return kept.model_copy(update={"processes": 1, "threads": threads})


def _read(path: Path) -> Arithmetic:
    hint = f"delete it, and how to compute is chosen anew: {path}"
    found = read_json(path, hint)
    try:
        return Arithmetic.checked(found)
    except HeedfulError as error:
        raise HeedfulError(f"{path} is damaged: {error.problem}", hint=hint) from None


@contextmanager
def all_threads(arithmetic: Arithmetic, group: Group) -> Iterator[None]:
    """While the others on this machine wait, the leader has their threads too."""
    waiting = group.neighbours if group.size > 1 else arithmetic.processes
    torch.set_num_threads(arithmetic.threads * waiting)
    try:
        yield
    finally:
        torch.set_num_threads(arithmetic.threads)


def _chosen(learner: Learner, group: Group, threads: int, report: Reporter, told: int) -> Arithmetic:
    settings = learner.plan.settings
    on_cpu = learner.model.output.weight.device.type == "cpu"
    begun = any(int(path.name) for path in checkpoints(learner.folder / "checkpoints"))
    worth_trying = on_cpu and not begun and _operations(learner.model, learner.plan) >= LONG
    precisions = ["float32", "bfloat16"] if settings.precision == "auto" else [settings.precision]
    sizes = [told or 1]
    if worth_trying and not told and threads > 1:
        sizes = [1, threads]
    if not worth_trying or len(sizes) * len(precisions) == 1:
        precision = settings.precision if not on_cpu else precisions[0]
        each = _threads_of_each(threads, sizes[0], group)
        return Arithmetic(precision=precision, processes=sizes[0], threads=each)
    report.say("trying out how this machine trains quickest")
    tried: list[Arithmetic] = []
    for size in sizes:
        each = _threads_of_each(threads, size, group)
        try:
            with team(learner, group, size, each, report) as workers:
                for precision in precisions:
                    speed = _speed(workers, precision)
                    tried.append(Arithmetic(precision=precision, processes=size, threads=each, speed=speed))
                    report.say(f"  {tried[-1]}: {speed:,.0f} tokens/s")
        except HeedfulError as error:
            if told or not tried:  # told so: then there is no other way
                raise
            report.say(f"  {size} processes do not work here: {error.problem}")
    best = tried[0]
    for other in tried[1:]:
        best = other if other.speed > CLEARLY * best.speed else best
    return best


def _operations(model: Predictor, plan: Plan) -> float:
    """Of the whole training: six for each weight and token."""
    settings = plan.settings
    if 0 < settings.minutes < SHORT_MINUTES:
        return 0.0
    batch = plan.prepared.config.batches.tokens * settings.accumulate
    return 6.0 * model.parameter_count() * batch * plan.total


def _speed(workers: Team, precision: str) -> float:
    """Target tokens a second: the best of some updates' first batches; no update is made."""
    workers.gradient(1, precision, batches=1)
    best, started = 0.0, time.monotonic()
    for _ in range(100):
        begun = time.monotonic()
        tokens = workers.gradient(1, precision, batches=1).sums.tokens
        best = max(best, tokens / (time.monotonic() - begun))
        if time.monotonic() - started > SECONDS:
            break
    workers.learner.model.zero_grad(set_to_none=True)
    return best
