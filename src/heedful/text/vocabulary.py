"""Which pieces a tokenizer knows, and how they are learned from text.

Ids: ``<pad>`` 0, ``</s>`` 1, ``<unk>`` 2, language tags, bytes ``<0x00>``..``<0xFF>``, learned pieces.
Any character outside the learned pieces is spelled in bytes, so nothing is ever unknown.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import tokenizers
from pydantic import Field, FiniteFloat, model_validator
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.text.spelling import SPACE, SUBWORD_PATTERN, WORD_PATTERN, escaped, spaced
from heedful.text.tags import without_tags

PAD, END, UNKNOWN = 0, 1, 2
BLANK = UNKNOWN
"""What a masked model reads for a missing word: no text encodes to it, since any letter can be spelled."""
SPECIALS = ("<pad>", "</s>", "<unk>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

Kind = Literal["word", "character", "bpe", "unigram"]

LONGEST_PIECE = 24  # characters; without a bound, scripts without spaces learn whole phrases
_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class TokenizerConfig(Config):
    """How text is cut into pieces."""

    kind: Kind = "bpe"
    """Whole words, single characters, byte-pair encoding (the paper, section 5.1) or a unigram model
    (whose training may differ in the last digits from one time to the next)."""
    vocabulary: int = Field(default=8000, ge=300, le=1_000_000)
    """At most this many entries, specials and bytes included."""
    joint: bool = True
    """One vocabulary for source and target (the paper), or one each."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of BPE merges skipped at random in training: BPE-dropout, Provilkov et al. 2020."""
    alphabet: int = Field(default=2000, ge=1)
    """At most this many characters are pieces, the most frequent; rarer ones are spelled in bytes."""

    @model_validator(mode="after")
    def _dropout_needs_merges(self) -> Self:
        if self.dropout and self.kind != "bpe":
            raise ValueError(
                f"tokenizer.dropout works on the merges of kind 'bpe', not on kind {self.kind!r}\n"
                "set tokenizer.dropout=0 or tokenizer.kind=bpe"
            )
        return self


def _check_text(pieces: Sequence[str]) -> None:
    """JSON can spell half a surrogate pair, which is no text."""
    try:
        "".join(pieces).encode()
    except UnicodeEncodeError:
        raise ValueError("a piece is no text that UTF-8 could hold") from None


class Vocabulary(Config):
    """Everything a tokenizer has learned: plain data, checked when read."""

    kind: Kind
    """How text is cut into the pieces."""
    languages: tuple[str, ...] = ()
    """Names of tags: languages to write, and whatever else a source may be marked with (tags.py)."""
    pieces: tuple[str, ...]
    """The piece of every id."""
    merges: tuple[str, ...] = ()
    """BPE: the pairs to join, ``"left right"``, in order of rank."""
    scores: tuple[FiniteFloat, ...] = ()
    """Unigram: the logarithm of every piece's probability."""

    @property
    def silent(self) -> int:
        """Ids below this, specials and language tags, stand for no text."""
        return len(SPECIALS) + len(self.languages)

    @property
    def learned(self) -> int:
        """The first id of a learned piece; the bytes end here."""
        return self.silent + len(BYTES)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        first = first_pieces(self.languages)
        if self.pieces[: len(first)] != first:
            raise ValueError("the pieces do not begin with the specials, language tags and bytes")
        _check_text(self.pieces)
        known = set(self.pieces)
        if len(known) < len(self.pieces) or "" in known:
            raise ValueError("a piece is empty or there twice")
        if len(self.scores) != (len(self.pieces) if self.kind == "unigram" else 0):
            raise ValueError("there is not one score a piece")
        if self.merges and self.kind != "bpe":
            raise ValueError(f"a vocabulary of kind {self.kind!r} has no merges")
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not {left, right, left + right} <= known:
                raise ValueError(f"merge {merge!r} is not of known pieces")
        return self


