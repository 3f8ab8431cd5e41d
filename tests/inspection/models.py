"""Small models for looking inside: random weights, real tokenizers."""

from functools import cache

import torch

from heedful.bundle import Bundle, BundleConfig
from heedful.corpora.grammar import generate
from heedful.model.config import PLAIN, ModelConfig
from heedful.model.family import new_model
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig


@cache
def new_tokenizer(kind: str, *, joint: bool = False) -> PairTokenizer:
    """Of the demo grammar: whole words, or pieces of them."""
    size = 1100 if kind == "word" else 700
    settings = TokenizerConfig.checked({"kind": kind, "vocabulary": size, "joint": joint})
    pairs = [(pair.source, pair.target) for pair in generate(4000)]
    return PairTokenizer.train(lambda: pairs, settings, ("en", "fr"))


def new_bundle(
    kind: str = "word",
    norm: str = "post",
    *,
    layers: tuple[int, int] = (3, 2),
    heads: int = 4,
    width: int = 20,
    **others: object,
) -> Bundle:
    """A model that knows nothing, over the words or pieces of the demo grammar."""
    plain = others.get("family") in PLAIN  # one language: one vocabulary
    tokenizer = new_tokenizer(kind, joint=plain)
    config = ModelConfig.checked(
        {
            "width": width,
            "heads": heads,
            "encoder_layers": layers[0],
            "decoder_layers": layers[1],
            "feed_forward_width": 24,
            "norm": norm,
            "source_vocabulary": tokenizer.source.size,
            "target_vocabulary": tokenizer.target.size,
            "joint": plain,
            **others,
        }
    )
    torch.manual_seed(7)
    model = new_model(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that none can be left out unseen
            parameter += 0.3 * torch.randn_like(parameter) * (parameter != 0)
    for table in model.tables:
        table.weight.data[0] = 0
    languages = None if plain else ("en", "fr")
    return Bundle(BundleConfig(languages=languages, model=config), tokenizer, model.eval())
