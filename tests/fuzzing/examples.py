"""Valid files to start from, as the project itself writes them; small, so that thousands are read in time."""

import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch

import heedful
from heedful.bundle import Bundle, BundleConfig
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.inspection.record_file import save_record
from heedful.interop.ctranslate2 import converted
from heedful.interop.marian_export import export_marian
from heedful.model.config import ModelConfig
from heedful.model.family import new_model
from heedful.progress import Reporter
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig

SENTENCE = "The dog was too tired."
PAIRS = [
    ("The dog was too tired.", "Le chien était trop fatigué."),
    ("Hello, world!", "Bonjour, le monde !"),
    ("a < b & c", "a < b & c"),
    ("50 % of it", "la moitié"),
]
RECIPE = b"""
preset = "tiny"

[tokenizer]
kind = "bpe"
vocabulary = 4000

[model]
width = 128
heads = 4
norm = "pre"
dropout = 0.1

[training]
updates = 100
rate = 3e-4
precision = "float32"

[cleaning]
max_ratio = 6.0

[search]
beam = 4
"""
OVERRIDES = b"""model.width=128
model.heads=4
tokenizer.kind=bpe
training.rate=3e-4
search.beam=5
training.precision="float32"
cleaning={"max_ratio": 3}
"""
QUICK = {
    "preset": "demo",
    "tokenizer": {"vocabulary": 500},
    "model": {
        "width": 8,
        "heads": 2,
        "feed_forward_width": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "positions": "learned",
        "longest": 64,
    },
    "training": {
        "updates": 4,
        "validate_every": 2,
        "bleu_sentences": 2,
        "held_out": 8,
        "average": 2,
        "threads": 1,
        "warmup": 2,
        "snapshots": 2,
    },
}


@cache
def _workshop() -> Path:
    """A folder for what takes a second to make; gone when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="heedful-fuzzing-")
    _KEPT.append(folder)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def tokenizer(kind: str = "bpe") -> PairTokenizer:
    """Of some of the grammar's pairs."""
    pairs = [(pair.source, pair.target) for pair in generate(60)]
    settings = TokenizerConfig.checked({"kind": kind, "vocabulary": 400, "joint": True})
    return PairTokenizer.train(lambda: pairs, settings, ("en", "fr"))


@cache
def bundle() -> Bundle:
    """A translator of random weights."""
    words = tokenizer()
    shape = {
        "width": 8,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "feed_forward_width": 8,
        "source_vocabulary": words.source.size,
        "target_vocabulary": words.target.size,
    }
    torch.manual_seed(3)
    config = ModelConfig.checked(shape)
    return Bundle(
        BundleConfig(languages=("en", "fr"), model=config), words, new_model(config).eval(), "# Card\n"
    )


@cache
def _model() -> Path:
    folder = _workshop() / "model"
    bundle().save(folder)
    return folder


@cache
def _quick_model() -> Path:
    folder = _workshop() / "converted"
    bundle().save(folder)
    converted(folder, Bundle.open(folder), "float32")
    return folder


@cache
def _marian() -> Path:
    folder = _workshop() / "marian"
    export_marian(bundle(), folder)
    return folder


@cache
def _run() -> Path:
    pairs, folder = _workshop() / "pairs.tsv", _workshop() / "run"
    write_tsv([(pair.source, pair.target) for pair in generate(60)], pairs)
    heedful.train(pairs, folder, languages=("en", "fr"), settings=QUICK, report=Reporter(quiet=True))
    return folder


@cache
def _record() -> Path:
    path = _workshop() / "record.safetensors"
    save_record(record(bundle(), Asked(source=SENTENCE, beam=2)), path)
    return path


def model_folder(folder: Path) -> None:
    """A model."""
    shutil.copytree(_model(), folder, dirs_exist_ok=True)


def converted_folder(folder: Path) -> None:
    """A model beside which CTranslate2's stands."""
    shutil.copytree(_quick_model(), folder, dirs_exist_ok=True)


def marian_folder(folder: Path) -> None:
    """A MarianMT model."""
    shutil.copytree(_marian(), folder, dirs_exist_ok=True)


def old_marian_folder(folder: Path) -> None:
    """A MarianMT model whose weights are a pickle."""
    marian_folder(folder)
    weights = folder / "model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()


def run_folder(folder: Path) -> None:
    """A whole training, ended."""
    shutil.copytree(_run(), folder, dirs_exist_ok=True)


def record_file(folder: Path) -> None:
    """A record of one sentence."""
    shutil.copy(_record(), folder / "record.safetensors")
