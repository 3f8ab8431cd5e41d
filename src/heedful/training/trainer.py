"""The training loop: update, validate, save, until the planned end, early stopping or a signal.

The rule to remember: whatever interrupts it, the newest checkpoint is complete and resuming from it repeats
the uninterrupted run to the bit. Signals that stop training are Ctrl-C (SIGINT), a scheduler's (SIGTERM) and
a closed terminal's (SIGHUP).
"""

import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from pydantic import Field

from heedful.config import Config
from heedful.devices import use_threads
from heedful.errors import DiskError, HeedfulError, StoppedError
from heedful.files import wrap_write_errors
from heedful.models.base import Model
from heedful.progress import SECONDS, Reporter, format_count
from heedful.training.checkpoint import (
    TrainerState,
    ValidationPoint,
    find_latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    remove_partial_files,
    save_checkpoint,
    save_snapshot,
    snapshot_updates,
)
from heedful.training.distributed.group import LostProcessError, ProcessGroup
from heedful.training.distributed.leader import WorkerGroup, open_workers
from heedful.training.lr_schedule import TrainingBudget, compute_learning_rate, forecast
from heedful.training.metrics_log import MetricsLog, truncate_metrics
from heedful.training.preparation import PreparedCorpus
from heedful.training.step import BatchSchedule, TrainState, UpdateResult, new_optimizer
from heedful.training.validation import ValidationReport, ValidationResult, load_original_model, update_best, validate

LOG_EVERY = 10

SAVE_RETRY_SECONDS = 60.0
"""Until the next attempt after a checkpoint could not be written."""

TIMED_SNAPSHOT_STEPS = 1_000_000
"""Steps that a run with a time limit is divided into, to place its snapshots."""


class ComputeConfig(Config):
    """Decided at the start of a run and kept in autotune.json, since another choice rounds differently."""

    precision: Literal["auto", "float32", "bfloat16"]
    processes: int = Field(ge=1)
    threads: int = Field(ge=1)
    """Threads per process."""
    tokens_per_second: float = Field(0.0, ge=0)
    """Measured target tokens per second; 0 if not measured."""

    def __str__(self) -> str:
        threads = format_count(self.threads, "thread")
        processes = (
            f"{self.processes} processes with {threads} each" if self.processes > 1 else f"1 process with {threads}"
        )
        return f"{self.precision}, {processes}"


