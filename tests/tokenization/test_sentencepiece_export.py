"""Exported SentencePiece models: the library reads them and segments text like our tokenizers."""

import pytest
import sentencepiece

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.tokenization.sentencepiece import build_sentencepiece_model, segmentation_warning
from heedful.tokenization.special_tokens import END, PAD, UNK
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary_training import learn_tokenizer

TEXTS = [text for pair in generate_pairs(300) for text in (pair.source, pair.target, pair.source.replace(" ", "  "))]
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


def both_tokenizers(model_type: str, size: int = 600) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    config = TokenizerConfig.from_settings({"model_type": model_type, "vocab_size": size})
    tokenizer = learn_tokenizer(TEXTS, config, ["fr", "de"])
    content = build_sentencepiece_model(tokenizer.vocabulary)
    return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=content)


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "character"])
def test_sentencepiece_model_library_gives_same_ids(model_type: str) -> None:
    ours, theirs = both_tokenizers(model_type)
    for text in [*TEXTS, *HARD]:
        assert theirs.encode(text) == ours.encode(text), text
        assert theirs.decode(ours.encode(text)) == text


def test_sentencepiece_model_keeps_ids_and_specials() -> None:
    ours, theirs = both_tokenizers("bpe")
    assert [theirs.id_to_piece(token_id) for token_id in range(theirs.get_piece_size())] == list(ours.vocabulary.tokens)
    assert (theirs.pad_id(), theirs.eos_id(), theirs.unk_id(), theirs.bos_id()) == (PAD, END, UNK, -1)
    assert theirs.piece_to_id(">>de<<") == ours.tag_id("de")
    assert theirs.is_control(ours.tag_id("de"))


def test_sentencepiece_model_file_matches_schema() -> None:
    from sentencepiece import sentencepiece_model_pb2

    content = build_sentencepiece_model(both_tokenizers("unigram")[0].vocabulary)
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    assert model.SerializeToString() == content  # no unknown or misplaced field
    assert model.trainer_spec.byte_fallback
    assert not model.normalizer_spec.remove_extra_whitespaces


def test_sentencepiece_model_known_words_give_same_ids() -> None:
    ours, theirs = both_tokenizers("word", 2000)
    for text in TEXTS[:200]:
        assert theirs.encode(text) == ours.encode(text), text
    assert theirs.decode(theirs.encode("Catsdog 猫.")) == "Catsdog 猫."
    assert "known words and letters" in segmentation_warning(ours)
    assert segmentation_warning(both_tokenizers("bpe")[0]) == ""
