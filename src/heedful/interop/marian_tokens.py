"""The vocabularies of MarianMT models: their ids and ours.

Marian has ``</s>`` 0, ``<unk>`` 1 and ``<pad>`` last, as a rule; ours begin with ``<pad>``, ``</s>``,
``<unk>`` and the language tags. All other pieces keep their order.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.errors import HeedfulError
from heedful.interop.marian_files import FETCH
from heedful.text.sentencepieces import SentencePieceTokenizer
from heedful.text.vocabulary import SPECIALS, SentencePieceVocabulary, Vocabulary, language_tag

_TAG = re.compile(r">>([A-Za-z][A-Za-z0-9_.-]*)<<")


def marian_tokenizer(ids: Mapping[str, Any], model: bytes, name: str) -> SentencePieceTokenizer:
    """The tokenizer of one side: its vocabulary, from the file of this name, and its SentencePiece model."""
    pieces = _in_order(ids, name)
    tags = [match[1] for piece in pieces if (match := _TAG.fullmatch(piece))]
    first = [*SPECIALS, *map(language_tag, tags)]
    missing = [special for special in SPECIALS if special not in ids]
    if missing:
        raise HeedfulError(f"{name} has no {missing[0]}", hint=FETCH)
    taken = set(first)
    vocabulary = SentencePieceVocabulary.checked(
        {
            "languages": tuple(tags),
            "pieces": (*first, *(piece for piece in pieces if piece not in taken)),
            "digest": hashlib.sha256(model).hexdigest(),
            "own_ids": tuple(ids[piece] for piece in first),
        }
    )
    return SentencePieceTokenizer(vocabulary, model)


def _in_order(ids: Mapping[str, Any], name: str) -> list[str]:
    """The pieces by their ids, which must be 0, 1, 2 and so on."""
    if any(not isinstance(identity, int) for identity in ids.values()):
        raise HeedfulError(f"{name} has an id that is no number", hint=FETCH)
    pieces = sorted(ids, key=lambda piece: int(ids[piece]))
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise HeedfulError(f"{name} has gaps: its ids are not 0 to {len(pieces) - 1}", hint=FETCH)
    return pieces


def original_pieces(vocabulary: Vocabulary, pad: int | None = None) -> list[str]:
    """The pieces in Marian's order: as they came, or </s>, <unk>, all others, and <pad> in its place."""
    if isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary.original()
    padding, end, unknown = SPECIALS
    others = [end, unknown, *vocabulary.pieces[len(SPECIALS) :]]
    place = len(others) if pad is None else pad
    return [*others[:place], padding, *others[place:]]


def places_of(pieces: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """For each of our ids the place of its piece among these."""
    places = {piece: place for place, piece in enumerate(pieces)}
    return [places[piece] for piece in vocabulary.pieces]
