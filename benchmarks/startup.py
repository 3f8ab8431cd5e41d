"""Startup time: each command in a new process, compared with bare imports.

    python benchmarks/startup.py [--model MODEL] [--rounds N]

Without a model a tiny one is trained for a single update: what is measured is the way there, not the model.
The rounds go through all sides, so that a busy minute hits every side; the least of each counts. CPU seconds
are of the process and its threads, the kernel's part included; on a busy machine only they mean anything.
Needs `os.wait4`: Linux or macOS.
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
LONGEST = 120.0
"""Seconds that a server may take."""
TINY = {
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


class Spent(NamedTuple):
    """What a process took."""

    cpu: float
    wall: float
    megabytes: float
    """Of memory, at most; the kernel counts from this script's own."""


def spent(words: Sequence[str], until: Callable[[], None] | None = None) -> Spent:
    """Run a command to its end, or until something has happened, and end it then."""
    started = time.perf_counter()
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if until is not None:
        until()
        wall = time.perf_counter() - started
        process.terminate()
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if until is None:
        wall = time.perf_counter() - started
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} failed:\n{said.decode()}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return Spent(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * unit / 1e6)


def time_server(model: Path) -> Spent:
    """A server until its first translation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    source, target = config["languages"] or ("en", "fr")
    body = json.dumps({"q": SENTENCE, "source": source, "target": target}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"})

    def wait_for_answer() -> None:
        ends = time.monotonic() + LONGEST
        while True:
            try:
                with urllib.request.urlopen(request, timeout=LONGEST):
                    return
            except OSError:  # nobody listens yet
                if time.monotonic() > ends:
                    raise
                time.sleep(0.02)

    return spent([*HEEDFUL, "serve", f"{model}={source}:{target}", "--port", str(port), "--quiet"], wait_for_answer)


def time_training(pairs: Path, folder: Path) -> Spent:
    """A training of one update, into a new folder."""
    told = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    fresh = folder / str(time.monotonic_ns())
    return spent([*HEEDFUL, "train", str(pairs), "-o", str(fresh), "--languages", "en-fr", "--quiet", *told])


def sides(given: Path | None, folder: Path) -> dict[str, Callable[[], Spent]]:
    """All that is measured, by name: first the yardsticks."""
    pairs = folder / "pairs.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(600)], pairs)
    model = given
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
    found = {name: lambda words=words: spent(words) for name, words in commands.items()}
    found["train, one update"] = lambda: time_training(pairs, folder / "trained")
    if find_spec("uvicorn"):
        found["serve, first answer"] = lambda: time_server(model)
    found["translate"]()  # once before: a model is converted for CTranslate2 at its first use
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a model folder, such as demo/model")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best: dict[str, Spent] = {}
    with tempfile.TemporaryDirectory() as folder:
        measured = sides(options.model, Path(folder))
        for _ in range(options.rounds):
            for name, run in measured.items():
                new = run()
                best[name] = Spent(*map(min, new, best.get(name, new)))
    print(f"{options.model or 'a tiny model'}; the least of {options.rounds} rounds")
    for name, (cpu, wall, megabytes) in best.items():
        times = cpu / best["import torch"].cpu
        figures = f"CPU {cpu:5.2f} s  wall {wall:5.2f} s  {megabytes:4.0f} MB"
        print(f"  {name:28} {figures}  {times:5.2f} times import torch")


if __name__ == "__main__":
    main()
