"""The loop: update, validate, checkpoint, until the end or until it is told to stop."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heedful.errors import DiskError, HeedfulError, StoppedError
from heedful.files import append_text, write_text, writing
from heedful.model.predictor import Predictor
from heedful.progress import SECONDS, Reporter, counted
from heedful.training.arithmetic import Arithmetic, all_threads
from heedful.training.budget import Budget
from heedful.training.checkpoint import (
    TrainingState,
    checkpoints,
    load_checkpoint,
    newest_whole,
    prune,
    remove_leftovers,
    save_checkpoint,
)
from heedful.training.examination import Examination, examine, judge, original
from heedful.training.forecast import forecast
from heedful.training.group import Group, LostError
from heedful.training.plan import Plan
from heedful.training.preparation import Prepared
from heedful.training.schedule import learning_rate
from heedful.training.snapshots import save_snapshot, snapshot_updates
from heedful.training.stopping import signals_noted, stopping_at_once
from heedful.training.team import Team, team
from heedful.training.update import new_optimizer
from heedful.training.validation import Validation
from heedful.training.worker import Learner, Outcome

LOG_EVERY = 10
AGAIN = 60.0
"""Seconds until a checkpoint is tried again that could not be written."""
MANY = 1_000_000
"""Steps that a training by the clock is divided into, to say when to look back at it."""


@dataclass
class Run:
    """A model in training, with all that belongs to it."""

    folder: Path
    prepared: Prepared
    plan: Plan
    model: Predictor
    optimizer: torch.optim.Optimizer
    state: TrainingState
    budget: Budget
    report: Reporter
    share: float = 0.0
    """Of the training, that was over when it was last looked at: after the newest update."""
    saved: float = field(default_factory=time.monotonic)
    """When the last checkpoint was written."""
    unsaved: DiskError | None = None
    """Why the newest one could not be written, if so."""

    @property
    def learner(self) -> Learner:
        """What processes that train together must have of it."""
        return Learner(self.folder, self.plan, self.model, self.optimizer)

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are kept."""
        return self.folder / "checkpoints"

    def regular_checkpoints(self) -> list[Path]:
        """Those written after a validation, oldest first: an interruption leaves others too."""
        found = checkpoints(self.checkpoint_folder)
        examined = {update for update, _, _ in self.state.examined}
        return [path for path in found if int(path.name) in examined]

    @property
    def tunes(self) -> bool:
        """Whether it started from a trained model."""
        return self.prepared.start is not None

    @property
    def ended(self) -> bool:
        """Whether all is done and examined, or too many examinations in a row were no better."""
        if self.state.due:
            return False
        patience = self.prepared.config.training.patience
        over = bool(self.state.examined) and self.state.examined[-1][1] >= 1
        return over or self.state.update >= self.plan.total or 0 < patience <= self.state.stale


def start_run(folder: Path, prepared: Prepared, model: Predictor, report: Reporter, started: float) -> Run:
    """A run at its beginning or, if the folder has checkpoints, where the newest one left it.

    ``started`` is when this sitting began, by the monotonic clock.
    """
    settings = prepared.config.training
    optimizer, plan, state = new_optimizer(model, settings), Plan(prepared, folder, report), TrainingState()
    newest = newest_whole(folder / "checkpoints", report)
    if newest:
        state = load_checkpoint(newest, model, optimizer)
        report.say(f"going on from update {state.update:,}")
    metrics = _kept_metrics(folder / "metrics.jsonl", state.update)
    if not state.examined:
        state.examined = _examined_before(metrics, plan.total)
    budget = Budget(plan.total, settings, state, started)
    share = budget.share(state.update) if state.update else 0.0
    run = Run(folder, prepared, plan, model, optimizer, state, budget, report, share)
    with writing(run.checkpoint_folder):
        run.checkpoint_folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    return run


