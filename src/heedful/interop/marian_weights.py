"""MarianMT's weights in our places, and back.

Marian's vectors have all sines of a position first and then all cosines, ours have them in turns (section
3.5): another order of the channels of the residual stream. Reordering everything that reads or writes this
stream changes nothing else, and can be undone to the bit. So can the order of the words.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.model.positions import sinusoids

SHARED, BIAS, HEAD = "model.shared.weight", "final_logits_bias", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUR_SOURCE, OUR_TARGET = "encoder.embedding.table.weight", "decoder.embedding.table.weight"
OUR_HEAD, OUR_BIAS = "output.weight", "output_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


class Place(NamedTuple):
    """One of our tensors, those of Marian's that it is made of, and its dimensions that are the stream's."""

    ours: str
    theirs: tuple[str, ...]
    stream: tuple[int, ...]


class Orders(NamedTuple):
    """For each of our ids Marian's id of the same piece."""

    source: Sequence[int]
    target: Sequence[int]


class Tables(NamedTuple):
    """Embeddings and output layer as Marian has them."""

    source: Tensor
    target: Tensor
    output: Tensor

    @property
    def joint(self) -> bool:
        """Whether source and target have the same embeddings."""
        return self.source is self.target or torch.equal(self.source, self.target)


def channel_order(width: int) -> Tensor:
    """For each of our channels Marian's.

    >>> channel_order(6)
    tensor([0, 3, 1, 4, 2, 5])
    """
    return torch.arange(width).view(2, width // 2).T.flatten()


def places(config: ModelConfig) -> Iterator[Place]:
    """Where everything but embeddings and the output layer goes."""
    for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        attentions = [("attention", "self_attn", "residual_attention", "self_attn_layer_norm")]
        if stack == "decoder":
            attentions.append(
                ("cross_attention", "encoder_attn", "residual_cross", "encoder_attn_layer_norm")
            )
        for number in range(count):
            ours, theirs = f"{stack}.layers.{number}.", f"model.{stack}.layers.{number}."
            for attention, marian, residual, norm in attentions:
                yield from _attention(ours + attention, theirs + marian)
                yield from _norm(f"{ours}{residual}.norm", theirs + norm)
            yield Place(f"{ours}feed_forward.inner.weight", (f"{theirs}fc1.weight",), (1,))
            yield Place(f"{ours}feed_forward.inner.bias", (f"{theirs}fc1.bias",), ())
            yield Place(f"{ours}feed_forward.outer.weight", (f"{theirs}fc2.weight",), (0,))
            yield Place(f"{ours}feed_forward.outer.bias", (f"{theirs}fc2.bias",), (0,))
            yield from _norm(f"{ours}residual_feed_forward.norm", f"{theirs}final_layer_norm")


def _attention(ours: str, theirs: str) -> Iterator[Place]:
    for kind, stream in (("weight", (1,)), ("bias", ())):
        yield Place(f"{ours}.input.{kind}", tuple(f"{theirs}.{each}_proj.{kind}" for each in "qkv"), stream)
        yield Place(f"{ours}.output.{kind}", (f"{theirs}.out_proj.{kind}",), (0,))


def _norm(ours: str, theirs: str) -> Iterator[Place]:
    yield from (Place(f"{ours}.{kind}", (f"{theirs}.{kind}",), (0,)) for kind in ("weight", "bias"))


def our_weights(
    theirs: Mapping[str, Tensor], tables: Tables, config: ModelConfig, orders: Orders
) -> dict[str, Tensor]:
    """Our tensors by name; anything missing or left over is an error that names it."""
    check_positions(theirs, config)
    channels = channel_order(config.width)
    known = {*POSITIONS, SHARED, SOURCE, TARGET, HEAD, BIAS}
    found: dict[str, Tensor] = {}
    for place in places(config):
        parts = [_taken(theirs, name) for name in place.theirs]
        found[place.ours] = _reordered(torch.cat(parts), place.stream, channels)
        known.update(place.theirs)
    for name in theirs:
        if name not in known:
            raise HeedfulError(f"the weights have {name!r}, which is no part of a MarianMT model")
    wanted = {OUR_SOURCE: (tables.source, orders.source)}
    if not config.joint:
        wanted[OUR_TARGET] = (tables.target, orders.target)
    if not config.tie_output:
        wanted[OUR_HEAD] = (tables.output, orders.target)
    for name, (table, order) in wanted.items():
        found[name] = _reordered(_rows(table, order), (1,), channels)
    if config.output_bias:
        found[OUR_BIAS] = _rows(theirs[BIAS].flatten(), orders.target)
    return {name: tensor.float().contiguous() for name, tensor in found.items()}


def marian_tables(theirs: Mapping[str, Tensor], *, share: bool, tie: bool) -> Tables:
    """As transformers takes them: if nothing is tied, nothing is shared but what is missing."""
    if share and tie:
        source = target = _taken(theirs, SHARED if SHARED in theirs else SOURCE)
    else:
        source = _taken(theirs, SOURCE if SOURCE in theirs or not share else SHARED)
        target = _taken(theirs, TARGET if TARGET in theirs or not share else SHARED)
    return Tables(source, target, target if tie else _taken(theirs, HEAD))


def check_positions(theirs: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Older files hold the table of positions: it must be the one that is computed."""
    for name in POSITIONS:
        if name in theirs:
            table = theirs[name].float()
            expected = sinusoids(len(table), config.width)
            ours = _reordered(table, (1,), channel_order(config.width))
            if ours.shape != expected.shape or not torch.allclose(ours, expected, atol=1e-4):
                raise HeedfulError(f"{name!r} is not the table of sines that MarianMT computes")


def marian_weights(ours: Mapping[str, Tensor], config: ModelConfig, orders: Orders) -> dict[str, Tensor]:
    """Marian's tensors by name, those that are shared once."""
    back = channel_order(config.width).argsort()
    found: dict[str, Tensor] = {}
    for place in places(config):
        whole = _reordered(ours[place.ours], place.stream, back)
        found |= zip(place.theirs, whole.chunk(len(place.theirs)), strict=True)
    source = _table(ours[OUR_SOURCE], orders.source, back)
    target = source if config.joint else _table(ours[OUR_TARGET], orders.target, back)
    found |= {SHARED: source} if config.joint else {SOURCE: source, TARGET: target}
    if not config.tie_output:
        found[HEAD] = _table(ours[OUR_HEAD], orders.target, back)
        if config.joint:  # transformers shares nothing then
            found |= {SOURCE: source.clone(), TARGET: source.clone()}
    bias = ours.get(OUR_BIAS, torch.zeros(config.target_vocabulary))
    found[BIAS] = bias[_inverse(orders.target)][None]
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _table(table: Tensor, order: Sequence[int], back: Tensor) -> Tensor:
    return _reordered(table[_inverse(order)], (1,), back)


def _inverse(order: Sequence[int]) -> Tensor:
    return torch.tensor(order).argsort()


def _taken(theirs: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in theirs:
        raise HeedfulError(f"the weights have no {name!r}", hint="is config.json of the same model?")
    return theirs[name]


def _rows(table: Tensor, order: Sequence[int]) -> Tensor:
    if len(table) != len(order):
        raise HeedfulError(f"the vocabulary has {len(order)} entries, and the weights have {len(table)}")
    return table[torch.tensor(order)]


def _reordered(tensor: Tensor, dimensions: Sequence[int], order: Tensor) -> Tensor:
    for dimension in dimensions:
        if tensor.size(dimension) != len(order):
            raise HeedfulError(
                f"a tensor of {tuple(tensor.shape)} does not fit a model of width {len(order)}",
                hint="is config.json of the same model?",
            )
        tensor = tensor.index_select(dimension, order)
    return tensor
