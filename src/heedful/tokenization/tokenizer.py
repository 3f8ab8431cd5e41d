"""Text to token ids and back, with Hugging Face ``tokenizers``: BPE (section 5.1) and three other models.

Ids: ``<pad>`` 0, ``</s>`` 1, ``<unk>`` 2, language tags, bytes ``<0x00>``..``<0xFF>``, learned subwords.
Characters outside the alphabet are encoded as bytes, so decode(encode(text)) == text for every model type and
any text. No text encodes to a special id, whatever it looks like: only tags do (special_tokens.py), which
cleaning removes from user text.
"""

import codecs
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, Self

import tokenizers
from pydantic import Field, FiniteFloat, model_validator
from tokenizers import Regex, models, normalizers, pre_tokenizers

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.tokenization.normalization import (
    METASPACE,
    SUBWORD_PATTERN,
    WORD_PATTERN,
    char_offsets,
    escape,
    unescape,
    unmark_spaces,
)
from heedful.tokenization.special_tokens import SPECIALS, TAG_OPEN, UNK, split_tags

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

TokenizerType = Literal["word", "character", "bpe", "unigram"]


class TokenizerConfig(Config):
    """How text is split into tokens."""

    model_type: TokenizerType = "bpe"
    """Words, characters, byte-pair encoding (the paper, section 5.1) or a unigram model (whose training is
    not deterministic in the last digits)."""
    vocab_size: int = Field(default=8000, ge=300, le=1_000_000)
    """Maximum number of tokens, including specials and bytes."""
    joint_vocabulary: bool = True
    """One vocabulary for source and target (the paper), or one each."""
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of skipping a BPE merge in training (BPE-dropout, Provilkov et al. 2020)."""
    max_alphabet: int = Field(default=2000, ge=1)
    """Maximum number of characters that are tokens, most frequent first; rarer ones are encoded as bytes."""

    @model_validator(mode="after")
    def _check_dropout(self) -> Self:
        if self.bpe_dropout and self.model_type != "bpe":
            raise ValueError(
                f"tokenizer.bpe_dropout needs model_type 'bpe', not {self.model_type!r}\n"
                "set tokenizer.bpe_dropout=0 or tokenizer.model_type=bpe"
            )
        return self


class Vocabulary(Config):
    """Everything a tokenizer has learned, as plain data, validated on loading."""

    model_type: TokenizerType
    """The segmentation model."""
    languages: tuple[str, ...] = ()
    """Names of tags: target languages and other marks of a source (special_tokens.py)."""
    tokens: tuple[str, ...]
    """The token of every id."""
    merges: tuple[str, ...] = ()
    """BPE: the pairs to merge, ``"left right"``, by rank."""
    scores: tuple[FiniteFloat, ...] = ()
    """Unigram: the log-probability of every token."""

    @property
    def special_count(self) -> int:
        """Number of specials and tags, which come first and have no text."""
        return len(SPECIALS) + len(self.languages)

    @property
    def first_subword_id(self) -> int:
        """The first id of a learned subword, after the bytes."""
        return self.special_count + len(BYTES)

    @model_validator(mode="after")
    def _check_unicode(self) -> Self:
        try:
            "".join(self.tokens).encode()
        except UnicodeEncodeError:  # an unpaired surrogate, which JSON can encode
            raise ValueError("a token is not valid Unicode text") from None
        return self

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        reserved = build_reserved_tokens(self.languages)
        if self.tokens[: len(reserved)] != reserved:
            raise ValueError("the tokens do not start with the specials, language tags and bytes")
        token_set = set(self.tokens)
        if len(token_set) < len(self.tokens) or "" in token_set:
            raise ValueError("a token is empty or duplicated")
        if len(self.scores) != (len(self.tokens) if self.model_type == "unigram" else 0):
            raise ValueError("the number of scores differs from the number of tokens")
        if self.merges and self.model_type != "bpe":
            raise ValueError(f"a {self.model_type!r} vocabulary cannot have merges")
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not {left, right, left + right} <= token_set:
                raise ValueError(f"merge {merge!r} has unknown tokens")
        return self


def language_tag(language: str) -> str:
    """The token of a language tag.

    >>> language_tag("fr")
    '>>fr<<'
    """
    return f">>{language}<<"


def build_reserved_tokens(languages: Sequence[str]) -> tuple[str, ...]:
    """The tokens that every vocabulary starts with."""
    return (*SPECIALS, *map(language_tag, languages), *BYTES)


def build_hf_tokenizer(model: models.Model, model_type: TokenizerType) -> tokenizers.Tokenizer:
    """A Hugging Face tokenizer without added tokens, so that text never becomes a special."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(METASPACE), normalizers.Replace(" ", METASPACE)])
    pattern = WORD_PATTERN if model_type == "word" else SUBWORD_PATTERN
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return tokenizer