class SentencePieceVocabulary(Vocabulary):
    """The pieces of a model whose text a SentencePiece model cuts: specials, tags, pieces, and no bytes."""

    kind: Literal["sentencepiece"] = "sentencepiece"  # type: ignore[assignment]
    """None of those that are learned here."""
    digest: str
    """SHA-256 of the SentencePiece model's file."""
    own_ids: tuple[int, ...]
    """The ids that the specials and tags have in the other program; the pieces take the rest in order."""

    @property
    def learned(self) -> int:
        """The first id of a piece."""
        return self.silent

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        first = (*SPECIALS, *map(language_tag, self.languages))
        if self.pieces[: len(first)] != first:
            raise ValueError("the pieces do not begin with the specials and language tags")
        _check_text(self.pieces)
        if len(set(self.pieces)) < len(self.pieces):
            raise ValueError("a piece is there twice")
        if len(set(self.own_ids) & set(range(len(self.pieces)))) != len(first):
            raise ValueError("there is not one own id for each special and tag")
        if self.merges or self.scores:
            raise ValueError("merges and scores are in the SentencePiece model")
        return self

    def original(self) -> list[str]:
        """The pieces in the other program's order."""
        rest = iter(self.pieces[self.learned :])
        named = dict(zip(self.own_ids, self.pieces, strict=False))
        return [named[place] if place in named else next(rest) for place in range(len(self.pieces))]


@dataclass(frozen=True)
class _Untagged:
    """Texts that may be read again, without their tags: these are no text to learn pieces of."""

    texts: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return map(without_tags, self.texts)


class _Learned(NamedTuple):
    pieces: list[str]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


def language_tag(language: str) -> str:
    """The piece that asks for a language.

    >>> language_tag("fr")
    '>>fr<<'
    """
    return f">>{language}<<"


def first_pieces(languages: Sequence[str]) -> tuple[str, ...]:
    """The pieces that every vocabulary begins with."""
    return (*SPECIALS, *map(language_tag, languages), *BYTES)


def learn(texts: Iterable[str], config: TokenizerConfig, languages: Sequence[str] = ()) -> Vocabulary:
    """The vocabulary of these texts. They are read twice; only a one-shot iterator is kept in memory."""
    _check_languages(languages)
    texts = list(map(without_tags, texts)) if isinstance(texts, Iterator) else _Untagged(texts)
    counts = _character_counts(texts)
    if not counts.keys() - {SPACE}:
        raise HeedfulError("no text to learn a vocabulary from", hint="check that the corpus has pairs left")
    alphabet = _alphabet(counts, config.alphabet)
    first = first_pieces(languages)
    room = config.vocabulary - len(first)
    if room < len(alphabet):
        raise _too_small(config.vocabulary, len(first), len(alphabet), len(counts))
    covered = _covered_by(alphabet, texts) if len(alphabet) < len(counts) else map(escaped, texts)
    learned = _LEARNERS[config.kind](covered, alphabet, room)
    scores = (0.0,) * len(first) + learned.scores if learned.scores else ()
    return Vocabulary(
        kind=config.kind,
        languages=tuple(languages),
        pieces=(*first, *learned.pieces),
        merges=learned.merges,
        scores=scores,
    )


