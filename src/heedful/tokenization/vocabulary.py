"""The vocabulary of a tokenizer, and its file: ``tokenizer.json`` of Hugging Face ``tokenizers``.

The file holds the whole pipeline (normalizer, pre-tokenizer, model, decoder), so that ``tokenizers`` and
``transformers`` give the same ids and the same text. It has no added tokens: no text encodes to a special, in
any library. Only a pipeline that this module writes is read, and the one that runs is always built here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import tokenizers
from pydantic import Field, FiniteFloat, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator
from tokenizers import Regex, models, pre_tokenizers

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.tokenization.normalization import ESCAPE_SEQUENCES, METASPACE, SUBWORD_PATTERN, WORD_PATTERN
from heedful.tokenization.special_tokens import SPECIALS, UNK

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

MAX_TOKENS = 2_000_000
"""Maximum number of tokens in a file."""

TokenizerType = Literal["word", "character", "bpe", "unigram"]

TAG_NAME = "[A-Za-z][A-Za-z0-9_-]*"
"""The name of a tag, for a regular expression."""

_TAG_TOKEN = re.compile(f">>({TAG_NAME})<<")
_RESERVED_FORM = re.compile(f"<0x..>|>>{TAG_NAME}<<", re.DOTALL)  # the decoder would not read these as text


class Vocabulary(Config):
    """Everything a tokenizer has learned, as plain data, validated on loading."""

    model_type: TokenizerType
    """The segmentation model."""
    languages: tuple[str, ...] = ()
    """Names of tags: target languages and other marks of a source (special_tokens.py)."""
    tokens: tuple[str, ...] = Field(max_length=MAX_TOKENS)
    """The token of every id."""
    merges: tuple[tuple[str, str], ...] = Field(default=(), max_length=MAX_TOKENS)
    """BPE: the pairs to merge, by rank."""
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
        subwords = set(self.tokens[len(reserved) :])
        if len(subwords | set(reserved)) < len(self.tokens) or "" in subwords:
            raise ValueError("a token is empty or duplicated")
        for subword in subwords:
            if " " in subword or (subword[0] in "<>" and _RESERVED_FORM.fullmatch(subword)):
                raise ValueError(f"{subword[:100]!r} cannot be a learned subword")
        if len(self.scores) != (len(self.tokens) if self.model_type == "unigram" else 0):
            raise ValueError("the number of scores differs from the number of tokens")
        if self.merges and self.model_type != "bpe":
            raise ValueError(f"a {self.model_type!r} vocabulary cannot have merges")
        for left, right in self.merges:
            if left not in subwords or right not in subwords or left + right not in subwords:
                raise ValueError(f"the merge of {left[:100]!r} and {right[:100]!r} has unknown tokens")
        return self

    def to_json(self) -> dict[str, Any]:
        """The content of tokenizer.json."""
        model: dict[str, Any]
        if self.model_type == "unigram":
            scored_tokens = list(map(list, zip(self.tokens, self.scores, strict=True)))
            model = {"type": "Unigram", "unk_id": UNK, "vocab": scored_tokens, "byte_fallback": True}
        else:
            model = {
                "type": "BPE",
                "dropout": None,
                "unk_token": SPECIALS[UNK],
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": True,
                "ignore_merges": self.model_type != "bpe",  # a known word is one token although no merges lead to it
                "vocab": {token: token_id for token_id, token in enumerate(self.tokens)},
                "merges": list(map(list, self.merges)),
            }
        return {**_build_pipeline(self.model_type), "model": model}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The vocabulary of a tokenizer.json; an error if its pipeline is not one that ``to_json`` writes."""
        model: Any = content.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        fields: dict[str, Any]
        if kind == "Unigram":
            unigram = _UnigramModel.from_settings(model)
            tokens = [token for token, _ in unigram.vocab]
            fields = {"model_type": "unigram", "scores": [score for _, score in unigram.vocab]}
        elif kind == "BPE":
            bpe = _BPEModel.from_settings(model)
            tokens = sorted(bpe.vocab, key=bpe.vocab.__getitem__)
            if [bpe.vocab[token] for token in tokens] != list(range(len(tokens))):
                raise HeedfulError(f"the ids of its tokens are not 0 to {len(tokens) - 1}")
            fields = {"model_type": "bpe", "merges": bpe.merges}
            if bpe.ignore_merges:
                is_word = content.get("pre_tokenizer") == _split_by(WORD_PATTERN)
                fields["model_type"] = "word" if is_word else "character"
        else:
            raise HeedfulError("its model is neither BPE nor Unigram", hint=FOREIGN_HINT)
        pipeline = _build_pipeline(fields["model_type"])
        components = {name: value for name, value in content.items() if name != "model"}
        for name in (*pipeline, *components):
            if name not in pipeline or name not in components or pipeline[name] != components[name]:
                raise HeedfulError(f"its {name[:100]} is not one of Heedful", hint=FOREIGN_HINT)
        tags = []
        for token in tokens[len(SPECIALS) :]:
            if not (match := _TAG_TOKEN.fullmatch(token)):
                break
            tags.append(match[1])
        return cls.from_settings({**fields, "tokens": tokens, "languages": tags})


