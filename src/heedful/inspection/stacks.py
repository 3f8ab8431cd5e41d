"""The stacks of layers of a model, whatever its family: a translator has two, half a Transformer one.

Who looks inside asks here which kinds of attention there are, and where they are.
"""

from heedful.errors import HeedfulError
from heedful.inspection.trace import KINDS, Kind
from heedful.model.attention import MultiHeadAttention
from heedful.model.config import RECURRENT, ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.encoder import Encoder
from heedful.model.language import CausalLayer, LanguageModel, MaskedModel
from heedful.model.layers import DecoderLayer, EncoderLayer
from heedful.model.predictor import Predictor
from heedful.model.residual import PostNorm
from heedful.model.transformer import Transformer

Stack = Encoder | Decoder | LanguageModel
"""Each has an embedding, layers and a last norm."""
HALVES: dict[str, tuple[Kind, ...]] = {"language": ("decoder",), "mask": ("encoder",)}
"""What the families have that are half a Transformer."""


def attention_layers(model: ModelConfig) -> dict[Kind, int]:
    """How many layers of each kind of attention there are; a recurrent model looks at the source, once."""
    if model.family in RECURRENT:
        return {"encoder": 0, "decoder": 0, "cross": 1}
    there = HALVES.get(model.family, KINDS)
    depth = {"encoder": model.encoder_layers, "decoder": model.decoder_layers, "cross": model.decoder_layers}
    return {kind: depth[kind] if kind in there else 0 for kind in KINDS}


def kinds_of(model: ModelConfig) -> list[Kind]:
    """The kinds of attention that there are."""
    return [kind for kind, layers in attention_layers(model).items() if layers]


def stack_of(model: Predictor, kind: Kind) -> Stack:
    """The stack in which a kind of attention happens."""
    match model:
        case Transformer():
            return model.encoder if kind == "encoder" else model.decoder
        case LanguageModel() if kind == "decoder":
            return model
        case MaskedModel() if kind == "encoder":
            return model.encoder
    if model.config.family in RECURRENT:
        raise HeedfulError(
            f"this model is recurrent ({model.config.family}): its steps are not a Transformer's",
            hint="see its attention over the source with heedful inspect or heedful serve",
        )
    raise no_such_attention(model.config, kind)


def no_such_attention(model: ModelConfig, kind: Kind) -> HeedfulError:
    """The error of who asks for attention that this family does not have."""
    return HeedfulError(
        f"this model has no {kind} attention", hint=f"what it has: {', '.join(kinds_of(model))}"
    )


def sublayer_of(model: Predictor, kind: Kind, layer: int) -> tuple[MultiHeadAttention, PostNorm]:
    """An attention (its layer from 0), and the residual sum around it."""
    found = stack_of(model, kind).layers[layer]
    if kind == "cross":
        assert isinstance(found, DecoderLayer)
        return found.cross_attention, found.residual_cross
    assert isinstance(found, (EncoderLayer, DecoderLayer, CausalLayer))
    return found.attention, found.residual_attention
