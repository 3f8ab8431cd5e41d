"""A model with some heads switched off: what is lost shows what they did (Michel et al. 2019)."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.arithmetic import check_place
from heedful.inspection.stacks import sublayer_of
from heedful.inspection.trace import KINDS, Kind
from heedful.model.attention import MultiHeadAttention
from heedful.model.predictor import Predictor


class Head(NamedTuple):
    """One head of a model, layer and head from 0."""

    kind: Kind
    layer: int
    head: int

    @property
    def name(self) -> str:
        """Such as encoder.0.3, from 0, as tensors are called."""
        return f"{self.kind}.{self.layer}.{self.head}"


def read_head(name: str) -> Head:
    """The head that a name means.

    >>> read_head("cross.1.0")
    Head(kind='cross', layer=1, head=0)
    """
    kind, _, numbers = name.partition(".")
    layer, _, head = numbers.partition(".")
    known = [each for each in KINDS if each == kind]
    if not known or not (_is_number(layer) and _is_number(head)):
        raise HeedfulError(f"{name!r} is not a head", hint="write kind.layer.head from 0, such as cross.1.0")
    return Head(known[0], int(layer), int(head))


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 10  # Python refuses to read thousands of digits


def without_heads(bundle: Bundle, off: Iterable[Head]) -> Bundle:
    """The same model in which nobody hears these heads: their rows of W^O are zero.

    All other weights are shared with the model given, which stays as it is.
    """
    heads = list(dict.fromkeys(off))
    if not heads:
        return bundle
    shared = {id(parameter): parameter for parameter in bundle.predictor.parameters()}
    model = copy.deepcopy(bundle.predictor, shared)
    for kind, layer, head in heads:
        check_place(bundle, kind, layer, head)
        attention = attention_module(model, kind, layer)
        channels = attention.width // attention.heads
        weight = attention.output.weight.detach().clone()
        weight[:, head * channels : (head + 1) * channels] = 0  # nn.Linear keeps W^O transposed
        attention.output.weight = nn.Parameter(weight, requires_grad=False)
    return replace(bundle, weights=model)


def attention_module(model: Predictor, kind: Kind, layer: int) -> MultiHeadAttention:
    """The attention of a layer (from 0)."""
    return sublayer_of(model, kind, layer)[0]
