"""The training loop: update, validate, save, until the planned end, early stopping or a signal.

The rule to remember: whatever interrupts it, the newest checkpoint is complete and resuming from it repeats
the uninterrupted run to the bit. Every rank runs the same loop; rank 0 decides what comes next, because only it
reads the clock, validates and writes files.
"""

import math
import time
from pathlib import Path
from typing import Any, Literal

import torch
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
from heedful.training.distributed import LostProcessError, ProcessGroup, Replica, new_replica
from heedful.training.lr_schedule import TrainingBudget, compute_learning_rate, forecast
from heedful.training.metrics_log import MetricsLog, truncate_metrics
from heedful.training.preparation import PreparedCorpus
from heedful.training.signals import collect_signals, raise_on_signal
from heedful.training.step import BatchSchedule, UpdateResult, new_optimizer
from heedful.training.validation import ValidationReport, ValidationResult, load_original_model, update_best, validate

LOG_EVERY = 10

SAVE_RETRY_SECONDS = 60.0
"""Until the next attempt after a checkpoint could not be written."""

MIN_TRAINING_PER_SAVE = 20.0
"""Train at least this many times as long as a checkpoint took before the next one: they cost at most 5 %."""

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
        self,
        folder: Path,
        prepared: PreparedCorpus,
        model: Model,
        report: Reporter,
        start_time: float,
        group: ProcessGroup | None = None,
    ) -> None:
        self.folder, self.prepared, self.model, self.report = folder, prepared, model, report
        self.group = group or ProcessGroup()
        self.config = prepared.config.training
        self.optimizer = new_optimizer(model, self.config)
        self.batch_schedule = BatchSchedule(prepared, folder, report)
        self.state = TrainerState()
        self.checkpoint_folder = folder / "checkpoints"
        if self.group.rank == 0:
            latest = find_latest_checkpoint(self.checkpoint_folder, report)
            if latest:
                self.state = load_checkpoint(latest, model, self.optimizer)
            truncate_metrics(folder / "metrics.jsonl", self.state.update)
            with wrap_write_errors(self.checkpoint_folder):
                self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
            remove_partial_files(folder)
        total_updates = self.batch_schedule.total_updates
        self.budget = TrainingBudget(total_updates, self.config, self.state.clock, start_time)
        self.progress = self.budget.progress(self.state.update) if self.state.update else 0.0
        """Fraction of the training that was done after the newest update."""
        updates_per_epoch, seconds = self.batch_schedule.updates_per_epoch, self.state.clock.training_seconds
        self.metrics_log = MetricsLog(
            folder / "metrics.jsonl", updates_per_epoch, report, tokens=self.state.tokens, seconds=seconds
        )
        self._snapshot_scale = TIMED_SNAPSHOT_STEPS if self.budget.max_seconds else total_updates
        self._snapshot_steps = snapshot_updates(self._snapshot_scale, self.config.snapshots)
        self._snapshot_due = False
        self._next_save_time = time.monotonic() + 60 * self.config.checkpoint_minutes
        self._save_error: DiskError | None = None
        self._signals: list[int] = []
        """Signals received since the loop started."""

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

    def start(self, threads: int) -> None:
        """In one process, before the first update: save a checkpoint, in fine-tuning after a validation.

        A validation that a signal interrupted is repeated. ``threads`` are those of the machine.
        """
        is_new, replica = not list_checkpoints(self.checkpoint_folder), Replica(*self._replica_arguments)
        if is_new and self._is_snapshot_due(-1.0):
            save_snapshot(self.folder, replica.gather_weights(), 0, self.report)
        if self.state.validation_due or (is_new and self.is_finetuning):
            self._validate(self.model, threads)
            self._save_checkpoint(replica)
        elif is_new:
            self._save_checkpoint(replica)
        if self._signals:
            raise self._stop(self._signals[0])

    def fit(self, compute: ComputeConfig) -> None:
        """Train until the planned end, early stopping, or a signal, which raises StoppedError.

        Called by every rank, after ``start``. Other ranks need no checkpoint: rank 0 sends them its state.
        """
        self.state.update = self.group.share({"update": self.state.update})["update"]
        if not self.state.update:
            self.budget.start_training()
        replica = new_replica(*self._replica_arguments, self.group)
        self.optimizer = replica.optimizer
        self.metrics_log.start_interval()
        with use_threads(compute.threads), collect_signals(ignore_repeats=self.group.size > 1) as self._signals:
            try:
                self._train(replica, compute)
            except LostProcessError:
                if not self._signals:
                    raise
                raise self._stop(self._signals[0]) from None  # the signal went to all ranks: the others have exited

    @property
    def _replica_arguments(self) -> tuple[BatchSchedule, Model, torch.optim.Optimizer]:
        return self.batch_schedule, self.model, self.optimizer

    def _train(self, replica: Replica, compute: ComputeConfig) -> None:
        done, total = self._progress_bar()
        unit = SECONDS if self.budget.max_seconds else "updates"
        forecast_text = self._format_forecast()
        with self.report.task("training", total=total, done=done, unit=unit) as task:
            while True:
                decision = self.group.share(self._decide() if self.group.rank == 0 else None)
                match decision["action"]:
                    case "update":
                        previous_done = done
                        self._run_update(replica, compute.precision, decision["learning_rate"])
                        done, _ = self._progress_bar()
                        task.advance(done - previous_done, note=f"{self.metrics_log.note}{forecast_text}")
                    case "snapshot":
                        self._save_snapshot(replica)
                    case "validate":
                        model = replica.gather_model()
                        if model is not None:
                            self._validate(model, compute.threads * self.group.local_size)
                            forecast_text = self._format_forecast()
                    case "save":
                        self._save_checkpoint(replica)
                    case "stop":
                        self._save_checkpoint(replica)
                        raise self._stop(decision["signal"])
                    case "finish":
                        return

    def _decide(self) -> dict[str, Any]:
        """What all ranks do next. A checkpoint comes last: a run resumed from it does not redo what was before."""
        if self._snapshot_due:
            return {"action": "snapshot"}
        if self._signals:
            return {"action": "stop", "signal": self._signals[0]}
        if self.state.validation_due:
            return {"action": "validate"}
        if time.monotonic() > self._next_save_time:
            return {"action": "save"}
        if self.is_finished:
            return {"action": "finish"}
        learning_rate = compute_learning_rate(
            self.state.update + 1,
            self.budget.progress(self.state.update),
            self.config,
            self.prepared.config.model.d_model,
            self.batch_schedule.total_updates,
        )
        return {"action": "update", "learning_rate": learning_rate}

    def _progress_bar(self) -> tuple[int, int]:
        """Done and total, in updates or, with a time limit, in seconds."""
        if self.budget.max_seconds:
            return int(self.budget.total_seconds), round(self.budget.max_seconds)
        return self.state.update, self.batch_schedule.total_updates

    def _run_update(self, replica: Replica, precision: str, learning_rate: float) -> None:
        update, previous_progress = self.state.update + 1, self.progress
        result = replica.update(update, precision, learning_rate)
        self.state.update = update
        self.progress = max(previous_progress, self.budget.progress(update))  # validations change the time that is left
        self._count_failures(result)
        if self.group.rank:
            return
        if math.isfinite(result.loss):
            self.metrics_log.add(result.loss, result.sums.tokens, learning_rate)
        if update % LOG_EVERY == 0:
            self.metrics_log.write(update)
        self._snapshot_due = self._is_snapshot_due(previous_progress)
        self.state.validation_due = self.budget.should_validate(
            update, previous_progress, self.progress, self.batch_schedule.updates_per_epoch
        )

    def _count_failures(self, result: UpdateResult) -> None:
        """Report recovered problems; too many non-finite updates in a row are an error."""
        failures, update = self.state.failures, self.state.update
        failures.splits += result.sums.splits
        is_main = self.group.rank == 0
        if result.sums.splits and is_main:
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
            if not is_main:
                raise SystemExit(1)
            raise HeedfulError(
                "training diverged: non-finite loss or gradient in "
                f"{format_count(failures.nonfinite_in_a_row, 'update')} in a row",
                hint="the last checkpoint is valid; train again with a lower training.learning_rate "
                "or more training.warmup_updates",
            )
        if is_main:
            self.report.warning(
                f"update {update:,} is skipped: non-finite loss or gradient ({failures.nonfinite_updates:,} so far)"
            )

    def _validate(self, model: Model, threads: int) -> None:
        """Validate, while other ranks wait; a signal interrupts it, and resuming starts with it."""
        self.metrics_log.write(self.state.update)  # before: validation is not training time
        state, start_time, bleu_sentences = self.state, time.monotonic(), self.config.bleu_sentences
        try:
            with use_threads(threads), raise_on_signal(""):
                if self._signals:  # received after the update
                    raise StoppedError(self._signals[0])
                if self.is_finetuning and not state.update:
                    original_model = load_original_model(self.folder, self.prepared, model)
                    result = original_model.validate(self.prepared, bleu_sentences)
                else:
                    result = validate(model, self.prepared, bleu_sentences)
        except StoppedError as stopped:
            state.validation_due = True
            self._signals.append(stopped.signal_number)
            return
        model.train()
        state.validation_due = False
        self.budget.record_validation(time.monotonic() - start_time)
        bleu = result.validation.scores.get("BLEU")
        state.validations.append(ValidationPoint(state.update, self.progress, bleu))
        update_best(state, result, self.prepared.config.finetuning.max_forgetting)
        self.metrics_log.append(state.update, result.to_metrics())
        self.report.info(self._format_validation(result) + self._format_forecast())
        self.metrics_log.start_interval()
        self._next_save_time = 0.0

    def _save_snapshot(self, replica: Replica) -> None:
        self._snapshot_due = False
        weights = replica.gather_weights()
        if self.group.rank == 0:
            save_snapshot(self.folder, weights, self.state.update, self.report)

    def _save_checkpoint(self, replica: Replica) -> None:
        """Write a checkpoint and delete old ones: keep the newest validated ones, the best and the last two.

        On a full disk training continues, and the next attempt follows soon.
        """
        if self.group.rank:
            replica.gather_moments()
            replica.gather_weights()
            return
        state, start_time = self.state, time.monotonic()
        self.metrics_log.write(state.update)
        state.tokens = self.metrics_log.total_tokens
        state.clock.training_seconds = self.metrics_log.total_seconds
        self.budget.save_clock()
        try:
            save_checkpoint(self.checkpoint_folder, replica.gather_weights, replica.gather_moments, state)
        except DiskError as error:
            if not state.update or self.is_finished or not self.checkpoint_folder.is_dir():
                raise
            self._save_error = error
            self.report.warning(f"{error.problem}: update {state.update:,} is not saved; training continues")
            self._next_save_time = time.monotonic() + SAVE_RETRY_SECONDS
            return
        last_two = list_checkpoints(self.checkpoint_folder)[-2:]  # a disk may not return what was written
        validated = self.list_validated_checkpoints()[-self.config.keep_last :]
        updates_to_keep = {state.best.update, state.update, *(int(path.name) for path in (*validated, *last_two))}
        if self.is_finetuning:  # candidates of the final selection
            updates_to_keep |= {0, state.forgetting.rejected_update}
        prune_checkpoints(self.checkpoint_folder, updates_to_keep)
        now = time.monotonic()
        pause = max(60 * self.config.checkpoint_minutes, MIN_TRAINING_PER_SAVE * (now - start_time))
        self._next_save_time, self._save_error = now + pause, None

    def _stop(self, signal_number: int) -> BaseException:
        """The error that ends this rank after a signal; rank 0 says what is saved."""
        if self.group.rank:
            return SystemExit(128 + signal_number)
        command = f"resume with: heedful train --resume {self.folder.parent}"
        saved = f"update {int(list_checkpoints(self.checkpoint_folder)[-1].name):,} is saved"
        if self._save_error is None:
            return StoppedError(signal_number, f"{saved}; {command}")
        return StoppedError(signal_number, f"{self._save_error.problem}: only {saved}; free disk space and {command}")

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
