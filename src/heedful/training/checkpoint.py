"""Checkpoints: folders that appear whole, by rename, so that a killed process never leaves a broken one.

    checkpoints/000000500/  weights.safetensors  optimizer.safetensors  state.json

Nothing about random numbers is kept: those of update n depend on (seed, n) alone.
"""

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from heedful.bundle import load_parameters, named_parameters, read_tensors, write_tensors
from heedful.errors import HeedfulError
from heedful.files import sync_folder, write_json
from heedful.model.predictor import Predictor


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
    examined: list[tuple[int, float, float]] = field(default_factory=list)
    """Of each examination: the update before it, the share of the training over by then, and BLEU (or -1)."""


STATE = TypeAdapter(TrainingState)


def save_checkpoint(
    folder: Path, model: Predictor, optimizer: torch.optim.Optimizer, state: TrainingState
) -> Path:
    """Write ``folder``/update, whole or not at all."""
    final = folder / f"{state.update:09}"
    partial = folder / f"{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_tensors(partial / "weights.safetensors", named_parameters(model))
        write_tensors(partial / "optimizer.safetensors", _moments(model, optimizer))
        write_json(partial / "state.json", asdict(state))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def load_checkpoint(path: Path, model: Predictor, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put weights and Adam's moments back; returns how far the run was."""
    load_parameters(model, read_tensors(path / "weights.safetensors"), path)
    _restore_moments(model, optimizer, read_tensors(path / "optimizer.safetensors"))
    return read_state(path)


def read_state(path: Path) -> TrainingState:
    """How far the run of this checkpoint was."""
    try:
        return STATE.validate_json((path / "state.json").read_bytes())
    except (OSError, ValueError) as error:
        raise HeedfulError(
            f"checkpoint {path} is damaged: {error}", hint=f"delete it to go on from the one before: {path}"
        ) from None


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints, oldest first."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def prune(folder: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all updates but these."""
    for path in checkpoints(folder):
        if int(path.name) not in keep:
            # Renamed first: a kill in the middle of the deletion must not leave half a checkpoint.
            doomed = path.with_name(path.name + ".partial")
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)


def averaged_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights (section 6.1 averages the last 5)."""
    total = {name: tensor.double() for name, tensor in read_tensors(paths[0] / "weights.safetensors").items()}
    for path in paths[1:]:
        for name, tensor in read_tensors(path / "weights.safetensors").items():
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