class Trainer:
    """One model in training, resumed from the newest checkpoint in ``folder`` if there is one."""

    def __init__(
        self, folder: Path, prepared: PreparedCorpus, model: Model, report: Reporter, start_time: float
    ) -> None:
        self.folder, self.prepared, self.model, self.report = folder, prepared, model, report
        self.config = prepared.config.training
        self.optimizer = new_optimizer(model, self.config)
        self.batch_schedule = BatchSchedule(prepared, folder, report)
        self.state = TrainerState()
        self.checkpoint_folder = folder / "checkpoints"
        latest = find_latest_checkpoint(self.checkpoint_folder, report)
        if latest:
            self.state = load_checkpoint(latest, model, self.optimizer)
            report.info(f"resuming from update {self.state.update:,}")
        total_updates = self.batch_schedule.total_updates
        self.budget = TrainingBudget(total_updates, self.config, self.state.clock, start_time)
        self.progress = self.budget.progress(self.state.update) if self.state.update else 0.0
        """Fraction of the training that was done after the newest update."""
        truncate_metrics(folder / "metrics.jsonl", self.state.update)
        updates_per_epoch, seconds = self.batch_schedule.updates_per_epoch, self.state.clock.training_seconds
        self.metrics_log = MetricsLog(
            folder / "metrics.jsonl", updates_per_epoch, report, tokens=self.state.tokens, seconds=seconds
        )
        self._snapshot_scale = TIMED_SNAPSHOT_STEPS if self.budget.max_seconds else total_updates
        self._snapshot_steps = snapshot_updates(self._snapshot_scale, self.config.snapshots)
        self._last_save_time = time.monotonic()
        self._save_error: DiskError | None = None
        self._signals: list[int] = []
        """Signals received since the loop started."""
        with wrap_write_errors(self.checkpoint_folder):
            self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
        remove_partial_files(folder)

    @property
    def train_state(self) -> TrainState:
        """What every process of the group needs."""
        return TrainState(self.folder, self.batch_schedule, self.model, self.optimizer)

    @property
    def is_finetuning(self) -> bool:
        """Whether training started from a trained model."""
        return self.prepared.init_config is not None

    @property
    def is_finished(self) -> bool:
        """Whether all updates are done and validated, or early stopping applies."""
        if self.state.validation_due:
            return False
        return (
            self.state.reached_end
            or self.state.update >= self.batch_schedule.total_updates
            or 0 < self.config.patience <= self.state.best.validations_since_best
        )

    def list_validated_checkpoints(self) -> list[Path]:
        """Checkpoints written after a validation, oldest first; interruptions leave others too."""
        validated_updates = {point.update for point in self.state.validations}
        return [path for path in list_checkpoints(self.checkpoint_folder) if int(path.name) in validated_updates]

    def fit(self, compute: ComputeConfig, group: ProcessGroup | None = None) -> None:
        """Train until the planned end, early stopping, or a signal, which raises StoppedError.

        ``group``: the processes started by torchrun.
        """
        self._signals = []
        is_new = not list_checkpoints(self.checkpoint_folder)
        if is_new and self._is_snapshot_due(-1.0):
            save_snapshot(self.folder, self.model, 0, self.report)
        if self.state.validation_due or (is_new and self.is_finetuning):  # due: a signal interrupted it
            self._validate_and_save(compute, group)
        elif is_new:
            self._save_checkpoint()
        if not self.state.update:
            self.budget.start_training()
        self.model.train()
        self.metrics_log.start_interval()
        with collect_signals(ignore_repeats=group is not None) as self._signals:
            try:
                self._train(compute, group)
            except LostProcessError:
                if not self._signals:
                    raise
                # The signal went to all processes: the others have exited on request.
                raise StoppedError(self._signals[0], self._resume_hint()) from None

    def _train(self, compute: ComputeConfig, group: ProcessGroup | None) -> None:
        done, total = self._progress_bar()
        unit = SECONDS if self.budget.max_seconds else "updates"
        with (
            self._open_updater(compute, group) as updater,
            self.report.task("training", total=total, done=done, unit=unit) as task,
        ):
            forecast_text = self._format_forecast()
            while not self.is_finished:
                previous_progress, previous_done = self.progress, done
                self._run_update(updater, compute.precision)
                done, _ = self._progress_bar()
                task.advance(done - previous_done, note=f"{self.metrics_log.note}{forecast_text}")
                self.state.validation_due = self.budget.should_validate(
                    self.state.update, previous_progress, self.progress, self.batch_schedule.updates_per_epoch
                )
                stop_signals = self._signals[:1]  # one that arrives later interrupts the validation, or the next update
                save_due = time.monotonic() - self._last_save_time > 60 * self.config.checkpoint_minutes
                snapshot_due = self._is_snapshot_due(previous_progress)
                if self.state.validation_due or save_due or snapshot_due or stop_signals:
                    updater.gather(self.state.update)
                # The checkpoint comes last: a run resumed from it does not redo the steps before it.
                if snapshot_due:
                    save_snapshot(self.folder, self.model, self.state.update, self.report)
                if stop_signals:
                    self._save_checkpoint()
                    raise StoppedError(stop_signals[0], self._resume_hint())
                if self.state.validation_due:
                    self._validate_and_save(compute, group)
                    forecast_text = self._format_forecast()
                elif save_due:
                    self._save_checkpoint()

    @contextmanager
    def _open_updater(self, compute: ComputeConfig, group: ProcessGroup | None) -> Iterator[TrainState | WorkerGroup]:
        """Runs the updates: in this process, or as the leader of a group."""
        if group is None and compute.processes == 1:
            with use_threads(compute.threads):
                yield self.train_state
        else:
            arguments = (compute.processes, compute.threads, self.report, self._signals)
            with open_workers(self.train_state, group, *arguments) as workers:
                yield workers

    def _progress_bar(self) -> tuple[int, int]:
        """Done and total, in updates or, with a time limit, in seconds."""
        if self.budget.max_seconds:
            return int(self.budget.total_seconds), round(self.budget.max_seconds)
        return self.state.update, self.batch_schedule.total_updates

    def _run_update(self, updater: TrainState | WorkerGroup, precision: str) -> None:
        update = self.state.update + 1
        learning_rate = compute_learning_rate(
            update,
            self.budget.progress(update - 1),
            self.config,
            self.prepared.config.model.d_model,
            self.batch_schedule.total_updates,
        )
        try:
            result = updater.update(update, precision, learning_rate)
        except LostProcessError:
            if updater.has_full_state:  # then this process can save what the group has done so far
                self._save_checkpoint()
                if self._save_error is None:
                    self.report.info(f"update {self.state.update:,} is saved")
            raise
        self.state.update, self.progress = update, self.budget.progress(update)
        self._count_failures(result)
        if math.isfinite(result.loss):
            self.metrics_log.add(result.loss, result.sums.tokens, learning_rate)
        if update % LOG_EVERY == 0:
            self.metrics_log.write(update)

    def _count_failures(self, result: UpdateResult) -> None:
        """Report recovered problems; too many non-finite updates in a row are an error."""
        failures, update = self.state.failures, self.state.update
        failures.splits += result.sums.splits
        if result.sums.splits:
            self.report.warning(
                f"update {update:,}: a batch did not fit in memory and was split "
                f"({format_count(failures.splits, 'split')} so far; a lower batching.max_tokens is faster)"
            )
        if math.isfinite(result.loss):
            failures.nonfinite_in_a_row = 0
            return
        failures.nonfinite_updates += 1
        failures.nonfinite_in_a_row += 1
        if failures.nonfinite_in_a_row > self.config.max_nonfinite_updates:
            raise HeedfulError(
                "training diverged: non-finite loss or gradient in "
                f"{format_count(failures.nonfinite_in_a_row, 'update')} in a row",
                hint="the last checkpoint is valid; train again with a lower training.learning_rate "
                "or more training.warmup_updates",
            )
        self.report.warning(
            f"update {update:,} is skipped: non-finite loss or gradient ({failures.nonfinite_updates:,} so far)"
        )

    def _validate_and_save(self, compute: ComputeConfig, group: ProcessGroup | None) -> None:
        self.metrics_log.write(self.state.update)  # before: validation is not training time
        state, start_time = self.state, time.monotonic()
        local_processes = group.local_size if group else compute.processes
        with use_threads(compute.threads * local_processes):  # the other processes wait
            result = self._validate()
        state.validation_due = False
        self.budget.record_validation(time.monotonic() - start_time)
        bleu = result.validation.scores.get("BLEU")
        state.validations.append(ValidationPoint(state.update, self.progress, bleu))
        update_best(state, result, self.prepared.config.finetuning.max_forgetting)
        self.metrics_log.append(state.update, result.to_metrics())
        self.report.info(self._format_validation(result) + self._format_forecast())
        self._save_checkpoint()
        self.metrics_log.start_interval()

    def _validate(self) -> ValidationReport:
        """Validate the model; a signal interrupts it, and resuming starts with it."""
        bleu_sentences = self.config.bleu_sentences
        try:
            with raise_on_signal(""):
                if self._signals:  # received after the update
                    raise StoppedError(self._signals[0])
                if self.is_finetuning and not self.state.update:
                    original_model = load_original_model(self.folder, self.prepared, self.model)
                    return original_model.validate(self.prepared, bleu_sentences)
                return validate(self.model, self.prepared, bleu_sentences)
        except StoppedError as stopped:
            self.state.validation_due = True
            self._save_checkpoint()
            raise StoppedError(stopped.signal_number, self._resume_hint()) from None

    def _save_checkpoint(self) -> None:
        """Write a checkpoint and delete old ones: keep the newest validated ones, the best and the last two.

        On a full disk training continues, and the next attempt follows soon.
        """
        state = self.state
        self.metrics_log.write(state.update)
        state.tokens = self.metrics_log.total_tokens
        state.clock.training_seconds = self.metrics_log.total_seconds
        state.clock.total_seconds = self.budget.total_seconds
        try:
            save_checkpoint(self.checkpoint_folder, self.model, self.optimizer, state)
        except DiskError as error:
            if not state.update or self.is_finished or not self.checkpoint_folder.is_dir():
                raise
            self._save_error = error
            self.report.warning(f"{error.problem}: update {state.update:,} is not saved; training continues")
            self._last_save_time = time.monotonic() - 60 * self.config.checkpoint_minutes + SAVE_RETRY_SECONDS
            return
        last_two = list_checkpoints(self.checkpoint_folder)[-2:]  # a disk may not return what was written
        validated = self.list_validated_checkpoints()[-self.config.keep_last :]
        updates_to_keep = {state.best.update, state.update, *(int(path.name) for path in (*validated, *last_two))}
        if self.is_finetuning:  # candidates of the final selection
            updates_to_keep |= {0, state.forgetting.rejected_update}
        prune_checkpoints(self.checkpoint_folder, updates_to_keep)
        self._last_save_time, self._save_error = time.monotonic(), None

    def _resume_hint(self) -> str:
        command = f"resume with: heedful train --resume {self.folder.parent}"
        if self._save_error is None:
            return f"update {self.state.update:,} is saved; {command}"
        last_update = int(list_checkpoints(self.checkpoint_folder)[-1].name)
        return f"{self._save_error.problem}: only update {last_update:,} is saved; free disk space and {command}"

    def _is_snapshot_due(self, previous_progress: float) -> bool:
        previous_step, step = previous_progress * self._snapshot_scale, self.progress * self._snapshot_scale
        return any(previous_step < snapshot_step - 0.5 <= step for snapshot_step in self._snapshot_steps)

    def _format_validation(self, result: ValidationReport) -> str:
        epoch = self.state.update / self.batch_schedule.updates_per_epoch
        text = f"update {self.state.update:,}, epoch {epoch:.1f}: {_format_scores(result.validation)}"
        if self.state.best.update == self.state.update:
            text += "  (best so far)"
        original = result.original_validation
        if original is not None:
            original_loss = self.state.forgetting.original_loss
            change = original.loss / max(original_loss, 1e-9) - 1
            text += f"  | original domain: {_format_scores(original)} ({change:+.1%} loss)"
            if result.exceeds_forgetting(original_loss, self.prepared.config.finetuning.max_forgetting):
                text += "  (forgets too much)"
        return text

    def _format_forecast(self) -> str:
        """Expected final BLEU of a model trained from scratch, or nothing while it is too early."""
        if self.is_finetuning or self.state.reached_end:
            return ""
        points = [(point.progress, point.bleu) for point in self.state.validations if point.bleu is not None]
        bleu = forecast(points)
        return f"  (expected final BLEU {bleu[0]:.0f}-{bleu[1]:.0f}, validation, greedy)" if bleu else ""


