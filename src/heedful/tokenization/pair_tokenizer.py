"""The tokenizers of source and target, trained together and stored in the files of their ecosystems.

tokenizer.json         the vocabulary of both sides, or of the source (vocabulary.py)
target_tokenizer.json  the vocabulary of the target, if it differs

An imported MarianMT model keeps its own files: vocab.json, target_vocab.json, source.spm, target.spm.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heedful.errors import HeedfulError
from heedful.files import checksum, read_json, write_bytes
from heedful.tokenization.sentencepiece import SentencePieceTokenizer
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary import Vocabulary
from heedful.tokenization.vocabulary_training import learn_tokenizer

TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target_tokenizer.json"
VOCABULARY_FILE, TARGET_VOCABULARY_FILE = "vocab.json", "target_vocab.json"
SENTENCEPIECE_FILES = ("source.spm", "target.spm")

TOKENIZER_FILES = (
    TARGET_TOKENIZER_FILE,
    TOKENIZER_FILE,
    *SENTENCEPIECE_FILES,
    TARGET_VOCABULARY_FILE,
    VOCABULARY_FILE,
)
"""All files of tokenizers, of which a folder has some."""

MAX_FILE_BYTES = 512 * 1024 * 1024

COPY_HINT = "copy the model folder again from its origin"

TextPairFactory = Callable[[], Iterable[Sequence[str]]]
"""Returns an iterable of sentence pairs, source first; called again for each pass over the data."""


@dataclass(frozen=True)
class PairTokenizer:
    """The tokenizers of both sides; the same object if they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary and can share embeddings (section 3.4)."""
        return self.source is self.target or self.source.vocabulary.tokens == self.target.vocabulary.tokens

    @property
    def has_target_vocabulary(self) -> bool:
        """Whether the vocabulary of the target has a file of its own."""
        source, target = self.source, self.target
        return not self.joint or (source is not target and source.vocabulary.to_json() != target.vocabulary.to_json())

    @property
    def sentencepiece_digests(self) -> tuple[str, str] | None:
        """SHA-256 of the SentencePiece models, if there are any."""
        source, target = self.source, self.target
        if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
            return source.vocabulary.digest, target.vocabulary.digest
        return None

    @classmethod
    def train(cls, pairs: TextPairFactory, config: TokenizerConfig, tags: Sequence[str] = ()) -> Self:
        """Learn the tokenizers from pairs; each of ``tags`` (usually target languages) gets a token."""
        if config.joint_vocabulary:
            shared = learn_tokenizer(_SideTexts(pairs, (0, 1)), config, tags)
            return cls(shared, shared)
        tokenizers = []
        for side, name in enumerate(("source", "target")):
            try:
                tokenizers.append(learn_tokenizer(_SideTexts(pairs, (side,)), config, tags))
            except HeedfulError as error:
                raise HeedfulError(f"{name} side: {error.problem}", hint=error.hint) from error
        return cls(tokenizers[0], tokenizers[1])

    def save(self, folder: Path) -> None:
        """Write the files atomically, that of the source vocabulary last, and delete those of another tokenizer."""
        source, target = self.source, self.target
        names, contents = (TOKENIZER_FILE, TARGET_TOKENIZER_FILE), dict[str, bytes]()
        if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
            names = (VOCABULARY_FILE, TARGET_VOCABULARY_FILE)
            contents = dict(zip(SENTENCEPIECE_FILES, (source.model, target.model), strict=True))
        if self.has_target_vocabulary:
            contents[names[1]] = _format_json(target.vocabulary)
        contents[names[0]] = _format_json(source.vocabulary)
        delete_tokenizer(folder, except_for=contents)
        for name, content in contents.items():
            write_bytes(folder / name, content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote."""
        if not (folder / TOKENIZER_FILE).is_file() and (folder / VOCABULARY_FILE).is_file():
            target_name = TARGET_VOCABULARY_FILE if (folder / TARGET_VOCABULARY_FILE).exists() else VOCABULARY_FILE
            sides = zip((VOCABULARY_FILE, target_name), SENTENCEPIECE_FILES, strict=True)
            return cls(*(_load_sentencepiece(folder, *names) for names in sides))
        source = target = _load_tokenizer(folder / TOKENIZER_FILE)
        if (folder / TARGET_TOKENIZER_FILE).exists():
            target = _load_tokenizer(folder / TARGET_TOKENIZER_FILE)
        return cls(source, target)

    @staticmethod
    def is_saved(folder: Path) -> bool:
        """Whether ``save`` was completed in this folder."""
        return any((folder / name).is_file() for name in (TOKENIZER_FILE, VOCABULARY_FILE))


def delete_tokenizer(folder: Path, except_for: Iterable[str] = ()) -> None:
    """Delete the files of a tokenizer."""
    for name in set(TOKENIZER_FILES).difference(except_for):
        (folder / name).unlink(missing_ok=True)


def tokenizer_checksums(folder: Path) -> dict[str, str]:
    """The checksum of each file of the tokenizer in a folder."""
    return {name: checksum(folder / name) for name in TOKENIZER_FILES if (folder / name).is_file()}


def _format_json(vocabulary: Vocabulary) -> bytes:
    return (json.dumps(vocabulary.to_json(), ensure_ascii=False, indent=2) + "\n").encode()


def _load_tokenizer(path: Path) -> Tokenizer:
    content = _read_vocabulary(path)
    try:
        return Tokenizer(Vocabulary.from_json(content))
    except HeedfulError as error:
        raise HeedfulError(f"cannot use tokenizer file {path}: {error.problem}", hint=error.hint or COPY_HINT) from None


def _load_sentencepiece(folder: Path, vocabulary_name: str, model_name: str) -> SentencePieceTokenizer:
    ids = _read_vocabulary(folder / vocabulary_name)
    try:
        model = (folder / model_name).read_bytes()
    except OSError as error:
        raise HeedfulError(f"cannot read {folder / model_name}: {error.strerror}", hint=COPY_HINT) from None
    try:
        return SentencePieceTokenizer.from_ids(ids, model)
    except HeedfulError as error:
        problem = f"cannot use tokenizer file {folder / vocabulary_name} with {model_name}: {error.problem}"
        raise HeedfulError(problem, hint=error.hint or COPY_HINT) from None


def _read_vocabulary(path: Path) -> dict[str, Any]:
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise HeedfulError(f"{path} is too large for a tokenizer", hint=COPY_HINT)
    return read_json(path, COPY_HINT)


@dataclass(frozen=True)
class _SideTexts:
    """The texts of one or both sides of pairs; can be iterated repeatedly."""

    pairs: TextPairFactory
    sides: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return (pair[side] for pair in self.pairs() for side in self.sides)