def prepared(model: models.Model, kind: Kind) -> tokenizers.Tokenizer:
    """A Hugging Face tokenizer around the model. It has no added tokens: text can never become a special."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    pattern = WORD_PATTERN if kind == "word" else SUBWORD_PATTERN
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return tokenizer


def _check_languages(languages: Sequence[str]) -> None:
    for language in languages:
        if not _LANGUAGE.fullmatch(language):
            raise HeedfulError(
                f"cannot make a tag of language {language!r}", hint="write a code such as fr or pt-BR"
            )
    if len(set(languages)) < len(languages):
        raise HeedfulError(f"a language is named twice: {', '.join(languages)}")


def _character_counts(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(spaced(escaped(text)))
    return counts


def _alphabet(counts: Counter[str], limit: int) -> list[str]:
    """The most frequent characters; ties in code point order, so that the same texts give the same."""
    frequent = sorted(counts.keys() - {SPACE}, key=lambda character: (-counts[character], character))
    return [SPACE, *frequent[: limit - 1]]


def _too_small(vocabulary: int, first: int, alphabet: int, found: int) -> HeedfulError:
    minimum = first + alphabet
    hint = f"set tokenizer.vocabulary to {minimum} or more"
    if vocabulary > first:
        hint += (
            f", or tokenizer.alphabet to {vocabulary - first} or less (rarer characters are spelled in bytes)"
        )
    return HeedfulError(
        f"a vocabulary of {vocabulary} is smaller than the data needs: {found} different characters found, "
        f"{alphabet} of them to keep, with {first} specials and bytes make at least {minimum}",
        hint=hint,
    )


def _covered_by(alphabet: Sequence[str], texts: Iterable[str]) -> Iterator[str]:
    """The texts with line breaks for the characters left out: nothing is learned across the gaps."""
    kept = re.escape("".join(alphabet).replace(SPACE, " "))
    left_out = re.compile(f"[^{kept}]+")
    return (left_out.sub("\n", escaped(text)) for text in texts)


def _trained(
    model: models.Model, kind: Kind, trainer: trainers.Trainer, texts: Iterator[str]
) -> dict[str, Any]:
    tokenizer = prepared(model, kind)
    tokenizer.train_from_iterator(texts, trainer)
    state: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return state


def _learn_characters(texts: Iterator[str], alphabet: list[str], room: int) -> _Learned:
    return _Learned(alphabet)


def _learn_words(texts: Iterator[str], alphabet: list[str], room: int) -> _Learned:
    """The alphabet, so that a new word can be spelled, then the most frequent words."""
    trainer = trainers.WordLevelTrainer(vocab_size=room + 1, special_tokens=[], show_progress=False)
    words: dict[str, int] = _trained(models.WordLevel(), "word", trainer, texts)["vocab"]
    by_frequency = sorted(words, key=lambda word: words[word])
    pieces = dict.fromkeys([*alphabet, *filter(set(alphabet).issuperset, by_frequency)])
    return _Learned(list(pieces)[:room])


def _learn_merges(texts: Iterator[str], alphabet: list[str], room: int) -> _Learned:
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=2,
        special_tokens=[],
        # All of ours and no other: left to itself the trainer breaks ties in the order of a hash table.
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=LONGEST_PIECE,
        show_progress=False,
    )
    state = _trained(models.BPE(), "bpe", trainer, texts)
    pieces = sorted(state["vocab"], key=lambda piece: state["vocab"][piece])
    return _Learned(pieces, merges=tuple(f"{left} {right}" for left, right in state["merges"]))


def _learn_unigrams(texts: Iterator[str], alphabet: list[str], room: int) -> _Learned:
    trainer = trainers.UnigramTrainer(
        vocab_size=room, special_tokens=[], initial_alphabet=alphabet, show_progress=False
    )
    state = _trained(models.Unigram(), "unigram", trainer, texts)
    known = set(alphabet)  # the line breaks in the gaps may not be
    scores: dict[str, float] = {piece: score for piece, score in state["vocab"] if known.issuperset(piece)}
    lowest = min(scores.values())
    single = {character: scores.pop(character, lowest) for character in alphabet}
    best = sorted(scores, key=lambda piece: (-scores[piece], piece))[: room - len(single)]
    chosen = single | {piece: scores[piece] for piece in best}
    return _Learned(list(chosen), scores=tuple(chosen.values()))


_LEARNERS: dict[Kind, Callable[[Iterator[str], list[str], int], _Learned]] = {
    "word": _learn_words,
    "character": _learn_characters,
    "bpe": _learn_merges,
    "unigram": _learn_unigrams,
}
