"""Sentences that come with a dependency tree: ``sentence TAB heads``.

Heads are as in CoNLL-U: a number for each word between spaces, that of its head, from 1; a root has 0. A line
of two sentences has two roots.
"""

import re
from collections.abc import Sequence

from heedful.errors import HeedfulError
from heedful.places import packed
from heedful.text.tokenizer import Tokenizer

SHAPE = "sentence TAB heads: for each word between spaces the number of its head, from 1, or 0 for a root"
_NUMBERS = re.compile(r"[0-9]{1,6}(?: [0-9]{1,6})*")


def with_heads(sentence: str, heads: str) -> str:
    """The source as it is encoded.

    >>> with_heads("She sleeps", "2 0"), with_heads("She sleeps", "")
    ('She sleeps\\t2 0', 'She sleeps')
    """
    return f"{sentence}\t{heads}" if heads else sentence


def heads_fault(sentence: str, heads: str) -> str:
    """Why these heads are no tree of this cleaned sentence; empty if they are.

    >>> heads_fault("She sleeps well", "2 0 2"), heads_fault("She sleeps", "2 1")
    ('', 'heads in a circle')
    """
    words = _words(sentence)
    if not heads:
        return "no heads"
    if not _NUMBERS.fullmatch(heads):
        return "heads are no numbers"
    numbers = [int(number) for number in heads.split()]
    if len(numbers) != len(words):
        return "not as many heads as words"
    if max(numbers) > len(words):
        return "a head beyond the last word"
    if any(not word.strip() for word in words):
        return "a word of nothing but space"
    return "" if _all_end_at_a_root(numbers) else "heads in a circle"


def encoded_sources(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of cleaned sentences; those with heads after a tab carry the places of their words."""
    parts = [text.partition("\t") for text in texts]
    ids = tokenizer.encode_batch([sentence for sentence, _, _ in parts])
    return [
        _placed(tokenizer, found, sentence, heads) if tab else found
        for found, (sentence, tab, heads) in zip(ids, parts, strict=True)
    ]


def _placed(tokenizer: Tokenizer, ids: Sequence[int], sentence: str, heads: str) -> list[int]:
    fault = heads_fault(sentence, heads)
    if fault:
        raise HeedfulError(f"the heads of {sentence!r} do not fit: {fault}", hint=SHAPE)
    numbers = [int(number) for number in heads.split()]
    inside = tokenizer.within(ids, _words(sentence))
    return [packed(piece, word + 1, numbers[word]) for piece, word in zip(ids, inside, strict=True)]


def _words(sentence: str) -> list[str]:
    return [word for word in sentence.split(" ") if word]


def _all_end_at_a_root(heads: Sequence[int]) -> bool:
    rooted = {0}
    for start in range(1, len(heads) + 1):
        path: dict[int, None] = {}
        word = start
        while word not in rooted:
            if word in path:
                return False
            path[word] = None
            word = heads[word - 1]
        rooted.update(path)
    return True
