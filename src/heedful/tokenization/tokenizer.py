"""Text to token ids and back, with Hugging Face ``tokenizers``: BPE (section 5.1) and three other models.

Ids: ``<pad>`` 0, ``</s>`` 1, ``<unk>`` 2, language tags, bytes ``<0x00>``..``<0xFF>``, learned subwords.
Characters outside the alphabet are encoded as bytes, so decode(encode(text)) == text for every model type and
any text. No text encodes to a special id, whatever it looks like: only tags do (special_tokens.py), which
cleaning removes from user text. The library does the same with the file of a vocabulary (vocabulary.py).
"""

import codecs
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Self

from pydantic import Field, model_validator

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.tokenization.normalization import (
    METASPACE,
    char_offsets,
    escape,
    replace_surrogates,
    unescape,
    unmark_spaces,
)
from heedful.tokenization.special_tokens import TAG_OPEN, split_tags
from heedful.tokenization.vocabulary import (
    TokenizerType,
    Vocabulary,
    build_hf_tokenizer,
    build_pre_tokenizer,
    language_tag,
)


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


class Tokenizer:
    """Splits text into the tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._backend = build_hf_tokenizer(vocabulary)
        self._pre_tokenizer = build_pre_tokenizer(vocabulary.model_type)
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
        return list(self._backend.encode(replace_surrogates(text), add_special_tokens=False).ids)

    def _encode_with_tags(self, text: str) -> list[int]:
        return [
            token_id
            for part, is_tag in split_tags(text)
            for token_id in ([self.tag_id(part)] if is_tag else self._backend.encode(replace_surrogates(part)).ids)
        ]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """``encode`` many texts, on all cores."""
        texts = list(texts)
        encodings = self._backend.encode_batch_fast(list(map(replace_surrogates, texts)), add_special_tokens=False)
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
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(marked_text)]
