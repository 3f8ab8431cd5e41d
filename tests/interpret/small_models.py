"""Small models with random weights and real tokenizers."""

from functools import cache

import torch

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES, ModelConfig
from heedful.models.factory import new_model
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig


@cache
def new_tokenizer(model_type: str, *, joint: bool = False) -> PairTokenizer:
    """A tokenizer of the demo grammar, of words or subwords."""
    size = 1100 if model_type == "word" else 700
    settings = TokenizerConfig.from_settings({"model_type": model_type, "vocab_size": size, "joint_vocabulary": joint})
    pairs = [(pair.source, pair.target) for pair in generate_pairs(4000)]
    return PairTokenizer.train(lambda: pairs, settings)


def new_model_folder(
    model_type: str = "word",
    norm_placement: str = "post",
    *,
    layers: tuple[int, int] = (3, 2),
    heads: int = 4,
    d_model: int = 20,
    **settings: object,
) -> ModelFolder:
    """An untrained model with the vocabulary of the demo grammar."""
    is_language_model = settings.get("architecture") in LANGUAGE_MODEL_ARCHITECTURES  # one language: one vocabulary
    tokenizer = new_tokenizer(model_type, joint=is_language_model)
    config = ModelConfig.from_settings(
        {
            "d_model": d_model,
            "heads": heads,
            "encoder_layers": layers[0],
            "decoder_layers": layers[1],
            "d_ff": 24,
            "norm_placement": norm_placement,
            "source_vocab_size": tokenizer.source.vocab_size,
            "target_vocab_size": tokenizer.target.vocab_size,
            "share_embeddings": is_language_model,
            **settings,
        }
    )
    torch.manual_seed(7)
    model = new_model(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that a missing one shows
            parameter += 0.3 * torch.randn_like(parameter) * (parameter != 0)
    for table in model.embeddings:
        table.weight.data[0] = 0
    languages = None if is_language_model else ("en", "fr")
    return ModelFolder(ModelFolderConfig(languages=languages, model=config), tokenizer, model.eval())
