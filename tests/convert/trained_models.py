"""Small models that have memorized a few sentences, so that their translations are real sentences."""

from functools import cache

import torch
import torch.nn.functional as F

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.base import pad_with_end
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import PAD
from tests.interpret.small_models import new_tokenizer

PAIRS = [(pair.source, pair.target) for pair in generate_pairs(40)]
SENTENCES = [source for source, _ in PAIRS[:12]]


@cache
def train_model(model_type: str = "bpe", *, joint: bool = False, updates: int = 90, **settings: object) -> ModelFolder:
    """A model with two small layers per side, trained for a second or two."""
    tokenizer = new_tokenizer(model_type, joint=joint)
    sizes = {"d_model": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 48}
    vocabularies = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    config = ModelConfig.from_settings({**sizes, **vocabularies, "share_embeddings": joint, "dropout": 0.0, **settings})
    torch.manual_seed(3)
    model = Transformer(config)
    source = pad_with_end(tokenizer.source.encode_batch([pair[0] for pair in PAIRS]))
    target = pad_with_end(tokenizer.target.encode_batch([pair[1] for pair in PAIRS]))
    decoder_input = torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(updates):
        logits = model.logits(model(source, decoder_input))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ModelFolder(ModelFolderConfig(languages=("en", "fr"), model=config), tokenizer, model.eval())
