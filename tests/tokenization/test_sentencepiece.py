"""SentencePiece tokenizers: the subwords of the library, spans in the text, no injected specials."""

import hashlib
import io
from functools import cache
from pathlib import Path

import pytest
import sentencepiece

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.errors import HeedfulError
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.sentencepiece import SentencePieceTokenizer, SentencePieceVocabulary
from heedful.tokenization.special_tokens import SPECIALS, UNK, add_tags
from heedful.tokenization.vocabulary import language_tag

TEXTS = [
    "The dog didn't cross the street.",
    "  two  spaces ",
    "naïve ﬁne … 猫猫 😀",
    "</s> <pad> <unk> >>fra<< inside",
    "مرحبا بالعالم",
    "and\u0301 joined\u200dletters",
    "▁ is a letter here",
    "\ud800 half",
    "",
    "a" * 10_000,
]


@cache
def model(byte_fallback: bool = False) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([pair.source for pair in generate_pairs(300)]),
        model_writer=file,
        vocab_size=380 if byte_fallback else 120,
        byte_fallback=byte_fallback,
        minloglevel=2,
    )
    return file.getvalue()


def new_tokenizer(*, byte_fallback: bool = False, tags: tuple[str, ...] = ("fra",)) -> SentencePieceTokenizer:
    data = model(byte_fallback)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    subwords = [processor.id_to_piece(original_id) for original_id in range(3, processor.get_piece_size())]
    first = (*SPECIALS, *map(language_tag, tags))
    vocabulary = SentencePieceVocabulary(
        languages=tags,
        tokens=(*first, *subwords),
        digest=hashlib.sha256(data).hexdigest(),
        original_ids=(len(subwords) + len(first) - 1, 0, 1, *range(2, len(first) - 1)),
    )
    return SentencePieceTokenizer(vocabulary, data)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_encode_matches_sentencepiece_library(text: str, byte_fallback: bool) -> None:
    tokenizer = new_tokenizer(byte_fallback=byte_fallback)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = tokenizer.encode(text)
    expected = processor.encode(text.replace("\ud800", "\ufffd"), out_type=str)
    vocabulary_subwords = set(tokenizer.vocabulary.tokens[tokenizer.vocabulary.first_subword_id :])
    assert tokenizer.ids_to_tokens(ids) == [
        subword if subword in vocabulary_subwords else "<unk>" for subword in expected
    ]
    subwords = [subword for subword in tokenizer.ids_to_tokens(ids) if subword != "<unk>"]
    assert tokenizer.decode(ids) == processor.decode_pieces(subwords).strip()
    assert tokenizer.encode_batch([text, text]) == [ids, ids]
    assert all(token_id == UNK or token_id >= tokenizer.vocabulary.first_subword_id for token_id in ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_char_spans_match_decoded_text(text: str, byte_fallback: bool) -> None:
    tokenizer = new_tokenizer(byte_fallback=byte_fallback)
    ids = tokenizer.encode(text)
    decoded_text, spans = tokenizer.decode(ids), tokenizer.char_spans(ids)
    for token_id, span in zip(ids, spans, strict=True):
        assert (span is None) == (token_id == UNK)
        if span:
            assert 0 <= span[0] <= span[1] <= len(decoded_text)
            subword = tokenizer.ids_to_tokens([token_id])[0].strip("▁")
            if not subword.startswith("<0x"):
                assert decoded_text[span[0] : span[1]] == subword.replace("▁", " ")


def test_align_to_words_normalized_text_keeps_words() -> None:
    tokenizer = new_tokenizer()
    words = ["naïve", "ﬁne", "…", "猫猫", "dog"]
    ids = tokenizer.encode(" ".join(words))
    subwords_by_word: dict[int, str] = {}
    for token_id, word in zip(ids, tokenizer.align_to_words(ids, words), strict=True):
        subwords_by_word[word] = subwords_by_word.get(word, "") + tokenizer.ids_to_tokens([token_id])[0].replace(
            "▁", ""
        )
    assert subwords_by_word == {0: "na<unk>ve", 1: "fine", 2: "...", 3: "<unk>", 4: "dog"}
    other_ids = [*ids[:3], *ids[4:]]  # not the text of the words
    assert len(tokenizer.align_to_words(other_ids, words)) == len(other_ids)


def test_encode_accepts_tags_and_typed_tags() -> None:
    tokenizer = new_tokenizer(tags=("fra", "cmn_Hans"))
    plain = tokenizer.encode("The dog.")
    chinese = tokenizer.tag_id("cmn_Hans")
    assert tokenizer.encode(add_tags("The dog.", "cmn_Hans")) == [chinese, *plain]
    assert tokenizer.encode(">>cmn_Hans<< The dog.") == [chinese, *plain]
    assert tokenizer.leading_tag(">>cmn_Hans<< The dog.") == "cmn_Hans"
    assert tokenizer.leading_tag("The >>fra<< dog.") == tokenizer.leading_tag(">>xyz<< dog") == ""
    assert tokenizer.encode(">>xyz<< dog")[0] >= tokenizer.vocabulary.first_subword_id or UNK
    assert tokenizer.decode([chinese, *plain]) == "The dog."
    assert tokenizer.align_to_words([chinese, *plain], [">>cmn_Hans<<", "The", "dog."])[:2] == [-1, 1]
    assert tokenizer.align_to_words([chinese, *plain], [">>cmn_Hans<<The", "dog."])[:2] == [-1, 0]


def test_save_writes_models_and_vocabularies(tmp_path: Path) -> None:
    source, target = new_tokenizer(), new_tokenizer(tags=())
    PairTokenizer(source, target).save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"vocab.json", "target_vocab.json", "source.spm", "target.spm"}
    loaded = PairTokenizer.load(tmp_path)
    assert loaded.source.vocabulary == source.vocabulary
    assert loaded.target.encode("The dog.") == target.encode("The dog.")
    assert not loaded.joint
    assert (tmp_path / "source.spm").read_bytes() == source.model
    (tmp_path / "source.spm").write_bytes(b"corrupt")
    with pytest.raises(HeedfulError, match=r"vocab\.json with source\.spm: corrupt SentencePiece model"):
        PairTokenizer.load(tmp_path)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(HeedfulError, match=r"cannot read .*source\.spm"):
        PairTokenizer.load(tmp_path)


def test_save_joint_vocabulary_writes_one_file(tmp_path: Path) -> None:
    PairTokenizer(new_tokenizer(), new_tokenizer()).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"vocab.json", "source.spm", "target.spm"}
    assert PairTokenizer.load(tmp_path).joint


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokens": ("<pad>", "</s>")}, "do not start with the specials"),
        ({"original_ids": (0, 0, 1)}, "original ids do not match"),
        ({"tokens": (*SPECIALS, ">>fra<<", "a", "a")}, "duplicated"),
    ],
)
def test_vocabulary_invalid_content_raises(change: dict[str, object], problem: str) -> None:
    state = new_tokenizer().vocabulary.model_dump()
    with pytest.raises(HeedfulError, match=problem):
        SentencePieceVocabulary.from_settings(state | change)
