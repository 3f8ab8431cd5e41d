"""Text to ids and back, on Hugging Face ``tokenizers``: section 5.1 of the paper, and three simpler ways.

The rule to remember: decode(encode(text)) == text for every kind and any text, and no text, whatever it
looks like, encodes to a special id: only tags do (tags.py), which cleaning takes out of texts.
"""

import codecs
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from tokenizers import models

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import write_bytes, write_text
from heedful.text.spelling import SPACE, escaped, letter_spans, unescaped, unspaced
from heedful.text.tags import OPEN, parts
from heedful.text.vocabulary import (
    BLANK,
    END,
    PAD,
    SPECIALS,
    UNKNOWN,
    Kind,
    SentencePieceVocabulary,
    TokenizerConfig,
    Vocabulary,
    language_tag,
    learn,
    prepared,
)

__all__ = ["BLANK", "END", "PAD", "UNKNOWN", "PairTokenizer", "Tokenizer", "TokenizerConfig"]

FORMAT = 2
"""Of the file that ``PairTokenizer.save`` writes; grows when older programs could not read it rightly: 2 is
for SentencePiece models, whose files stand beside it, and everything else is still 1."""
MODEL_FILES = ("source.spm", "target.spm")
"""SentencePiece models of the two sides, beside the tokenizer's file."""

Pairs = Callable[[], Iterable[Sequence[str]]]
"""Gives the sentence pairs, sources first, afresh at every call: learning reads them more than once."""


