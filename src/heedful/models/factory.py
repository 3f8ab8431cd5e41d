"""Build the model of a config."""

from heedful.models.base import Model
from heedful.models.config import ModelConfig
from heedful.models.language_models import CausalLM, MaskedLM
from heedful.models.recurrent import RecurrentModel
from heedful.models.transformer import Transformer

ARCHITECTURES: dict[str, type[Transformer] | type[RecurrentModel] | type[CausalLM] | type[MaskedLM]] = {
    "transformer": Transformer,
    "gru": RecurrentModel,
    "lstm": RecurrentModel,
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
}


def new_model(config: ModelConfig) -> Model:
    """Build a model with random weights."""
    return ARCHITECTURES[config.architecture](config)
