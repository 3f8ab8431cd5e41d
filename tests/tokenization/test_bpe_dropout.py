"""BPE-dropout changes the subwords, never the text; it depends only on seed, word and dropout rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import HeedfulError
from heedful.tokenization import bpe_dropout
from heedful.tokenization.bpe_dropout import BPEDropout
from heedful.tokenization.special_tokens import END
from heedful.tokenization.tokenizer import TokenizerConfig
from heedful.tokenization.vocabulary_training import learn_tokenizer

TEXTS = [
    "the animal didn't cross the street because the street was too wide",
    "l'animal n'a pas traversé la rue parce que la rue était trop large.",
]
TOKENIZER = learn_tokenizer(TEXTS * 3, TokenizerConfig(vocab_size=500))


def encode_with_dropout(dropout: BPEDropout, texts: list[str], seed: int = 7) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [dropout(TOKENIZER.encode(text), random) for text in texts]


@given(
    st.text(st.one_of(st.sampled_from("the animl'dr. ▁"), st.characters(codec="utf-8")), max_size=50),
    st.integers(0, 99),
)
def test_bpe_dropout_any_text_decodes_to_the_same_text(text: str, seed: int) -> None:
    ids = [*TOKENIZER.encode(text), END]
    result = BPEDropout(TOKENIZER, 0.5)(ids, np.random.default_rng(seed))
    assert TOKENIZER.decode(result) == text
    assert result[-1] == END


def test_bpe_dropout_zero_returns_the_same_ids() -> None:
    dropout = BPEDropout(TOKENIZER, 0.0)
    assert encode_with_dropout(dropout, TEXTS) == [TOKENIZER.encode(text) for text in TEXTS]
    assert dropout(np.array([5, 6, 7]), np.random.default_rng(0)) == [5, 6, 7]


def test_bpe_dropout_no_dropped_merge_matches_tokenizer() -> None:
    assert encode_with_dropout(BPEDropout(TOKENIZER, 1e-15), TEXTS) == [TOKENIZER.encode(text) for text in TEXTS]


def test_bpe_dropout_higher_rate_gives_more_subwords() -> None:
    lengths = [
        sum(map(len, encode_with_dropout(BPEDropout(TOKENIZER, rate), TEXTS * 20))) for rate in (0.0, 0.1, 0.5, 0.99)
    ]
    assert lengths == sorted(set(lengths))


def test_bpe_dropout_earlier_calls_do_not_change_result(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encode_with_dropout(BPEDropout(TOKENIZER, 0.3), TEXTS * 5)
    dropout = BPEDropout(TOKENIZER, 0.3)
    encode_with_dropout(dropout, TEXTS[::-1] * 3, seed=11)
    assert encode_with_dropout(dropout, TEXTS * 5) == expected
    monkeypatch.setattr(bpe_dropout, "_CACHED_WORDS", 2)
    assert encode_with_dropout(BPEDropout(TOKENIZER, 0.3), TEXTS * 5) == expected


def test_bpe_dropout_bytes_and_long_words_are_unchanged() -> None:
    for text in ["the世", "the" * 50]:
        assert encode_with_dropout(BPEDropout(TOKENIZER, 0.9), [text]) == [TOKENIZER.encode(text)]


def test_bpe_dropout_merges_never_cross_words() -> None:
    """ "n't" is a subword, but n' + test are two words."""
    dropout = BPEDropout(TOKENIZER, 1e-15)
    assert encode_with_dropout(dropout, ["n'test"]) == [TOKENIZER.encode("n'test")]


def test_bpe_dropout_invalid_model_type_or_rate_raises() -> None:
    with pytest.raises(HeedfulError, match="'character' tokenizer"):
        BPEDropout(learn_tokenizer(TEXTS, TokenizerConfig(model_type="character")), 0.1)
    with pytest.raises(HeedfulError, match="probability"):
        BPEDropout(TOKENIZER, 1.0)
