"""A Markov chain as a model: the next token depends on the last one; the source selects the chain.

Search sees ``start``, ``step`` and ``reorder`` of it and nothing else, and all its probabilities are known.
"""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Self

import torch
from torch import Tensor

from heedful.tokenization.special_tokens import END, PAD


@dataclass(frozen=True)
class MarkovState:
    """Which chain each row follows."""

    chain: Tensor  # (rows,)

    def reorder(self, rows: Tensor) -> Self:
        return type(self)(self.chain[rows.flatten()])


class MarkovChain:
    """Markov chains; row ``PAD`` of each is its initial distribution. The first source id is the chain."""

    def __init__(self, probabilities: Tensor) -> None:
        self.log_probabilities = probabilities.log()  # (chains, last word, next word)

    def start(self, source: Tensor) -> MarkovState:
        return MarkovState(source[:, 0])

    def step(self, tokens: Tensor, state: MarkovState) -> tuple[Tensor, MarkovState]:
        return self.log_probabilities[state.chain, tokens], state

    def history(self, chain: int, tokens: tuple[int, ...], complete: bool = True) -> list[float]:
        """Log-probability of each token, and of END if complete, straight from the table."""
        sequence = [PAD, *tokens, *([END] if complete else [])]
        return [float(self.log_probabilities[chain, last, new]) for last, new in pairwise(sequence)]

    def complete_outputs(self, limit: int) -> list[tuple[int, ...]]:
        """Every output that ends within ``limit`` tokens, END counted."""
        token_ids = range(END + 1, self.log_probabilities.size(-1))
        return [tokens for length in range(limit) for tokens in product(token_ids, repeat=length)]


def random_chain(seed: int, chains: int, vocabulary: int, contrast: float = 2.0) -> MarkovChain:
    """Chains with all transitions except to PAD."""
    generator = torch.Generator().manual_seed(seed)
    scores = contrast * torch.randn(chains, vocabulary, vocabulary, generator=generator, dtype=torch.float64)
    scores[..., PAD] = -torch.inf
    return MarkovChain(scores.softmax(-1))


def sources(chains: list[int], length: int = 3) -> Tensor:
    """A source per chain: its number, then arbitrary tokens."""
    return torch.tensor([[chain, *range(2, length), END] for chain in chains])