class Tokenizer:
    """Cuts text into the pieces of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._backend = prepared(_model(vocabulary), vocabulary.kind)
        self._spelling = _spelling(vocabulary)

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig, languages: Sequence[str] = ()) -> Self:
        """A tokenizer for text like these; the languages get a tag each."""
        return cls(learn(texts, config, languages))

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary.pieces)

    @property
    def kind(self) -> Kind:
        """How text is cut."""
        return self.vocabulary.kind

    def tag(self, language: str) -> int:
        """The id of a tag, most often one that asks for a language."""
        if language not in self.vocabulary.languages:
            known = ", ".join(self.vocabulary.languages) or "none"
            raise HeedfulError(f"the vocabulary has no tag for {language!r}", hint=f"tags: {known}")
        return self.vocabulary.pieces.index(language_tag(language))

    def typed_tag(self, text: str) -> str:
        """The name of the tag that a user has typed before a text; here none, for there text is text."""
        return ""

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces and tags, without END."""
        if OPEN in text:
            return self._encode_tagged(text)
        return list(self._backend.encode(escaped(text), add_special_tokens=False).ids)

    def _encode_tagged(self, text: str) -> list[int]:
        return [
            identity
            for part, is_tag in parts(text)
            for identity in ([self.tag(part)] if is_tag else self._backend.encode(escaped(part)).ids)
        ]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """``encode`` for many texts at once, on all cores."""
        texts = list(texts)
        encodings = self._backend.encode_batch_fast(list(map(escaped, texts)), add_special_tokens=False)
        return [
            self._encode_tagged(text) if OPEN in text else list(encoding.ids)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the pieces; specials and tags are silent, bytes that spell nothing become U+FFFD."""
        return unescaped(unspaced(self.spelled(ids).decode("utf-8", errors="replace")))

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """``decode`` for many."""
        return [self.decode(ids) for ids in batch]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as they stand in the vocabulary, for people to look at."""
        return [self.vocabulary.pieces[identity] for identity in ids]

    def spelled(self, ids: Iterable[int]) -> bytes:
        """What the pieces spell, in UTF-8, with ▁ for spaces; specials and tags spell nothing."""
        return b"".join([self._spelling[identity] for identity in ids])

    def beginning_with(self, start: bytes) -> list[int]:
        """The ids of the pieces whose spelling begins so; no special's does."""
        return [
            identity
            for identity, spelling in enumerate(self._spelling)
            if spelling and spelling.startswith(start)
        ]

    def words(self, ids: Sequence[int]) -> list[int]:
        """For every piece the number of its word: letters, a number or symbols; specials stand alone.

        Pieces 'did', "n't", '.' are of words 0, 0, 1.
        """
        text, starts = self._aligned(ids)
        word_ends = list(accumulate(map(len, self.split(text))))
        numbers: list[int] = []
        number, previous = -1, -1
        for identity, start in zip(ids, starts, strict=True):
            silent = not self._spelling[identity]
            current = -1 if silent else bisect_right(word_ends, start)
            if silent or current != previous:
                number += 1
            numbers.append(number)
            previous = current
        return numbers

    def within(self, ids: Sequence[int], words: Sequence[str]) -> list[int]:
        """For every piece the number of the given word that it begins in; specials get -1.

        The words, in order, make up the text of the ids but for white space, which does not count.
        """
        if not ids:
            return []
        ends = list(accumulate(len(escaped("".join(word.split()))) for word in words))
        numbers, place = [], 0
        text, starts = self._aligned(ids)
        for identity, start, stop in zip(ids, starts, [*starts[1:], len(text)], strict=True):
            inside = min(bisect_right(ends, place), len(words) - 1)
            numbers.append(inside if self._spelling[identity] else -1)
            place += len("".join(text[start:stop].replace(SPACE, "").split()))
        return numbers

    def spans(self, ids: Sequence[int]) -> list[tuple[int, int] | None]:
        """Where each piece stands in the text that the ids decode to, [start, end) in characters.

        Without the space before it: a piece that is nothing but this space is empty. The bytes of a character
        share its place; specials have none.
        """
        text = self.spelled(ids).decode("utf-8", errors="replace")
        letters = self._letters(text)
        found: list[tuple[int, int] | None] = []
        for identity, (start, stop) in zip(ids, self._extents(ids), strict=True):
            while start < stop and text[start] == SPACE:
                start += 1
            if not self._spelling[identity]:
                found.append(None)
            elif start < stop:
                found.append((letters[start][0], letters[stop - 1][1]))
            else:
                found.append(
                    (letters[stop - 1][1], letters[stop - 1][1])
                )  # only a space: it ends where the next piece begins
        return found

    def _letters(self, spelled: str) -> list[tuple[int, int]]:
        """For each character of spelled text from where to where it goes in the decoded text."""
        return letter_spans(spelled)

    def _extents(self, ids: Iterable[int]) -> Iterator[tuple[int, int]]:
        """From where to where each piece goes in the spelled text; bytes of one character go the same way."""
        place, begun = 0, b""  # begun: the bytes of a character that is not yet whole
        for identity in ids:
            joined = begun + self._spelling[identity]
            if begun and len(joined.decode("utf-8", errors="replace")) == 1:
                start = place - 1
            else:
                start = place
                place += len(self._spelling[identity].decode("utf-8", errors="replace"))
            begun = joined[codecs.utf_8_decode(joined, "replace", False)[1] :]
            yield start, place

    def split(self, spelled: str) -> list[str]:
        """The words of text in the spelling of pieces (▁ for spaces); merges never cross their borders."""
        assert self._backend.pre_tokenizer is not None
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(spelled)]

    def to_json(self) -> dict[str, Any]:
        """Everything needed to make the tokenizer again, as plain JSON data."""
        return self.vocabulary.model_dump(mode="json")

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """The tokenizer that ``to_json`` described."""
        return cls(Vocabulary.checked(state))

    def _aligned(self, ids: Iterable[int]) -> tuple[str, list[int]]:
        """The spelled text and where each piece starts in it; the bytes of a character start together."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, starts = "", []
        for identity in ids:
            starts.append(len(text))
            text += decoder.decode(self._spelling[identity])
        return text + decoder.decode(b"", final=True), starts


@dataclass(frozen=True)
class PairTokenizer:
    """The tokenizers of both sides; one and the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer
    config: TokenizerConfig
    languages: tuple[str, str] | None = None
    """Codes of the source and target language, where known."""

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary, and so can share embeddings (section 3.4)."""
        return self.source is self.target or self.source.vocabulary.pieces == self.target.vocabulary.pieces

    @classmethod
    def train(
        cls,
        pairs: Pairs,
        config: TokenizerConfig,
        languages: tuple[str, str] | None = None,
        tags: Sequence[str] = (),
    ) -> Self:
        """The tokenizers for pairs like these; ``tags`` are languages to ask for by a tag."""
        if config.joint:
            shared = Tokenizer.train(_Texts(pairs, (0, 1)), config, tags)
            return cls(shared, shared, config, languages)
        source = _trained_side("source", _Texts(pairs, (0,)), config, tags)
        target = _trained_side("target", _Texts(pairs, (1,)), config, tags)
        return cls(source, target, config, languages)

    def save(self, path: Path | str) -> None:
        """Write one JSON file, whole or not at all; SentencePiece models go beside it."""
        if isinstance(self.source.vocabulary, SentencePieceVocabulary):
            self._save_sentencepieces(Path(path))
            return
        stored = _PairFile(
            format=1,
            config=self.config,
            languages=self.languages,
            source=self.source.vocabulary,
            target=None if self.source is self.target else self.target.vocabulary,
        )
        _write(stored, Path(path))

    def _save_sentencepieces(self, path: Path) -> None:
        from heedful.text.sentencepieces import SentencePieceTokenizer

        source, target = self.source, self.target
        assert isinstance(source, SentencePieceTokenizer)
        assert isinstance(target, SentencePieceTokenizer)
        stored = _SentencePieceFile(
            format=FORMAT,
            config=self.config,
            languages=self.languages,
            source=source.vocabulary,
            target=target.vocabulary,
        )
        for name, side in zip(MODEL_FILES, (source, target), strict=True):
            write_bytes(path.with_name(name), side.model)
        _write(stored, path)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what ``save`` wrote."""
        state = _read_json(Path(path))
        if not isinstance(state, dict) or not isinstance(state.get("format"), int):
            raise HeedfulError(f"{path} is not a Heedful tokenizer", hint="it has no format number")
        if state["format"] > FORMAT:
            raise HeedfulError(
                f"{path} has format {state['format']}, newer than this Heedful reads ({FORMAT})",
                hint="upgrade with: pip install --upgrade heedful",
            )
        try:
            stored = (_PairFile if state["format"] == 1 else _SentencePieceFile).checked(state)
            source, target = _opened(stored, Path(path).parent)
        except HeedfulError as error:
            hint = error.hint or "copy the file again from where it was made"
            raise HeedfulError(f"tokenizer file {path} is damaged: {error.problem}", hint=hint) from None
        return cls(source, target, stored.config, stored.languages)