FOREIGN_HINT = "Heedful reads the tokenizers that it trains; those of other programs split text differently"


class _BPEModel(Config):
    """The model of tokenizer.json, also for words and characters, which have no merges."""

    type: Literal["BPE"]
    dropout: None
    unk_token: Literal["<unk>"]
    continuing_subword_prefix: None
    end_of_word_suffix: None
    fuse_unk: Literal[False]
    byte_fallback: Literal[True]
    ignore_merges: StrictBool
    vocab: dict[StrictStr, StrictInt] = Field(max_length=MAX_TOKENS)
    merges: tuple[tuple[StrictStr, StrictStr], ...] = Field(max_length=MAX_TOKENS)


class _UnigramModel(Config):
    """The model of tokenizer.json with log-probabilities."""

    type: Literal["Unigram"]
    unk_id: Literal[2]
    byte_fallback: Literal[True]
    vocab: tuple[tuple[StrictStr, StrictFloat | StrictInt], ...] = Field(max_length=MAX_TOKENS)


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _build_pipeline(model_type: TokenizerType) -> dict[str, Any]:
    """tokenizer.json without its model.

    The normalizer is ``mark_spaces(escape(text))``; the decoder omits specials and tags, joins bytes and is the
    inverse (normalization.py).
    """
    escapes = [_replace(character, sequence) for character, sequence in ESCAPE_SEQUENCES]
    specials = "|".join(SPECIALS)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*escapes, {"type": "Prepend", "prepend": METASPACE}, _replace(" ", METASPACE)],
        },
        "pre_tokenizer": _split_by(WORD_PATTERN if model_type == "word" else SUBWORD_PATTERN),
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {
                    "type": "Replace",
                    "pattern": {"Regex": f"\\A(?:{specials}|>>{TAG_NAME}<<)\\z"},
                    "content": "",
                },
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                _replace(METASPACE, " "),
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                *(_replace(sequence, character) for character, sequence in reversed(ESCAPE_SEQUENCES)),
            ],
        },
    }


def language_tag(language: str) -> str:
    """The token of a language tag.

    >>> language_tag("fr")
    '>>fr<<'
    """
    return f">>{language}<<"


def build_reserved_tokens(languages: Sequence[str]) -> tuple[str, ...]:
    """The tokens that every vocabulary starts with."""
    return (*SPECIALS, *map(language_tag, languages), *BYTES)


def build_hf_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer that Hugging Face ``tokenizers`` reads from the file of this vocabulary."""
    if vocabulary.model_type == "unigram":  # the library reads some scores one bit off, so ours must be read too
        return tokenizers.Tokenizer.from_str(json.dumps(vocabulary.to_json()))
    empty_model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = tokenizers.Tokenizer.from_str(
        json.dumps({**_build_pipeline(vocabulary.model_type), "model": empty_model})
    )
    tokenizer.model = models.BPE(  # faster than reading JSON
        vocab={token: token_id for token_id, token in enumerate(vocabulary.tokens)},
        merges=list(vocabulary.merges),
        unk_token=SPECIALS[UNK],
        byte_fallback=True,
        ignore_merges=vocabulary.model_type != "bpe",
    )
    return tokenizer


def build_pre_tokenizer(model_type: TokenizerType) -> pre_tokenizers.PreTokenizer:
    """Splits marked text into words."""
    return pre_tokenizers.Split(Regex(WORD_PATTERN if model_type == "word" else SUBWORD_PATTERN), "isolated")
