"""The SentencePiece file of a vocabulary: the library itself reads it, and cuts text as we do."""

import pytest
import sentencepiece

from heedful.corpora.grammar import generate
from heedful.interop.sentencepiece_model import cut_otherwise, sentencepiece_model
from heedful.text.tokenizer import END, PAD, UNKNOWN, Tokenizer, TokenizerConfig

TEXTS = [
    text for pair in generate(300) for text in (pair.source, pair.target, pair.source.replace(" ", "  "))
]
HARD = [
    "",
    "two  spaces   and four    more",
    "  before",
    "after ",
    "a\r\nb\tc",
    "\ufeffmark",
    "مرحبا بالعالم",
    "你好，世界",
    "👩‍👩‍👧 together",
    "e\u0301te\u0301",
    "a\x00b\u00a0c",
    "<pad> </s> <unk> >>fr<< <0x41>",
    "12,345.67 €…?!",
    "The cat didn't see l'animal.",
    "x" * 10_000,
]


def both(kind: str, size: int = 600) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    config = TokenizerConfig.checked({"kind": kind, "vocabulary": size})
    tokenizer = Tokenizer.train(TEXTS, config, ["fr", "de"])
    content = sentencepiece_model(tokenizer.vocabulary)
    return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=content)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_the_library_cuts_as_we_do(kind: str) -> None:
    ours, theirs = both(kind)
    for text in [*TEXTS, *HARD]:
        assert theirs.encode(text) == ours.encode(text), text
        assert theirs.decode(ours.encode(text)) == text


def test_ids_and_specials_are_ours() -> None:
    ours, theirs = both("bpe")
    assert [theirs.id_to_piece(identity) for identity in range(theirs.get_piece_size())] == list(
        ours.vocabulary.pieces
    )
    assert (theirs.pad_id(), theirs.eos_id(), theirs.unk_id(), theirs.bos_id()) == (PAD, END, UNKNOWN, -1)
    assert theirs.piece_to_id(">>de<<") == ours.tag("de")
    assert theirs.is_control(ours.tag("de"))


def test_the_whole_file_is_what_its_schema_says() -> None:
    from sentencepiece import sentencepiece_model_pb2

    content = sentencepiece_model(both("unigram")[0].vocabulary)
    read = sentencepiece_model_pb2.ModelProto.FromString(content)
    assert read.SerializeToString() == content  # no unknown field, none in a wrong place
    assert read.trainer_spec.byte_fallback
    assert not read.normalizer_spec.remove_extra_whitespaces


def test_known_words_are_cut_as_we_do() -> None:
    ours, theirs = both("word", 2000)
    for text in TEXTS[:200]:
        assert theirs.encode(text) == ours.encode(text), text
    assert theirs.decode(theirs.encode("Catsdog 猫.")) == "Catsdog 猫."
    assert "known words and letters" in cut_otherwise(ours)
    assert cut_otherwise(both("bpe")[0]) == ""
