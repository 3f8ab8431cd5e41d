"""A training that starts from a trained model: its tokenizer, its shape, its weights.

The rule to remember: what the model is stays as it is, and what contradicts it is an error; only dropout may
differ. The model's own folder is read and never written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from heedful.bundle import Bundle, BundleConfig, load_parameters, named_parameters
from heedful.config import Settings, merged
from heedful.corpora.formats import has_lines
from heedful.corpora.parts import Part
from heedful.errors import HeedfulError
from heedful.model.config import PLAIN, Architecture, ModelConfig
from heedful.model.predictor import Predictor
from heedful.progress import Reporter
from heedful.text.extension import check_extendable, extended_pair, spelled_before
from heedful.text.tokenizer import Pairs, PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.inputs import Inputs

OTHER_STARTS = ("encoder_from", "source_vectors", "target_vectors")


def start_of(settings: Settings) -> Path | None:
    """The model folder that a run starts from, if any."""
    tuning = settings.get("tuning", {})
    text = tuning.get("start_from", "") if isinstance(tuning, Mapping) else ""
    return Path(str(text)).expanduser().absolute() if text else None


def starting_model(folder: Path) -> Bundle:
    """A model that can be tuned, its weights not yet read."""
    bundle = Bundle.open(folder)
    if bundle.config.model.family in PLAIN:
        raise HeedfulError(
            f"{folder} is a model of plain text: only models that translate can be tuned",
            hint="train one on pairs: heedful train pairs.tsv -o FOLDER",
        )
    return bundle


def reads_as_model(folder: Path, paths: Sequence[Path]) -> bool:
    """Whether files say their languages inside, so that the model's two can be looked for in them."""
    config = starting_model(folder).config
    return bool(config.languages) and not config.targets and not has_lines(paths)


def inputs_to_tune(folder: Path, inputs: Inputs) -> Inputs:
    """The user's files as this model reads them: its languages, its tags, and old pairs to see forgetting by.

    Old pairs that are not given are those that the model was validated on, if they are still there.
    """
    bundle = starting_model(folder)
    told, own = inputs.languages, bundle.config.languages
    targets = bundle.config.targets
    if told and own and (_odd(told[0], own[0]) or (not targets and _odd(told[1], own[1]))):
        raise HeedfulError(
            f"these pairs are {told[0]}-{told[1]}, and the model of {folder} translates {own[0]}-{own[1]}",
            hint="name them as they are (--languages), or take a model of their languages",
        )
    tags = tuple(filter(None, [bundle.language_tag(told[1] if told and targets else "")]))
    languages, trees = told or own, bundle.config.model.trees
    validated = folder / "training" / "data"
    found = [validated / name for name in ("validation.tsv", "remembered.tsv")]
    kept = tuple(path for path in found if path.is_file())
    return Inputs(
        (),
        (),
        own or told,
        trees=trees,
        reading=inputs.reading,
        parts=(
            Part(inputs.training, languages, tags),
            *(replace(part, tags=part.tags or tags, held_out=False) for part in inputs.parts),
        ),
        examined=tuple(replace(part, tags=part.tags or tags) for part in inputs.examination),
        remembered=tuple(replace(part, tags=part.tags or tags) for part in inputs.remembered)
        or ((Part(kept),) if kept else ()),
    )


def _odd(one: str, other: str) -> bool:
    """Whether two codes are of different languages; en-GB is English, and eng may be."""
    first, second = (code.lower().replace("_", "-").split("-")[0] for code in (one, other))
    return len(first) == len(second) and first != second


def with_model_settings(settings: Settings) -> Settings:
    """The settings of a run that starts from a model: what the model is, and the rest as told."""
    folder = start_of(settings)
    if folder is None:
        return settings
    bundle = starting_model(folder)
    kept = _kept(bundle)
    _check_told(settings, kept, folder)
    if settings.get("tuning", {}).get("new_pieces"):
        for side in (bundle.tokenizer.source, bundle.tokenizer.target):
            check_extendable(side)
    search = {"search": bundle.config.search.model_dump(mode="json")}
    return merged(merged(merged(kept, search), settings), {"tuning": {"start_from": str(folder)}})


