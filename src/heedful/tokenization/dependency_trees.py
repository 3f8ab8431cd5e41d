"""Dependency trees of source sentences: two columns beside the token ids.

A source token in a tree is a row of three numbers (``TreeToken``), so a sentence is an array (length, 3), and a
batch a tensor (sentences, length, 3) in which padding is rows of zeros. Without trees, and for all models that do
not read them, these are the token ids alone: (length,) and (sentences, length).
"""

import graphlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.tokenization.tokenizer import Tokenizer


class TreeToken(NamedTuple):
    """A source token and its position in the dependency tree."""

    token_id: int
    word: int
    """Number of its word in the sentence, from 1; 0 if it is in no word (END, padding)."""
    head: int
    """Number of the word's head; 0 for a root."""


SentenceIds = Sequence[int] | Sequence[TreeToken]
"""The tokens of a sentence: ids in the vocabulary, or rows if it has a dependency tree."""


def get_token_ids(tokens: SentenceIds) -> list[int]:
    """The ids in the vocabulary, without the tree.

    >>> get_token_ids([TreeToken(7, word=1, head=2), TreeToken(8, word=2, head=0)]), get_token_ids([7, 8])
    ([7, 8], [7, 8])
    """
    return [token if isinstance(token, int) else token[0] for token in tokens]


HEADS_FORMAT = "sentence TAB heads: for each space-separated word the number of its head, from 1, or 0 for a root"
"""As in CoNLL-U; a line of two sentences has two roots."""

_NUMBERS = re.compile(r"[0-9]{1,6}(?: [0-9]{1,6})*")


def append_heads(sentence: str, heads: str) -> str:
    """The source text that ``encode_sources`` reads.

    >>> append_heads("She sleeps", "2 0"), append_heads("She sleeps", "")
    ('She sleeps\\t2 0', 'She sleeps')
    """
    return f"{sentence}\t{heads}" if heads else sentence


def find_heads_error(sentence: str, heads: str) -> str:
    """Why these heads are not a dependency tree of this cleaned sentence; empty if they are.

    >>> find_heads_error("She sleeps well", "2 0 2"), find_heads_error("She sleeps", "2 1")
    ('', 'heads form a cycle')
    """
    words = _split_words(sentence)
    if not heads:
        return "no heads"
    if not _NUMBERS.fullmatch(heads):
        return "heads are not numbers"
    head_indices = [int(number) for number in heads.split()]
    if len(head_indices) != len(words):
        return "number of heads differs from number of words"
    if max(head_indices) > len(words):
        return "head beyond the last word"
    if any(not word.strip() for word in words):
        return "word of whitespace only"
    try:
        graphlib.TopologicalSorter({word: [head] for word, head in enumerate(head_indices, start=1)}).prepare()
    except graphlib.CycleError:
        return "heads form a cycle"
    return ""


def encode_sources(tokenizer: Tokenizer, texts: Sequence[str]) -> list[SentenceIds]:
    """The ids of cleaned sentences, with their trees if a sentence has heads after a tab."""
    fields = [text.partition("\t") for text in texts]
    encoded = tokenizer.encode_batch([sentence for sentence, _, _ in fields])
    sources: list[SentenceIds] = []
    for token_ids, (sentence, tab, heads) in zip(encoded, fields, strict=True):
        if not tab:
            sources.append(token_ids)
            continue
        if problem := find_heads_error(sentence, heads):
            raise HeedfulError(f"invalid heads of {sentence!r}: {problem}", hint=f"write {HEADS_FORMAT}")
        head_indices = [int(number) for number in heads.split()]
        word_indices = tokenizer.align_to_words(token_ids, _split_words(sentence))
        sources.append(
            [
                TreeToken(token_id, word + 1, head_indices[word])
                for token_id, word in zip(token_ids, word_indices, strict=True)
            ]
        )
    return sources


def _split_words(sentence: str) -> list[str]:
    return [word for word in sentence.split(" ") if word]