def _examined_before(metrics: list[dict[str, Any]], total: int) -> list[tuple[int, float, float]]:
    """Of a run that an older Heedful began, which did not write it into its checkpoints."""
    return [
        (line["update"], line["update"] / total, line.get("BLEU", -1.0))
        for line in metrics
        if "validation_loss" in line
    ]


def train_to_end(run: Run, arithmetic: Arithmetic, group: Group) -> None:
    """Run until the planned end, early stopping, or a signal (then StoppedError is raised)."""
    meter = _Meter(run)
    if not checkpoints(run.checkpoint_folder):
        _look_back(run, -1.0)
        if run.tunes:
            with all_threads(arithmetic, group):
                _validate_and_save(run, meter)
        else:
            _save(run)
    if run.state.due:  # a signal came before it
        with all_threads(arithmetic, group):
            _validate_and_save(run, meter)
    if not run.state.update:
        run.state.begun = run.budget.begin()
    run.model.train()
    processes, threads = arithmetic.processes, arithmetic.threads
    with (
        signals_noted(patient=group.given) as noted,
        _nobody_missed(run, noted),
        team(run.learner, group, processes, threads, run.report, noted) as workers,
        run.report.task("training", **_extent(run)) as task,
    ):
        while not run.ended:
            before, done = run.share, _extent(run)["done"]
            with _saved_if_lost(run, workers, meter):
                _one_update(run, workers, arithmetic.precision, meter)
            task.advance(_extent(run)["done"] - done, note=meter.note)
            run.state.due = run.budget.validates(run.state.update, before, run.share, run.plan.per_epoch)
            stopping = noted[:1]  # a signal from here on is for the next update
            saves = stopping or time.monotonic() - run.saved > 60 * run.plan.settings.save_minutes
            if run.state.due or saves or _looks_back(run, before):
                workers.gather(run.state.update)
            # Before the checkpoint: going on from that one, nobody would come here again.
            _look_back(run, before)
            if run.state.due and not stopping:
                with all_threads(arithmetic, group):
                    _validate_and_save(run, meter)
            elif saves:
                meter.write()
                _save(run)
            if stopping:
                raise StoppedError(stopping[0], _to_go_on(run))


def _one_update(run: Run, workers: Team, precision: str, meter: "_Meter") -> None:
    settings, number = run.plan.settings, run.state.update + 1
    share = run.budget.share(number - 1)
    rate = learning_rate(number, share, settings, run.prepared.config.model.width, run.plan.total)
    outcome = workers.update(number, precision, rate)
    run.state.update, run.share = number, run.budget.share(number)
    _count(run, outcome)
    if math.isfinite(outcome.loss):
        meter.add(outcome.loss, outcome.sums.tokens, rate)
    if number % LOG_EVERY == 0:
        meter.write()


def _count(run: Run, outcome: Outcome) -> None:
    """Take note of what went wrong and was got over, and say so; too much of it is an error."""
    state, most = run.state, run.plan.settings.most_skipped
    state.splits += outcome.sums.splits
    if outcome.sums.splits:
        run.report.warn(
            f"update {state.update:,}: a batch did not fit in memory and was split "
            f"({counted(state.splits, 'split')} so far; a lower batches.tokens would save the time)"
        )
    if math.isfinite(outcome.loss):
        state.skipped_in_a_row = 0
        return
    state.skipped += 1
    state.skipped_in_a_row += 1
    if state.skipped_in_a_row > most:
        raise HeedfulError(
            f"training broke down: loss or gradient is no number in {counted(most + 1, 'update')} in a row",
            hint="the last checkpoint is good; train anew with a lower training.rate or more training.warmup",
        )
    run.report.warn(
        f"update {state.update:,} is skipped: loss or gradient is no number ({state.skipped:,} so far)"
    )


@contextmanager
def _nobody_missed(run: Run, noted: list[int]) -> Iterator[None]:
    """Who was asked to stop has lost nobody: the others were asked too, or are not waited for."""
    try:
        yield
    except LostError:
        if not noted:
            raise
        raise StoppedError(noted[0], _to_go_on(run)) from None


