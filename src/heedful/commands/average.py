"""``heedful average``: one model of the mean weights of several checkpoints or models (section 6.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.bundle import WEIGHTS, Bundle, load_parameters, read_tensors
from heedful.commands.evaluate import usable_pairs
from heedful.corpora.filters import Pair
from heedful.corpora.formats import check_inputs, check_room_for_heads
from heedful.corpora.reading import Reading
from heedful.engines.ensemble import check_alike
from heedful.errors import HeedfulError
from heedful.model.config import PLAIN
from heedful.model.family import new_model
from heedful.progress import Reporter
from heedful.training.card import use_of
from heedful.training.checkpoint import DamagedError, averaged_weights, check, checkpoints
from heedful.training.devices import chosen_device
from heedful.training.validation import pairs_loss

WITHOUT_A_TRACE = frozenset({"dropout"})
"""Settings of a model that its weights do not show: they count in training alone."""


@dataclass(frozen=True, slots=True)
class AverageOptions:
    """The command line of ``heedful average``."""

    paths: tuple[Path, ...]
    output: Path
    last: int | None = None
    validation: tuple[Path, ...] = ()
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class _Part:
    """Weights, and the model folder that says what they are of."""

    weights: Path
    model: Path


def average_command(options: AverageOptions, report: Reporter) -> Iterator[str]:
    """Write the model; yields lines to print."""
    output = options.output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HeedfulError(f"{output} exists already", hint="name another folder (-o)")
    if options.validation:
        check_inputs(options.validation)
    parts = _parts(options.paths, options.last, report)
    folders = list(dict.fromkeys(part.model for part in parts))
    bundles = [Bundle.open(folder) for folder in folders]
    check_alike(bundles, folders)
    _check_shapes(bundles, folders)
    names = [str(part.weights) for part in parts]
    report.say(f"averaging {len(parts)}: {', '.join(names)}")
    weights = averaged_weights([part.weights for part in parts])
    model = new_model(bundles[0].config.model)
    load_parameters(model, weights, output)
    averaged = replace(bundles[0], weights=model.eval())
    losses = []
    if options.validation:
        pairs = _pairs(averaged, options.validation, report)
        losses = _losses(averaged, parts, pairs, options.device, report)
        yield from losses
    replace(averaged, card=_card(averaged, names, losses)).save(output)
    yield f"model written to {output}; try it: {use_of(averaged.config.model.family, output)}"


def _parts(paths: Sequence[Path], last: int | None, report: Reporter) -> list[_Part]:
    """What is to be averaged: at least two."""
    found = [part for path in paths for part in (_one(path) if last is None else _last(path, last, report))]
    if len({part.weights.resolve() for part in found}) < len(found):
        raise HeedfulError("the same weights are named twice", hint="name each once")
    if len(found) < 2:
        raise HeedfulError(
            "one model has no average",
            hint=f"name several, or average its checkpoints: heedful average {paths[0]} --last 5 -o NEW"
            if paths
            else "name several",
        )
    return found


def _one(path: Path) -> list[_Part]:
    """A model folder, or one checkpoint of a training."""
    if path.name.isdigit() and (path / "state.json").is_file():
        check(path)
        return [_Part(path, path.absolute().parents[2])]
    return [_Part(path, path)]


def _last(folder: Path, count: int, report: Reporter) -> list[_Part]:
    """The newest checkpoints of a model's training, without damaged ones."""
    found = _whole(checkpoints(folder / "training" / "checkpoints"), report)
    if len(found) < count:
        raise HeedfulError(
            f"{folder} has {len(found)} checkpoints, not {count}",
            hint="training.keep says how many a training keeps; --last takes fewer"
            if found
            else "give the folder that `heedful train` wrote, with its training folder",
        )
    return [_Part(path, folder) for path in found[-count:]]


def _whole(paths: Sequence[Path], report: Reporter) -> list[Path]:
    """Those that can be used; the training that they belong to is left as it is."""
    kept = []
    for path in paths:
        try:
            check(path)
            kept.append(path)
        except DamagedError as error:
            report.warn(f"{error.problem}; it is left out")
    return kept


def _check_shapes(bundles: Sequence[Bundle], folders: Sequence[Path]) -> None:
    """An error that names the first setting in which two models differ."""
    first = bundles[0].config.model.model_dump()
    for bundle, folder in zip(bundles[1:], folders[1:], strict=True):
        for name, value in bundle.config.model.model_dump().items():
            if value != first[name] and name not in WITHOUT_A_TRACE:
                raise HeedfulError(
                    f"{folders[0]} and {folder} cannot be averaged: "
                    f"model.{name} is {first[name]} of one and {value} of the other",
                    hint="models of different shapes can translate together: heedful translate --with",
                )


def _pairs(bundle: Bundle, paths: Sequence[Path], report: Reporter) -> list[Pair]:
    config = bundle.config
    if config.model.family in PLAIN:
        raise HeedfulError("--validation takes pairs, and these models do not translate")
    if config.model.trees:
        check_room_for_heads(paths)
    return usable_pairs(paths, Reading(config.languages), config.normalize, report, trees=config.model.trees)


def _losses(
    averaged: Bundle, parts: Sequence[_Part], pairs: Sequence[Pair], device: str, report: Reporter
) -> list[str]:
    """A line for each part and one for the average: loss a target token on the pairs."""
    place, tokenizer = chosen_device(device), averaged.tokenizer
    member = new_model(averaged.config.model).to(place).eval()
    lines = []
    for part in report.track(parts, "validating", len(parts), "models"):
        load_parameters(member, read_tensors(part.weights / WEIGHTS), part.weights)
        lines.append(f"loss {pairs_loss(member, tokenizer, pairs):.4f}  {part.weights}")
    load_parameters(member, dict(averaged.predictor.named_parameters()), part.weights)
    return [*lines, f"loss {pairs_loss(member, tokenizer, pairs):.4f}  the average"]


def _card(bundle: Bundle, names: Sequence[str], losses: Sequence[str]) -> str:
    """What it is, without the scores of others."""
    languages = bundle.config.languages
    title = f"{languages[0]} to {languages[1]}" if languages else "an average"
    parts = "\n".join(f"- {name}" for name in names)
    examined = "\n".join(f"- {line}" for line in losses) or (
        "It has not been examined: `heedful evaluate` or `heedful average --validation` does that."
    )
    return (
        f"# Heedful model: {title}\n\n"
        f"The weights are the mean of {len(names)} others, made by `heedful average`; it was not trained "
        f"itself. The cards of the models it came from say what they learned from.\n\n"
        f"## Averaged\n\n{parts}\n\n## Loss on given pairs\n\n{examined}\n\n"
        f"## Use\n\n```\n{use_of(bundle.config.model.family)}\n```\n"
    )
