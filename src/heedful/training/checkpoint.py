"""Checkpoints: folders that appear whole, by rename, so that a killed process never leaves a broken one.

    checkpoints/000000500/          weights.safetensors  optimizer.safetensors  state.json  checksums.json
    checkpoints/000000600.damaged/  set aside: a disk has not given back what was written

Whoever reads one checks it first. Nothing about random numbers is kept: those of update n depend on (seed, n)
alone.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from heedful.bundle import WEIGHTS, load_parameters, named_parameters, read_tensors, tensor_bytes
from heedful.errors import HeedfulError
from heedful.files import json_bytes, sync_folder, write_bytes, write_json, writing
from heedful.model.predictor import Predictor
from heedful.progress import Reporter

OPTIMIZER, STATE_FILE, CHECKSUMS = "optimizer.safetensors", "state.json", "checksums.json"
PARTS = (WEIGHTS, OPTIMIZER, STATE_FILE)
DAMAGED = ".damaged"


@dataclass(slots=True)
class TrainingState:
    """How far a run is, apart from its weights."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    update: int = 0
    best_loss: float = float("inf")
    best_update: int = 0
    stale: int = 0
    """Validations since the best."""
    tokens: int = 0
    """Target tokens learned from."""
    seconds: float = 0.0
    """Spent training, over all sittings."""
    spent: float = 0.0
    """Spent on the run altogether: preparation, training and examinations."""
    begun: float = 0.0
    """How much of that was over when learning began."""
    reserved: float = 0.0
    """Seconds kept for the end of a training by the clock."""
    old_loss: float = float("inf")
    """Of the model that a tuning started from, on old pairs."""
    last_old_loss: float = float("inf")
    """Of the newest examination, likewise."""
    refused_loss: float = float("inf")
    """On new pairs, the lowest of weights that had forgotten too much of the old ones."""
    refused_update: int = 0
    """Of these weights."""
    skipped: int = 0
    """Updates without a step, as loss or gradient was no number."""
    skipped_in_a_row: int = 0
    """Of these, the newest ones."""
    splits: int = 0
    """How often a batch was halved because it did not fit in memory."""
    due: bool = False
    """Whether it was saved before its examination: then going on begins with that."""
    examined: list[tuple[int, float, float]] = field(default_factory=list)
    """Of each examination: the update before it, the share of the training over by then, and BLEU (or -1)."""


STATE = TypeAdapter(TrainingState)


class DamagedError(HeedfulError):
    """A checkpoint is not as it was written."""

    def __init__(self, path: Path, finding: str) -> None:
        super().__init__(
            f"checkpoint {path} is damaged: {finding}", hint=f"delete it to go on from the one before: {path}"
        )
        self.path, self.finding = path, finding


def save_checkpoint(
    folder: Path, model: Predictor, optimizer: torch.optim.Optimizer, state: TrainingState
) -> Path:
    """Write ``folder``/update, whole or not at all."""
    final = folder / f"{state.update:09}"
    partial = folder / f"{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(final):
            partial.mkdir()  # not its parents: a folder that somebody has deleted stays so
            checksums = {}
            for name, data in _contents(model, optimizer, state):
                checksums[name] = hashlib.blake2b(data).hexdigest()
                write_bytes(partial / name, data)
            write_json(partial / CHECKSUMS, checksums)
            sync_folder(partial)
            old = _doomed(final)
            partial.rename(final)
            sync_folder(folder)
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _contents(
    model: Predictor, optimizer: torch.optim.Optimizer, state: TrainingState
) -> Iterator[tuple[str, bytes]]:
    """The files, one at a time: together they would need the memory of the run once more."""
    yield WEIGHTS, tensor_bytes(named_parameters(model))
    yield OPTIMIZER, tensor_bytes(_moments(model, optimizer))
    yield STATE_FILE, json_bytes(asdict(state))


