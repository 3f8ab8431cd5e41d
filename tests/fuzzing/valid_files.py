"""Valid files to mutate, as the project writes them; small, so that thousands can be read."""

import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch

import heedful
from heedful.convert.ctranslate2 import cache as conversion_cache
from heedful.convert.marian.exporter import export_marian
from heedful.convert.marian.importer import import_marian
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.interpret.trace import compute_trace, save_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.config import ModelConfig
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig

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
model_type = "bpe"
vocab_size = 4000

[model]
d_model = 128
heads = 4
norm_placement = "pre"
dropout = 0.1

[training]
max_updates = 100
learning_rate = 3e-4
precision = "float32"

[cleaning]
max_length_ratio = 6.0

[generation]
beam_size = 4
"""
OVERRIDES = b"""model.d_model=128
model.heads=4
tokenizer.model_type=bpe
training.learning_rate=3e-4
generation.beam_size=5
training.precision="float32"
cleaning={"max_length_ratio": 3}
"""
QUICK = {
    "preset": "demo",
    "tokenizer": {"vocab_size": 500},
    "model": {
        "d_model": 8,
        "heads": 2,
        "d_ff": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "positions": "learned",
        "max_length": 64,
    },
    "training": {
        "max_updates": 4,
        "validate_every": 2,
        "bleu_sentences": 2,
        "validation_size": 8,
        "average_checkpoints": 2,
        "threads": 1,
        "warmup_updates": 2,
        "snapshots": 2,
    },
}


@cache
def _temporary_folder() -> Path:
    """A folder for cached examples, deleted when the process exits."""
    folder = tempfile.TemporaryDirectory(prefix="heedful-fuzzing-")
    _FOLDERS.append(folder)
    return Path(folder.name)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def tokenizer(model_type: str = "bpe") -> PairTokenizer:
    """Trained on some pairs of the demo grammar."""
    pairs = [(pair.source, pair.target) for pair in generate_pairs(60)]
    settings = TokenizerConfig.from_settings({"model_type": model_type, "vocab_size": 400, "joint_vocabulary": True})
    return PairTokenizer.train(lambda: pairs, settings)


@cache
def new_model_folder() -> ModelFolder:
    """A translation model with random weights."""
    pair_tokenizer = tokenizer()
    shape = {
        "d_model": 8,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_ff": 8,
        "source_vocab_size": pair_tokenizer.source.vocab_size,
        "target_vocab_size": pair_tokenizer.target.vocab_size,
    }
    torch.manual_seed(3)
    config = ModelConfig.from_settings(shape)
    return ModelFolder(
        ModelFolderConfig(languages=("en", "fr"), model=config), pair_tokenizer, new_model(config).eval(), "# Card\n"
    )


@cache
def _model() -> Path:
    folder = _temporary_folder() / "model"
    new_model_folder().save(folder)
    return folder


@cache
def _converted_model() -> Path:
    folder = _temporary_folder() / "converted"
    new_model_folder().save(folder)
    with conversion_cache.open_conversion(folder, ModelFolder.open(folder), "float32") as (conversion, _):
        shutil.copytree(conversion, folder / "conversion")
    return folder


@cache
def _marian() -> Path:
    folder = _temporary_folder() / "marian"
    export_marian(new_model_folder(), folder)
    return folder


@cache
def _imported_model() -> Path:
    folder = _temporary_folder() / "imported"
    import_marian(_marian()).save(folder)
    return folder


@cache
def _run() -> Path:
    pairs, folder = _temporary_folder() / "pairs.tsv", _temporary_folder() / "run"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(60)], pairs)
    heedful.train(pairs, folder, languages=("en", "fr"), settings=QUICK, report=Reporter(quiet=True))
    return folder


@cache
def _trace_file() -> Path:
    path = _temporary_folder() / "trace.safetensors"
    save_trace(compute_trace(new_model_folder(), TraceRequest(source=SENTENCE, beam_size=2)), path)
    return path


def write_model_folder(folder: Path) -> None:
    """A model folder."""
    shutil.copytree(_model(), folder, dirs_exist_ok=True)


def write_ctranslate2_folder(folder: Path) -> None:
    """A model folder, and beside its files a conversion like those in the cache."""
    shutil.copytree(_converted_model(), folder, dirs_exist_ok=True)


def write_marian_folder(folder: Path) -> None:
    """A MarianMT model."""
    shutil.copytree(_marian(), folder, dirs_exist_ok=True)


def write_imported_folder(folder: Path) -> None:
    """The model folder of an imported MarianMT model."""
    shutil.copytree(_imported_model(), folder, dirs_exist_ok=True)


def write_marian_bin_folder(folder: Path) -> None:
    """A MarianMT model whose weights are a pickle."""
    write_marian_folder(folder)
    weights = folder / "model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()


def write_training_folder(folder: Path) -> None:
    """A finished training run."""
    shutil.copytree(_run(), folder, dirs_exist_ok=True)


def write_trace_file(folder: Path) -> None:
    """A trace of one sentence."""
    shutil.copy(_trace_file(), folder / "trace.safetensors")
