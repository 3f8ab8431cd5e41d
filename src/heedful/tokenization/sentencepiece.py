"""SentencePiece: the tokenizer of converted (Marian) models, and export of our vocabularies to its format.

Subwords of the SentencePiece model are looked up in a separate vocabulary; unknown ones become ``<unk>``,
which has no text, so unlike with our own tokenizers text can be lost. No text encodes to a special id, except
for a language tag that the vocabulary has, typed before a text: ``>>fra<< text``.
"""

import codecs
import hashlib
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, starmap
from typing import Any, Literal, Self

from pydantic import model_validator

from heedful.errors import HeedfulError, check_extras
from heedful.tokenization.normalization import METASPACE, replace_surrogates
from heedful.tokenization.special_tokens import END, PAD, SPECIALS, UNK, split_tags
from heedful.tokenization.tokenizer import Tokenizer
from heedful.tokenization.vocabulary import TokenizerType, Vocabulary, build_pre_tokenizer, language_tag

_LEADING_TAG = re.compile(r"\s*>>([^<>\s]+)<<")
_LANGUAGE_TAG = re.compile(r">>([A-Za-z][A-Za-z0-9_.-]*)<<")
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class SentencePieceVocabulary(Vocabulary):
    """The tokens of a model that uses a SentencePiece model: specials, tags, subwords, no bytes."""

    model_type: Literal["sentencepiece"] = "sentencepiece"  # type: ignore[assignment]
    digest: str
    """SHA-256 of the SentencePiece model file."""
    original_ids: tuple[int, ...]
    """The ids of the specials and tags in the original model; subwords take the others in order."""

    @property
    def first_subword_id(self) -> int:
        """The first id of a subword."""
        return self.special_count

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        reserved = (*SPECIALS, *map(language_tag, self.languages))
        if self.tokens[: len(reserved)] != reserved:
            raise ValueError("the tokens do not start with the specials and language tags")
        if len(set(self.tokens)) < len(self.tokens):
            raise ValueError("a token is duplicated")
        if len(set(self.original_ids) & set(range(len(self.tokens)))) != len(reserved):
            raise ValueError("the original ids do not match the specials and tags")
        if self.merges or self.scores:
            raise ValueError("merges and scores belong in the SentencePiece model")
        return self

    @classmethod
    def from_ids(cls, ids: Mapping[str, Any], digest: str) -> Self:
        """The vocabulary of a MarianMT model, from its vocab.json: the id of every token."""
        if any(type(token_id) is not int for token_id in ids.values()):
            raise HeedfulError("it has an id that is not an integer")
        tokens = sorted(ids, key=lambda token: int(ids[token]))
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise HeedfulError(f"its ids have gaps: they are not 0 to {len(tokens) - 1}")
        tags = [match[1] for token in tokens if (match := _LANGUAGE_TAG.fullmatch(token))]
        reserved = [*SPECIALS, *map(language_tag, tags)]
        if missing := [special for special in SPECIALS if special not in ids]:
            raise HeedfulError(f"it has no {missing[0]}")
        reserved_set = set(reserved)
        subwords = [token for token in tokens if token not in reserved_set]
        return cls.from_settings(
            {
                "languages": tags,
                "tokens": [*reserved, *subwords],
                "digest": digest,
                "original_ids": [ids[token] for token in reserved],
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The content of vocab.json."""
        return {token: token_id for token_id, token in enumerate(self.original_tokens())}

    def original_tokens(self) -> list[str]:
        """The tokens in the order of the original model."""
        subwords = iter(self.tokens[self.first_subword_id :])
        special_tokens = dict(zip(self.original_ids, self.tokens, strict=False))
        return [
            special_tokens[token_id] if token_id in special_tokens else next(subwords)
            for token_id in range(len(self.tokens))
        ]


class SentencePieceTokenizer(Tokenizer):
    """Splits text into the subwords of a SentencePiece model."""

    vocabulary: SentencePieceVocabulary

    def __init__(self, vocabulary: SentencePieceVocabulary, model: bytes) -> None:
        self.vocabulary, self.model = vocabulary, model
        self._processor = load_processor(model)
        self._pre_tokenizer = build_pre_tokenizer("bpe")  # only splits words for display
        subword_ids = range(vocabulary.first_subword_id, len(vocabulary.tokens))
        self._subword_ids = {vocabulary.tokens[token_id]: token_id for token_id in subword_ids}
        self._token_bytes = [b""] * vocabulary.first_subword_id
        for subword in self._subword_ids:
            byte = _BYTE_TOKEN.fullmatch(subword)
            if byte and self._processor.is_byte(self._processor.piece_to_id(subword)):
                self._token_bytes.append(bytes([int(byte[1], 16)]))
            else:
                self._token_bytes.append(subword.encode())

    @classmethod
    def from_ids(cls, ids: Mapping[str, Any], model: bytes) -> Self:
        """The tokenizer of one side of a MarianMT model: its vocab.json and its SentencePiece model."""
        return cls(SentencePieceVocabulary.from_ids(ids, hashlib.sha256(model).hexdigest()), model)

    def leading_tag(self, text: str) -> str:
        """The language tag that a user typed before a text, if the vocabulary has it."""
        match = _LEADING_TAG.match(text)
        return match[1] if match and match[1] in self.vocabulary.languages else ""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for index, (part, is_tag) in enumerate(split_tags(replace_surrogates(text))):
            tag = part if is_tag else "" if index else self.leading_tag(part)  # a typed tag counts only at the start
            if tag:
                ids.append(self.tag_id(tag))
            if not is_tag:
                subwords = self._tokenize(part[part.index("<<") + 2 :].strip() if tag else part)
                ids += [self._subword_ids.get(subword, UNK) for subword in subwords]
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def _tokenize(self, text: str) -> list[str]:
        """The subwords of the SentencePiece model, unknown characters included."""
        subwords: list[str] = self._processor.encode(text, out_type=str)
        return subwords

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, stripped, without ``<unk>`` and other specials."""
        return self.ids_to_bytes(ids).decode("utf-8", errors="replace").replace(METASPACE, " ").strip()

    def _char_offsets(self, marked_text: str) -> list[tuple[int, int]]:
        text = marked_text.replace(METASPACE, " ")
        leading_spaces, stripped_length = len(text) - len(text.lstrip()), len(text.strip())

        def clamp(position: int) -> int:
            return min(max(position - leading_spaces, 0), stripped_length)

        return [(clamp(position), clamp(position + 1)) for position in range(len(text))]

    def align_to_words(self, ids: Sequence[int], words: Sequence[str]) -> list[int]:
        """Like other tokenizers, but an ``<unk>`` of encoded text is aligned to its word too."""
        if not words:
            return super().align_to_words(ids, words)
        if self.leading_tag(words[0]):
            words = [words[0].partition("<<")[2], *words[1:]]
        subwords = iter(self._tokenize(" ".join(words)))
        ends = list(accumulate(len(_remove_spaces(self._processor.normalize(word))) for word in words))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        word_indices, position = [], 0
        for token_id in ids:
            if token_id != UNK and token_id < self.vocabulary.first_subword_id:
                word_indices.append(-1)
                continue
            subword = next(subwords, "")
            if not subword or self._subword_ids.get(subword, UNK) != token_id:  # model output, or another text
                return super().align_to_words(ids, words)
            word_indices.append(min(bisect_right(ends, position), len(words) - 1))
            subword_bytes = self._token_bytes[token_id] or subword.encode()
            position += len(_remove_spaces(decoder.decode(subword_bytes)))
        return word_indices


def _remove_spaces(marked_text: str) -> str:
    return "".join(marked_text.replace(METASPACE, " ").split())


def load_processor(model: bytes) -> Any:
    """A SentencePiece processor with this model."""
    check_extras("this model", "marian")
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model or b"nothing")
    except (RuntimeError, OSError, ValueError):
        raise HeedfulError("corrupt SentencePiece model", hint="download it again") from None


# The file format is a protocol buffer. Only the fields that matter are written, so no package is needed.
# docs/export.md lists where the library differs from our tokenizers.

_NORMAL_TYPE, _UNKNOWN_TYPE, _CONTROL_TYPE, _BYTE_TYPE = 1, 2, 3, 6

_MODEL_TYPES: dict[TokenizerType, int] = {"unigram": 1, "bpe": 2, "character": 4, "word": 1}


def build_sentencepiece_model(vocabulary: Vocabulary, *, remove_extra_whitespace: bool = False) -> bytes:
    """A vocabulary as a SentencePiece model file, with the same ids.

    Specials and language tags are control tokens, so no text encodes to them. ``remove_extra_whitespace``:
    the library strips text and collapses repeated spaces, as cleaning does.
    """
    specials, first_subword_id = vocabulary.special_count, vocabulary.first_subword_id
    types = [_CONTROL_TYPE] * specials + [_BYTE_TYPE] * (first_subword_id - specials)
    types += [_NORMAL_TYPE] * (len(vocabulary.tokens) - first_subword_id)
    types[UNK] = _UNKNOWN_TYPE
    model = b"".join(
        _protobuf_field(1, _protobuf_field(1, subword) + _protobuf_field(2, score) + _protobuf_field(3, subword_type))
        for subword, score, subword_type in zip(vocabulary.tokens, _subword_scores(vocabulary), types, strict=True)
    )
    trainer_spec = {
        3: _MODEL_TYPES[vocabulary.model_type],
        4: len(vocabulary.tokens),
        35: True,  # byte_fallback
        40: UNK,
        41: -1,  # no token at the start of sentences
        42: END,
        43: PAD,
        45: SPECIALS[UNK],
        47: SPECIALS[END],
        48: SPECIALS[PAD],
    }
    normalizer_spec = {  # text is unchanged apart from ▁ before it and for every space
        1: "identity",
        3: True,  # add_dummy_prefix
        4: remove_extra_whitespace,  # remove_extra_whitespaces
        5: True,  # escape_whitespaces
    }
    for field, specification in ((2, trainer_spec), (3, normalizer_spec)):
        model += _protobuf_field(field, b"".join(starmap(_protobuf_field, specification.items())))
    return model


def segmentation_warning(tokenizer: Tokenizer) -> str:
    """How SentencePiece segments text differently from this tokenizer; empty if it hardly does."""
    if tokenizer.model_type != "word":
        return ""
    return "unknown words are segmented into known words and letters, not only into letters"


def sentencepiece_bytes(tokenizer: Tokenizer) -> bytes:
    """The SentencePiece model of a tokenizer: its own, or one built from its vocabulary."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    return build_sentencepiece_model(tokenizer.vocabulary)


def _subword_scores(vocabulary: Vocabulary) -> list[float]:
    """Scores by which SentencePiece segments: log-probabilities, or merges by rank.

    SentencePiece merges the pair whose result scores best, so a subword scores by the earliest merge that
    makes it. Words are unigrams of equal probability: the fewest tokens win.
    """
    if vocabulary.model_type == "unigram":
        return list(vocabulary.scores)
    if vocabulary.model_type == "word":
        return [-1.0] * len(vocabulary.tokens)
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(vocabulary.merges):
        ranks.setdefault(left + right, rank)
    alphabet = len(vocabulary.merges)
    scores = [-float(ranks.get(subword, alphabet)) for subword in vocabulary.tokens]
    return [0.0] * vocabulary.first_subword_id + scores[vocabulary.first_subword_id :]


def _protobuf_field(field: int, value: bytes | str | float) -> bytes:
    """One field: a message or string with its length, a 32-bit float, or an integer."""
    if isinstance(value, float):
        return _varint(field << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(field << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; negative numbers as 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
