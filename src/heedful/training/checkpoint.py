"""Checkpoints: folders that appear complete, by rename, so that a killed process never leaves half of one.

    000000500/          weights.safetensors  optimizer.safetensors  trainer_state.json  checksums.json
    000000600.corrupt/  quarantined: the disk did not return what was written

Every checkpoint is verified before it is used. No random state is stored: random numbers of update n depend
only on (seed, n).
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Self

import torch
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError, safe_open
from torch import Tensor

from heedful.errors import DiskError, HeedfulError
from heedful.files import (
    checksum,
    json_bytes,
    sync_folder,
    wrap_write_errors,
    write_bytes,
    write_json,
)
from heedful.model_folder import (
    WEIGHTS_FILE,
    ModelFolder,
    load_parameters,
    read_tensors,
    write_tensors,
)
from heedful.models.base import Model
from heedful.models.factory import new_model
from heedful.progress import Reporter

OPTIMIZER_FILE, STATE_FILE, CHECKSUMS_FILE = "optimizer.safetensors", "trainer_state.json", "checksums.json"

CHECKPOINT_FILES = (WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE)

CORRUPT_SUFFIX = ".corrupt"

STRICT = ConfigDict(extra="forbid")


@dataclass(config=STRICT)
class ValidationPoint:
    """One validation on the way."""

    update: int
    progress: float
    """Fraction of the training that was done, 0 to 1."""
    bleu: float | None = None


@dataclass(config=STRICT)
class BestWeights:
    """The lowest validation loss so far."""

    loss: float = float("inf")
    update: int = 0
    validations_since_best: int = 0


@dataclass(config=STRICT)
class Forgetting:
    """Fine-tuning only: losses on original-domain pairs, and the best weights that forgot too much."""

    original_loss: float = float("inf")
    """Loss of the initial model on original-domain pairs."""
    last_original_loss: float = float("inf")
    """The same at the newest validation."""
    rejected_loss: float = float("inf")
    """Lowest validation loss of weights that exceeded finetuning.max_forgetting."""
    rejected_update: int = 0


@dataclass(config=STRICT)
class Clock:
    """Seconds spent on the run, over all sessions."""

    training_seconds: float = 0.0
    """In updates."""
    total_seconds: float = 0.0
    """In everything: preparation, updates, validations."""
    preparation_seconds: float = 0.0
    """Before the first update."""
    reserved_seconds: float = 0.0
    """Kept free for the end of a run with a time limit."""


@dataclass(config=STRICT)
class Failures:
    """Recovered problems."""

    nonfinite_updates: int = 0
    """Updates skipped because loss or gradient was not finite."""
    nonfinite_in_a_row: int = 0
    splits: int = 0
    """Batches halved because they did not fit in memory."""


@dataclass(config=STRICT)
class TrainerState:
    """How far a run is, apart from weights and optimizer: trainer_state.json."""

    update: int = 0
    tokens: int = 0
    """Target tokens trained on."""
    validation_due: bool = False
    """Saved before its validation: resuming starts with it."""
    validations: list[ValidationPoint] = field(default_factory=list)
    best: BestWeights = field(default_factory=BestWeights)
    forgetting: Forgetting = field(default_factory=Forgetting)
    clock: Clock = field(default_factory=Clock)
    failures: Failures = field(default_factory=Failures)

    @property
    def reached_end(self) -> bool:
        """Whether the newest validation came after the last planned update."""
        return bool(self.validations) and self.validations[-1].progress >= 1


STATE_ADAPTER = TypeAdapter(TrainerState)


class CorruptCheckpointError(HeedfulError):
    """A checkpoint differs from what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"checkpoint {path} is corrupt: {reason}", hint=f"delete it to resume from the one before: {path}"
        )
        self.path, self.reason = path, reason


MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""Adam's state of each parameter."""


