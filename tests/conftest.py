"""Shared by all tests: the command line as a real process, and one small trained model."""

import os
import signal
import threading
from pathlib import Path

import pytest
from filelock import FileLock

import heedful
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.progress import Reporter
from tests.warm import Warm

# A shell's background jobs ignore Ctrl-C, and so would the processes of our tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

QUICK_SETTINGS = [
    "preset=demo",
    "tokenizer.vocabulary=900",
    "model.width=16",
    "model.heads=2",
    "model.feed_forward_width=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.updates=24",
    "training.validate_every=6",
    "training.bleu_sentences=4",
    "training.held_out=20",
    "training.average=2",
    "training.threads=1",
    "training.warmup=10",
]
"""A model that trains in a second or two: it learns little, but goes the whole way."""


warm = Warm()


def run_heedful(*words: str | Path, stdin: bytes = b"", seconds: int = 300) -> "Result":
    """Run the command line in a process of its own."""
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    status, out, err = warm.run(list(map(str, words)), stdin, seconds, surroundings)
    return Result(status, out.decode(), err.decode())


class Result:
    """Exit status and what was printed; a traceback never reaches a user."""

    def __init__(self, status: int, out: str, err: str) -> None:
        assert "Traceback" not in err, err
        self.status, self.out, self.err = status, out, err


def quick_train_words(pairs: Path, folder: Path) -> list[str]:
    """The command line that trains the quick model."""
    return [
        "train",
        str(pairs),
        "-o",
        str(folder),
        "--languages",
        "en-fr",
        *(word for setting in QUICK_SETTINGS for word in ("--set", setting)),
    ]


@pytest.fixture(scope="session")
def grammar_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 pairs of the demo grammar."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate(600)], path)
    return path


@pytest.fixture(scope="session")
def quick_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder made by the real command."""
    folder = tmp_path_factory.mktemp("models") / "quick"
    done = run_heedful(*quick_train_words(grammar_pairs, folder))
    assert done.status == 0, done.err
    return folder


REVERSE_SETTINGS = {
    "preset": "demo",
    "model": {
        "width": 32,
        "feed_forward_width": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0,
    },
    "training": {
        "updates": 250,
        "validate_every": 250,
        "rate": 0.006,
        "warmup": 30,
        "held_out": 50,
        "bleu_sentences": 20,
        "snapshots": 0,
        "threads": 1,
    },
}
"""A model that trains in some seconds and translates half of the demo grammar right."""


@pytest.fixture(scope="session")
def reverse_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 pairs of the demo grammar, from French to English."""
    path = tmp_path_factory.mktemp("pairs") / "reverse.tsv"
    write_tsv([(pair.target, pair.source) for pair in generate(3000)], path)
    return path


@pytest.fixture(scope="session")
def reverse_model(reverse_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that translates the demo grammar from French to English, somewhat."""
    folder = tmp_path_factory.mktemp("models") / "reverse"
    heedful.train(
        reverse_pairs, folder, languages=("fr", "en"), settings=REVERSE_SETTINGS, report=Reporter(quiet=True)
    )
    return folder


def trained_demo(base: Path) -> "tuple[Path, Result]":
    """The folder of ``heedful demo``, trained once for all processes, and what the command said."""
    given = os.environ.get("HEEDFUL_DEMO")  # one that is trained already saves a minute
    folder = Path(given) if given else base / "demo"
    with FileLock(base / "demo.lock"):
        done = run_heedful("demo", "-o", folder, seconds=900)
    return folder, done


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One for all test processes."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the demo come last, and its training begins at once: nobody waits for it meanwhile."""
    items.sort(key=needs_demo)  # stable: else as they stand
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and any(map(needs_demo, items)):
        base = shared_folder(config._tmp_path_factory)  # type: ignore[attr-defined]
        threading.Thread(target=trained_demo, args=[base], daemon=True).start()


def needs_demo(item: pytest.Item) -> bool:
    """Whether a test uses the demo's model."""
    return "demo" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, Result]":
    """The folder of ``heedful demo``, and what the command said."""
    folder, done = trained_demo(shared_folder(tmp_path_factory))
    assert done.status == 0, done.err
    return folder, done


@pytest.fixture(scope="session")
def demo_model(demo: "tuple[Path, Result]") -> Path:
    """The demo's model: it knows what "it" means."""
    return demo[0] / "model"
