"""A translation that starts from an encoder which has read before: the model of ``--task mask``.

Its source vocabulary is taken too, for its embeddings mean nothing with another.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from heedful.bundle import Bundle
from heedful.config import Settings, merged
from heedful.corpora.filters import Pair
from heedful.errors import HeedfulError
from heedful.model.config import Architecture
from heedful.model.language import MaskedModel
from heedful.model.predictor import Predictor
from heedful.model.transformer import Transformer
from heedful.progress import Reporter
from heedful.text.tokenizer import PairTokenizer, Tokenizer
from heedful.training.config import RunConfig
from heedful.training.preparation import Inputs, trained_tokenizer
from heedful.training.starting_model import tuned_tokenizer

OWN = {"family", "decoder_layers", "decoder_attention", "tie_output", "dropout"}
"""Settings of a model in which the two may differ; and all other dropouts."""


def with_encoder_settings(settings: Settings) -> Settings:
    """The settings of a run that starts from an encoder: of the encoder's shape, unless told otherwise."""
    text = settings.get("training", {}).get("encoder_from", "")
    if not text:
        return settings
    folder = Path(text).expanduser().absolute()
    bundle = _masked(folder)
    shape = {
        name: value
        for name, value in bundle.config.model.model_dump().items()
        if name in Architecture.model_fields and name not in OWN and not name.endswith("dropout")
    }
    told = merged(settings, {"training": {"encoder_from": str(folder)}, "tokenizer": {"joint": False}})
    return merged({"model": shape}, told)


def starting_tokenizer(
    config: RunConfig, pairs: Callable[[], Iterator[Pair]], inputs: Inputs
) -> PairTokenizer:
    """A new one for these pairs, or that of a model to start from, or its source's of an encoder."""
    if config.tuning.start_from:
        return tuned_tokenizer(config, pairs, inputs)
    if not config.training.encoder_from:
        return trained_tokenizer(config, pairs, inputs)
    if inputs.tags:
        raise HeedfulError(
            f"the vocabulary of {config.training.encoder_from} has no tags, and this corpus has",
            hint="leave out training.encoder_from",
        )
    source = _masked(Path(config.training.encoder_from)).tokenizer.source
    target = Tokenizer.train((pair[1] for pair in pairs()), config.tokenizer)
    return PairTokenizer(source, target, config.tokenizer, inputs.languages)


def start_from_encoder(model: Predictor, folder: str, report: Reporter) -> None:
    """Put the weights of the encoder into a fresh translation model."""
    masked = _masked(Path(folder)).predictor
    assert isinstance(masked, MaskedModel)
    if not isinstance(model, Transformer):
        raise HeedfulError(
            "only a Transformer can start from an encoder", hint="leave out training.encoder_from"
        )
    own, known = dict(model.encoder.named_parameters()), dict(masked.encoder.named_parameters())
    shapes = [{name: each.shape for name, each in found.items()} for found in (own, known)]
    odd = sorted(name for name in own.keys() | known.keys() if shapes[0].get(name) != shapes[1].get(name))
    if odd:
        raise HeedfulError(
            f"the encoder of {folder} has another shape than this model's: {odd[0]}",
            hint="leave its settings out, they are taken from it: model.width, heads, encoder_layers, ...",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(known[name])
    report.say(f"encoder: {sum(each.numel() for each in own.values()):,} numbers from {folder}")


def _masked(folder: Path) -> Bundle:
    if not folder.is_dir():
        raise HeedfulError(f"training.encoder_from: there is no folder {folder}", hint="check the path")
    bundle = Bundle.open(folder)
    if bundle.config.model.family != "mask":
        raise HeedfulError(
            f"{folder} is no model with blanks to start an encoder from",
            hint="train one: heedful train --task mask source.txt -o FOLDER",
        )
    return bundle
