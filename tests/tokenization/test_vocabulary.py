"""tokenizer.json: ``tokenizers`` and ``transformers`` read it and agree with us; nothing else is accepted."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.errors import HeedfulError
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.special_tokens import END, PAD, SPECIALS, UNK, add_tags
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary import TokenizerType, Vocabulary
from heedful.tokenization.vocabulary_training import learn_tokenizer

MODEL_TYPES: tuple[TokenizerType, ...] = get_args(TokenizerType)
CORPUS = [
    *(text for pair in generate_pairs(80) for text in (pair.source, pair.target)),
    "Der Hund läuft über das Gras; ▁ l'animal n'a pas traversé la rue!",
    "世界は変わる。 世界 مرحبا بالعالم नमस्ते 👍🏽 \U0010fffd 1 0",
]
TAGS = ["fr", "pt-BR"]
SPECIAL_SETTINGS = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIALS, strict=True))

# Whole strings that mean something in a tokenizer, and characters of every kind; no surrogates, which are not text.
FRAGMENTS = [
    *(*SPECIALS, ">>fr<<", ">>pt-BR<<", "<0x41>", "<0xC3>", "<0xe4>", "▁", "▁▁", " ", "  ", "\n", "\t", "\r\n"),
    *("\U0010fffd", "\U0010fffd0", "\U0010fffd1", "\0", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufffd", "\ufdd1"),
    *("the dog", "didn't", "l'animal", "’", "e\u0301", "\u0301", "مرحبا", "你好，世界", "नमस्ते", "สวัสดี"),
    *("می\u200cخواهم", "👩\u200d👧\u200d👦", "🇫🇷", "👍🏽", "1️⃣", "...", "x" * 500),
]
TEXTS = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0"), max_size=8),
    max_size=12,
).map("".join)


@cache
def trained(model_type: TokenizerType) -> Tokenizer:
    return learn_tokenizer(CORPUS, TokenizerConfig(model_type=model_type, vocab_size=500), TAGS)


@pytest.fixture(params=MODEL_TYPES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


class HuggingFace:
    """Both libraries, reading the file of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, folder: Path) -> None:
        PairTokenizer(tokenizer, tokenizer).save(folder)
        path = str(folder / "tokenizer.json")
        self.tokenizers = tokenizers.Tokenizer.from_file(path)
        self.transformers = PreTrainedTokenizerFast(tokenizer_file=path)
        # For padding, transformers must know the specials; then text has to be split in spite of them.
        self.with_specials = PreTrainedTokenizerFast(tokenizer_file=path, split_special_tokens=True, **SPECIAL_SETTINGS)

    def check(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text)
        assert self.tokenizers.encode(text).ids == ids
        assert self.transformers(text)["input_ids"] == self.transformers.encode(text) == ids
        assert self.with_specials(text)["input_ids"] == ids
        all_ids = [PAD, tokenizer.tag_id("fr"), *ids, UNK, END]
        for decoded_text in (
            tokenizer.decode(all_ids),
            self.tokenizers.decode(ids),
            self.tokenizers.decode(all_ids),
            self.transformers.decode(ids),
            self.transformers.decode(all_ids),
            self.with_specials.decode(all_ids, skip_special_tokens=True),
        ):
            assert decoded_text == text


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TokenizerType], HuggingFace]:
    return cache(lambda model_type: HuggingFace(trained(model_type), tmp_path_factory.mktemp(model_type)))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@given(text=TEXTS)
@settings(deadline=None)
@example(text="".join(FRAGMENTS))
@example(text=" ".join(FRAGMENTS))
@example(text="")
@example(text=" ")
def test_file_any_text_gives_equal_ids_and_text_in_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace], model_type: TokenizerType, text: str
) -> None:
    hugging_face(model_type).check(trained(model_type), text)


