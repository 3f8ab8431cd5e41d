"""The tokenizers of source and target, learned together and stored in one ``tokenizer.json``."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import read_json, write_bytes, write_text
from heedful.tokenization.sentencepiece import SentencePieceTokenizer, SentencePieceVocabulary
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig, Vocabulary
from heedful.tokenization.vocabulary_training import learn_tokenizer

FORMAT_VERSION = 2
"""Newest format of tokenizer.json: 1 for vocabularies learned here, 2 for SentencePiece models, which are
stored in files beside it."""

SENTENCEPIECE_FILES = ("source.spm", "target.spm")
"""SentencePiece models of source and target, beside tokenizer.json."""

TextPairFactory = Callable[[], Iterable[Sequence[str]]]
"""Returns an iterable of sentence pairs, source first; called again for each pass over the data."""


class _TokenizerFile(Config):
    """Content of tokenizer.json."""

    format: int
    config: TokenizerConfig
    languages: tuple[str, str] | None
    source: Vocabulary
    target: Vocabulary | None
    """None if both sides share the source vocabulary."""


class _SentencePieceFile(_TokenizerFile):
    """Content of tokenizer.json if SentencePiece models are stored beside it."""

    source: SentencePieceVocabulary
    target: SentencePieceVocabulary


@dataclass(frozen=True)
class PairTokenizer:
    """The tokenizers of both sides; the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer
    config: TokenizerConfig
    languages: tuple[str, str] | None = None
    """Codes of the source and target language, if known."""

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary and can share embeddings (section 3.4)."""
        return self.source is self.target or self.source.vocabulary.tokens == self.target.vocabulary.tokens

    @classmethod
    def train(
        cls,
        pairs: TextPairFactory,
        config: TokenizerConfig,
        languages: tuple[str, str] | None = None,
        tags: Sequence[str] = (),
    ) -> Self:
        """Learn the tokenizers from pairs; each of ``tags`` (usually target languages) gets a token."""
        if config.joint_vocabulary:
            shared = learn_tokenizer(_SideTexts(pairs, (0, 1)), config, tags)
            return cls(shared, shared, config, languages)
        tokenizers = []
        for side, name in enumerate(("source", "target")):
            try:
                tokenizers.append(learn_tokenizer(_SideTexts(pairs, (side,)), config, tags))
            except HeedfulError as error:
                raise HeedfulError(f"{name} side: {error.problem}", hint=error.hint) from error
        return cls(tokenizers[0], tokenizers[1], config, languages)

    def save(self, path: Path | str) -> None:
        """Write one JSON file atomically, and SentencePiece models beside it."""
        path, source, target = Path(path), self.source, self.target
        content: _TokenizerFile
        fields: dict[str, Any] = {"config": self.config, "languages": self.languages, "source": source.vocabulary}
        if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
            content = _SentencePieceFile(format=FORMAT_VERSION, **fields, target=target.vocabulary)
            for name, side in zip(SENTENCEPIECE_FILES, (source, target), strict=True):
                write_bytes(path.with_name(name), side.model)
        else:
            content = _TokenizerFile(format=1, **fields, target=None if source is target else target.vocabulary)
        write_text(path, json.dumps(content.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what ``save`` wrote."""
        path = Path(path)
        state = read_json(path, "copy the model folder again from its origin")
        if not isinstance(state.get("format"), int):
            raise HeedfulError(
                f"{path} is not a Heedful tokenizer", hint="check the path: the file has no format number"
            )
        if state["format"] > FORMAT_VERSION:
            raise HeedfulError(
                f"{path} has format {state['format']}, newer than this Heedful supports ({FORMAT_VERSION})",
                hint="upgrade with: pip install --upgrade heedful",
            )
        try:
            if state["format"] == 1:
                content = _TokenizerFile.from_settings(state)
                source = target = Tokenizer(content.source)
                if content.target:
                    target = Tokenizer(content.target)
            else:
                content = _SentencePieceFile.from_settings(state)
                sides = zip((content.source, content.target), SENTENCEPIECE_FILES, strict=True)
                source, target = (SentencePieceTokenizer.open(side, path.with_name(name)) for side, name in sides)
        except HeedfulError as error:
            hint = error.hint or "copy the file again from its origin"
            raise HeedfulError(f"tokenizer file {path} is corrupt: {error.problem}", hint=hint) from None
        return cls(source, target, content.config, content.languages)


@dataclass(frozen=True)
class _SideTexts:
    """The texts of one or both sides of pairs; can be iterated repeatedly."""

    pairs: TextPairFactory
    sides: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return (pair[side] for pair in self.pairs() for side in self.sides)
