"""BPE-dropout changes the pieces, never the text, and depends on nothing but seed, word and rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import HeedfulError
from heedful.text import subword_dropout
from heedful.text.subword_dropout import SubwordDropout
from heedful.text.tokenizer import END, Tokenizer, TokenizerConfig

TEXTS = [
    "the animal didn't cross the street because the street was too wide",
    "l'animal n'a pas traversé la rue parce que la rue était trop large.",
]
TOKENIZER = Tokenizer.train(TEXTS * 3, TokenizerConfig(vocabulary=500))


def rounds(dropout: SubwordDropout, texts: list[str], seed: int = 7) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [dropout(TOKENIZER.encode(text), random) for text in texts]


@given(
    st.text(st.one_of(st.sampled_from("the animl'dr. ▁"), st.characters(codec="utf-8")), max_size=50),
    st.integers(0, 99),
)
def test_the_text_stays(text: str, seed: int) -> None:
    ids = [*TOKENIZER.encode(text), END]
    result = SubwordDropout(TOKENIZER, 0.5)(ids, np.random.default_rng(seed))
    assert TOKENIZER.decode(result) == text
    assert result[-1] == END


def test_rate_zero_is_the_identity() -> None:
    dropout = SubwordDropout(TOKENIZER, 0.0)
    assert rounds(dropout, TEXTS) == [TOKENIZER.encode(text) for text in TEXTS]
    assert dropout(np.array([5, 6, 7]), np.random.default_rng(0)) == [5, 6, 7]


def test_without_luck_the_merges_are_those_of_the_tokenizer() -> None:
    assert rounds(SubwordDropout(TOKENIZER, 1e-15), TEXTS) == [TOKENIZER.encode(text) for text in TEXTS]


def test_a_higher_rate_cuts_finer() -> None:
    lengths = [
        sum(map(len, rounds(SubwordDropout(TOKENIZER, rate), TEXTS * 20))) for rate in (0.0, 0.1, 0.5, 0.99)
    ]
    assert lengths == sorted(set(lengths))


def test_the_history_of_calls_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rounds(SubwordDropout(TOKENIZER, 0.3), TEXTS * 5)
    used = SubwordDropout(TOKENIZER, 0.3)
    rounds(used, TEXTS[::-1] * 3, seed=11)
    assert rounds(used, TEXTS * 5) == expected
    monkeypatch.setattr(subword_dropout, "_CACHED_WORDS", 2)
    assert rounds(SubwordDropout(TOKENIZER, 0.3), TEXTS * 5) == expected


def test_bytes_and_endless_words_stay() -> None:
    for text in ["the世", "the" * 50]:
        assert rounds(SubwordDropout(TOKENIZER, 0.9), [text]) == [TOKENIZER.encode(text)]


def test_merges_never_cross_words() -> None:
    """ "n't" is a piece, but n' + test are two words."""
    dropout = SubwordDropout(TOKENIZER, 1e-15)
    assert rounds(dropout, ["n'test"]) == [TOKENIZER.encode("n'test")]


def test_only_for_merges() -> None:
    with pytest.raises(HeedfulError, match="kind 'bpe'"):
        SubwordDropout(Tokenizer.train(TEXTS, TokenizerConfig(kind="character")), 0.1)
    with pytest.raises(HeedfulError, match="probability"):
        SubwordDropout(TOKENIZER, 1.0)
