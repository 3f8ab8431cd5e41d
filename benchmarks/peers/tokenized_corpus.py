"""The corpus, cleaned and tokenized once, in the format of each toolkit.

A token is written `t123`, so that no toolkit tokenizes or normalizes again. Files: `train.source` and
`train.target` (one sentence per line), `vocabulary.txt` (eole), `vocabulary.yml` (Marian), and for each size
`batches-SIZE.json`: Heedful's batches of several epochs, as lists of line numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from heedful.config import Settings
from heedful.data.config import BatchConfig, CleaningConfig
from heedful.data.corpus import CorpusInputs, make_sources
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
"""Epochs planned ahead: more than any measurement needs."""
DEMO_TRAINING, DEMO_VALIDATION = 20_000, 200


@dataclass(frozen=True)
class Files:
    """The files of the corpus, for `heedful train`."""

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
        """Sentences of the demo grammar, if there is no corpus."""
        files = cls.of(folder, ("en", "fr"))
        splits = (
            (files.training, generate_pairs(DEMO_TRAINING)),
            (files.validation, generate_pairs(DEMO_VALIDATION, seed=1)),
        )
        for (source, target), pairs in splits:
            source.write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
            target.write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
        return files


@dataclass(frozen=True)
class TokenizedCorpus:
    """The prepared corpus and the folder with the files of all toolkits."""

    folder: Path
    dataset: TokenDataset
    vocabulary: int

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """Tokens of each source sentence, with END."""
        return self.dataset.source_lengths.astype(np.int64) + 1

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """Tokens of each target sentence, with END."""
        return self.dataset.target_lengths.astype(np.int64) + 1

    def has_same_tokens(self, other: Path) -> bool:
        """Whether the dataset in this folder has the same tokens."""
        return all((other / name).read_bytes() == (self.dataset.folder / name).read_bytes() for name in FILE_NAMES)


def prepare_corpus(files: Files, folder: Path, sizes: Sequence[Size]) -> TokenizedCorpus:
    """Clean and tokenize the corpus as `heedful train` does, and write the files of the other toolkits."""
    inputs = CorpusInputs(make_sources(files.training), make_sources(files.validation))
    settings: Settings = {"preset": "base", "tokenizer": {"vocab_size": VOCABULARY}}
    prepared = prepare(inputs, folder / "data", CleaningConfig(), make_config_chooser(settings), Reporter(quiet=True))
    corpus = TokenizedCorpus(folder, prepared.dataset, prepared.tokenizer.source.vocab_size)
    _write_sentences(corpus)
    _write_vocabularies(prepared.tokenizer, folder)
    for size in sizes:
        _write_batches(corpus, size)
    return corpus


def _write_sentences(corpus: TokenizedCorpus) -> None:
    for name, sentence in (("source", corpus.dataset.source), ("target", corpus.dataset.target)):
        with (corpus.folder / f"train.{name}").open("w", encoding="utf-8") as file:
            for index in range(len(corpus.dataset)):
                file.write(" ".join(f"t{token}" for token in sentence(index).tolist()) + "\n")


def _write_vocabularies(tokenizer: PairTokenizer, folder: Path) -> None:
    """Without special tokens: each toolkit adds its own."""
    assert tokenizer.joint, "the vocabulary must be joint, as in the paper"
    names = [f"t{token}" for token in range(UNK + 1, tokenizer.source.vocab_size)]
    (folder / "vocabulary.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    lines = [f"{name}: {number}\n" for number, name in enumerate(["</s>", "<unk>", *names])]
    (folder / "vocabulary.yml").write_text("".join(lines), encoding="utf-8")


def _write_batches(corpus: TokenizedCorpus, size: Size) -> None:
    """The batches of `heedful train`: the same function with the same seed."""
    batches = [
        batch.tolist()
        for epoch in range(EPOCHS)
        for batch in plan_batches(
            corpus.source_lengths, corpus.target_lengths, BatchConfig(max_tokens=size.batch_tokens), seed=1, epoch=epoch
        )
    ]
    (corpus.folder / f"batches-{size.name}.json").write_text(json.dumps(batches), encoding="utf-8")
