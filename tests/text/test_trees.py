"""Heads of words: which fit a sentence, and how they travel inside its ids."""

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.places import LIMIT, packed, pieces_of, unpacked
from heedful.text.subword_dropout import SubwordDropout
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.text.trees import encoded_sources, heads_fault

SENTENCE = "the unthinkable\u00a0animal didn't cross"
HEADS = "2 4 4 0"
TEXTS = ["the animal didn't cross the street", "unthinkable"]
KINDS = ["word", "character", "bpe", "unigram"]


def tokenizer_of(kind: str) -> Tokenizer:
    settings = {"kind": kind, "vocabulary": 330, "joint": True}
    return Tokenizer.train(TEXTS * 9, TokenizerConfig.checked(settings))


@pytest.mark.parametrize(
    ("heads", "fault"),
    [
        ("2 0 2", ""),
        ("0 0 0", ""),  # three roots: a line may hold several sentences
        ("2 3 0", ""),
        ("", "no heads"),
        ("2 0", "not as many heads as words"),
        ("2 0 2 2", "not as many heads as words"),
        ("4 0 2", "a head beyond the last word"),
        ("2 1 0", "heads in a circle"),
        ("2 2 0", "heads in a circle"),
        ("2 3 1", "heads in a circle"),
        ("2 -1 2", "heads are no numbers"),
        ("2 0.0 2", "heads are no numbers"),
        ("2 ٠ 2", "heads are no numbers"),
        ("CC-BY 2.0 (France)", "heads are no numbers"),
        ("9" * 5000 + " 0 0", "heads are no numbers"),
    ],
)
def test_which_heads_fit(heads: str, fault: str) -> None:
    assert heads_fault("she sleeps well", heads) == fault


def test_a_word_must_have_a_letter() -> None:
    assert heads_fault("so \u00a0 !", "0 1 1") == "a word of nothing but space"


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_share_the_place_of_their_word(kind: str) -> None:
    """A no-break space is inside a word, as everywhere in this corpus format."""
    tokenizer = tokenizer_of(kind)
    [ids, plain] = encoded_sources(tokenizer, [f"{SENTENCE}\t{HEADS}", SENTENCE])
    assert pieces_of(ids) == plain == tokenizer.encode(SENTENCE)
    words: dict[int, list[int]] = {}
    for identity in ids:
        piece, word, head = unpacked(identity)
        words.setdefault(word, []).append(piece)
        assert head == [2, 4, 4, 0][word - 1]
    assert [tokenizer.decode(pieces).strip() for pieces in words.values()] == SENTENCE.split(" ")
    assert list(words) == [1, 2, 3, 4]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(HeedfulError, match="do not fit: not as many heads as words"):
        encoded_sources(tokenizer_of("bpe"), ["the animal\t2"])


def test_the_largest_id() -> None:
    largest = packed((1 << 21) - 1, (1 << 21) - 1, (1 << 21) - 1)
    assert largest == LIMIT - 1
    assert unpacked(np.array([largest])) == unpacked(largest)


def test_a_word_that_is_spelled_anew_keeps_its_place() -> None:
    tokenizer = tokenizer_of("bpe")
    [ids] = encoded_sources(tokenizer, [f"{SENTENCE}\t{HEADS}"])
    dropout, random = SubwordDropout(tokenizer, 0.6), np.random.default_rng(3)
    spellings = [dropout(ids, random) for _ in range(20)]
    assert len({len(spelling) for spelling in spellings}) > 3
    for spelling in spellings:
        words: dict[tuple[int, int], list[int]] = {}
        for piece, word, head in map(unpacked, spelling):
            words.setdefault((word, head), []).append(piece)
        assert list(words) == [(1, 2), (2, 4), (3, 4), (4, 0)]
        assert [tokenizer.decode(pieces).strip() for pieces in words.values()] == SENTENCE.split(" ")
