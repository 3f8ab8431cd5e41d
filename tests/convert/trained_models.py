"""Small models that have learned a few sentences by heart: their translations are words, and end."""

from functools import cache

import torch
import torch.nn.functional as F

from heedful.data.collate import pad_with_end
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import PAD
from tests.interpret.small_models import new_tokenizer

PAIRS = [(pair.source, pair.target) for pair in generate_pairs(40)]
SENTENCES = [source for source, _ in PAIRS[:12]]


@cache
def learned(kind: str = "bpe", *, joint: bool = False, updates: int = 90, **settings: object) -> ModelFolder:
    """A model of two small layers a side after a second or two of training."""
    tokenizer = new_tokenizer(kind, joint=joint)
    sizes = {"d_model": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 48}
    vocabularies = {"source_vocab_size": tokenizer.source.vocab_size, "target_vocab_size": tokenizer.target.vocab_size}
    config = ModelConfig.from_settings({**sizes, **vocabularies, "share_embeddings": joint, "dropout": 0.0, **settings})
    torch.manual_seed(3)
    model = Transformer(config)
    source = pad_with_end(tokenizer.source.encode_batch([pair[0] for pair in PAIRS]))
    target = pad_with_end(tokenizer.target.encode_batch([pair[1] for pair in PAIRS]))
    before = torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(updates):
        logits = model.logits(model(source, before))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ModelFolder(ModelFolderConfig(languages=("en", "fr"), model=config), tokenizer, model.eval())