@pytest.mark.parametrize("unit", ["a", "the ", "世", " ", ".", "e\u0301", "▁", "\n", "</s>", "1", "👍🏽"])
def test_file_long_text_gives_equal_ids_and_text_in_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace], tokenizer: Tokenizer, unit: str
) -> None:
    hugging_face(tokenizer.model_type).check(tokenizer, unit * (20_000 // len(unit)))


def test_file_corpus_gives_equal_ids_in_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace], tokenizer: Tokenizer
) -> None:
    texts = [text for pair in generate_pairs(500) for text in (pair.source, pair.target)]
    expected, libraries = tokenizer.encode_batch(texts), hugging_face(tokenizer.model_type)
    assert [encoding.ids for encoding in libraries.tokenizers.encode_batch(texts)] == expected
    assert libraries.transformers(texts)["input_ids"] == expected
    assert libraries.tokenizers.decode_batch(expected) == texts


def test_file_specials_and_tags_have_their_ids_in_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace], tokenizer: Tokenizer
) -> None:
    """A tag is put before a text by its id: the text of a user cannot contain one."""
    libraries, text = hugging_face(tokenizer.model_type), "the dog"
    assert [libraries.tokenizers.token_to_id(token) for token in SPECIALS] == [PAD, END, UNK]
    tag = libraries.transformers.convert_tokens_to_ids(">>pt-BR<<")
    assert [tag, *libraries.transformers.encode(text)] == tokenizer.encode(add_tags(text, "pt-BR"))
    padded = libraries.with_specials(["the", "the dog did not"], padding=True)["input_ids"]
    assert padded[0][-1] == PAD
    assert libraries.tokenizers.get_vocab_size() == len(libraries.transformers) == tokenizer.vocab_size


def test_file_unpaired_surrogate_is_rejected_by_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace], tokenizer: Tokenizer
) -> None:
    """We read U+FFFD; the library wants valid Unicode."""
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    with pytest.raises((TypeError, UnicodeEncodeError)):
        hugging_face(tokenizer.model_type).tokenizers.encode("a\ud800b")


def test_file_invalid_bytes_are_replaced_one_by_one_in_hugging_face(
    hugging_face: Callable[[TokenizerType], HuggingFace],
) -> None:
    """Bytes that only a model can output in this order: we keep the valid characters among them."""
    tokenizer = trained("bpe")
    ids = [tokenizer.vocabulary.special_count + byte for byte in b"\xc3\xa9\xe4\xb8"]
    assert tokenizer.decode(ids) == "é\ufffd"
    assert hugging_face("bpe").tokenizers.decode(ids) == "\ufffd" * 4


def test_file_saved_again_by_hugging_face_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    PairTokenizer(tokenizer, tokenizer).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer.from_file(str(path)).save(str(path))
    loaded = PairTokenizer.load(tmp_path).source
    assert loaded.vocabulary.tokens == tokenizer.vocabulary.tokens
    assert loaded.encode_batch(CORPUS) == tokenizer.encode_batch(CORPUS)


def test_vocabulary_as_json_round_trips(tokenizer: Tokenizer) -> None:
    loaded = Vocabulary.from_json(json.loads(json.dumps(tokenizer.vocabulary.to_json())))
    assert loaded == tokenizer.vocabulary
    assert loaded.languages == tuple(TAGS)


def test_tokenizer_backend_is_that_of_the_file(tokenizer: Tokenizer) -> None:
    """Scores are compared as the library reads them: some are one bit off."""
    content = tokenizer.vocabulary.to_json()
    library = tokenizers.Tokenizer.from_str(json.dumps(content)).to_str()
    assert tokenizer._backend.to_str() == library
    if tokenizer.model_type != "unigram":
        assert json.loads(library) == content


def test_vocabulary_bpe_without_merges_stays_bpe() -> None:
    vocabulary = learn_tokenizer(["abc"], TokenizerConfig()).vocabulary
    assert not vocabulary.merges
    assert Vocabulary.from_json(vocabulary.to_json()).model_type == "bpe"


Change = Callable[[dict[str, Any]], object]

