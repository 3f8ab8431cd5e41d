"""List the modules that a real call enters: ``python -m tests.module_paths train|translate|serve|trace|trace-request``.

train      ``heedful.train`` on a small file of pairs, up to the first optimizer step; also how often the raw
           and the cleaned text are opened for reading.
translate  ``heedful translate MODEL SENTENCE``, the whole command, with a model already converted for
           CTranslate2: a first call, which is not recorded, converts it.
serve      ``POST /translate`` to the real application, only while it answers; ``--engine pytorch`` instead of
           the default engine.
trace      ``heedful.trace(model, sentence)`` with its manifest, the second call on a loaded model.
trace-request  ``POST /api/trace`` to the real application, only while it answers.

A module counts if one of its functions is entered; running a module's body (importing it) does not count.
"""

import argparse
import io
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import heedful
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.inference.loading import ENGINES, EngineName, load
from heedful.progress import Reporter

PACKAGE = Path(heedful.__file__).parent
SENTENCES = ["The dog is too tired.", "The cat is tired."]
SETTINGS = {
    "preset": "demo",
    "tokenizer": {"vocab_size": 900},
    "model": {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1},
    "training": {"max_updates": 4, "validate_every": 4, "bleu_sentences": 2, "threads": 1, "processes": 1},
}


class Recorder:
    """Which modules of the package are entered while recording."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.functions: Counter[str] = Counter()
        self.active = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.active or event != "call" or frame.f_code.co_name == "<module>":
            return
        path = frame.f_code.co_filename
        if path.startswith(str(PACKAGE)):
            module = path[len(str(PACKAGE.parent)) + 1 : -3].replace("/", ".").removesuffix(".__init__")
            if not _is_in_class_body(frame):
                self.modules.add(module)
                self.functions[f"{module}:{frame.f_code.co_qualname}"] += 1


def _is_in_class_body(frame: FrameType) -> bool:
    """A class body, or what a module's body calls while it is imported."""
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(str(PACKAGE)):
            return caller.f_globals.get("__name__") != "__main__"
        caller = caller.f_back
    return False


@contextmanager
def record(*, active: bool = True) -> Iterator[Recorder]:
    """Installed before the threads of a server start; ``active`` can be set later."""
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    recorder.active = active
    try:
        yield recorder
    finally:
        recorder.active = False
        sys.setprofile(None)
        threading.setprofile(None)


def write_pairs(folder: Path) -> Path:
    path = folder / "pairs.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(2000)], path)
    return path


def train_model(folder: Path) -> Path:
    settings = {"languages": ("en", "fr"), "settings": SETTINGS, "report": Reporter(quiet=True)}
    heedful.train(write_pairs(folder), folder / "model", **settings)
    return folder / "model"


class FirstUpdate(BaseException):
    """Raised after the first optimizer step."""


def record_train(folder: Path) -> tuple[Recorder, Counter[str]]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    pairs, opened = write_pairs(folder), Counter[str]()
    cleaned = folder / "model" / "training" / "data" / "cleaned.tsv"

    def count_opens(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, Path)):
            path, mode = str(arguments[0]), arguments[1] or ""
            if recorder.active and path in (str(pairs), str(cleaned)) and not set(mode) & set("wax+"):
                opened[Path(path).name] += 1

    def stop(*_: object) -> None:
        recorder.active = False
        raise FirstUpdate

    with record() as recorder, suppress(FirstUpdate):
        sys.addaudithook(count_opens)
        register_optimizer_step_post_hook(stop)
        heedful.train(pairs, folder / "model", languages=("en", "fr"), settings=SETTINGS, report=Reporter(quiet=True))
    return recorder, opened


def record_translate(model: Path) -> Recorder:
    from heedful.cli.main import main

    load(model)  # converts the model for CTranslate2, if it is not converted yet
    print("the model is converted for CTranslate2")
    arguments = sys.argv
    sys.argv = ["heedful", "translate", str(model), SENTENCES[0]]
    try:
        with (
            redirect_stdout(io.StringIO()),
            mock.patch("os._exit", sys.exit),  # the command may skip the interpreter's shutdown
            record() as recorder,
            suppress(SystemExit),
        ):
            main()
    finally:
        sys.argv = arguments
    return recorder


def record_request(model: Path, path: str, bodies: list[dict[str, Any]], engine: EngineName = "auto") -> Recorder:
    """The last request; those before it load what is loaded lazily."""
    from starlette.testclient import TestClient

    from heedful.server.app import create_app
    from heedful.server.config import ServerConfig
    from heedful.server.model_registry import load_registry

    config = ServerConfig(workers=1)
    registry = load_registry([str(model)], config, lambda path: load(path, engine=engine, workers=1))
    with record(active=False) as recorder, TestClient(create_app(registry, config)) as client:
        while client.post(path, json=bodies[0]).status_code == 503:  # the server is starting
            time.sleep(0.05)
        for body in bodies:
            recorder.active = body is bodies[-1]
            response = client.post(path, json=body)
            recorder.active = False
            assert response.status_code == 200, response.text
    return recorder


def record_trace(model: Path) -> Recorder:
    """The second trace; the first loads what is loaded lazily."""
    translator = heedful.load(model, device="cpu", engine="pytorch")
    trace = heedful.trace
    assert trace(translator, SENTENCES[0]).manifest
    with record() as recorder:
        assert trace(translator, SENTENCES[1]).manifest
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("path", choices=["train", "translate", "serve", "trace", "trace-request"])
    parser.add_argument("--model", type=Path, help="a trained model, instead of training one")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="serve: the engine, as in heedful serve")
    parser.add_argument("--functions", action="store_true", help="also list the functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened: Counter[str] = Counter()
        if options.path == "train":
            recorder, opened = record_train(folder)
        elif options.path == "translate":
            recorder = record_translate(options.model or train_model(folder))
        elif options.path == "serve":
            recorder = record_request(
                options.model or train_model(folder),
                "/translate",
                [{"q": text, "source": "en", "target": "fr"} for text in SENTENCES],
                options.engine,
            )
        elif options.path == "trace":
            recorder = record_trace(options.model or train_model(folder))
        else:
            recorder = record_request(
                options.model or train_model(folder), "/api/trace", [{"source": text} for text in SENTENCES]
            )
    for module in sorted(recorder.modules):
        print(module)
        if options.functions:
            for function, count in sorted(recorder.functions.items()):
                if function.startswith(f"{module}:"):
                    print(f"    {function.partition(':')[2]} {count}")
    print(f"{len(recorder.modules)} modules")
    if options.path == "train":
        print(f"text opened for reading: {sum(opened.values())} ({dict(opened)})")


if __name__ == "__main__":
    main()
