"""Tokenizers: lossless, safe against injected specials, deterministic."""

import json
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from heedful.errors import HeedfulError
from heedful.tokenization.normalization import WORD_PATTERN
from heedful.tokenization.special_tokens import END, PAD, UNK
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary import TokenizerType
from heedful.tokenization.vocabulary_training import learn_tokenizer
from tests.scaling import check_nearly_linear

MODEL_TYPES: tuple[TokenizerType, ...] = get_args(TokenizerType)
CORPUS = [
    "AI changes the world.",
    "The animal didn't cross the street because it was too tired.",
    "L'animal n'a pas traversé la rue, parce qu'elle était trop large.",
    "Der Hund läuft über das Gras; the dog runs across the grass!",
    "世界は変わる。 世界 مرحبا بالعالم",
    "the world, the street, the animal, the dog and the grass",
]
TOKENIZERS = {
    model_type: learn_tokenizer(CORPUS, TokenizerConfig(model_type=model_type, vocab_size=450), ["fr", "pt-BR"])
    for model_type in MODEL_TYPES
}
UNUSUAL_TEXTS = {
    "empty": "",
    "blanks": "  two  spaces \t and\r\n lines \n",
    "arabic": "مرحبا بالعالم، كيف حالك؟",
    "chinese": "你好，世界！",
    "hindi": "क्षत्रिय नमस्ते दुनिया।",
    "thai": "สวัสดีชาวโลก",
    "persian": "می‌خواهم",
    "emoji": "👨‍👩‍👧‍👦 ❤️‍🔥 🇫🇷👍🏽",
    "combining": "e\u0301 Z\u0351\u036b\u0343",
    "direction": "\u200fשלום\u200e \u202babc\u202c",
    "specials": "</s> <pad><unk> <0x41>>>fr<< >>pt-BR<<",
    "markers": "▁a ▁▁ \U0010fffd0 \U0010fffd1\U0010fffd▁",
    "controls": "\x00\x01\x7f\ufeff\ufffe\U0010ffff",
    "apostrophes": "didn't it’s l'animal qu’elle 'quoted' rock'n'roll",
}
ALPHABET = st.one_of(st.sampled_from("ab thew▁\U0010fffd01 .<>/s'’\n\t0x41é世"), st.characters(codec="utf-8"))


@pytest.fixture(params=MODEL_TYPES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@given(text=st.text(ALPHABET, max_size=60))
@settings(deadline=None)
@example(text="▁")
def test_decode_any_encoded_text_is_the_text(model_type: TokenizerType, text: str) -> None:
    tokenizer = TOKENIZERS[model_type]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(token_id >= tokenizer.vocabulary.special_count for token_id in ids)


@pytest.mark.parametrize("text", UNUSUAL_TEXTS.values(), ids=UNUSUAL_TEXTS.keys())
def test_encode_unusual_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]
    assert min(ids, default=5) >= 5  # 3 specials, 2 tags
    assert len(tokenizer.word_ids(ids)) == len(ids)


