"""How good the model is on pairs it never learned from: loss, and scores of real translations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from heedful.corpora.batches import length_groups
from heedful.corpora.filters import Pair
from heedful.decoding.config import SearchConfig
from heedful.decoding.search import output_limits, search
from heedful.evaluation import corpus_scores
from heedful.model.config import PAD, PLAIN
from heedful.model.language import MaskedModel
from heedful.model.predictor import Predictor
from heedful.model.translator import Translator
from heedful.text.tags import without_tags
from heedful.text.tokenizer import PairTokenizer
from heedful.text.trees import encoded_sources
from heedful.training.batch import Batch, new_batch
from heedful.training.tasks import batch_maker
from heedful.training.update import batch_loss

BATCH_TOKENS = 4096
GREEDY = SearchConfig(beam=1)


@dataclass(frozen=True, slots=True)
class Validation:
    """Loss is the negative log-likelihood a target token, without smoothing."""

    loss: float
    scores: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    """A few (source, reference, translation)."""

    @property
    def perplexity(self) -> float:
        """How many words the model hesitates between, on average."""
        return math.exp(min(self.loss, 100.0))


def validate(
    model: Predictor, tokenizer: PairTokenizer, pairs: Sequence[Pair], translated: int
) -> Validation:
    """Loss on all pairs; BLEU and chrF on the first ``translated`` ones, greedily."""
    was_training = model.training
    model.eval()
    try:
        loss = pairs_loss(model, tokenizer, pairs)
        some = list(pairs[:translated])
        if isinstance(model, MaskedModel):
            return Validation(loss, {"accuracy": 100 * accuracy(model, tokenizer, pairs)})
        if not some or not isinstance(model, Translator) or model.config.family in PLAIN:
            return Validation(loss)
        written = _translated(model, tokenizer, [pair.read for pair in some])
        language = tokenizer.languages[1] if tokenizer.languages else ""
        scores = corpus_scores(written, [pair.target for pair in some], ("BLEU", "chrF"), language)
        samples = [
            (without_tags(pair.source), pair.target, text)
            for pair, text in zip(some[:5], written, strict=False)
        ]
        return Validation(loss, {name: score.value for name, score in scores.items()}, samples)
    finally:
        model.train(was_training)


@torch.inference_mode()
def pairs_loss(model: Predictor, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> float:
    """Negative log-likelihood a target token."""
    total, tokens = 0.0, 0
    for batch in _batches(model, tokenizer, pairs):
        total += float(batch_loss(model, batch, 0.0)[1])
        tokens += batch.tokens
    return total / tokens


@torch.inference_mode()
def accuracy(model: Predictor, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> float:
    """Share of the words to be guessed that the model finds likeliest; each pair has the same every time."""
    right, tokens = 0, 0
    device = model.output.weight.device
    for batch in _batches(model, tokenizer, pairs):
        wanted = batch.target != PAD
        states = model(batch.source.to(device), batch.before.to(device))[wanted.to(device)]
        right += int((model.logits(states).argmax(-1).cpu() == batch.target[wanted]).sum())
        tokens += batch.tokens
    return right / max(tokens, 1)


@dataclass(frozen=True, slots=True)
class PlainScores:
    """How well the pieces of a text are predicted: by a model, and by knowing how common each piece is."""

    pieces: int
    """That were to be predicted: all of the text, or the hidden ones."""
    loss: float
    accuracy: float
    common_loss: float
    """Of every piece by its share of these pieces: no other fixed list could do better."""
    common_accuracy: float
    """Of always the commonest of these pieces."""


@torch.inference_mode()
def plain_scores(model: Predictor, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> PlainScores:
    """Loss and accuracy on plain text, beside those of the best fixed list of probabilities."""
    wanted = torch.cat([batch.target[batch.target != PAD] for batch in _batches(model, tokenizer, pairs)])
    shares = wanted.bincount() / len(wanted)
    shares = shares[shares > 0]
    return PlainScores(
        len(wanted),
        pairs_loss(model, tokenizer, pairs),
        accuracy(model, tokenizer, pairs),
        -float((shares * shares.log()).sum()),
        float(shares.max()),
    )


def _batches(model: Predictor, tokenizer: PairTokenizer, pairs: Sequence[Pair]) -> Iterator[Batch]:
    make = batch_maker(model.config, tokenizer.source.size)
    sources = encoded_sources(tokenizer.source, [pair.read for pair in pairs])
    targets = tokenizer.target.encode_batch([pair.target for pair in pairs])
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for number, group in enumerate(length_groups(lengths, BATCH_TOKENS)):
        yield make([sources[i] for i in group], [targets[i] for i in group], [number])


def _translated(model: Translator, tokenizer: PairTokenizer, texts: list[str]) -> list[str]:
    """Greedy translations. The validation set is of the corpus's own lengths: nothing needs splitting."""
    encoded = encoded_sources(tokenizer.source, texts)
    result = [""] * len(texts)
    device = model.output.weight.device
    for group in length_groups([len(ids) + 1 for ids in encoded], BATCH_TOKENS):
        source = new_batch([encoded[i] for i in group], [[] for _ in group]).source.to(device)
        limits = output_limits(source, GREEDY, model.longest)
        found = search(model, source, GREEDY, limits=limits)
        for i, hypotheses in zip(group, found, strict=True):
            result[i] = tokenizer.target.decode(hypotheses[0].tokens)
    return result
