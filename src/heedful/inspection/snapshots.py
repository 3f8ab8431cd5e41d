"""The weights that a model had while it was trained: the same sentence can be seen at every stage."""

from dataclasses import replace
from pathlib import Path

from heedful.bundle import Bundle, load_parameters, read_tensors
from heedful.errors import HeedfulError
from heedful.model.family import new_model
from heedful.training.checkpoint import checkpoints
from heedful.training.snapshots import saved_snapshots


def snapshots(folder: Path) -> dict[int, Path]:
    """The weights kept in a model folder, by the number of updates that they had seen, in order."""
    training = folder / "training"
    kept = {int(path.name): path / "weights.safetensors" for path in checkpoints(training / "checkpoints")}
    return dict(sorted({**kept, **saved_snapshots(training)}.items()))


def at_snapshot(bundle: Bundle, folder: Path, update: int) -> Bundle:
    """The model as it was after so many updates."""
    found = snapshots(folder)
    if update not in found:
        known = ", ".join(map(str, found)) or "none"
        raise HeedfulError(f"there is no checkpoint of update {update}", hint=f"kept are: {known}")
    model = new_model(bundle.config.model)
    load_parameters(model, read_tensors(found[update]), found[update])
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise HeedfulError(
            f"the weights of update {update} are no numbers: training had diverged",
            hint="look at an earlier one",
        )
    return replace(bundle, weights=model.to(bundle.predictor.output.weight.device).eval())
