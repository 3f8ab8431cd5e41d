"""Tokenizers lose nothing, let no text become a special, and learn the same from the same texts."""

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import HeedfulError
from heedful.text.tokenizer import END, PAD, UNKNOWN, PairTokenizer, Tokenizer, TokenizerConfig
from heedful.text.vocabulary import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
CORPUS = [
    "AI changes the world.",
    "The animal didn't cross the street because it was too tired.",
    "L'animal n'a pas traversé la rue, parce qu'elle était trop large.",
    "Der Hund läuft über das Gras; the dog runs across the grass!",
    "世界は変わる。 世界 مرحبا بالعالم",
    "the world, the street, the animal, the dog and the grass",
]
TOKENIZERS = {
    kind: Tokenizer.train(CORPUS, TokenizerConfig(kind=kind, vocabulary=450), ["fr", "pt-BR"])
    for kind in KINDS
}
NAMED = {
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


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(ALPHABET, max_size=60))
@settings(deadline=None)
@example(text="▁")
def test_nothing_is_lost(kind: Kind, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(identity >= tokenizer.vocabulary.silent for identity in ids)


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED.keys())
def test_named_texts_survive(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text, "x"]) == [ids, tokenizer.encode("x")]
    assert min(ids, default=5) >= 5  # 3 specials, 2 tags
    assert len(tokenizer.words(ids)) == len(ids)