def _format_scores(result: ValidationResult) -> str:
    scores = "".join(f"  {name} {value:.1f}" for name, value in result.scores.items())
    return f"loss {result.loss:.3f}  perplexity {result.perplexity:.2f}{scores}"


SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)

LEADER_GRACE_SECONDS = 25.0
"""How long a worker waits for its leader; torchrun waits for 30 seconds."""

BLOCKED_GRACE_SECONDS = 3.0
"""How long native code that blocks Python's signal handlers (tokenizer training) may continue."""


@contextmanager
def collect_signals(*, ignore_repeats: bool = False) -> Iterator[list[int]]:
    """Collect signals, to be handled between updates; a second one interrupts at once.

    ``ignore_repeats`` is for torchrun, under which Ctrl-C arrives twice: from terminal and launcher.
    """
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if received and not ignore_repeats:
            raise KeyboardInterrupt
        received.append(number)

    with _install_handler(record):
        yield received


@contextmanager
def defer_signals() -> Iterator[None]:
    """Leave signals to the leader, but exit if it has not ended this process soon after one."""

    def wait(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(LEADER_GRACE_SECONDS, os._exit, [128 + number])
        timer.daemon = True
        timer.start()

    with _install_handler(wait):
        yield


@contextmanager
def raise_on_signal(hint: str) -> Iterator[None]:
    """A signal raises StoppedError immediately; ``hint`` says how to resume."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number, hint)

    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    finished = threading.Event()
    # Before the handlers: a signal during thread start would leave it half started.
    threading.Thread(target=_force_exit, args=(receiver, finished, hint), daemon=True).start()
    with closing(sender), _install_handler(stop) as installed:
        if installed:
            signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            finished.set()
            if installed:
                signal.set_wakeup_fd(-1)


def _force_exit(receiver: socket.socket, finished: threading.Event, hint: str) -> None:
    """Exit although native code blocks Python's handlers: all files are complete at any time."""
    with receiver:
        while data := receiver.recv(1):
            number = data[0]
            # Not for Ctrl-C: the user can wait or send another signal, and a notebook must survive.
            if number not in SIGNALS or number == signal.SIGINT or finished.wait(BLOCKED_GRACE_SECONDS):
                continue
            with suppress(OSError):  # the terminal is closed
                print(f"{StoppedError(number)}\n  hint: {hint}", file=sys.stderr, flush=True)
            os._exit(128 + number)


@contextmanager
def _install_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[bool]:
    """Install ``handler`` in this block; yields False outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield False  # then the caller's handlers apply
        return
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    handled = [number for number in SIGNALS if number not in ignored or number.name != "SIGHUP"]  # nohup
    previous_handlers = {number: signal.signal(number, handler) for number in handled}
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield True
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)