def named_moments(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments by kind and name of the parameter; none before the first update."""
    return {
        f"{kind}/{name}": value
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for kind, value in optimizer.state[parameter].items()
    }


class CheckpointWriter:
    """Writes a checkpoint file by file; ``commit`` makes it appear, or raises the first error.

    Leaving the ``with`` block without ``commit`` leaves nothing. Errors wait until then because other ranks take part
    in gathering what is written.
    """

    def __init__(self, folder: Path, update: int) -> None:
        self.final = folder / f"{update:09}"
        self.partial = folder / f"{self.final.name}.partial"
        self._checksums: dict[str, str] = {}
        self._error: DiskError | None = None

    def __enter__(self) -> Self:
        shutil.rmtree(self.partial, ignore_errors=True)
        # Not its parents: if the user deleted the folder, it stays deleted.
        self._try(lambda path: path.mkdir(), self.partial)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)

    def write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a safetensors file."""
        contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
        self._try(lambda path: write_tensors(path, contiguous), self.partial / name)

    def commit(self, state: TrainerState) -> Path:
        """Write the state and rename the folder."""
        self._try(lambda path: write_bytes(path, json_bytes(asdict(state))), self.partial / STATE_FILE)
        if self._error is not None:
            raise self._error
        with wrap_write_errors(self.final):
            write_json(self.partial / CHECKSUMS_FILE, self._checksums)
            sync_folder(self.partial)
            replaced = _rename_for_deletion(self.final)
            self.partial.rename(self.final)
            sync_folder(self.final.parent)
            shutil.rmtree(replaced, ignore_errors=True)
        return self.final

    def _try(self, write: Callable[[Path], None], path: Path) -> None:
        if self._error is None:
            try:
                with wrap_write_errors(self.final):
                    write(path)
                    if path.is_file():
                        self._checksums[path.name] = checksum(path)
            except DiskError as error:
                self._error = error


def save_checkpoint(
    folder: Path,
    gather_weights: Callable[[], Mapping[str, Tensor]],
    gather_moments: Callable[[], Mapping[str, Tensor]],
    state: TrainerState,
) -> Path:
    """Write ``folder``/update atomically; weights and moments are not in memory at the same time."""
    with CheckpointWriter(folder, state.update) as writer:
        writer.write(OPTIMIZER_FILE, gather_moments())
        writer.write(WEIGHTS_FILE, gather_weights())
        return writer.commit(state)


def load_checkpoint(path: Path, model: Model, optimizer: torch.optim.Optimizer) -> TrainerState:
    """Restore weights and Adam's moments; return the state."""
    check_checkpoint(path)
    load_parameters(model, read_tensors(path / WEIGHTS_FILE), path)
    tensors = read_tensors(path / OPTIMIZER_FILE)
    fused = optimizer.defaults["fused"]  # fused Adam counts steps on the parameter's device
    for name, parameter in model.named_parameters() if tensors else ():  # before the first update Adam has none
        try:
            moments = {kind: tensors[f"{kind}/{name}"] for kind in MOMENTS}
        except KeyError as missing:
            raise HeedfulError(f"the checkpoint has no {missing}", hint="delete it to use the one before") from None
        optimizer.state[parameter] = {
            kind: tensor.to(parameter.device) if fused or kind != "step" else tensor for kind, tensor in moments.items()
        }
    return read_state(path)


def read_state(path: Path) -> TrainerState:
    """The trainer state of a checkpoint."""
    try:
        return STATE_ADAPTER.validate_json((path / STATE_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(path, str(error)) from None


def check_checkpoint(path: Path) -> None:
    """Raise CorruptCheckpointError unless a checkpoint is as it was written."""
    try:
        for name in (*CHECKPOINT_FILES, CHECKSUMS_FILE):
            if not (path / name).is_file():
                raise CorruptCheckpointError(path, f"{name} is missing")
        try:
            checksums = json.loads((path / CHECKSUMS_FILE).read_bytes())
            expected_checksums = {name: checksums[name] for name in CHECKPOINT_FILES}
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptCheckpointError(path, f"{CHECKSUMS_FILE} is not valid ({error})") from None
        for name, expected in expected_checksums.items():
            if checksum(path / name) != expected:
                raise CorruptCheckpointError(path, f"the checksum of {name} differs")
        read_state(path)
        for name in (WEIGHTS_FILE, OPTIMIZER_FILE):
            with safe_open(path / name, "pt"):  # reads only the header
                pass
    except SafetensorError as error:
        raise CorruptCheckpointError(path, f"{name} is not a valid safetensors file ({error})") from None
    except OSError as error:
        raise CorruptCheckpointError(path, f"it cannot be read ({error})") from None


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def find_latest_checkpoint(folder: Path, report: Reporter) -> Path | None:
    """The newest valid checkpoint, or None if there are none; corrupt newer ones are quarantined.

    If all are corrupt, they stay where they are and that is an error.
    """
    corrupt_errors: list[CorruptCheckpointError] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            check_checkpoint(path)
        except CorruptCheckpointError as error:
            corrupt_errors.append(error)
            continue
        for corrupt in corrupt_errors:
            quarantine_checkpoint(corrupt, report)
        return path
    if corrupt_errors:
        reasons = "; ".join(f"{corrupt.path.name}: {corrupt.reason}" for corrupt in corrupt_errors)
        raise HeedfulError(
            f"all checkpoints in {folder} are corrupt ({reasons})",
            hint=f"to train again from the first update, delete them: rm -r {folder}",
        )
    return None


def filter_valid_checkpoints(paths: Sequence[Path], report: Reporter, *, quarantine: bool = True) -> list[Path]:
    """The valid ones; the others are quarantined, or only reported."""
    valid_paths = []
    for path in paths:
        try:
            check_checkpoint(path)
            valid_paths.append(path)
        except CorruptCheckpointError as error:
            if quarantine:
                quarantine_checkpoint(error, report)
            else:
                report.warning(f"{error.problem}; skipped")
    return valid_paths


def quarantine_checkpoint(error: CorruptCheckpointError, report: Reporter) -> None:
    """Rename a corrupt checkpoint, so that it is ignored but can still be examined."""
    quarantine_path = error.path.with_name(error.path.name + CORRUPT_SUFFIX)
    report.warning(f"ignoring corrupt checkpoint {error.path}: {error.reason}; renamed to {quarantine_path.name}")
    with wrap_write_errors(quarantine_path):
        shutil.rmtree(quarantine_path, ignore_errors=True)
        error.path.rename(quarantine_path)


def prune_checkpoints(folder: Path, updates_to_keep: set[int]) -> None:
    """Delete all other checkpoints, and quarantined ones of updates that the run has passed again."""
    for path in list_checkpoints(folder):
        if int(path.name) not in updates_to_keep:
            _rename_for_deletion(path)
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in folder.glob(f"*{CORRUPT_SUFFIX}"):
        if path.stem.isdigit() and int(path.stem) <= max(updates_to_keep, default=0):
            shutil.rmtree(path, ignore_errors=True)


def _rename_for_deletion(path: Path) -> Path:
    """Rename a checkpoint before it is deleted: a kill during deletion must not leave half of one."""
    doomed_path = path.with_name(f"{path.name}.old.partial")
    shutil.rmtree(doomed_path, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(doomed_path)
    return doomed_path


def remove_partial_files(training_folder: Path) -> None:
    """Delete what a killed process left of files and folders that it was writing or deleting."""
    for path in training_folder.glob("*/*.partial"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (section 6.1 averages the last 5)."""
    total = {name: tensor.double() for name, tensor in read_tensors(paths[0] / WEIGHTS_FILE).items()}
    for path in paths[1:]:
        for name, tensor in read_tensors(path / WEIGHTS_FILE).items():
            total[name] += tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


# Snapshots: weights that are never deleted, snapshots/000000144.safetensors, to show how heads formed.

SNAPSHOT_FOLDER = "snapshots"


def snapshot_updates(total: int, count: int) -> frozenset[int]:
    """Updates after which weights are kept: densely at first, since that is when heads form.

    >>> sorted(snapshot_updates(1535, 12))
    [0, 1, 9, 31, 74, 144, 249, 396, 590, 841, 1153, 1535]
    """
    return frozenset(round(total * (number / max(count - 1, 1)) ** 3) for number in range(count))


def save_snapshot(training_folder: Path, weights: Mapping[str, Tensor], update: int, report: Reporter) -> None:
    """Write the weights of this update atomically; on a full disk warn and continue."""
    folder = training_folder / SNAPSHOT_FOLDER
    try:
        with wrap_write_errors(folder):
            folder.mkdir(exist_ok=True)
        write_tensors(folder / f"{update:09}.safetensors", weights)
    except DiskError as error:
        report.warning(f"{error.problem}: no snapshot of update {update:,}")


def list_saved_weights(folder: Path) -> dict[int, Path]:
    """Weights of all checkpoints and snapshots in a model folder, by update, in order."""
    training_folder = folder / "training"
    checkpoints = {int(path.name): path / WEIGHTS_FILE for path in list_checkpoints(training_folder / "checkpoints")}
    snapshots = {
        int(path.stem): path
        for path in (training_folder / SNAPSHOT_FOLDER).glob("*.safetensors")
        if path.stem.isdecimal()
    }
    return dict(sorted({**checkpoints, **snapshots}.items()))


def load_snapshot(model_folder: ModelFolder, folder: Path, update: int) -> ModelFolder:
    """The model as it was after this update."""
    weight_files = list_saved_weights(folder)
    if update not in weight_files:
        available = ", ".join(map(str, weight_files)) or "none"
        raise HeedfulError(f"there is no checkpoint of update {update}", hint=f"available: {available}")
    model = new_model(model_folder.config.model)
    load_parameters(model, read_tensors(weight_files[update]), weight_files[update])
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise HeedfulError(
            f"the weights of update {update} are not finite: training had diverged", hint="use an earlier update"
        )
    return replace(model_folder, weights=model.to(model_folder.model.output.weight.device).eval())
