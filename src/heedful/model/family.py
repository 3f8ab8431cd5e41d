"""Every kind of model by its config."""

from heedful.model.config import ModelConfig
from heedful.model.language import LanguageModel, MaskedModel
from heedful.model.predictor import Predictor
from heedful.model.recurrent import Recurrent
from heedful.model.transformer import Transformer

KINDS: dict[str, type[Transformer] | type[Recurrent] | type[LanguageModel] | type[MaskedModel]] = {
    "transformer": Transformer,
    "gru": Recurrent,
    "lstm": Recurrent,
    "language": LanguageModel,
    "mask": MaskedModel,
}


def new_model(config: ModelConfig) -> Predictor:
    """The model that this config describes, with random weights."""
    return KINDS[config.family](config)
