"""The loop: update, validate, checkpoint, until the end or until it is told to stop.

Everything random in update n depends on (seed, n) alone, so a resumed run repeats the uninterrupted one
to the bit.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from heedful.corpora.batches import Batches
from heedful.errors import StoppedError
from heedful.files import write_text
from heedful.model.transformer import Transformer
from heedful.progress import Reporter, Task
from heedful.text.subword_dropout import SubwordDropout
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint import (
    TrainingState,
    checkpoints,
    load_checkpoint,
    prune,
    save_checkpoint,
)
from heedful.training.preparation import Prepared
from heedful.training.schedule import learning_rate
from heedful.training.snapshots import save_snapshot, snapshot_updates
from heedful.training.taught import new_teacher
from heedful.training.update import Respelling, new_optimizer, read_batch, update
from heedful.training.validation import Validation, validate

LOG_EVERY = 10


class Plan:
    """Which update sees which pairs, and what happens after it."""

    def __init__(self, prepared: Prepared, folder: Path, report: Reporter) -> None:
        settings = prepared.config.training
        self.settings = settings
        self.batches = Batches(prepared.training, prepared.config.batches, settings.seed, settings.accumulate)
        self.per_epoch = self.batches.updates_per_epoch(0)  # of every epoch: the lengths stay the same
        whole = self.per_epoch * settings.epochs
        self.total = min(whole, settings.updates) if settings.updates else whole
        self.every = settings.validate_every or self.per_epoch
        self.snapshots = snapshot_updates(self.total, settings.snapshots)
        self.respelling = _respelling(prepared)
        self.teacher = new_teacher(prepared, folder, report)

    def validates_after(self, update: int) -> bool:
        """Whether this update ends with a validation and a checkpoint."""
        return update % self.every == 0 or update == self.total

    def patience_over(self, state: TrainingState) -> bool:
        """Whether too many validations in a row were no better."""
        return 0 < self.settings.patience <= state.stale


def _respelling(prepared: Prepared) -> tuple[Respelling, Respelling] | None:
    rate = prepared.config.tokenizer.dropout
    if not rate:
        return None
    longest = prepared.config.model.longest

    def respelling(tokenizer: Tokenizer) -> Respelling:
        dropout = SubwordDropout(tokenizer, rate)

        def respell(ids: Sequence[int], random: np.random.Generator) -> list[int]:
            new = dropout(ids, random)
            return new if len(new) < longest else list(ids)  # smaller pieces must not outgrow the model

        return respell

    source = respelling(prepared.tokenizer.source)
    return source, source if prepared.tokenizer.joint else respelling(prepared.tokenizer.target)


@dataclass
class Run:
    """A model in training, with all that belongs to it."""

    folder: Path
    prepared: Prepared
    plan: Plan
    model: Transformer
    optimizer: torch.optim.Optimizer
    state: TrainingState
    report: Reporter
    saved: float = field(default_factory=time.monotonic)
    """When the last checkpoint was written."""

    @property
    def checkpoint_folder(self) -> Path:
        """Where checkpoints are kept."""
        return self.folder / "checkpoints"

    def regular_checkpoints(self) -> list[Path]:
        """Those written after a validation, oldest first: an interruption leaves others too."""
        found = checkpoints(self.checkpoint_folder)
        return [path for path in found if int(path.name) and self.plan.validates_after(int(path.name))]


def start_run(folder: Path, prepared: Prepared, model: Transformer, report: Reporter) -> Run:
    """A run at its beginning or, if the folder has checkpoints, where the newest one left it."""
    optimizer = new_optimizer(model, prepared.config.training)
    run = Run(folder, prepared, Plan(prepared, folder, report), model, optimizer, TrainingState(), report)
    run.checkpoint_folder.mkdir(parents=True, exist_ok=True)
    found = checkpoints(run.checkpoint_folder)
    if found:
        run.state = load_checkpoint(found[-1], model, optimizer)
        report.say(f"going on from update {run.state.update:,}")
    _forget_after(folder / "metrics.jsonl", run.state.update)
    return run


def train_to_end(run: Run) -> None:
    """Run until the planned end, early stopping, or a signal (then StoppedError is raised)."""
    plan = run.plan
    if not checkpoints(run.checkpoint_folder):
        _look_back(run)
        _save(run)
    meter = _Meter(run)
    run.model.train()
    with (
        _signals_noted() as noted,
        run.report.task("training", plan.total, run.state.update, "updates") as task,
    ):
        while run.state.update < plan.total and not plan.patience_over(run.state):
            _one_update(run, meter, task)
            _look_back(run)  # before the checkpoint: going on from that one, nobody would come here again
            if plan.validates_after(run.state.update):
                _validate_and_save(run, meter)
            elif noted or time.monotonic() - run.saved > 60 * plan.settings.save_minutes:
                meter.write()
                _save(run)
            if noted:
                raise StoppedError(
                    noted[0],
                    hint=f"update {run.state.update:,} is saved; go on with: "
                    f"heedful train --resume {run.folder.parent}",
                )


def _one_update(run: Run, meter: "_Meter", task: Task) -> None:
    settings, plan = run.prepared.config.training, run.plan
    number = run.state.update + 1
    epoch, index = divmod(number - 1, plan.per_epoch)
    torch.manual_seed(settings.seed * 1_000_003 + number)
    batches = [
        read_batch(
            run.prepared.training,
            indices.tolist(),
            plan.respelling,
            [settings.seed, number, part],
            plan.teacher,
        )
        for part, indices in enumerate(plan.batches.update(epoch, index))
    ]
    rate = learning_rate(number, plan.total, settings, run.prepared.config.model.width)
    loss = update(run.model, run.optimizer, batches, settings, rate, plan.teacher)
    run.state.update = number
    meter.add(loss, sum(batch.tokens for batch in batches), rate)
    if number % LOG_EVERY == 0:
        meter.write()
    task.advance(note=meter.note)


def _validate_and_save(run: Run, meter: "_Meter") -> None:
    """Examine the model, tell, and keep it."""
    meter.write()
    settings, state = run.prepared.config.training, run.state
    result = validate(run.model, run.prepared.tokenizer, run.prepared.validation, settings.bleu_sentences)
    state.stale += 1
    if result.loss < state.best_loss:
        state.best_loss, state.best_update, state.stale = result.loss, state.update, 0
    meter.write_validation(result)
    run.report.say(_validation_line(run, result))
    _save(run)
    meter.restart()


def _save(run: Run) -> None:
    """Write a checkpoint; of the others keep the newest regular ones and the best."""
    save_checkpoint(run.checkpoint_folder, run.model, run.optimizer, run.state)
    regular = run.regular_checkpoints()[-run.plan.settings.keep :]
    kept = {int(path.name) for path in regular} | {run.state.best_update, run.state.update}
    prune(run.checkpoint_folder, kept)
    run.saved = time.monotonic()


def _look_back(run: Run) -> None:
    """Keep the weights of this update if it is one of those to look back at."""
    if run.state.update in run.plan.snapshots:
        save_snapshot(run.folder, run.model, run.state.update)


def _validation_line(run: Run, result: Validation) -> str:
    scores = "".join(f"  {name} {value:.1f}" for name, value in result.scores.items())
    best = "  (best so far)" if run.state.stale == 0 else ""
    epoch = run.state.update / run.plan.per_epoch
    return (
        f"update {run.state.update:,}, epoch {epoch:.1f}: loss {result.loss:.3f}"
        f"  perplexity {result.perplexity:.2f}{scores}{best}"
    )


class _Meter:
    """Loss, speed and time since the last line of metrics.jsonl."""

    def __init__(self, run: Run) -> None:
        self.run, self.note, self.rate = run, "", 0.0
        self.path = run.folder / "metrics.jsonl"
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
        self.note = f"loss {self.losses[-1]:.3f}  {speed:,.0f} tokens/s"

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

    def write_validation(self, result: Validation) -> None:
        """A line about an examination."""
        self._append(validation_loss=result.loss, perplexity=result.perplexity, **result.scores)

    def _append(self, **values: float) -> None:
        state = self.run.state
        line = {
            "update": state.update,
            "epoch": round(state.update / self.run.plan.per_epoch, 4),
            "seconds": round(state.seconds, 2),
            **values,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _forget_after(path: Path, update: int) -> None:
    """Drop metrics of updates that will be done again, and a line cut short by a kill."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["update"] <= update:
                kept.append(line + "\n")
        except (ValueError, TypeError, KeyError):
            break
    write_text(path, "".join(kept))


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, to be obeyed between updates; a second one is obeyed at once."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield noted  # only the main thread may set handlers: then the caller's rule
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
