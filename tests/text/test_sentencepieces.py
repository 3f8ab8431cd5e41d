"""Text cut by SentencePiece models: the same pieces as the library, places in the text, nothing injected."""

import hashlib
import io
from functools import cache
from pathlib import Path

import pytest
import sentencepiece

from heedful.corpora.grammar import generate
from heedful.errors import HeedfulError
from heedful.text.sentencepieces import SentencePieceTokenizer
from heedful.text.tags import tagged
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig
from heedful.text.vocabulary import SPECIALS, UNKNOWN, SentencePieceVocabulary, language_tag

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
        sentence_iterator=iter([pair.source for pair in generate(300)]),
        model_writer=file,
        vocab_size=380 if byte_fallback else 120,
        byte_fallback=byte_fallback,
        minloglevel=2,
    )
    return file.getvalue()


def new_tokenizer(*, byte_fallback: bool = False, tags: tuple[str, ...] = ("fra",)) -> SentencePieceTokenizer:
    data = model(byte_fallback)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    pieces = [processor.id_to_piece(place) for place in range(3, processor.get_piece_size())]
    first = (*SPECIALS, *map(language_tag, tags))
    vocabulary = SentencePieceVocabulary(
        languages=tags,
        pieces=(*first, *pieces),
        digest=hashlib.sha256(data).hexdigest(),
        own_ids=(len(pieces) + len(first) - 1, 0, 1, *range(2, len(first) - 1)),
    )
    return SentencePieceTokenizer(vocabulary, data)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_pieces_are_the_librarys(text: str, byte_fallback: bool) -> None:
    tokenizer = new_tokenizer(byte_fallback=byte_fallback)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = tokenizer.encode(text)
    expected = processor.encode(text.replace("\ud800", "\ufffd"), out_type=str)
    known = set(tokenizer.vocabulary.pieces[tokenizer.vocabulary.learned :])
    assert tokenizer.pieces(ids) == [piece if piece in known else "<unk>" for piece in expected]
    pieces = [piece for piece in tokenizer.pieces(ids) if piece != "<unk>"]
    assert tokenizer.decode(ids) == processor.decode_pieces(pieces).strip()
    assert tokenizer.encode_batch([text, text]) == [ids, ids]
    assert all(identity == UNKNOWN or identity >= tokenizer.vocabulary.learned for identity in ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_spans_are_places_in_what_is_decoded(text: str, byte_fallback: bool) -> None:
    tokenizer = new_tokenizer(byte_fallback=byte_fallback)
    ids = tokenizer.encode(text)
    decoded, spans = tokenizer.decode(ids), tokenizer.spans(ids)
    for identity, span in zip(ids, spans, strict=True):
        assert (span is None) == (identity == UNKNOWN)
        if span:
            assert 0 <= span[0] <= span[1] <= len(decoded)
            piece = tokenizer.pieces([identity])[0].strip("▁")
            if not piece.startswith("<0x"):
                assert decoded[span[0] : span[1]] == piece.replace("▁", " ")


def test_pieces_stand_within_words_although_letters_change() -> None:
    tokenizer = new_tokenizer()
    words = ["naïve", "ﬁne", "…", "猫猫", "dog"]
    ids = tokenizer.encode(" ".join(words))
    joined: dict[int, str] = {}
    for identity, word in zip(ids, tokenizer.within(ids, words), strict=True):
        joined[word] = joined.get(word, "") + tokenizer.pieces([identity])[0].replace("▁", "")
    assert joined == {0: "na<unk>ve", 1: "fine", 2: "...", 3: "<unk>", 4: "dog"}
    written = [*ids[:3], *ids[4:]]  # other text than that of the words
    assert len(tokenizer.within(written, words)) == len(written)


def test_tags_are_asked_for_in_three_ways() -> None:
    tokenizer = new_tokenizer(tags=("fra", "cmn_Hans"))
    plain = tokenizer.encode("The dog.")
    chinese = tokenizer.tag("cmn_Hans")
    assert tokenizer.encode(tagged("The dog.", "cmn_Hans")) == [chinese, *plain]
    assert tokenizer.encode(">>cmn_Hans<< The dog.") == [chinese, *plain]
    assert tokenizer.typed_tag(">>cmn_Hans<< The dog.") == "cmn_Hans"
    assert tokenizer.typed_tag("The >>fra<< dog.") == tokenizer.typed_tag(">>xyz<< dog") == ""
    assert tokenizer.encode(">>xyz<< dog")[0] >= tokenizer.vocabulary.learned or UNKNOWN
    assert tokenizer.decode([chinese, *plain]) == "The dog."
    assert tokenizer.within([chinese, *plain], [">>cmn_Hans<<", "The", "dog."])[:2] == [-1, 1]
    assert tokenizer.within([chinese, *plain], [">>cmn_Hans<<The", "dog."])[:2] == [-1, 0]


def test_the_files_stand_side_by_side(tmp_path: Path) -> None:
    one, other = new_tokenizer(), new_tokenizer(tags=())
    PairTokenizer(one, other, TokenizerConfig(), ("en", "fr")).save(tmp_path / "tokenizer.json")
    again = PairTokenizer.load(tmp_path / "tokenizer.json")
    assert again.source.vocabulary == one.vocabulary
    assert again.target.encode("The dog.") == other.encode("The dog.")
    assert not again.joint
    assert (tmp_path / "source.spm").read_bytes() == one.model
    (tmp_path / "source.spm").write_bytes(model(byte_fallback=True))
    with pytest.raises(HeedfulError, match=r"source\.spm is another file"):
        PairTokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "source.spm").unlink()
    with pytest.raises(HeedfulError, match=r"cannot read source\.spm"):
        PairTokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pieces": ("<pad>", "</s>")}, "do not begin with the specials"),
        ({"own_ids": (0, 0, 1)}, "not one own id"),
        ({"pieces": (*SPECIALS, ">>fra<<", "a", "a")}, "there twice"),
    ],
)
def test_a_damaged_vocabulary_is_an_error(change: dict[str, object], problem: str) -> None:
    state = new_tokenizer().vocabulary.model_dump()
    with pytest.raises(HeedfulError, match=problem):
        SentencePieceVocabulary.checked(state | change)
