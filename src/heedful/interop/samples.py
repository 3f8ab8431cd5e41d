"""Sentences that any model can be tried with, whatever its languages: made of its own pieces."""

from heedful.bundle import Bundle
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import END, PAD, Tokenizer

LENGTHS = (3, 5, 7)
"""Pieces of each sentence: with their end no more than the shortest table of positions has rows."""


def sample_pairs(bundle: Bundle) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of a few sources and targets, without END."""
    return _sentences(bundle.tokenizer.source), _sentences(bundle.tokenizer.target)


def sample_texts(bundle: Bundle) -> list[str]:
    """The same as text."""
    return bundle.tokenizer.source.decode_batch(_sentences(bundle.tokenizer.source))


def ended(sentences: list[list[int]]) -> list[list[int]]:
    """Rows of one length: each sentence with its end, then padding."""
    longest = max(map(len, sentences)) + 1
    return [[*ids, END] + [PAD] * (longest - len(ids) - 1) for ids in sentences]


def _sentences(tokenizer: Tokenizer) -> list[list[int]]:
    """Words from all over the vocabulary: frequent and rare ones."""
    every = list(enumerate(tokenizer.pieces(range(tokenizer.size))))
    words = [identity for identity, piece in every if piece[:1] == SPACE and piece[1:].isalpha()]
    known = words or [identity for identity, _ in every[END + 1 :]]
    count = sum(LENGTHS)
    spread = [known[place * (len(known) - 1) // (count - 1)] for place in range(count)]
    spread = spread[::2] + spread[1::2]
    starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    return [spread[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