class _PairFile(Config):
    """The shape of a stored pair."""

    format: int
    config: TokenizerConfig
    languages: tuple[str, str] | None
    source: Vocabulary
    target: Vocabulary | None
    """None if the source's vocabulary serves both sides."""


class _SentencePieceFile(_PairFile):
    """The shape of a stored pair whose SentencePiece models stand beside it."""

    source: SentencePieceVocabulary
    target: SentencePieceVocabulary


def _opened(stored: _PairFile, folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of both sides."""
    if isinstance(stored, _SentencePieceFile):
        from heedful.text.sentencepieces import SentencePieceTokenizer

        sides = zip((stored.source, stored.target), MODEL_FILES, strict=True)
        source, target = (SentencePieceTokenizer.open(side, folder / name) for side, name in sides)
        return source, target
    shared = Tokenizer(stored.source)
    return shared, Tokenizer(stored.target) if stored.target else shared


def _write(stored: _PairFile, path: Path) -> None:
    text = json.dumps(stored.model_dump(mode="json"), ensure_ascii=False, indent=1)
    write_text(path, text + "\n")


@dataclass(frozen=True)
class _Texts:
    """The texts of the wanted sides of pairs, as often as they are asked for."""

    pairs: Pairs
    sides: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return (pair[side] for pair in self.pairs() for side in self.sides)


def _trained_side(side: str, texts: _Texts, config: TokenizerConfig, tags: Sequence[str]) -> Tokenizer:
    try:
        return Tokenizer.train(texts, config, tags)
    except HeedfulError as error:
        raise HeedfulError(f"{side} side: {error.problem}", hint=error.hint) from error


def _model(vocabulary: Vocabulary) -> models.Model:
    if vocabulary.kind == "unigram":
        scored = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
        return models.Unigram(scored, unk_id=UNKNOWN, byte_fallback=True)
    return models.BPE(
        vocab={piece: identity for identity, piece in enumerate(vocabulary.pieces)},
        merges=[(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)],
        unk_token=SPECIALS[UNKNOWN],
        byte_fallback=True,
        # A known word is one piece although no merges lead to it; characters have no longer pieces.
        ignore_merges=vocabulary.kind == "word",
    )


def _spelling(vocabulary: Vocabulary) -> list[bytes]:
    """What each id adds to the text, in UTF-8."""
    learned = [piece.encode() for piece in vocabulary.pieces[vocabulary.learned :]]
    return [b""] * vocabulary.silent + [bytes([byte]) for byte in range(256)] + learned


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeedfulError(f"no tokenizer at {path}", hint="check the path of the model folder") from None
    except OSError as error:
        raise HeedfulError(f"cannot read tokenizer {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise HeedfulError(
            f"tokenizer {path} is not valid JSON", hint="copy the file again from where it was made"
        ) from None
