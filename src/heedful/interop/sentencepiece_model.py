"""A vocabulary as a SentencePiece model file, for programs that cut text with that library.

The format is a protocol buffer; the few fields that matter are written here, so no package is needed. The
pieces keep their ids. What the library then does otherwise than ours is in docs/export.md.
"""

import struct
from collections.abc import Iterator

from heedful.text.sentencepieces import SentencePieceTokenizer
from heedful.text.tokenizer import Tokenizer
from heedful.text.vocabulary import END, PAD, SPECIALS, UNKNOWN, Kind, Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # what a piece is
_MODEL_TYPES: dict[Kind, int] = {"unigram": 1, "bpe": 2, "character": 4, "word": 1}
_NO_SCORE = 0.0  # of pieces that no search weighs


def sentencepiece_model(vocabulary: Vocabulary, *, tidy: bool = False) -> bytes:
    """The file, as bytes. Specials and language tags become control pieces: no text turns into one.

    ``tidy``: the library takes away space around the text and twice in a row, as we do before we cut.
    """
    pieces = b"".join(
        _message(1, _piece(piece, score, kind))
        for piece, score, kind in zip(
            vocabulary.pieces, _scores(vocabulary), _piece_types(vocabulary), strict=True
        )
    )
    return pieces + _message(2, _trainer(vocabulary)) + _message(3, _normalizer(tidy))


def cut_otherwise(tokenizer: Tokenizer) -> str:
    """What of a side's text is cut otherwise than the model has learned, if it is more than an apostrophe."""
    if tokenizer.kind != "word":
        return ""
    return "words that the model does not know are cut into known words and letters, not into letters alone"


def spm_bytes(tokenizer: Tokenizer) -> bytes:
    """The SentencePiece file of one side of a model: made of its pieces, or the one that it came with."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    return sentencepiece_model(tokenizer.vocabulary)


def _scores(vocabulary: Vocabulary) -> list[float]:
    """What decides between cuts: probabilities as they are, merges by rank.

    SentencePiece joins the two neighbours whose piece scores best, so a piece scores as high as the earliest
    of the merges that make it. Words are cut like unigrams of equal probability: as few as possible.
    """
    if vocabulary.kind == "unigram":
        return list(vocabulary.scores)
    if vocabulary.kind == "word":
        return [-1.0] * len(vocabulary.pieces)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(vocabulary.merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    alphabet = len(vocabulary.merges)
    scores = [-float(ranks.get(piece, alphabet)) for piece in vocabulary.pieces]
    return [_NO_SCORE] * vocabulary.learned + scores[vocabulary.learned :]


def _piece_types(vocabulary: Vocabulary) -> Iterator[int]:
    for identity in range(len(vocabulary.pieces)):
        if identity == UNKNOWN:
            yield _UNKNOWN
        elif identity < vocabulary.silent:
            yield _CONTROL
        else:
            yield _BYTE if identity < vocabulary.learned else _NORMAL


def _piece(piece: str, score: float, kind: int) -> bytes:
    return _message(1, piece.encode()) + _float(2, score) + _number(3, kind)


def _trainer(vocabulary: Vocabulary) -> bytes:
    """How the pieces were learned, as far as reading needs it."""
    return b"".join(
        [
            _number(3, _MODEL_TYPES[vocabulary.kind]),
            _number(4, len(vocabulary.pieces)),
            _number(35, True),  # byte_fallback
            _number(40, UNKNOWN),
            _number(41, -1),  # sentences have no mark at their beginning
            _number(42, END),
            _number(43, PAD),
            _message(45, SPECIALS[UNKNOWN].encode()),
            _message(47, SPECIALS[END].encode()),
            _message(48, SPECIALS[PAD].encode()),
        ]
    )


def _normalizer(tidy: bool) -> bytes:
    """Text stays as it is, but for ▁ before it and for every space."""
    return b"".join(
        [
            _message(1, b"identity"),
            _number(3, True),  # add_dummy_prefix
            _number(4, tidy),  # remove_extra_whitespaces
            _number(5, True),  # escape_whitespaces
        ]
    )


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; a negative number as 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
