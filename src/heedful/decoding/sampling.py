"""Writing one hypothesis a sentence, token by token: greedy, or drawn at random."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.decoding.stepwise import Prefixes, State, StepwiseDecoder
from heedful.text.tokenizer import END, PAD

Choice = Callable[[Tensor, list[int]], Tensor]
"""Log-probabilities (rows, vocabulary) and the sentence of each row -> the next token of each row."""


class Written(NamedTuple):
    """One token as it is written; the last one of a complete sentence is END."""

    sentence: int
    token: int
    log_probability: float


def greedy(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Prefixes,
) -> list[Hypothesis]:
    """Always the likeliest next word."""
    return _collected(write(decoder, source, limits, prefixes, likeliest), len(limits), config)


def sampled(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Prefixes,
) -> list[list[Hypothesis]]:
    """``n_best`` independent draws for each sentence, best first; the same whatever else is in the batch."""
    copies = config.n_best
    written = write(
        decoder,
        source.repeat_interleave(copies, 0),
        [limit for limit in limits for _ in range(copies)],
        [prefix for prefix in prefixes for _ in range(copies)],
        new_draw(config, source),
    )
    found = _collected(written, len(limits) * copies, config)
    groups = [found[first : first + copies] for first in range(0, len(found), copies)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


@torch.inference_mode()
def write(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    limits: Sequence[int],
    prefixes: Prefixes,
    choose: Choice,
) -> Iterator[list[Written]]:
    """Step by step, the next token of every sentence that is not done: the stream behind it all."""
    state = decoder.start(source)
    sentences = list(range(source.size(0)))
    last = source.new_full((len(sentences),), PAD)  # the decoder starts from PAD
    for length in range(max(limits)):
        scores, state = decoder.step(last, state)
        last = choose(scores, sentences)
        for row, sentence in enumerate(sentences):
            if length < len(prefixes[sentence]):
                last[row] = prefixes[sentence][length]
        gained = scores.gather(1, last[:, None])[:, 0]
        yield [Written(*each) for each in zip(sentences, last.tolist(), gained.tolist(), strict=True)]
        stay = [
            row
            for row, (sentence, token) in enumerate(zip(sentences, last.tolist(), strict=True))
            if token != END and length + 1 < limits[sentence]
        ]
        if not stay:
            return
        if len(stay) < len(sentences):
            rows = torch.tensor(stay, device=source.device)
            state, last = state.reorder(rows[:, None]), last[rows]
            sentences = [sentences[row] for row in stay]


def likeliest(scores: Tensor, sentences: list[int]) -> Tensor:
    """The choice of greedy search."""
    return scores.argmax(-1)


def new_draw(config: SearchConfig, source: Tensor) -> Choice:
    """A seeded choice: each copy of each sentence has its own stream of random numbers.

    The stream depends on the sentence, padding apart. If all had the same one, the same word would be
    favoured in the same place of every translation: no noise to learn from.
    """
    generators = [
        torch.Generator().manual_seed(zlib.crc32(f"{config.seed} {copy} {ids}".encode()))
        for ids in ([identity for identity in row if identity != PAD] for row in source.tolist())
        for copy in range(config.n_best)
    ]

    def choose(scores: Tensor, rows: list[int]) -> Tensor:
        probabilities = narrowed(scores / config.temperature, config).softmax(-1)
        drawn = [
            torch.multinomial(line, 1, generator=generators[row])
            for line, row in zip(probabilities.cpu(), rows, strict=True)
        ]
        return torch.cat(drawn).to(scores.device)

    return choose


def narrowed(scores: Tensor, config: SearchConfig) -> Tensor:
    """Scores with all words hidden but the ``top_k`` likeliest and those within ``top_p``."""
    if 0 < config.top_k < scores.size(-1):
        smallest = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -torch.inf)
    if config.top_p < 1:
        ordered, index = scores.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # of all likelier words: 0 for the likeliest
        beyond = torch.zeros_like(before, dtype=torch.bool).scatter(-1, index, before >= config.top_p)
        scores = scores.masked_fill(beyond, -torch.inf)
    return scores


def _collected(steps: Iterator[list[Written]], sentences: int, config: SearchConfig) -> list[Hypothesis]:
    tokens: list[list[int]] = [[] for _ in range(sentences)]
    gained: list[list[float]] = [[] for _ in range(sentences)]
    complete = [False] * sentences
    for step in steps:
        for sentence, token, log_probability in step:
            gained[sentence].append(log_probability)
            if token == END:
                complete[sentence] = True
            else:
                tokens[sentence].append(token)
    return [
        new_hypothesis(ids, values, penalty=config.penalty, complete=done)
        for ids, values, done in zip(tokens, gained, complete, strict=True)
    ]
