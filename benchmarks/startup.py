"""Startup time: each command in a new process, compared with bare imports.

    python benchmarks/startup.py [--model MODEL] [--rounds N]

Without a model, a tiny one is trained for one update: startup is measured, not the model. Every round runs all
commands, so that other load affects all; the minimum of each counts. CPU seconds are those of the process and its
threads, in user and kernel mode; on a busy machine only they are meaningful. Needs `os.wait4`: Linux or macOS.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv

HEEDFUL = [sys.executable, "-m", "heedful"]
SENTENCE = "The animal was tired."
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
MAX_SECONDS = 120.0
"""Maximum seconds until a server responds."""
TINY_SETTINGS = {
    "preset": "demo",
    "tokenizer.vocab_size": 900,
    "model.d_model": 16,
    "model.heads": 2,
    "model.d_ff": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "training.max_updates": 1,
    "training.validate_every": 1,
    "training.bleu_sentences": 1,
    "training.validation_size": 20,
    "training.average_checkpoints": 1,
    "training.threads": 1,
}


class Usage(NamedTuple):
    """Resources that a process used."""

    cpu: float
    wall: float
    megabytes: float
    """Peak memory; the kernel counts from that of this script."""


def measure_process(command: Sequence[str], until: Callable[[], None] | None = None) -> Usage:
    """Run a command to its end, or terminate it after ``until`` returns."""
    start_time = time.perf_counter()
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if until is not None:
        until()
        wall = time.perf_counter() - start_time
        process.terminate()
    assert process.stderr is not None
    error_output = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if until is None:
        wall = time.perf_counter() - start_time
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{error_output.decode()}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
    return Usage(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * unit / 1e6)


def time_server(model: Path) -> Usage:
    """Time a server until its first translation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    source, target = config["languages"] or ("en", "fr")
    body = json.dumps({"q": SENTENCE, "source": source, "target": target}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"})

    def wait_for_response() -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=MAX_SECONDS):
                    return
            except OSError:  # not listening yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    return measure_process(
        [*HEEDFUL, "serve", f"{model}={source}:{target}", "--port", str(port), "--quiet"], wait_for_response
    )


def time_training(pairs: Path, folder: Path) -> Usage:
    """Time a training of one update in a new folder."""
    options = [arg for name, value in TINY_SETTINGS.items() for arg in ("--set", f"{name}={value}")]
    fresh = folder / str(time.monotonic_ns())
    return measure_process(
        [*HEEDFUL, "train", str(pairs), "-o", str(fresh), "--languages", "en-fr", "--quiet", *options]
    )


def new_measurements(model_path: Path | None, folder: Path) -> dict[str, Callable[[], Usage]]:
    """All measurements by name, first the references."""
    pairs = folder / "pairs.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(600)], pairs)
    model = model_path
    if model is None:
        time_training(pairs, folder / "models")
        model = next((folder / "models").iterdir())
    translate = [*HEEDFUL, "translate", str(model), SENTENCE, "--quiet"]
    imports = {
        "python -c pass": "pass",
        "import torch": "import torch",
        "import ctranslate2": "import ctranslate2",
        "import MarianMTModel": "from transformers import MarianMTModel",
        "import heedful": "import heedful",
    }
    needed = {"import ctranslate2": "ctranslate2", "import MarianMTModel": "transformers"}
    commands = {
        name: [sys.executable, "-c", code]
        for name, code in imports.items()
        if name not in needed or find_spec(needed[name])
    }
    commands |= {
        "heedful --help": [*HEEDFUL, "--help"],
        "translate": translate,
        "translate --engine pytorch": [*translate, "--engine", "pytorch"],
    }
    measurements = {name: lambda command=command: measure_process(command) for name, command in commands.items()}
    measurements["train, one update"] = lambda: time_training(pairs, folder / "trained")
    if find_spec("uvicorn"):
        measurements["serve, first response"] = lambda: time_server(model)
    measurements["translate"]()  # the first use converts the model for CTranslate2
    return measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model folder, such as demo/model")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best: dict[str, Usage] = {}
    with tempfile.TemporaryDirectory() as folder:
        measurements = new_measurements(options.model, Path(folder))
        for _ in range(options.rounds):
            for name, run in measurements.items():
                new = run()
                best[name] = Usage(*map(min, new, best.get(name, new)))
    print(f"{options.model or 'a tiny model'}; minimum of {options.rounds} rounds")
    for name, (cpu, wall, megabytes) in best.items():
        times = cpu / best["import torch"].cpu
        figures = f"CPU {cpu:5.2f} s  wall {wall:5.2f} s  {megabytes:4.0f} MB"
        print(f"  {name:28} {figures}  {times:5.2f} times import torch")


if __name__ == "__main__":
    main()
