"""Greedy search and sampling: one hypothesis per row, token by token."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.config import GenerationConfig
from heedful.generation.decoder_protocol import Hypothesis, Prefixes, State, StepwiseDecoder, new_hypothesis
from heedful.models.base import select_token_ids
from heedful.tokenization.special_tokens import END, PAD

TokenChooser = Callable[[Tensor, list[int]], Tensor]
"""Chooses the next token of each row from log-probabilities (rows, vocabulary) and sentence indices."""


class GeneratedToken(NamedTuple):
    """One generated token; a complete sentence ends with END."""

    sentence: int
    token: int
    log_probability: float


def greedy_search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: GenerationConfig,
    max_lengths: Sequence[int],
    prefixes: Prefixes,
) -> list[Hypothesis]:
    """Always choose the most probable token."""
    return _collect_hypotheses(
        generate_tokens(decoder, source, max_lengths, prefixes, choose_most_probable), len(max_lengths), config
    )


def sample(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: GenerationConfig,
    max_lengths: Sequence[int],
    prefixes: Prefixes,
) -> list[list[Hypothesis]]:
    """``n_best`` independent samples per sentence, best first; independent of the batch."""
    num_samples = config.n_best
    steps = generate_tokens(
        decoder,
        source.repeat_interleave(num_samples, 0),
        [max_length for max_length in max_lengths for _ in range(num_samples)],
        [prefix for prefix in prefixes for _ in range(num_samples)],
        new_sampler(config, source),
    )
    hypotheses = _collect_hypotheses(steps, len(max_lengths) * num_samples, config)
    groups = [hypotheses[start : start + num_samples] for start in range(0, len(hypotheses), num_samples)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


@torch.inference_mode()
def generate_tokens(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    max_lengths: Sequence[int],
    prefixes: Prefixes,
    choose: TokenChooser,
) -> Iterator[list[GeneratedToken]]:
    """Yield the next token of every incomplete sentence, step by step."""
    state = decoder.start(source)
    sentences = list(range(source.size(0)))
    last_tokens = source.new_full((len(sentences),), PAD)  # the decoder starts from PAD
    for length in range(max(max_lengths)):
        scores, state = decoder.step(last_tokens, state)
        last_tokens = choose(scores, sentences)
        for row, sentence in enumerate(sentences):
            if length < len(prefixes[sentence]):
                last_tokens[row] = prefixes[sentence][length]
        log_probabilities = scores.gather(1, last_tokens[:, None])[:, 0]
        yield [
            GeneratedToken(*fields)
            for fields in zip(sentences, last_tokens.tolist(), log_probabilities.tolist(), strict=True)
        ]
        active = [
            row
            for row, (sentence, token) in enumerate(zip(sentences, last_tokens.tolist(), strict=True))
            if token != END and length + 1 < max_lengths[sentence]
        ]
        if not active:
            return
        if len(active) < len(sentences):
            rows = torch.tensor(active, device=source.device)
            state, last_tokens = state.reorder(rows[:, None]), last_tokens[rows]
            sentences = [sentences[row] for row in active]


def choose_most_probable(scores: Tensor, sentences: list[int]) -> Tensor:
    """The token chooser of greedy search."""
    return scores.argmax(-1)


def new_sampler(config: GenerationConfig, source: Tensor) -> TokenChooser:
    """Build a seeded token chooser with one random stream per sample of each sentence.

    The stream depends on the sentence without padding. A common stream would favor the same token at the same
    position of every translation.
    """
    generators = [
        torch.Generator().manual_seed(zlib.crc32(f"{config.seed} {sample_index} {ids}".encode()))
        for ids in ([token_id for token_id in row if token_id != PAD] for row in select_token_ids(source).tolist())
        for sample_index in range(config.n_best)
    ]

    def choose(scores: Tensor, rows: list[int]) -> Tensor:
        probabilities = filter_top_k_top_p(scores / config.temperature, config).softmax(-1)
        samples = [
            torch.multinomial(distribution, 1, generator=generators[row])
            for distribution, row in zip(probabilities.cpu(), rows, strict=True)
        ]
        return torch.cat(samples).to(scores.device)

    return choose


def filter_top_k_top_p(scores: Tensor, config: GenerationConfig) -> Tensor:
    """Mask all tokens but the ``top_k`` most probable and those within ``top_p``."""
    if 0 < config.top_k < scores.size(-1):
        threshold = scores.topk(config.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < threshold, -torch.inf)
    if config.top_p < 1:
        sorted_scores, index = scores.sort(dim=-1, descending=True)
        probabilities = sorted_scores.softmax(-1)
        cumulative = probabilities.cumsum(-1) - probabilities  # of all more probable tokens
        removed = torch.zeros_like(cumulative, dtype=torch.bool).scatter(-1, index, cumulative >= config.top_p)
        scores = scores.masked_fill(removed, -torch.inf)
    return scores


def _collect_hypotheses(
    steps: Iterator[list[GeneratedToken]], sentences: int, config: GenerationConfig
) -> list[Hypothesis]:
    tokens: list[list[int]] = [[] for _ in range(sentences)]
    log_probabilities: list[list[float]] = [[] for _ in range(sentences)]
    complete = [False] * sentences
    for step in steps:
        for sentence, token, log_probability in step:
            log_probabilities[sentence].append(log_probability)
            if token == END:
                complete[sentence] = True
            else:
                tokens[sentence].append(token)
    return [
        new_hypothesis(ids, token_log_probabilities, penalty=config.penalty, complete=is_complete)
        for ids, token_log_probabilities, is_complete in zip(tokens, log_probabilities, complete, strict=True)
    ]