FOREIGN_FILES: dict[str, tuple[Change, str]] = {
    "another pattern": (
        lambda file: file["pre_tokenizer"]["pattern"].update({"Regex": "(a+)+$"}),
        "its pre_tokenizer is not one of Heedful",
    ),
    "another pre-tokenizer": (lambda file: file.update(pre_tokenizer={"type": "Whitespace"}), "its pre_tokenizer"),
    "no normalizer": (lambda file: file.update(normalizer=None), "its normalizer"),
    "another normalizer": (lambda file: file["normalizer"]["normalizers"].append({"type": "NFC"}), "its normalizer"),
    "another decoder": (lambda file: file["decoder"]["decoders"].pop(), "its decoder"),
    "another post-processor": (lambda file: file.update(post_processor={"type": "ByteLevel"}), "its post_processor"),
    "added tokens": (lambda file: file["added_tokens"].append({"id": 0, "content": "<pad>"}), "its added_tokens"),
    "truncation": (lambda file: file.update(truncation={"max_length": 3}), "its truncation"),
    "another version": (lambda file: file.update(version="2.0"), "its version"),
    "unknown component": (lambda file: file.update(extra=1), "its extra"),
    "missing component": (lambda file: file.pop("padding"), "its padding"),
    "another model": (lambda file: file["model"].update(type="WordPiece"), "neither BPE nor Unigram"),
    "no model": (lambda file: file.pop("model"), "neither BPE nor Unigram"),
    "model is a list": (lambda file: file.update(model=[]), "neither BPE nor Unigram"),
}

CORRUPT_FILES: dict[str, tuple[Change, str]] = {
    "unknown field": (lambda file: file["model"].update(extra=1), "unknown setting 'extra'"),
    "dropout": (lambda file: file["model"].update(dropout=0.5), "'dropout'"),
    "no byte fallback": (lambda file: file["model"].update(byte_fallback=False), "'byte_fallback'"),
    "prefix": (lambda file: file["model"].update(continuing_subword_prefix="##"), "'continuing_subword_prefix'"),
    "gap in ids": (lambda file: file["model"]["vocab"].update({"the": 10**9}), "the ids of its tokens are not 0 to"),
    "two tokens, one id": (lambda file: file["model"]["vocab"].update({"▁the": 300}), "the ids of its tokens"),
    "id is text": (lambda file: file["model"]["vocab"].update({"▁the": "300"}), "'vocab.▁the'"),
    "no specials": (lambda file: file["model"].update(vocab={"a": 0}, merges=[]), "do not start with the specials"),
    "surrogate": (lambda file: _rename(file, "\ud800"), "not valid Unicode"),
    "empty token": (lambda file: _rename(file, ""), "empty or duplicated"),
    "token with a space": (lambda file: _rename(file, "a b"), "'a b' cannot be a learned subword"),
    "lower-case byte": (lambda file: _rename(file, "<0xe4>"), "'<0xe4>' cannot be a learned subword"),
    "second tag": (lambda file: _rename(file, ">>de<<"), "'>>de<<' cannot be a learned subword"),
    "unknown merge": (
        lambda file: file["model"]["merges"].append(["q", "w"]),
        "merge of 'q' and 'w' has",
    ),
    "merge to a special": (lambda file: file["model"]["merges"].append(["<pa", "d>"]), "has unknown tokens"),
    "merge of three": (lambda file: file["model"]["merges"].append(["a", "b", "c"]), "should have at most 2 items"),
    "merge with a space": (
        lambda file: file["model"]["merges"].append(["a b", "c"]),
        "merge of 'a b' and 'c' has",
    ),
    "words with merges": (lambda file: file["model"].update(ignore_merges=True), "cannot have merges"),
}


def _rename(file: dict[str, Any], token: str) -> None:
    """Give the last token, which no merge needs, another name."""
    vocab = file["model"]["vocab"]
    vocab[token] = vocab.pop(next(reversed(vocab)))
    file["model"]["merges"].pop()


def check_load_error(tmp_path: Path, change: Change, problem: str, model_type: TokenizerType = "bpe") -> str:
    """The hint of the error that loading a changed file gives."""
    file = copy.deepcopy(trained(model_type).vocabulary.to_json())
    change(file)
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(HeedfulError, match=re.escape(problem)) as caught:
        PairTokenizer.load(tmp_path)
    assert "cannot use tokenizer file" in caught.value.problem
    return caught.value.hint