def test_encode_unpaired_surrogate_becomes_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@given(st.lists(st.integers(0, TOKENIZERS["bpe"].vocab_size - 1)))
def test_decode_any_ids_works(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bpe"]
    tokenizer.decode(ids)
    word_ids = tokenizer.word_ids(ids)
    assert all(after - before in (0, 1) for before, after in pairwise(word_ids))


def test_decode_omits_specials_and_tags(tokenizer: Tokenizer) -> None:
    ids = [PAD, tokenizer.tag_id("fr"), *tokenizer.encode("the world"), UNK, END, PAD]
    assert tokenizer.decode(ids) == "the world"
    assert tokenizer.ids_to_tokens(ids[:2]) == ["<pad>", ">>fr<<"]


def test_decode_invalid_bytes_become_replacement_character() -> None:
    tokenizer = TOKENIZERS["character"]
    first_byte = tokenizer.vocabulary.special_count
    assert tokenizer.decode([first_byte + 0xE4, first_byte + 0xB8, *tokenizer.encode("a")]) == "\ufffd a"


def split_into_words(text: str) -> list[str]:
    tokenizer = learn_tokenizer([text], TokenizerConfig(model_type="word", vocab_size=1000))
    return tokenizer.ids_to_tokens(tokenizer.encode(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AI changes the world.", ["▁AI", "▁changes", "▁the", "▁world", "."]),
        ("It didn't; we’ll see", ["▁It", "▁didn't", ";", "▁we’ll", "▁see"]),
        ("l'animal n'a", ["▁l'", "animal", "▁n'", "a"]),
        ("qu'elle dit 3 mots", ["▁qu'", "elle", "▁dit", "▁3", "▁mots"]),
        ('(Hm...) "Hi!"', ["▁(", "Hm", "...", ")", '▁"', "Hi", "!", '"']),
        ("世界 変", ["▁世", "界", "▁変"]),
    ],
)
def test_word_model_splits_words(text: str, expected: list[str]) -> None:
    assert split_into_words(text) == expected


def test_word_model_unknown_word_becomes_characters_and_bytes() -> None:
    tokenizer = learn_tokenizer(["the hat"], TokenizerConfig(model_type="word"))
    assert tokenizer.ids_to_tokens(tokenizer.encode("the tea中")) == [
        *("▁the", "▁", "t", "e", "a"),
        *("<0xE4>", "<0xB8>", "<0xAD>"),
    ]


def test_ids_with_prefix_finds_matching_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the 世")
    assert tokenizer.ids_to_bytes([PAD, *ids, END]) == "▁the▁世".encode()
    for start in (b"", "▁".encode(), "世".encode()[:1]):
        matching_ids = tokenizer.ids_with_prefix(start)
        bytes_by_id = {token_id: tokenizer.ids_to_bytes([token_id]) for token_id in range(tokenizer.vocab_size)}
        assert matching_ids == [token_id for token_id, text in bytes_by_id.items() if text and text.startswith(start)]
        assert not {PAD, END, UNK, tokenizer.tag_id("fr")} & {*matching_ids}
    assert ids[0] in tokenizer.ids_with_prefix("▁".encode())


@pytest.mark.parametrize("text", UNUSUAL_TEXTS.values(), ids=UNUSUAL_TEXTS)
def test_char_spans_cover_text_in_order(tokenizer: Tokenizer, text: str) -> None:
    """Spans are in order and cover all of the text except spaces; specials have none."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    spans = tokenizer.char_spans([PAD, *ids, END])
    assert spans[0] is spans[-1] is None
    inside = [span for span in spans if span is not None]
    assert len(inside) == len(ids)
    covered_positions: set[int] = set()
    for (start, end), token in zip(inside, tokenizer.ids_to_tokens(ids), strict=True):
        assert 0 <= start <= end <= len(text)
        covered_positions |= set(range(start, end))
        if not token.startswith("<0x") and "\U0010fffd" not in token:  # not a byte or an escape
            assert text[start:end] == token.lstrip("▁").replace("▁", " ")
    assert all(one[0] <= other[0] for one, other in pairwise(inside))
    assert all(text[position] == " " for position in range(len(text)) if position not in covered_positions)


def test_char_spans_bytes_share_character() -> None:
    """The bytes of a character share its span; invalid bytes have one each, or one together."""
    tokenizer = TOKENIZERS["bpe"]
    byte = tokenizer.vocabulary.special_count
    smile = [byte + value for value in "😀".encode()]
    a = tokenizer.encode("xa")[-1]
    assert tokenizer.decode([*smile, a]) == "😀a"
    assert tokenizer.char_spans([*smile, a]) == [(0, 1)] * 4 + [(1, 2)]
    assert tokenizer.char_spans([*smile[:2], END, *smile[2:]]) == [(0, 1)] * 2 + [None] + [(0, 1)] * 2
    assert tokenizer.decode([*smile[:2], a, byte + 0x80, byte + 0x80]) == "\ufffda\ufffd\ufffd"
    assert tokenizer.char_spans([*smile[:2], a, byte + 0x80, byte + 0x80]) == [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4)]
    assert tokenizer.char_spans([]) == []


@given(ids=st.lists(st.integers(0, 449), max_size=30))
@settings(deadline=None)
def test_char_spans_any_ids_cover_decoded_text(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        valid_ids = [token_id for token_id in ids if token_id < tokenizer.vocab_size]
        text = tokenizer.decode(valid_ids)
        spans = [span for span in tokenizer.char_spans(valid_ids) if span is not None]
        covered_positions = {position for start, end in spans for position in range(start, end)}
        assert all(text[position] == " " for position in set(range(len(text))) - covered_positions)
        assert max(covered_positions, default=-1) < len(text)


def test_word_ids_count_words() -> None:
    tokenizer = TOKENIZERS["character"]
    ids = [tokenizer.tag_id("fr"), *tokenizer.encode("it didn't.é"), END]
    assert tokenizer.word_ids(ids) == [0, 1, 1, 1, *[2] * 7, 3, 4, 5]


def test_train_small_alphabet_encodes_other_letters_as_bytes(tokenizer: Tokenizer) -> None:
    config = TokenizerConfig(model_type=tokenizer.model_type, vocab_size=400, max_alphabet=3)
    small = learn_tokenizer(["aaaxaaab aaaxaaab"] * 3, config)
    assert "<0x78>" in small.ids_to_tokens(small.encode("x"))
    subwords = small.vocabulary.tokens[small.vocabulary.first_subword_id :]
    assert not any("aaaa" in token or "\n" in token for token in subwords)
    assert small.decode(small.encode("xyz é")) == "xyz é"


@pytest.mark.parametrize("model_type", ["word", "character", "bpe"])
def test_train_same_texts_give_identical_tokenizer(model_type: TokenizerType) -> None:
    config = TokenizerConfig(model_type=model_type, vocab_size=320, max_alphabet=40)  # many ties at the size limit
    first, second = (learn_tokenizer(iter(CORPUS), config).vocabulary.model_dump(mode="json") for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_train_vocab_size_is_upper_bound(tokenizer: Tokenizer) -> None:
    for bound in (340, 345, 400):
        assert (
            learn_tokenizer(CORPUS, TokenizerConfig(model_type=tokenizer.model_type, vocab_size=bound)).vocab_size
            <= bound
        )


def test_train_too_small_vocabulary_raises_with_minimum() -> None:
    texts = ["".join(map(chr, range(0x4E00, 0x4E00 + 100)))]
    with pytest.raises(HeedfulError, match=r"101 different characters; .* at least 360") as caught:
        learn_tokenizer(texts, TokenizerConfig(vocab_size=300))
    assert "tokenizer.max_alphabet to 41" in caught.value.hint
    assert learn_tokenizer(texts, TokenizerConfig(vocab_size=300, max_alphabet=41)).vocab_size == 300
    assert learn_tokenizer(texts, TokenizerConfig(vocab_size=360)).vocab_size == 360


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_train_no_text_raises(texts: list[str]) -> None:
    with pytest.raises(HeedfulError, match="no text"):
        learn_tokenizer(texts, TokenizerConfig())


def test_tokenizer_config_invalid_settings_raise() -> None:
    with pytest.raises(HeedfulError, match="not 'word'"):
        TokenizerConfig.from_settings({"model_type": "word", "bpe_dropout": 0.1})
    with pytest.raises(HeedfulError, match="dropout"):
        TokenizerConfig.from_settings({"bpe_dropout": 1.0})
    with pytest.raises(HeedfulError, match="language code 'x y'"):
        learn_tokenizer(["a"], TokenizerConfig(), ["x y"])
    with pytest.raises(HeedfulError, match="no tag for 'de'"):
        TOKENIZERS["bpe"].tag_id("de")


@pytest.mark.parametrize("unit", ["a", "the", "世", " ", "the ", ".", "a'", "\u0301", "\n", "1"])
def test_encode_100_000_characters_takes_linear_time(tokenizer: Tokenizer, unit: str) -> None:
    check_nearly_linear(lambda size: tokenizer.encode(unit * (size // len(unit))), 100_000)
    text = unit * (100_000 // len(unit))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "emoji",
    ["\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "👩🏽‍🚀", "🇫🇷", "👍🏽", "1️⃣", "🏳️‍🌈", "❤️"],
)
def test_word_pattern_emoji_is_one_word(emoji: str) -> None:
    splitter = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    words = [word for word, _ in splitter.pre_tokenize_str(f"go{emoji}{emoji}!")]
    assert words == ["go", emoji, emoji, "!"]