class Tokenizer:
    """Splits text into the tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, model_type = vocabulary, vocabulary.model_type
        model: models.Model
        if model_type == "unigram":
            scored_tokens = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
            model = models.Unigram(scored_tokens, unk_id=UNK, byte_fallback=True)
        else:
            model = models.BPE(
                vocab={token: token_id for token_id, token in enumerate(vocabulary.tokens)},
                merges=[(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)],
                unk_token=SPECIALS[UNK],
                byte_fallback=True,
                ignore_merges=model_type == "word",  # a known word is one token although no merges lead to it
            )
        self._backend = build_hf_tokenizer(model, model_type)
        subwords = vocabulary.tokens[vocabulary.first_subword_id :]
        self._token_bytes = [  # the UTF-8 bytes of each token
            *([b""] * vocabulary.special_count),
            *(bytes([byte]) for byte in range(256)),
            *(subword.encode() for subword in subwords),
        ]

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.vocabulary.tokens)

    @property
    def model_type(self) -> TokenizerType:
        """The segmentation model."""
        return self.vocabulary.model_type

    def tag_id(self, name: str) -> int:
        """The id of a tag, usually of a target language."""
        if name not in self.vocabulary.languages:
            known = ", ".join(self.vocabulary.languages) or "none"
            raise HeedfulError(f"the vocabulary has no tag for {name!r}", hint=f"known tags: {known}")
        return self.vocabulary.tokens.index(language_tag(name))

    def leading_tag(self, text: str) -> str:
        """The tag that a user typed before a text: only SentencePiece vocabularies allow it."""
        return ""

    def encode(self, text: str) -> list[int]:
        """The ids of tokens and tags, without END."""
        if TAG_OPEN in text:
            return self._encode_with_tags(text)
        return list(self._backend.encode(escape(text), add_special_tokens=False).ids)

    def _encode_with_tags(self, text: str) -> list[int]:
        return [
            token_id
            for part, is_tag in split_tags(text)
            for token_id in ([self.tag_id(part)] if is_tag else self._backend.encode(escape(part)).ids)
        ]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """``encode`` many texts, on all cores."""
        texts = list(texts)
        encodings = self._backend.encode_batch_fast(list(map(escape, texts)), add_special_tokens=False)
        return [
            self._encode_with_tags(text) if TAG_OPEN in text else list(encoding.ids)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, without specials and tags; invalid bytes become U+FFFD."""
        return unescape(unmark_spaces(self._marked_text(ids)))

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """``decode`` many sequences."""
        return [self.decode(ids) for ids in batch]

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens as they appear in the vocabulary."""
        return [self.vocabulary.tokens[token_id] for token_id in ids]

    def ids_to_bytes(self, ids: Iterable[int]) -> bytes:
        """The UTF-8 bytes of the tokens, with ▁ for spaces; specials and tags have none."""
        return b"".join([self._token_bytes[token_id] for token_id in ids])

    def _marked_text(self, ids: Iterable[int]) -> str:
        return self.ids_to_bytes(ids).decode("utf-8", errors="replace")

    def ids_with_prefix(self, prefix: bytes) -> list[int]:
        """The ids of the tokens whose bytes start with ``prefix``; never specials."""
        return [
            token_id
            for token_id, token_bytes in enumerate(self._token_bytes)
            if token_bytes and token_bytes.startswith(prefix)
        ]

    def word_ids(self, ids: Sequence[int]) -> list[int]:
        """For every token the index of its word: letters, a number or symbols; each special is a word.

        The tokens 'did', "n't", '.' have the words 0, 0, 1.
        """
        text, starts = self._marked_text(ids), [start for start, _ in self._token_extents(ids)]
        word_ends = list(accumulate(map(len, self.pre_tokenize(text))))
        word_indices: list[int] = []
        word_index, previous = -1, -1
        for token_id, start in zip(ids, starts, strict=True):
            is_special = not self._token_bytes[token_id]
            current = -1 if is_special else bisect_right(word_ends, start)
            if is_special or current != previous:
                word_index += 1
            word_indices.append(word_index)
            previous = current
        return word_indices

    def align_to_words(self, ids: Sequence[int], words: Sequence[str]) -> list[int]:
        """For every token the index of the given word in which it starts; -1 for specials.

        The words, in order, are the text of the ids, apart from whitespace.
        """
        if not ids:
            return []
        ends = list(accumulate(len(escape("".join(word.split()))) for word in words))
        word_indices, position = [], 0
        text, starts = self._marked_text(ids), [start for start, _ in self._token_extents(ids)]
        for token_id, start, stop in zip(ids, starts, [*starts[1:], len(text)], strict=True):
            word_index = min(bisect_right(ends, position), len(words) - 1)
            word_indices.append(word_index if self._token_bytes[token_id] else -1)
            position += len("".join(text[start:stop].replace(METASPACE, "").split()))
        return word_indices

    def char_spans(self, ids: Sequence[int]) -> list[tuple[int, int] | None]:
        """The span of each token in the decoded text, [start, end) in characters.

        Spans exclude the leading space, so that of a lone space is empty. The bytes of a character share its
        span; specials have none.
        """
        text = self._marked_text(ids)
        offsets = self._char_offsets(text)
        spans: list[tuple[int, int] | None] = []
        for token_id, (start, stop) in zip(ids, self._token_extents(ids), strict=True):
            while start < stop and text[start] == METASPACE:
                start += 1
            if not self._token_bytes[token_id]:
                spans.append(None)
            elif start < stop:
                spans.append((offsets[start][0], offsets[stop - 1][1]))
            else:
                spans.append((offsets[stop - 1][1], offsets[stop - 1][1]))
        return spans

    def _char_offsets(self, marked_text: str) -> list[tuple[int, int]]:
        """For each character of marked text its span in the decoded text."""
        return char_offsets(marked_text)

    def _token_extents(self, ids: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The span of each token in the marked text; the bytes of one character share its span."""
        position, partial_character = 0, b""  # bytes of a character that is not complete yet
        for token_id in ids:
            pending_bytes = partial_character + self._token_bytes[token_id]
            if partial_character and len(pending_bytes.decode("utf-8", errors="replace")) == 1:
                start = position - 1
            else:
                start = position
                position += len(self._token_bytes[token_id].decode("utf-8", errors="replace"))
            partial_character = pending_bytes[codecs.utf_8_decode(pending_bytes, "replace", False)[1] :]
            yield start, position

    def pre_tokenize(self, marked_text: str) -> list[str]:
        """The words of marked text (▁ for spaces); merges never cross word boundaries."""
        assert self._backend.pre_tokenizer is not None
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(marked_text)]
