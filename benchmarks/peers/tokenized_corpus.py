"""The corpus, cleaned and tokenized once, in the format of each toolkit.

A token is written `t123`, so that no toolkit tokenizes or normalizes again. Files: `train.source` and
`train.target` (one sentence per line), `vocabulary.txt` (eole), `vocabulary.yml` (Marian), and for each size
`plan-SIZE.json`: our batches of several epochs, as lists of line numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from heedful.config import Settings
from heedful.data.config import BatchConfig, CleaningConfig
from heedful.data.corpus import CorpusInputs
from heedful.data.dataset import FILE_NAMES, TokenDataset
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.sampler import plan_batches
from heedful.progress import Reporter
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.special_tokens import UNK
from heedful.training.preparation import prepare
from heedful.training.run import make_config_chooser
from peers.sizes import Size

VOCABULARY = 8000
EPOCHS = 20
"""Planned ahead: more than anybody gets through while measured."""
DEMO_TRAINING, DEMO_VALIDATION = 20_000, 200


@dataclass(frozen=True)
class Files:
    """The corpus as text: what our own command is given."""

    training: tuple[Path, Path]
    validation: tuple[Path, Path]

    @classmethod
    def of(cls, folder: Path, languages: Sequence[str]) -> "Files":
        """train.en, train.de, val.en and val.de of a folder."""
        source, target = languages
        return cls(
            (folder / f"train.{source}", folder / f"train.{target}"),
            (folder / f"val.{source}", folder / f"val.{target}"),
        )

    @classmethod
    def demo(cls, folder: Path) -> "Files":
        """Sentences of the embedded grammar, for those who have no corpus at hand."""
        files = cls.of(folder, ("en", "fr"))
        parts = (
            (files.training, generate_pairs(DEMO_TRAINING)),
            (files.validation, generate_pairs(DEMO_VALIDATION, seed=1)),
        )
        for (source, target), pairs in parts:
            source.write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
            target.write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
        return files


@dataclass(frozen=True)
class Pieces:
    """A prepared corpus and the folder with everybody's files."""

    folder: Path
    store: TokenDataset
    vocabulary: int

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """Pieces of each source sentence, END included."""
        return self.store.source_lengths.astype(np.int64) + 1

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """Pieces of each target sentence, END included."""
        return self.store.target_lengths.astype(np.int64) + 1

    def same_as(self, other: Path) -> bool:
        """Whether a store in this folder has the very same pieces."""
        return all((other / name).read_bytes() == (self.store.folder / name).read_bytes() for name in FILE_NAMES)


def prepare_pieces(files: Files, folder: Path, sizes: Sequence[Size]) -> Pieces:
    """Clean and cut the corpus as `heedful train` does, and write what the others read."""
    inputs = CorpusInputs(files.training, files.validation)
    settings: Settings = {"preset": "base", "tokenizer": {"vocab_size": VOCABULARY}}
    prepared = prepare(inputs, folder / "data", CleaningConfig(), make_config_chooser(settings), Reporter(quiet=True))
    pieces = Pieces(folder, prepared.dataset, prepared.tokenizer.source.vocab_size)
    _write_sentences(pieces)
    _write_vocabularies(prepared.tokenizer, folder)
    for size in sizes:
        _write_plan(pieces, size)
    return pieces


def _write_sentences(pieces: Pieces) -> None:
    for name, sentence in (("source", pieces.store.source), ("target", pieces.store.target)):
        with (pieces.folder / f"train.{name}").open("w", encoding="utf-8") as file:
            for index in range(len(pieces.store)):
                file.write(" ".join(f"t{piece}" for piece in sentence(index).tolist()) + "\n")


def _write_vocabularies(tokenizer: PairTokenizer, folder: Path) -> None:
    """Without our specials: each program adds its own."""
    assert tokenizer.joint, "one vocabulary, as in the paper"
    names = [f"t{piece}" for piece in range(UNK + 1, tokenizer.source.vocab_size)]
    (folder / "vocabulary.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    lines = [f"{name}: {number}\n" for number, name in enumerate(["</s>", "<unk>", *names])]
    (folder / "vocabulary.yml").write_text("".join(lines), encoding="utf-8")


def _write_plan(pieces: Pieces, size: Size) -> None:
    """The batches that our trainer will make: the same function, the same seed."""
    plan = [
        batch.tolist()
        for epoch in range(EPOCHS)
        for batch in plan_batches(
            pieces.source_lengths, pieces.target_lengths, BatchConfig(max_tokens=size.batch_tokens), seed=1, epoch=epoch
        )
    ]
    (pieces.folder / f"plan-{size.name}.json").write_text(json.dumps(plan), encoding="utf-8")
