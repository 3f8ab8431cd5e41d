"""A model that writes several languages: random weights, a real tokenizer with tags."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from heedful.bundle import Bundle, BundleConfig
from heedful.corpora.grammar import generate
from heedful.decoding.config import SearchConfig
from heedful.model.config import ModelConfig
from heedful.model.family import new_model
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig

LEARNED = (("en", "fr"), ("fr", "en"), ("en", "de"), ("de", "en"))
SENTENCE = "The dog is tired."


@cache
def new_bundle() -> Bundle:
    """English, French and German; French and German never met."""
    pairs = [(pair.source, pair.target) for pair in generate(2000)]
    config = TokenizerConfig(vocabulary=600)
    tokenizer = PairTokenizer.train(lambda: pairs, config, ("en", "fr"), ("de", "en", "fr"))
    settings = {
        "source_vocabulary": tokenizer.source.size,
        "target_vocabulary": tokenizer.target.size,
        "joint": True,
        "width": 20,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "feed_forward_width": 24,
    }
    torch.manual_seed(5)
    model = new_model(ModelConfig.checked(settings))
    with torch.no_grad():
        for parameter in model.parameters():  # so far apart that each tag makes another translation
            parameter += 0.3 * torch.randn_like(parameter) * (parameter != 0)
    for table in model.tables:
        table.weight.data[0] = 0
    told = BundleConfig(
        languages=("en", "fr"),
        targets=("de", "en", "fr"),
        sources=("en", "fr", "de"),
        directions=LEARNED,
        model=model.config,
        search=SearchConfig(beam=2, extra_length=5),
    )
    return Bundle(told, tokenizer, model.eval(), "# Several\n")


def imported(*, languages: tuple[str, str] | None = None) -> Bundle:
    """The same as a model from elsewhere is: its tags are known, and what it learned from is not."""
    config = new_bundle().config
    told = {"languages": languages, "sources": (), "directions": ()}
    return replace(new_bundle(), config=config.model_copy(update=told))


def saved(folder: Path) -> Path:
    """The model in a folder."""
    new_bundle().save(folder)
    return folder