def _kept(bundle: Bundle) -> Settings:
    """The settings that a tuned model has from the one that it comes from."""
    shape = bundle.config.model.model_dump(mode="json")
    return {
        "cleaning": {"normalize": bundle.config.normalize},
        "tokenizer": bundle.tokenizer.config.model_dump(mode="json"),
        "model": {name: value for name, value in shape.items() if name in Architecture.model_fields},
    }


def _check_told(settings: Settings, kept: Settings, folder: Path) -> None:
    if "preset" in settings:
        raise HeedfulError(
            f"the model of {folder} is there already: a preset would make another",
            hint="leave out --preset, or leave out --from",
        )
    for section, values in kept.items():
        told = settings.get(section, {})
        for name, value in told.items() if isinstance(told, Mapping) else ():
            if name in values and not name.endswith("dropout") and value != values[name]:
                raise HeedfulError(
                    f"{section}.{name} = {value} contradicts the model of {folder}, where it is "
                    f"{values[name]}",
                    hint="a tuned model keeps its shape and vocabulary: leave this setting out",
                )
    training = settings.get("training", {})
    for name in OTHER_STARTS if isinstance(training, Mapping) else ():
        if training.get(name):
            raise HeedfulError(
                f"training.{name} is for a new model, and this one starts from {folder}",
                hint="leave one of the two out",
            )
    if settings.get("taught", {}).get("links"):
        raise HeedfulError(
            "a head is taught from the beginning, not in tuning", hint="leave out taught.links"
        )


def tuned_tokenizer(config: RunConfig, pairs: Pairs, inputs: Inputs) -> PairTokenizer:
    """The tokenizer of the model, with new pieces if they are asked for."""
    tokenizer = starting_model(Path(config.tuning.start_from)).tokenizer
    tokenizer = replace(tokenizer, languages=tokenizer.languages or inputs.languages)
    for tag in inputs.tags:
        tokenizer.source.tag(tag)  # an error if there is none
    if not config.tuning.new_pieces:
        return tokenizer
    return extended_pair(tokenizer, pairs, config.tuning.new_pieces)


def tuned_shape(start: BundleConfig, config: RunConfig, tokenizer: PairTokenizer) -> ModelConfig:
    """The model's shape, with the dropout that is asked for and room for new pieces."""
    changes = {"source_vocabulary": tokenizer.source.size, "target_vocabulary": tokenizer.target.size}
    return ModelConfig.checked(start.model.model_dump() | config.model.model_dump() | changes)


def start_from_model(model: Predictor, tokenizer: PairTokenizer, folder: Path, report: Reporter) -> None:
    """Put the weights of the model of a folder into a fresh one of its shape.

    The row of a new piece is the mean of the rows of the pieces that spelled it before.
    """
    bundle = starting_model(folder)
    before, sides = bundle.tokenizer, ("source", "target")
    old, new = ([getattr(each, side).vocabulary for side in sides] for each in (before, tokenizer))
    if any(n.pieces[: len(o.pieces)] != o.pieces for o, n in zip(old, new, strict=True)):
        raise HeedfulError(
            f"the model of {folder} has changed meanwhile", hint="tune anew, into another folder"
        )
    spelled = [spelled_before(o, n) if n is not o else [] for o, n in zip(old, new, strict=True)]
    source = {id(parameter) for parameter in model.tables[0].parameters()}
    tensors = dict(named_parameters(bundle.predictor))
    for name, parameter in model.named_parameters():
        if name in tensors and tensors[name].shape != parameter.shape:
            tensors[name] = _with_rows(tensors[name], spelled[0 if id(parameter) in source else 1])
    load_parameters(model, tensors, folder)
    report.say(f"starting from the weights of {folder}")


def _with_rows(old: Tensor, spelled: Sequence[Sequence[int]]) -> Tensor:
    """The rows (or numbers) of a vocabulary, and those of new pieces behind them."""
    rows = [old[torch.tensor(ids)].mean(0) for ids in spelled]
    return torch.cat([old, torch.stack(rows)]) if rows else old
