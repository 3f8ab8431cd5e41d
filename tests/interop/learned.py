"""Small models that have learned a few sentences by heart: their translations are words, and end."""

from functools import cache

import torch
import torch.nn.functional as F

from heedful.bundle import Bundle, BundleConfig
from heedful.corpora.grammar import generate
from heedful.interop.samples import ended
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PAD
from tests.inspection.models import new_tokenizer

PAIRS = [(pair.source, pair.target) for pair in generate(40)]
SENTENCES = [source for source, _ in PAIRS[:12]]


@cache
def learned(kind: str = "bpe", *, joint: bool = False, updates: int = 90, **settings: object) -> Bundle:
    """A model of two small layers a side after a second or two of training."""
    tokenizer = new_tokenizer(kind, joint=joint)
    sizes = {"width": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feed_forward_width": 48}
    vocabularies = {"source_vocabulary": tokenizer.source.size, "target_vocabulary": tokenizer.target.size}
    config = ModelConfig.checked({**sizes, **vocabularies, "joint": joint, "dropout": 0.0, **settings})
    torch.manual_seed(3)
    model = Transformer(config)
    source = torch.tensor(ended(tokenizer.source.encode_batch([pair[0] for pair in PAIRS])))
    target = torch.tensor(ended(tokenizer.target.encode_batch([pair[1] for pair in PAIRS])))
    before = torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(updates):
        logits = model.logits(model(source, before))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Bundle(BundleConfig(languages=("en", "fr"), model=config), tokenizer, model.eval())
