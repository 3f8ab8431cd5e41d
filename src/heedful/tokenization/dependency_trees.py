"""Dependency trees of source sentences, packed into token ids.

Each source token has two more columns: the number of its word in the sentence, and the number of that word's
head. Words count from 1; word 0 means no word (END, padding, text without a tree), and head 0 marks a root.
All three columns share one integer of 3 x 21 bits, the token id lowest. So datasets, batches, search and both
backends pass trees on without knowing of them, PAD and END stay what they are, and an id without a tree is
packed already. The encoder unpacks the columns (models/transformer.py, models/relative_positions.py).
"""

import graphlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from heedful.errors import HeedfulError
from heedful.tokenization.tokenizer import Tokenizer

FIELD_BITS = 21

PACKED_ID_LIMIT = 1 << 3 * FIELD_BITS
"""Above every packed id; three fields leave the sign bit of 64 bits unused."""

_FIELD_MASK = (1 << FIELD_BITS) - 1

PackedIds = TypeVar("PackedIds", bound=Any)
"""An integer, or an array or tensor of integers."""


def pack_token(token_id: int, word: int, head: int) -> int:
    """One packed id of three numbers.

    >>> unpack_tokens(pack_token(7, 3, 1))
    (7, 3, 1)
    """
    return token_id | word << FIELD_BITS | head << 2 * FIELD_BITS


def unpack_tokens(ids: PackedIds) -> tuple[PackedIds, PackedIds, PackedIds]:
    """Token id, word and head of packed ids."""
    return ids & _FIELD_MASK, ids >> FIELD_BITS & _FIELD_MASK, ids >> 2 * FIELD_BITS


def unpack_token_ids(ids: Sequence[int]) -> list[int]:
    """The token ids in the vocabulary; ids without a tree are unchanged."""
    return [unpack_tokens(packed_id)[0] for packed_id in ids]


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


def encode_sources(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of cleaned sentences, packed with their trees if a sentence has heads after a tab."""
    fields = [text.partition("\t") for text in texts]
    encoded = tokenizer.encode_batch([sentence for sentence, _, _ in fields])
    for index, (sentence, tab, heads) in enumerate(fields):
        if not tab:
            continue
        if problem := find_heads_error(sentence, heads):
            raise HeedfulError(f"invalid heads of {sentence!r}: {problem}", hint=f"write {HEADS_FORMAT}")
        head_indices = [int(number) for number in heads.split()]
        word_indices = tokenizer.align_to_words(encoded[index], _split_words(sentence))
        encoded[index] = [
            pack_token(token_id, word + 1, head_indices[word])
            for token_id, word in zip(encoded[index], word_indices, strict=True)
        ]
    return encoded


def _split_words(sentence: str) -> list[str]:
    return [word for word in sentence.split(" ") if word]
