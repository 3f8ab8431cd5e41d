"""Text cut by a SentencePiece model, as the models of other programs (Marian) want it.

Pieces of the model are looked up in a vocabulary with ids of its own; what it does not have is ``<unk>``,
which spells nothing. So, other than our own kinds, this one can lose letters. As there, no text encodes to a
special id, but a language that the vocabulary knows may be typed before a text: ``>>fra<< text``.
"""

import codecs
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from tokenizers import models

from heedful.errors import HeedfulError
from heedful.text.spelling import SPACE
from heedful.text.tags import parts
from heedful.text.tokenizer import Tokenizer
from heedful.text.vocabulary import UNKNOWN, SentencePieceVocabulary, prepared

_TYPED = re.compile(r"\s*>>([^<>\s]+)<<")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class SentencePieceTokenizer(Tokenizer):
    """Cuts text into the pieces of a SentencePiece model."""

    vocabulary: SentencePieceVocabulary

    def __init__(self, vocabulary: SentencePieceVocabulary, model: bytes) -> None:
        self.vocabulary, self.model = vocabulary, model
        self._processor = new_processor(model)
        self._backend = prepared(models.BPE(), "bpe")  # parts words for people; cuts nothing
        learned = range(vocabulary.learned, len(vocabulary.pieces))
        self._ids = {vocabulary.pieces[identity]: identity for identity in learned}
        self._spelling = [b""] * vocabulary.learned + [self._spelled(piece) for piece in self._ids]

    @classmethod
    def open(cls, vocabulary: SentencePieceVocabulary, path: Path) -> Self:
        """The tokenizer whose model stands in this file."""
        try:
            model = path.read_bytes()
        except OSError as error:
            raise HeedfulError(
                f"cannot read {path.name}: {error.strerror}", hint="copy the model folder again"
            ) from None
        if hashlib.sha256(model).hexdigest() != vocabulary.digest:
            raise HeedfulError(f"{path.name} is another file than the one it was made with")
        return cls(vocabulary, model)

    def _spelled(self, piece: str) -> bytes:
        byte = _BYTE.fullmatch(piece)
        if byte and self._processor.is_byte(self._processor.piece_to_id(piece)):
            return bytes([int(byte[1], 16)])
        return piece.encode()

    def typed_tag(self, text: str) -> str:
        """The language that a user has asked for before a text, if it has a tag."""
        typed = _TYPED.match(text)
        return typed[1] if typed and typed[1] in self.vocabulary.languages else ""

    def encode(self, text: str) -> list[int]:
        return [
            identity
            for part, is_tag in self._parts(text)
            for identity in ([self.tag(part)] if is_tag else map(self._identity, self._cut(part)))
        ]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Texts and names of tags; a typed one is a tag if it stands at the beginning."""
        for number, (part, is_tag) in enumerate(parts(_SURROGATE.sub("\ufffd", text))):
            typed = "" if is_tag or number else self.typed_tag(part)
            if typed:
                yield typed, True
                part = part[part.index("<<") + 2 :].strip()
            if part:
                yield part, is_tag

    def _cut(self, text: str) -> list[str]:
        """The pieces of the model, letters that it does not know as they are."""
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def _identity(self, piece: str) -> int:
        return self._ids.get(piece, UNKNOWN)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the pieces without space around it; ``<unk>`` is silent, as are all specials."""
        return self.spelled(ids).decode("utf-8", errors="replace").replace(SPACE, " ").strip()

    def _letters(self, spelled: str) -> list[tuple[int, int]]:
        text = spelled.replace(SPACE, " ")
        before, size = len(text) - len(text.lstrip()), len(text.strip())

        def inside(place: int) -> int:
            return min(max(place - before, 0), size)

        return [(inside(place), inside(place + 1)) for place in range(len(text))]

    def within(self, ids: Sequence[int], words: Sequence[str]) -> list[int]:
        """As for other tokenizers; an unknown piece of a text that was encoded has its word too."""
        if not words:
            return super().within(ids, words)
        if self.typed_tag(words[0]):
            words = [words[0].partition("<<")[2], *words[1:]]
        pieces = iter(self._cut(" ".join(words)))
        ends = list(accumulate(len(_letters(self._processor.normalize(word))) for word in words))
        bytes_so_far = codecs.getincrementaldecoder("utf-8")("replace")
        found, place = [], 0
        for identity in ids:
            if identity != UNKNOWN and identity < self.vocabulary.learned:
                found.append(-1)
                continue
            piece = next(pieces, "")
            if not piece or self._identity(piece) != identity:  # a model wrote it, or it is other text
                return super().within(ids, words)
            found.append(min(bisect_right(ends, place), len(words) - 1))
            spelled = self._spelling[identity] or piece.encode()
            place += len(_letters(bytes_so_far.decode(spelled)))
        return found


def _letters(spelled: str) -> str:
    """All but the spaces."""
    return "".join(spelled.replace(SPACE, " ").split())


def new_processor(model: bytes) -> Any:
    """SentencePiece at work with the model of a file."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise HeedfulError(
            "this model needs SentencePiece, which is not installed", hint="pip install 'heedful[marian]'"
        ) from None
    try:
        return SentencePieceProcessor(model_proto=model or b"nothing")
    except (RuntimeError, OSError, ValueError):
        raise HeedfulError(
            "a SentencePiece model is damaged", hint="fetch it again from where it comes from"
        ) from None
