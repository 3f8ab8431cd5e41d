"""Text representations, by hand and against scikit-learn."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import HeedfulError
from heedful.interpret.lecture.text_representations import (
    TermVocabulary,
    bag_of_words,
    inverse_document_frequency,
    one_hot,
    subword_tokens,
    term_counts,
    tf_idf,
    word_tokens,
)
from heedful.tokenization.tokenizer import TokenizerConfig
from heedful.tokenization.vocabulary_training import learn_tokenizer

LECTURE_NUMBERS = Path(__file__).with_name("lecture_numbers.json")
TERMS = TermVocabulary(("AI", "changes", "world"))
DOCUMENTS = [["AI", "changes", "world"], ["AI", "world"], ["world"]]
SCIKIT_LEARN = [
    [0.5478321549274363, 0.7203334490549893, 0.4254405389711991],
    [0.7898069290660905, 0.0, 0.6133555370249717],
    [0.0, 0.0, 1.0],
]
"""TfidfVectorizer with its defaults, on DOCUMENTS."""


def test_word_tokens_of_lecture_sentence() -> None:
    assert word_tokens("AI changes the world.") == ["AI", "changes", "the", "world", "."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n ", []),
        ("  two   spaces ", ["two", "spaces"]),
        ("l'animal didn't.", ["l'", "animal", "didn't", "."]),
        ("我爱你", ["我", "爱", "你"]),
        ("مرحبا بالعالم؟", ["مرحبا", "بالعالم", "؟"]),
        ("a ▁ b", ["a", "b"]),
    ],
)
def test_word_tokens_splits_text(text: str, expected: list[str]) -> None:
    assert word_tokens(text) == expected


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\U0010fffd")))
def test_word_tokens_drop_only_spaces(text: str) -> None:
    text_without_spaces = "".join(word_tokens(text))
    assert "".join(text_without_spaces.split()) == "".join(text.split())


@pytest.mark.parametrize("kind", ["word", "character", "bpe", "unigram"])
def test_subword_tokens_have_no_space_marks(kind: str) -> None:
    texts = ["the cat sat on the mat", "the dog sat"] * 5
    tokenizer = learn_tokenizer(texts, TokenizerConfig.from_settings({"model_type": kind, "vocab_size": 300}))
    tokens = subword_tokens("the cat sat", tokenizer)
    assert "".join(tokens) == "thecatsat"
    if kind == "word":
        assert tokens == ["the", "cat", "sat"]
    if kind == "character":
        assert tokens == list("thecatsat")


def test_one_hot_and_bag_of_words_match_hand_computation() -> None:
    assert one_hot(["AI", "world"], TERMS).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert bag_of_words(["AI", "world"], TERMS).tolist() == [1, 0, 1]
    assert bag_of_words(["world", "AI", "world"], TERMS).tolist() == [1, 0, 1]


def test_term_counts_match_hand_computation() -> None:
    assert term_counts(DOCUMENTS, TERMS).tolist() == [[1, 1, 1], [1, 0, 1], [0, 0, 1]]
    assert term_counts([["AI", "AI", "world"]], TERMS).tolist() == [[2, 0, 1]]


def test_tf_idf_matches_hand_computation() -> None:
    common, rare = math.log(3 / 2), math.log(3)
    assert tf_idf(DOCUMENTS, TERMS, smooth=False).tolist() == [[common, rare, 0], [common, 0, 0], [0, 0, 0]]
    twice = tf_idf([["AI", "AI"], ["world"]], TermVocabulary(("AI", "world")), smooth=False)
    assert twice.tolist() == [[2 * math.log(2), 0], [0, math.log(2)]]


def test_tf_idf_smooth_matches_scikit_learn() -> None:
    assert tf_idf(DOCUMENTS, TERMS).tolist() == SCIKIT_LEARN
    rare = inverse_document_frequency(term_counts(DOCUMENTS, TERMS))
    assert rare.tolist() == [1.2876820724517808, 1.6931471805599454, 1.0]


def test_text_representations_match_lecture_numbers() -> None:
    shared = json.loads(LECTURE_NUMBERS.read_text(encoding="utf-8"))
    seed = shared["one_hot"]
    terms, phrase = TermVocabulary(tuple(seed["vocab"])), word_tokens(seed["text"])
    assert one_hot(phrase, terms).tolist() == seed["per_token"]
    assert bag_of_words(phrase, terms).tolist() == seed["expected"]
    seed = shared["word_tokenise"]
    assert word_tokens(seed["text"]) == seed["expected"]
    seed = shared["tf_idf"]
    documents = [word_tokens(text) for text in seed["docs"]]
    terms = TermVocabulary.from_documents(documents)
    assert list(terms.words) == seed["vocab"]
    assert term_counts(documents, terms).tolist() == seed["counts"]
    assert tf_idf(documents, terms, smooth=False).tolist() == seed["plain_tf_log_N_over_df"]
    assert tf_idf(documents, terms, smooth=True).tolist() == seed["sklearn_default_l2"]


def test_one_hot_maximum_is_bag_and_sum_is_counts() -> None:
    """The bag is the one-hot rows' maximum, the counts are their sum."""
    document = word_tokens("the cat saw the dog and the dog saw the cat")
    terms = TermVocabulary.from_documents([document])
    rows = one_hot(document, terms)
    assert (rows.sum(axis=1) == 1).all()
    assert (rows.max(axis=0) == bag_of_words(document, terms)).all()
    assert (rows.sum(axis=0) == term_counts([document], terms)[0]).all()


@pytest.mark.parametrize("smooth", [True, False])
def test_text_representations_accept_empty_input(smooth: bool) -> None:
    empty_vocabulary = TermVocabulary(())
    assert one_hot([], TERMS).shape == (0, 3)
    assert one_hot([], empty_vocabulary).shape == (0, 0)
    assert bag_of_words([], TERMS).tolist() == [0, 0, 0]
    assert term_counts([], TERMS).shape == (0, 3)
    assert tf_idf([], TERMS, smooth=smooth).shape == (0, 3)
    assert tf_idf([[], []], empty_vocabulary, smooth=smooth).shape == (2, 0)
    with_empty = tf_idf([["AI"], []], TERMS, smooth=smooth)  # df of two terms is 0
    assert np.isfinite(with_empty).all()
    assert with_empty[1].tolist() == [0, 0, 0]
    assert with_empty[0, 1:].tolist() == [0, 0]


def test_tf_idf_smooth_rows_have_length_one() -> None:
    rows = tf_idf([["AI", "AI", "world"], ["changes"], ["world", "AI"]], TERMS)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-15)


def test_one_hot_unknown_token_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="'moon' is not among the 3 terms"):
        one_hot(["AI", "moon"], TERMS)
    assert one_hot(["AI", "moon"], TERMS, drop_unknown=True).tolist() == [[1, 0, 0]]
    assert bag_of_words(["moon"], TERMS, drop_unknown=True).tolist() == [0, 0, 0]
    assert term_counts([["moon", "AI"]], TERMS, drop_unknown=True).tolist() == [[1, 0, 0]]
    with pytest.raises(HeedfulError, match="moon"):
        tf_idf([["moon"]], TERMS)


def test_bag_of_words_of_text_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="a list of tokens, not text"):
        bag_of_words("AI world", TERMS)


def test_term_vocabulary_duplicate_is_an_error() -> None:
    with pytest.raises(HeedfulError, match="'a' is duplicated"):
        TermVocabulary(("a", "b", "a"))
    assert TermVocabulary.from_documents([["b", "a"], ["a", "c"]]).words == ("b", "a", "c")
