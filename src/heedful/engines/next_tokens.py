"""What may come next after a beginning of a translation, by PyTorch: the same for every engine."""

from typing import NamedTuple

import torch
from torch import Tensor

from heedful.model.translator import Scorer
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import END, PAD, Tokenizer

LONGEST_FRAGMENT = 8
"""Tokens at the end of a prefix that a single one may replace."""


class Next(NamedTuple):
    """A token that may come next."""

    kept: int
    """How many tokens of the prefix stand before it: all, unless it completes the prefix's last word."""
    token: int
    probability: float


@torch.inference_mode()
def next_probabilities(model: Scorer, ids: list[int], prefix: list[int], device: torch.device) -> Tensor:
    """The model's distributions: (rows, vocabulary).

    The last row is after the whole prefix, the one before it after all but its last token, and so on as far
    as a fragment of a word can reach.
    """
    source = torch.tensor([[*ids, END]], device=device)
    before = torch.tensor([[PAD, *prefix]], device=device)
    return model.log_probabilities(source, before)[0, -LONGEST_FRAGMENT - 1 :].exp().cpu()


def likeliest_next(
    rows: Tensor, target: Tokenizer, prefix: list[int], count: int, *, new_word: bool
) -> list[Next]:
    """Up to ``count`` tokens, likeliest first, by the distributions of ``next_probabilities``.

    ``new_word``: only those that begin a word, and the end; what that leaves of the probability is not shared
    out among them. Otherwise the prefix may end inside a word.
    """
    last, share, completing = rows[-1], 1.0, list[Next]()
    if new_word:
        fitting = [END, *target.beginning_with(SPACE.encode())]
        last = torch.zeros_like(last).index_copy(0, torch.tensor(fitting), last[fitting])
    else:
        completing, share = _completing(target, rows, prefix)
    values, tokens = last.topk(min(count, len(last)))
    following = [
        Next(len(prefix), token, share * value)
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
    found = sorted(following + completing, key=lambda each: -each.probability)
    return [each for each in found[:count] if each.probability > 0]


def _completing(target: Tokenizer, rows: Tensor, prefix: list[int]) -> tuple[list[Next], float]:
    """Tokens that complete the last word of the prefix, and the share that is left to those that follow it.

    The end of "Le chi" is spelled ▁ch i, but the model would write ▁chien, and does not know how to go on
    after pieces that it never writes. So where longer tokens are likelier than the prefix's own spelling,
    they are ways to go on too; otherwise the word is whole, and everything follows it.
    """
    first = max(len(prefix) - LONGEST_FRAGMENT, _last_word(target, prefix))
    found: list[Next] = []
    reached = 1.0  # probability of the word's tokens before ``place``
    for place in range(first, len(prefix)):
        rest, row = target.spelled(prefix[place:]), rows[place - len(prefix) - 1]
        found += [
            Next(place, token, reached * float(row[token]))
            for token in target.beginning_with(rest)
            if target.spelled([token]) != rest
        ]
        reached *= float(row[prefix[place]])
    completed = sum(each.probability for each in found)
    if completed <= reached:
        return [], 1.0
    whole = completed + reached
    return [each._replace(probability=each.probability / whole) for each in found], reached / whole


def _last_word(target: Tokenizer, prefix: list[int]) -> int:
    """The place of the first token of the last word."""
    numbers = target.words(prefix)
    return numbers.index(numbers[-1]) if numbers else 0
