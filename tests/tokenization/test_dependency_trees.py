"""Dependency heads: validation, and the columns beside the token ids."""

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.tokenization.bpe_dropout import BPEDropout
from heedful.tokenization.dependency_trees import (
    encode_sources,
    find_heads_error,
    get_token_ids,
)
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary_training import learn_tokenizer

SENTENCE = "the unthinkable\u00a0animal didn't cross"
HEADS = "2 4 4 0"
TEXTS = ["the animal didn't cross the street", "unthinkable"]
MODEL_TYPES = ["word", "character", "bpe", "unigram"]


def train_tokenizer(model_type: str) -> Tokenizer:
    settings = {"model_type": model_type, "vocab_size": 330, "joint_vocabulary": True}
    return learn_tokenizer(TEXTS * 9, TokenizerConfig.from_settings(settings))


@pytest.mark.parametrize(
    ("heads", "error"),
    [
        ("2 0 2", ""),
        ("0 0 0", ""),  # three roots: a line may hold several sentences
        ("2 3 0", ""),
        ("", "no heads"),
        ("2 0", "number of heads differs from number of words"),
        ("2 0 2 2", "number of heads differs from number of words"),
        ("4 0 2", "head beyond the last word"),
        ("2 1 0", "heads form a cycle"),
        ("2 2 0", "heads form a cycle"),
        ("2 3 1", "heads form a cycle"),
        ("2 -1 2", "heads are not numbers"),
        ("2 0.0 2", "heads are not numbers"),
        ("2 ٠ 2", "heads are not numbers"),
        ("CC-BY 2.0 (France)", "heads are not numbers"),
        ("9" * 5000 + " 0 0", "heads are not numbers"),
    ],
)
def test_find_heads_error_explains_invalid_heads(heads: str, error: str) -> None:
    assert find_heads_error("she sleeps well", heads) == error


def test_find_heads_error_whitespace_word_is_invalid() -> None:
    assert find_heads_error("so \u00a0 !", "0 1 1") == "word of whitespace only"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_encode_sources_tokens_share_word_and_head(model_type: str) -> None:
    """A no-break space does not separate words."""
    tokenizer = train_tokenizer(model_type)
    [tokens, plain] = encode_sources(tokenizer, [f"{SENTENCE}\t{HEADS}", SENTENCE])
    assert get_token_ids(tokens) == plain == tokenizer.encode(SENTENCE)
    token_ids_by_word: dict[int, list[int]] = {}
    for token_id, word, head in tokens:
        token_ids_by_word.setdefault(word, []).append(token_id)
        assert head == [2, 4, 4, 0][word - 1]
    assert [tokenizer.decode(token_ids).strip() for token_ids in token_ids_by_word.values()] == SENTENCE.split(" ")
    assert list(token_ids_by_word) == [1, 2, 3, 4]


def test_encode_sources_invalid_heads_raise() -> None:
    with pytest.raises(HeedfulError, match="number of heads differs"):
        encode_sources(train_tokenizer("bpe"), ["the animal\t2"])


def test_bpe_dropout_keeps_word_and_head() -> None:
    tokenizer = train_tokenizer("bpe")
    [source] = encode_sources(tokenizer, [f"{SENTENCE}\t{HEADS}"])
    dropout, random = BPEDropout(tokenizer, 0.6), np.random.default_rng(3)
    variants = [dropout(source, random) for _ in range(20)]
    assert len({len(tokens) for tokens in variants}) > 3
    for tokens in variants:
        token_ids_by_word: dict[tuple[int, int], list[int]] = {}
        for token_id, word, head in tokens:
            token_ids_by_word.setdefault((word, head), []).append(token_id)
        assert list(token_ids_by_word) == [(1, 2), (2, 4), (3, 4), (4, 0)]
        assert [tokenizer.decode(token_ids).strip() for token_ids in token_ids_by_word.values()] == SENTENCE.split(" ")
