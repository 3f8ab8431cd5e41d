"""Selects the search algorithm; also the distribution of the next token.

All sentences of a batch step together; a sentence leaves the batch when it is complete. Every search takes
``max_lengths`` (END included) and ``prefixes`` that the outputs must start with.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.beam_search import beam_search
from heedful.generation.config import GenerationConfig
from heedful.generation.constrained import constrained_search
from heedful.generation.constraints import Constraints
from heedful.generation.decoder_protocol import Hypothesis, Prefixes, State, StepwiseDecoder
from heedful.generation.sampling import greedy_search, sample
from heedful.models.base import Scorer, select_token_ids
from heedful.tokenization.normalization import METASPACE
from heedful.tokenization.special_tokens import END, PAD
from heedful.tokenization.tokenizer import Tokenizer


def search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: GenerationConfig,
    *,
    max_lengths: Sequence[int] | None = None,
    prefixes: Prefixes | None = None,
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` translations of each sentence, best first; ``constraints`` do not apply to sampling."""
    if not source.size(0):
        return []
    max_lengths = max_lengths or max_output_lengths(source, config)
    prefixes = prefixes or [()] * source.size(0)
    max_lengths = [max(max_length, len(prefix) + 1) for max_length, prefix in zip(max_lengths, prefixes, strict=True)]
    if config.method == "sample":
        return sample(decoder, source, config, max_lengths, prefixes)
    if constraints is not None and any(constraints.sentences):
        results = constrained_search(decoder, source, config, max_lengths, prefixes, constraints)
        return [hypotheses[: config.n_best] for hypotheses in results]
    if config.beam_size == 1:
        return [[best] for best in greedy_search(decoder, source, config, max_lengths, prefixes)]
    results = beam_search(decoder, source, config, max_lengths, prefixes)
    return [hypotheses[: config.n_best] for hypotheses in results]


def max_output_lengths(source: Tensor, config: GenerationConfig, model_max_length: int | None = None) -> list[int]:
    """Maximum output lengths, END included: by default source length + 50, as in the paper."""
    lengths = [config.max_output_length(length) for length in ((select_token_ids(source) != PAD).sum(1) - 1).tolist()]
    return lengths if model_max_length is None else [min(length, model_max_length) for length in lengths]


# ---- The next token after a prefix

MAX_FRAGMENT_TOKENS = 8
"""Maximum tokens at the end of a prefix that a longer token may replace."""


class NextToken(NamedTuple):
    """A possible next token."""

    prefix_length: int
    """Prefix tokens before it: all, unless it completes the last word of the prefix."""
    token_id: int
    probability: float


@torch.inference_mode()
def next_token_probabilities(model: Scorer, source: Tensor, prefix: list[int]) -> Tensor:
    """Next-token distributions after the prefix (last row) and after up to 8 shorter prefixes."""
    decoder_input = torch.tensor([[PAD, *prefix]], device=source.device)
    return model.log_probabilities(source, decoder_input)[0, -MAX_FRAGMENT_TOKENS - 1 :].exp().cpu()


def top_next_tokens(
    probabilities: Tensor, tokenizer: Tokenizer, prefix: list[int], count: int, *, new_word: bool
) -> list[NextToken]:
    """Up to ``count`` tokens, most probable first, from the rows of ``next_token_probabilities``.

    With ``new_word``, only END and tokens that start a word, not renormalized; otherwise the prefix may end
    inside a word.
    """
    distribution, scale, completions = probabilities[-1], 1.0, list[NextToken]()
    if new_word:
        allowed_ids = [END, *tokenizer.ids_with_prefix(METASPACE.encode())]
        distribution = torch.zeros_like(distribution).index_copy(
            0, torch.tensor(allowed_ids), distribution[allowed_ids]
        )
    else:
        completions, scale = _find_completions(tokenizer, probabilities, prefix)
    values, tokens = distribution.topk(min(count, len(distribution)))
    extensions = [
        NextToken(len(prefix), token_id, scale * value)
        for token_id, value in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
    candidates = sorted(extensions + completions, key=lambda candidate: -candidate.probability)
    return [candidate for candidate in candidates[:count] if candidate.probability > 0]


def _find_completions(tokenizer: Tokenizer, probabilities: Tensor, prefix: list[int]) -> tuple[list[NextToken], float]:
    """Tokens that complete the last word of the prefix, and the probability that it is complete already.

    "Le chi" ends with ▁ch i, but the model would generate ▁chien and rarely sees ▁ch i. If longer tokens are
    together more probable than the segmentation of the prefix, they are continuations too; otherwise the word
    counts as complete.
    """
    word_ids = tokenizer.word_ids(prefix)
    last_word_start = word_ids.index(word_ids[-1]) if word_ids else 0
    first = max(len(prefix) - MAX_FRAGMENT_TOKENS, last_word_start)
    completions: list[NextToken] = []
    prefix_probability = 1.0  # of the tokens of the word before ``position``
    for position in range(first, len(prefix)):
        suffix = tokenizer.ids_to_bytes(prefix[position:])
        distribution = probabilities[position - len(prefix) - 1]
        completions += [
            NextToken(position, token_id, prefix_probability * float(distribution[token_id]))
            for token_id in tokenizer.ids_with_prefix(suffix)
            if tokenizer.ids_to_bytes([token_id]) != suffix
        ]
        prefix_probability *= float(distribution[prefix[position]])
    completion_probability = sum(candidate.probability for candidate in completions)
    if completion_probability <= prefix_probability:
        return [], 1.0
    total = completion_probability + prefix_probability
    return [
        candidate._replace(probability=candidate.probability / total) for candidate in completions
    ], prefix_probability / total
