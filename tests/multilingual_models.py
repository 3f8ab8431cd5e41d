"""A multilingual model with random weights and a trained tokenizer with tags."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.generation.config import GenerationConfig
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.config import ModelConfig
from heedful.models.factory import new_model
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig

LEARNED = (("en", "fr"), ("fr", "en"), ("en", "de"), ("de", "en"))
SENTENCE = "The dog is tired."


@cache
def new_model_folder() -> ModelFolder:
    """English, French and German, without training pairs between French and German."""
    pairs = [(pair.source, pair.target) for pair in generate_pairs(2000)]
    config = TokenizerConfig(vocab_size=600)
    tokenizer = PairTokenizer.train(lambda: pairs, config, ("de", "en", "fr"))
    settings = {
        "source_vocab_size": tokenizer.source.vocab_size,
        "target_vocab_size": tokenizer.target.vocab_size,
        "share_embeddings": True,
        "d_model": 20,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "d_ff": 24,
    }
    torch.manual_seed(5)
    model = new_model(ModelConfig.from_settings(settings))
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that each tag gives another translation
            parameter += 0.3 * torch.randn_like(parameter) * (parameter != 0)
    for table in model.embeddings:
        table.weight.data[0] = 0
    folder_config = ModelFolderConfig(
        languages=("en", "fr"),
        target_languages=("de", "en", "fr"),
        source_languages=("en", "fr", "de"),
        directions=LEARNED,
        model=model.config,
        generation=GenerationConfig(beam_size=2, max_length_offset=5),
    )
    return ModelFolder(folder_config, tokenizer, model.eval(), "# Several\n")


def imported(*, languages: tuple[str, str] | None = None) -> ModelFolder:
    """The same model as if imported: its tags are known, its training directions are not."""
    config = new_model_folder().config
    unknown = {"languages": languages, "source_languages": (), "directions": ()}
    return replace(new_model_folder(), config=config.model_copy(update=unknown))


def saved(folder: Path) -> Path:
    """Save the model to a folder."""
    new_model_folder().save(folder)
    return folder