def load_checkpoint(path: Path, model: Predictor, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put weights and Adam's moments back; returns how far the run was."""
    check(path)
    load_parameters(model, read_tensors(path / WEIGHTS), path)
    _restore_moments(model, optimizer, read_tensors(path / OPTIMIZER))
    return read_state(path)


def read_state(path: Path) -> TrainingState:
    """How far the run of this checkpoint was."""
    try:
        return STATE.validate_json((path / STATE_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedError(path, str(error)) from None


def check(path: Path) -> None:
    """An error that says what is damaged, if a checkpoint is not as it was written."""
    try:
        for name in PARTS:
            if not (path / name).is_file():
                raise DamagedError(path, f"it has no {name}")
        if (path / CHECKSUMS).exists():  # an older Heedful wrote none
            _check_sums(path)
        read_state(path)
        for name in (WEIGHTS, OPTIMIZER):
            with safe_open(path / name, "pt"):  # reads where everything is, and no more
                pass
    except SafetensorError as error:
        raise DamagedError(path, f"{name} is cut short or no safetensors file ({error})") from None
    except OSError as error:
        raise DamagedError(path, f"it cannot be read ({error})") from None


def _check_sums(path: Path) -> None:
    try:
        checksums = json.loads((path / CHECKSUMS).read_bytes())
        expected = {name: checksums[name] for name in PARTS}
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(path, f"{CHECKSUMS} does not hold the checksums ({error})") from None
    for name, checksum in expected.items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, hashlib.blake2b).hexdigest() != checksum:
                raise DamagedError(path, f"{name} is not what was written (its checksum differs)")


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def newest_whole(folder: Path, report: Reporter) -> Path | None:
    """The checkpoint to go on from, if there are any; newer ones that are damaged are set aside, and said so.

    If none is whole, all stay where they are, and that is an error.
    """
    found = checkpoints(folder)
    damaged: list[DamagedError] = []
    for path in reversed(found):
        try:
            check(path)
        except DamagedError as error:
            damaged.append(error)
            continue
        for each in damaged:
            set_aside(each, report)
        return path
    if damaged:
        findings = "; ".join(f"{each.path.name}: {each.finding}" for each in damaged)
        raise HeedfulError(
            f"no checkpoint in {folder} is whole ({findings})",
            hint=f"to train again from the first update, delete them: rm -r {folder}",
        )
    return None


def whole(paths: Sequence[Path], report: Reporter) -> list[Path]:
    """Those that are as they were written; the others are set aside, and said so."""
    kept = []
    for path in paths:
        try:
            check(path)
            kept.append(path)
        except DamagedError as error:
            set_aside(error, report)
    return kept


def set_aside(error: DamagedError, report: Reporter) -> None:
    """Give a damaged checkpoint another name: it no longer counts, and who wants to can still look at it."""
    aside = error.path.with_name(error.path.name + DAMAGED)
    report.warn(
        f"checkpoint {error.path} is damaged and not used: {error.finding}; kept as {aside.name} for now"
    )
    with writing(aside):
        shutil.rmtree(aside, ignore_errors=True)
        error.path.rename(aside)


def prune(folder: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all updates but these, and damaged ones that the run has passed again."""
    for path in checkpoints(folder):
        if int(path.name) not in keep:
            _doomed(path)
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in folder.glob(f"*{DAMAGED}"):
        if path.stem.isdigit() and int(path.stem) <= max(keep, default=0):
            shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(training: Path) -> None:
    """What a kill has left of files and folders that were being written or deleted."""
    for path in training.glob("*/*.partial"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _doomed(path: Path) -> Path:
    """A checkpoint renamed to be deleted: a kill in the middle of that must not leave half of one."""
    doomed = path.with_name(f"{path.name}.old.partial")
    shutil.rmtree(doomed, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(doomed)
    return doomed


def averaged_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights (section 6.1 averages the last 5)."""
    total = {name: tensor.double() for name, tensor in read_tensors(paths[0] / WEIGHTS).items()}
    for path in paths[1:]:
        for name, tensor in read_tensors(path / WEIGHTS).items():
            total[name] += tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _moments(model: Predictor, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's two moments and step count of each parameter, by the parameter's name."""
    return {
        f"{kind}/{name}": value.contiguous()
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state[parameter].items()
    }


def _restore_moments(model: Predictor, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    if not tensors:  # before the first update Adam has none
        return
    fused = optimizer.defaults["fused"]  # fused Adam counts steps on the parameter's device
    for name, parameter in model.named_parameters():
        try:
            found = {kind: tensors[f"{kind}/{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")}
        except KeyError as missing:
            raise HeedfulError(
                f"the checkpoint has no {missing}", hint="delete it to use the one before"
            ) from None
        optimizer.state[parameter] = {
            kind: tensor.to(parameter.device) if fused or kind != "step" else tensor
            for kind, tensor in found.items()
        }