@pytest.mark.parametrize(("change", "problem"), FOREIGN_FILES.values(), ids=FOREIGN_FILES)
def test_load_foreign_pipeline_raises(tmp_path: Path, change: Change, problem: str) -> None:
    assert "Heedful reads the tokenizers that it trains" in check_load_error(tmp_path, change, problem)


@pytest.mark.parametrize(("change", "problem"), CORRUPT_FILES.values(), ids=CORRUPT_FILES)
def test_load_corrupt_file_raises(tmp_path: Path, change: Change, problem: str) -> None:
    assert check_load_error(tmp_path, change, problem)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400, "1.0", None, True])
def test_load_unigram_score_not_a_number_raises(tmp_path: Path, score: object) -> None:
    def change(file: dict[str, Any]) -> None:
        file["model"]["vocab"][-1][1] = score

    check_load_error(tmp_path, change, "cannot use tokenizer file", "unigram")


def test_load_foreign_tokenizer_never_reaches_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern with catastrophic backtracking is refused before anything compiles it."""
    monkeypatch.setattr("heedful.tokenization.vocabulary.tokenizers", None)
    for change, problem in (*FOREIGN_FILES.values(), *CORRUPT_FILES.values()):
        check_load_error(tmp_path, change, problem)


def pairs() -> Iterator[tuple[str, str]]:
    yield from [("the dog", "le chien"), ("the cat", "le chat")]


@pytest.mark.parametrize("joint", [True, False])
def test_pair_tokenizer_save_and_load_round_trip(tmp_path: Path, joint: bool) -> None:
    config = TokenizerConfig(joint_vocabulary=joint, vocab_size=300)
    pair = PairTokenizer.train(pairs, config, tags=["fr"])
    assert pair.joint == joint
    assert ("g" in pair.target.vocabulary.tokens) == joint
    pair.save(tmp_path)
    loaded = PairTokenizer.load(tmp_path)
    names = {"tokenizer.json"} if joint else {"tokenizer.json", "target_tokenizer.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert loaded.joint == joint
    for side in ("source", "target"):
        ours, theirs = getattr(pair, side), getattr(loaded, side)
        assert ours.vocabulary == theirs.vocabulary
        file = "target_tokenizer.json" if side == "target" and not joint else "tokenizer.json"
        library = tokenizers.Tokenizer.from_file(str(tmp_path / file))
        assert library.encode("the chien </s>").ids == theirs.encode("the chien </s>")


def test_pair_tokenizer_error_names_side() -> None:
    with pytest.raises(HeedfulError, match="target side: no text"):
        PairTokenizer.train(lambda: [("a", "")], TokenizerConfig(joint_vocabulary=False))


def test_pair_tokenizer_unreadable_file_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="No such file"):
        PairTokenizer.load(tmp_path)
    for content in (b'{"version": "1.0", \xff', b"[]", b"[" * 100_000, b""):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(HeedfulError, match=r"tokenizer\.json"):
            PairTokenizer.load(tmp_path)
    with pytest.raises(HeedfulError, match="cannot write"):
        PairTokenizer.train(pairs, TokenizerConfig()).save(tmp_path / "missing")


def test_pair_tokenizer_huge_file_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PairTokenizer.train(pairs, TokenizerConfig()).save(tmp_path)
    monkeypatch.setattr("heedful.tokenization.pair_tokenizer.MAX_FILE_BYTES", 1000)
    with pytest.raises(HeedfulError, match="too large"):
        PairTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"merges": [["q", "w"]]},
        {"merges": ["the"]},
        {"scores": [0.5]},
        {"tokens": ["\ud800"]},
        {"languages": ["de"]},
        {"model_type": "unigram"},
    ],
)
def test_vocabulary_invalid_field_raises(change: dict[str, object]) -> None:
    with pytest.raises(HeedfulError):
        Vocabulary.from_settings(trained("bpe").vocabulary.model_dump(mode="json") | change)
