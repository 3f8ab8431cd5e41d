"""Fixtures shared by all tests: commands in separate processes, small corpora and trained models."""

import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from filelock import FileLock

import heedful
from heedful.convert.ctranslate2.cache import CACHE_VARIABLE
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.progress import Reporter
from tests.forked_commands import ForkServer

# A shell starts background jobs with SIGINT ignored, and child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

QUICK_SETTINGS = [
    "preset=demo",
    "tokenizer.vocab_size=900",
    "model.d_model=16",
    "model.heads=2",
    "model.d_ff=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.max_updates=24",
    "training.validate_every=6",
    "training.bleu_sentences=4",
    "training.validation_size=20",
    "training.average_checkpoints=2",
    "training.threads=1",
    "training.warmup_updates=10",
]
"""A model that trains in a second or two: it learns little but runs through every stage."""

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers and commands inherit it: tests never use the user's cache
    cache = tempfile.TemporaryDirectory(prefix="heedful-cache-")
    os.environ[CACHE_VARIABLE] = cache.name

MODEL_FILES = ("config.json", "weights.safetensors", "tokenizer.json", "target_tokenizer.json")
"""Of a model with separate vocabularies; besides README.md."""

fork_server = ForkServer()


def run_heedful(*args: str | Path, stdin: bytes = b"", timeout: int = 300) -> "Result":
    """Run the command line in a separate process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    status, out, err = fork_server.run(list(map(str, args)), stdin, timeout, environment)
    return Result(status, out.decode(), err.decode())


class Result:
    """Exit status and output of a command; a traceback on stderr fails the test."""

    def __init__(self, status: int, out: str, err: str) -> None:
        assert "Traceback" not in err, err
        self.status, self.out, self.err = status, out, err


def quick_train_args(pairs: Path, folder: Path) -> list[str]:
    """Arguments of the command that trains `quick_model`."""
    return [
        "train",
        str(pairs),
        "-o",
        str(folder),
        "--languages",
        "en-fr",
        *(arg for setting in QUICK_SETTINGS for arg in ("--set", setting)),
    ]


@pytest.fixture(scope="session")
def grammar_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 pairs of the demo grammar."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(600)], path)
    return path


@pytest.fixture(scope="session")
def quick_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder written by `heedful train`."""
    folder = tmp_path_factory.mktemp("models") / "quick"
    result = run_heedful(*quick_train_args(grammar_pairs, folder))
    assert result.status == 0, result.err
    return folder


REVERSE_SETTINGS = {
    "preset": "demo",
    "model": {"d_model": 32, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0},
    "training": {
        "max_updates": 250,
        "validate_every": 250,
        "learning_rate": 0.006,
        "warmup_updates": 30,
        "validation_size": 50,
        "bleu_sentences": 20,
        "snapshots": 0,
        "threads": 1,
    },
}
"""A model that trains in a few seconds and translates about half of the demo grammar correctly."""


@pytest.fixture(scope="session")
def reverse_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 pairs of the demo grammar, from French to English."""
    path = tmp_path_factory.mktemp("pairs") / "reverse.tsv"
    write_tsv([(pair.target, pair.source) for pair in generate_pairs(3000)], path)
    return path


@pytest.fixture(scope="session")
def reverse_model(reverse_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that translates the demo grammar from French to English, imperfectly."""
    folder = tmp_path_factory.mktemp("models") / "reverse"
    heedful.train(reverse_pairs, folder, languages=("fr", "en"), settings=REVERSE_SETTINGS, report=Reporter(quiet=True))
    return folder


def train_demo(base: Path) -> "tuple[Path, Result]":
    """The folder of ``heedful demo``, trained once for all test processes, and the command's result."""
    path = os.environ.get("HEEDFUL_DEMO")  # an existing demo folder saves a minute
    folder = Path(path) if path else base / "demo"
    with FileLock(base / "demo.lock"):
        result = run_heedful("demo", "-o", folder, timeout=900)
    return folder, result


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A temporary folder shared by all test processes (pytest-xdist)."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of the demo as long, and run them last."""
    for item in filter(uses_demo, items):
        item.add_marker("long")
    items.sort(key=uses_demo)  # stable: keeps the order of the others


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the training of the demo if a test needs it, so that no test waits for it."""
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and any(map(uses_demo, session.items)):
        base = shared_folder(session.config._tmp_path_factory)  # type: ignore[attr-defined]
        threading.Thread(target=train_demo, args=[base], daemon=True).start()


def uses_demo(item: pytest.Item) -> bool:
    """Whether a test uses the demo model."""
    return "demo" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, Result]":
    """The folder of ``heedful demo`` and the command's result."""
    folder, result = train_demo(shared_folder(tmp_path_factory))
    assert result.status == 0, result.err
    return folder, result


@pytest.fixture(scope="session")
def demo_model(demo: "tuple[Path, Result]") -> Path:
    """The demo model, which resolves the pronoun "it"."""
    return demo[0] / "model"