@contextmanager
def _saved_if_lost(run: Run, workers: Team, meter: "_Meter") -> Iterator[None]:
    """When the others are lost, what this process has is a checkpoint to go on from: nothing is."""
    try:
        yield
    except LostError:
        if workers.keeps_all:
            meter.write()
            _save(run)
            if run.unsaved is None:
                run.report.say(f"update {run.state.update:,} is saved")
        raise


def _validate_and_save(run: Run, meter: "_Meter") -> None:
    """Examine the model, tell, and keep it."""
    meter.write()
    state, started = run.state, time.monotonic()
    result = _examined(run)
    state.due = False
    run.budget.examined(time.monotonic() - started)
    state.examined.append((state.update, run.share, result.new.scores.get("BLEU", -1.0)))
    judge(state, result, run.prepared.config.tuning.forgetting)
    meter.write_validation(result)
    run.report.say(_validation_line(run, result))
    _save(run)
    meter.restart()


def _examined(run: Run) -> Examination:
    """How good the model is now; a signal ends that at once, and going on begins with it."""
    translated = run.plan.settings.bleu_sentences
    try:
        with stopping_at_once(""):
            if run.tunes and not run.state.update:
                return original(run.folder, run.prepared, run.model).examine(run.prepared, translated)
            return examine(run.model, run.prepared, translated)
    except StoppedError as stopped:
        run.state.due = True
        _save(run)
        raise StoppedError(stopped.signal_number, _to_go_on(run)) from None


def _save(run: Run) -> None:
    """Write a checkpoint; of the others keep the newest regular ones, the best, and the one before.

    A disk that is full now may have room later: learning goes on without, and soon it is tried again.
    """
    run.state.spent, run.state.reserved = run.budget.spent, run.budget.reserved
    try:
        save_checkpoint(run.checkpoint_folder, run.model, run.optimizer, run.state)
    except DiskError as error:
        if not run.state.update or run.ended or not run.checkpoint_folder.is_dir():
            raise
        run.unsaved = error
        run.report.warn(f"{error.problem}: update {run.state.update:,} is not saved; training goes on")
        run.saved = time.monotonic() - 60 * run.plan.settings.save_minutes + AGAIN
        return
    regular = run.regular_checkpoints()[-run.plan.settings.keep :]
    # The one before, since what was written whole may be damaged when it is read.
    kept = {int(path.name) for path in (*regular, *checkpoints(run.checkpoint_folder)[-2:])}
    kept |= {run.state.best_update, run.state.update}
    kept |= {0, run.state.refused_update} if run.tunes else set()  # for the end
    prune(run.checkpoint_folder, kept)
    run.saved, run.unsaved = time.monotonic(), None


def _to_go_on(run: Run) -> str:
    """What is saved, and what to type."""
    command = f"go on with: heedful train --resume {run.folder.parent}"
    if run.unsaved is None:
        return f"update {run.state.update:,} is saved; {command}"
    last = int(checkpoints(run.checkpoint_folder)[-1].name)
    return f"{run.unsaved.problem}: only update {last:,} is saved; free some room and {command}"


def _look_back(run: Run, before: float) -> None:
    """Keep the weights of this update if it is one of those to look back at."""
    if _looks_back(run, before):
        save_snapshot(run.folder, run.model, run.state.update, run.report)


def _looks_back(run: Run, before: float) -> bool:
    """Whether it is one of them; ``before`` is the share of the training that was over before it."""
    if not run.plan.settings.snapshots:
        return False
    steps = MANY if run.budget.seconds else run.plan.total
    wanted = snapshot_updates(steps, run.plan.settings.snapshots)
    return any(before * steps < step - 0.5 <= run.share * steps for step in wanted)