def test_half_a_surrogate_pair_becomes_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@given(st.lists(st.integers(0, TOKENIZERS["bpe"].size - 1)))
def test_any_ids_decode(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bpe"]
    tokenizer.decode(ids)
    words = tokenizer.words(ids)
    assert all(after - before in (0, 1) for before, after in pairwise(words))


def test_decode_is_silent_about_specials_and_tags(tokenizer: Tokenizer) -> None:
    ids = [PAD, tokenizer.tag("fr"), *tokenizer.encode("the world"), UNKNOWN, END, PAD]
    assert tokenizer.decode(ids) == "the world"
    assert tokenizer.pieces(ids[:2]) == ["<pad>", ">>fr<<"]


def test_bytes_that_spell_nothing_become_the_replacement_character() -> None:
    tokenizer = TOKENIZERS["character"]
    first_byte = tokenizer.vocabulary.silent
    assert tokenizer.decode([first_byte + 0xE4, first_byte + 0xB8, *tokenizer.encode("a")]) == "\ufffd a"


def words_of(text: str) -> list[str]:
    tokenizer = Tokenizer.train([text], TokenizerConfig(kind="word", vocabulary=1000))
    return tokenizer.pieces(tokenizer.encode(text))


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
def test_words(text: str, expected: list[str]) -> None:
    assert words_of(text) == expected


def test_an_unknown_word_is_spelled_in_characters_and_bytes() -> None:
    tokenizer = Tokenizer.train(["the hat"], TokenizerConfig(kind="word"))
    assert tokenizer.pieces(tokenizer.encode("the tea中")) == [
        *("▁the", "▁", "t", "e", "a"),
        *("<0xE4>", "<0xB8>", "<0xAD>"),
    ]


def test_pieces_are_found_by_how_they_begin(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the 世")
    assert tokenizer.spelled([PAD, *ids, END]) == "▁the▁世".encode()
    for start in (b"", "▁".encode(), "世".encode()[:1]):
        found = tokenizer.beginning_with(start)
        spelled = {identity: tokenizer.spelled([identity]) for identity in range(tokenizer.size)}
        assert found == [each for each, text in spelled.items() if text and text.startswith(start)]
        assert not {PAD, END, UNKNOWN, tokenizer.tag("fr")} & {*found}
    assert ids[0] in tokenizer.beginning_with("▁".encode())


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
def test_spans_say_where_pieces_stand(tokenizer: Tokenizer, text: str) -> None:
    """In order, and together all of the text but spaces; specials stand nowhere."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    spans = tokenizer.spans([PAD, *ids, END])
    assert spans[0] is spans[-1] is None
    inside = [span for span in spans if span is not None]
    assert len(inside) == len(ids)
    covered: set[int] = set()
    for (start, end), piece in zip(inside, tokenizer.pieces(ids), strict=True):
        assert 0 <= start <= end <= len(text)
        covered |= set(range(start, end))
        if not piece.startswith("<0x") and "\U0010fffd" not in piece:  # neither bytes nor an escape
            assert text[start:end] == piece.lstrip("▁").replace("▁", " ")
    assert all(one[0] <= other[0] for one, other in pairwise(inside))
    assert all(text[place] == " " for place in range(len(text)) if place not in covered)


def test_spans_of_bytes() -> None:
    """The bytes of a character share its place; bytes that spell nothing have one each, or one together."""
    tokenizer = TOKENIZERS["bpe"]
    byte = tokenizer.vocabulary.silent
    smile = [byte + each for each in "😀".encode()]
    a = tokenizer.encode("xa")[-1]
    assert tokenizer.decode([*smile, a]) == "😀a"
    assert tokenizer.spans([*smile, a]) == [(0, 1)] * 4 + [(1, 2)]
    assert tokenizer.spans([*smile[:2], END, *smile[2:]]) == [(0, 1)] * 2 + [None] + [(0, 1)] * 2
    assert tokenizer.decode([*smile[:2], a, byte + 0x80, byte + 0x80]) == "\ufffda\ufffd\ufffd"
    assert tokenizer.spans([*smile[:2], a, byte + 0x80, byte + 0x80]) == [
        (0, 1),
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]
    assert tokenizer.spans([]) == []


@given(ids=st.lists(st.integers(0, 449), max_size=30))
@settings(deadline=None)
def test_spans_of_any_ids(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        known = [identity for identity in ids if identity < tokenizer.size]
        text = tokenizer.decode(known)
        spans = [span for span in tokenizer.spans(known) if span is not None]
        covered = {place for start, end in spans for place in range(start, end)}
        assert all(text[place] == " " for place in set(range(len(text))) - covered)
        assert max(covered, default=-1) < len(text)


def test_words_number_the_pieces() -> None:
    tokenizer = TOKENIZERS["character"]
    ids = [tokenizer.tag("fr"), *tokenizer.encode("it didn't.é"), END]
    assert tokenizer.words(ids) == [0, 1, 1, 1, *[2] * 7, 3, 4, 5]


def test_letters_out_of_the_alphabet_are_bytes_and_nothing_is_learned_across_them(
    tokenizer: Tokenizer,
) -> None:
    config = TokenizerConfig(kind=tokenizer.kind, vocabulary=400, alphabet=3)
    small = Tokenizer.train(["aaaxaaab aaaxaaab"] * 3, config)
    assert "<0x78>" in small.pieces(small.encode("x"))
    learned = small.vocabulary.pieces[small.vocabulary.learned :]
    assert not any("aaaa" in piece or "\n" in piece for piece in learned)
    assert small.decode(small.encode("xyz é")) == "xyz é"


@pytest.mark.parametrize("kind", ["word", "character", "bpe"])
def test_the_same_texts_give_the_same_tokenizer(kind: Kind) -> None:
    config = TokenizerConfig(kind=kind, vocabulary=320, alphabet=40)  # many ties at the border
    first, second = (Tokenizer.train(iter(CORPUS), config).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_the_vocabulary_is_an_upper_bound(tokenizer: Tokenizer) -> None:
    for bound in (340, 345, 400):
        assert Tokenizer.train(CORPUS, TokenizerConfig(kind=tokenizer.kind, vocabulary=bound)).size <= bound


def test_a_vocabulary_too_small_says_what_is_needed() -> None:
    texts = ["".join(map(chr, range(0x4E00, 0x4E00 + 100)))]
    with pytest.raises(HeedfulError, match=r"101 different characters .* at least 360") as caught:
        Tokenizer.train(texts, TokenizerConfig(vocabulary=300))
    assert "tokenizer.alphabet to 41" in caught.value.hint
    assert Tokenizer.train(texts, TokenizerConfig(vocabulary=300, alphabet=41)).size == 300
    assert Tokenizer.train(texts, TokenizerConfig(vocabulary=360)).size == 360


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_no_text_is_an_error(texts: list[str]) -> None:
    with pytest.raises(HeedfulError, match="no text"):
        Tokenizer.train(texts, TokenizerConfig())


def test_bad_settings_are_errors() -> None:
    with pytest.raises(HeedfulError, match="kind 'word'"):
        TokenizerConfig.checked({"kind": "word", "dropout": 0.1})
    with pytest.raises(HeedfulError, match="dropout"):
        TokenizerConfig.checked({"dropout": 1.0})
    with pytest.raises(HeedfulError, match="language 'x y'"):
        Tokenizer.train(["a"], TokenizerConfig(), ["x y"])
    with pytest.raises(HeedfulError, match="no tag for 'de'"):
        TOKENIZERS["bpe"].tag("de")


@pytest.mark.parametrize("unit", ["a", "the", "世", " ", "the ", ".", "a'", "\u0301", "\n", "1"])
def test_a_line_of_100_000_characters_takes_no_time(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    start = time.perf_counter()
    ids = tokenizer.encode(text)
    assert time.perf_counter() - start < 3
    assert tokenizer.decode(ids) == text


def test_json_there_and_back(tokenizer: Tokenizer) -> None:
    copy = Tokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert copy.vocabulary == tokenizer.vocabulary
    assert copy.encode(CORPUS[1]) == tokenizer.encode(CORPUS[1])


def pairs() -> Iterator[tuple[str, str]]:
    yield from [("the dog", "le chien"), ("the cat", "le chat")]


@pytest.mark.parametrize("joint", [True, False])
def test_a_pair_is_saved_and_loaded(tmp_path: Path, joint: bool) -> None:
    config = TokenizerConfig(joint=joint, vocabulary=300)
    pair = PairTokenizer.train(pairs, config, ("en", "fr"), tags=["fr"])
    assert pair.joint == joint
    assert ("g" in pair.target.vocabulary.pieces) == joint
    pair.save(tmp_path / "tokenizer.json")
    copy = PairTokenizer.load(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert (copy.joint, copy.config, copy.languages) == (joint, config, ("en", "fr"))
    assert copy.target.vocabulary == pair.target.vocabulary


def test_an_error_names_its_side() -> None:
    with pytest.raises(HeedfulError, match="target side: no text"):
        PairTokenizer.train(lambda: [("a", "")], TokenizerConfig(joint=False))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 3}, "newer"),
        ({"format": None}, "not a Heedful tokenizer"),
        ({"source": None}, "damaged"),
        ({"source": {"kind": "bpe", "pieces": ["<pad>"]}}, "begin with the specials"),
        ({"extra": 1}, "unknown setting"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = tmp_path / "tokenizer.json"
    PairTokenizer.train(pairs, TokenizerConfig()).save(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(HeedfulError, match=problem) as caught:
        PairTokenizer.load(path)
    assert caught.value.hint


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no tokenizer at"):
        PairTokenizer.load(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_bytes(b'{"format": 1, \xff')
    with pytest.raises(HeedfulError, match="not valid JSON"):
        PairTokenizer.load(tmp_path / "broken.json")
    with pytest.raises(HeedfulError, match="cannot write"):
        PairTokenizer.train(pairs, TokenizerConfig()).save(tmp_path / "missing" / "tokenizer.json")


@pytest.mark.parametrize(
    "change",
    [
        {"merges": ["q w"]},
        {"merges": ["the"]},
        {"scores": [0.5]},
        {"pieces": ["\ud800"]},
        {"languages": ["de"]},
        {"kind": "unigram"},
    ],
)
def test_damaged_vocabularies_are_errors(change: dict[str, object]) -> None:
    with pytest.raises(HeedfulError):
        Tokenizer.from_json(TOKENIZERS["bpe"].to_json() | change)
