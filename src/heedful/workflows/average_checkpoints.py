"""``heedful average``: average the weights of several checkpoints or models (section 6.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from heedful.data.formats.base import ReadOptions
from heedful.data.reader import check_inputs
from heedful.devices import select_device
from heedful.errors import HeedfulError
from heedful.inference.pytorch_backend import check_compatible
from heedful.model_folder import WEIGHTS_FILE, ModelFolder, load_parameters, read_tensors
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.training.checkpoint import (
    STATE_FILE,
    average_weights,
    check_checkpoint,
    filter_valid_checkpoints,
    list_checkpoints,
)
from heedful.training.model_selection import usage_command
from heedful.training.validation import compute_loss
from heedful.workflows.evaluate import read_usable_pairs

IGNORED_SETTINGS = frozenset({"dropout"})
"""Model settings that only matter in training."""


@dataclass(frozen=True, slots=True)
class AverageOptions:
    """What ``heedful average`` averages."""

    paths: tuple[Path, ...]
    output: Path
    last: int | None = None
    validation: tuple[Path, ...] = ()
    device: str = "auto"


class _WeightsSource(NamedTuple):
    """Weights, and the model folder they belong to."""

    weights_folder: Path
    model_path: Path


def average_checkpoints(options: AverageOptions, report: Reporter) -> Iterator[str]:
    """Write the averaged model; yields lines to print."""
    output = options.output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HeedfulError(f"{output} already exists", hint="choose another folder (-o)")
    if options.validation:
        check_inputs(options.validation)
    sources = _collect_sources(options.paths, options.last, report)
    folders = list(dict.fromkeys(source.model_path for source in sources))
    model_folders = [ModelFolder.open(folder) for folder in folders]
    check_compatible(model_folders, folders)
    first = model_folders[0].config.model.model_dump()
    for model_folder, folder in zip(model_folders[1:], folders[1:], strict=True):
        for name, value in model_folder.config.model.model_dump().items():
            if value != first[name] and name not in IGNORED_SETTINGS:
                raise HeedfulError(
                    f"{folders[0]} and {folder} cannot be averaged: "
                    f"model.{name} is {first[name]} in one and {value} in the other",
                    hint="use them as an ensemble instead: heedful translate --with",
                )
    names = [str(source.weights_folder) for source in sources]
    report.info(f"averaging {len(sources)}: {', '.join(names)}")
    model = new_model(model_folders[0].config.model)
    load_parameters(model, average_weights([source.weights_folder for source in sources]), output)
    averaged = replace(model_folders[0], weights=model.eval())
    losses = _measure_losses(averaged, sources, options, report) if options.validation else []
    yield from losses
    replace(averaged, card=_build_card(averaged, names, losses)).save(output)
    yield f"model written to {output}; try it: {usage_command(averaged.config.model.architecture, output)}"


def _collect_sources(paths: Sequence[Path], last: int | None, report: Reporter) -> list[_WeightsSource]:
    """The weights to average, at least two: model folders or checkpoints, or the last checkpoints of each run."""
    sources = []
    for path in paths:
        if last is not None:
            checkpoints = list_checkpoints(path / "training" / "checkpoints")
            intact = filter_valid_checkpoints(checkpoints, report, quarantine=False)
            if len(intact) < last:
                raise HeedfulError(
                    f"{path} has {len(intact)} checkpoints, not {last}",
                    hint="use a smaller --last; training.keep_last sets how many checkpoints a run keeps"
                    if intact
                    else "use a model folder written by `heedful train`, with its training folder",
                )
            sources += [_WeightsSource(checkpoint, path) for checkpoint in intact[-last:]]
        elif path.name.isdigit() and (path / STATE_FILE).is_file():
            check_checkpoint(path)
            sources.append(_WeightsSource(path, path.absolute().parents[2]))
        else:
            sources.append(_WeightsSource(path, path))
    if len({source.weights_folder.resolve() for source in sources}) < len(sources):
        raise HeedfulError("the same weights are listed twice", hint="list each model once")
    if len(sources) < 2:
        average_last = (
            f", or average its checkpoints: heedful average {paths[0]} --last 5 -o NEW" if paths else " models"
        )
        raise HeedfulError("nothing to average: only one model", hint=f"list several{average_last}")
    return sources


def _measure_losses(
    averaged: ModelFolder, sources: Sequence[_WeightsSource], options: AverageOptions, report: Reporter
) -> list[str]:
    """One line per model and one for the average: loss per target token on the validation pairs."""
    config, tokenizer = averaged.config, averaged.tokenizer
    if config.model.architecture in LANGUAGE_MODEL_ARCHITECTURES:
        raise HeedfulError("--validation needs sentence pairs, and these are language models", hint="omit --validation")
    reading, trees = ReadOptions(config.languages), config.model.uses_dependency_trees
    pairs = read_usable_pairs(options.validation, reading, config.unicode_normalization, report, trees=trees)
    model = new_model(config.model).to(select_device(options.device)).eval()
    lines = []
    for source in report.track(sources, "validating", len(sources), "models"):
        load_parameters(model, read_tensors(source.weights_folder / WEIGHTS_FILE), source.weights_folder)
        lines.append(f"loss {compute_loss(model, tokenizer, pairs):.4f}  {source.weights_folder}")
    load_parameters(model, dict(averaged.model.named_parameters()), source.weights_folder)
    return [*lines, f"loss {compute_loss(model, tokenizer, pairs):.4f}  the average"]


def _build_card(model_folder: ModelFolder, names: Sequence[str], losses: Sequence[str]) -> str:
    """The model card, without the scores of the averaged models."""
    languages = model_folder.config.languages
    title = f"{languages[0]} to {languages[1]}" if languages else "an average"
    source_lines = "\n".join(f"- {name}" for name in names)
    loss_lines = "\n".join(f"- {line}" for line in losses) or (
        "Not validated; use `heedful evaluate` or `heedful average --validation`."
    )
    return (
        f"# Heedful model: {title}\n\n"
        f"The weights are the average of {len(names)} models, written by `heedful average`. Their model "
        f"cards describe the training data.\n\n"
        f"## Averaged\n\n{source_lines}\n\n## Validation loss\n\n{loss_lines}\n\n"
        f"## Use\n\n```\n{usage_command(model_folder.config.model.architecture)}\n```\n"
    )