def _extent(run: Run) -> dict[str, Any]:
    """What the progress bar counts: updates, or seconds of those there are."""
    if run.budget.seconds:
        return {"total": round(run.budget.seconds), "done": int(run.budget.spent), "unit": SECONDS}
    return {"total": run.plan.total, "done": run.state.update, "unit": "updates"}


def _validation_line(run: Run, result: Examination) -> str:
    best = "  (best so far)" if run.state.best_update == run.state.update else ""
    epoch, before = run.state.update / run.plan.per_epoch, run.state.old_loss
    old = ""
    if result.old is not None:
        old = f"  | old pairs: {_scores(result.old)} ({result.old.loss / max(before, 1e-9) - 1:+.1%} loss)"
        old += "  (forgets too much)" * result.forgets(before, run.prepared.config.tuning.forgetting)
    return f"update {run.state.update:,}, epoch {epoch:.1f}: {_scores(result.new)}{best}{old}{_outlook(run)}"


def _scores(result: Validation) -> str:
    scores = "".join(f"  {name} {value:.1f}" for name, value in result.scores.items())
    return f"loss {result.loss:.3f}  perplexity {result.perplexity:.2f}{scores}"


def _outlook(run: Run) -> str:
    """What the scores so far let expect, of a model that has learned them from nothing."""
    state = run.state
    if run.tunes:
        return ""
    expected = forecast([(share, bleu) for _, share, bleu in state.examined if bleu >= 0])
    over = bool(state.examined) and state.examined[-1][1] >= 1
    if expected is None or over:
        return ""
    low, high = (f"{score:.0f}" for score in expected)
    return f"  (BLEU at the end: about {low} to {high}, of held-out pairs, greedily)"


class _Meter:
    """Loss, speed and time since the last line of metrics.jsonl."""

    def __init__(self, run: Run) -> None:
        self.run, self.note, self.rate = run, "", 0.0
        self.outlook = _outlook(run)
        self.path = run.folder / "metrics.jsonl"
        self.unwritten = ""
        self.restart()

    def restart(self) -> None:
        """Time spent elsewhere (validating) does not count as training speed."""
        self.losses: list[float] = []
        self.tokens = 0
        self.since = time.monotonic()

    def add(self, loss: float, tokens: int, rate: float) -> None:
        self.losses.append(loss)
        self.tokens += tokens
        self.run.state.tokens += tokens
        self.rate = rate
        speed = self.tokens / max(time.monotonic() - self.since, 1e-9)
        self.note = f"loss {self.losses[-1]:.3f}  {speed:,.0f} tokens/s{self.outlook}"

    def write(self) -> None:
        """A line about the updates since the last one."""
        if not self.losses:
            return
        seconds = time.monotonic() - self.since
        self.run.state.seconds += seconds
        self._append(
            loss=sum(self.losses) / len(self.losses),
            rate=self.rate,
            tokens=self.run.state.tokens,
            tokens_per_second=round(self.tokens / seconds),
        )
        self.restart()

    def write_validation(self, result: Examination) -> None:
        """A line about an examination."""
        self.outlook = _outlook(self.run)
        self._append(**result.metrics())

    def _append(self, **values: float) -> None:
        state = self.run.state
        line = {
            "update": state.update,
            "epoch": round(state.update / self.run.plan.per_epoch, 4),
            "seconds": round(state.seconds, 2),
            **values,
        }
        self.unwritten += json.dumps(line) + "\n"
        try:
            append_text(self.path, self.unwritten)
            self.unwritten = ""
        except DiskError as error:
            self.run.report.warn(f"{error.problem}; its lines are kept for later")


def _kept_metrics(path: Path, update: int) -> list[dict[str, Any]]:
    """Drop metrics of updates that will be done again, and a line cut short by a kill; returns the others."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
            if values["update"] <= update:
                kept.append(values)
        except (ValueError, TypeError, KeyError, RecursionError):
            break
    write_text(path, "".join(json.dumps(values) + "\n" for values in kept))
    return kept
