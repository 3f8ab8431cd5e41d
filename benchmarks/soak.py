"""Soak test: memory of a server under valid and invalid requests, and of a training run that validates and saves often.

    python benchmarks/soak.py [server|training|both] [MINUTES]

Real processes on loopback, with a model of the demo grammar that is trained first. Every response is checked.
Resident memory is sampled and printed; its slope after a warm-up must be small.
"""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import heedful
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.progress import Reporter

CLIENTS = 6
PAUSE = 0.01
"""Seconds between the requests of a client: load without overload."""
SAMPLES = 200
"""Samples of memory."""
PRINTED_SAMPLES = 12
WARM_UP_FRACTION = 0.6
"""Fraction of the time after which memory should be stable: caches fill, allocators keep freed memory."""
CACHE_ENTRIES = 300
"""Cached translations of the server: few, so that the cache is full early and other growth shows."""
MAX_GROWTH_FRACTION = 0.02
"""Maximum growth after the warm-up, as a fraction of the memory, ..."""
MAX_GROWTH_MEGABYTES = 4.0
"""... and in MB; more than both is a leak."""
SMALL_SETTINGS = {
    "preset": "demo",
    "tokenizer": {"vocab_size": 900},
    "model": {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1},
    "training": {"max_updates": 60, "validate_every": 30, "bleu_sentences": 4, "validation_size": 20, "threads": 1},
}


@dataclass
class Memory:
    """Megabytes of a process and its children over time."""

    process: int
    ends: float
    samples: list[tuple[float, float]] = field(default_factory=list)

    def sample(self) -> None:
        """Measure now."""
        self.samples.append((time.monotonic(), sum(map(resident, [self.process, *children(self.process)]))))

    def is_stable(self, title: str) -> bool:
        """Print the samples and the result; returns whether memory is stable."""
        started_at = self.samples[0][0]
        for when, size in self.samples[:: max(1, len(self.samples) // PRINTED_SAMPLES)]:
            print(f"  {title} {when - started_at:6.0f} s {size:8.1f} MB")
        last = self.samples[-1][0]
        stable_samples = [
            (when, size) for when, size in self.samples if when - started_at >= WARM_UP_FRACTION * (last - started_at)
        ]
        slope, mean = _slope(stable_samples), sum(size for _, size in stable_samples) / len(stable_samples)
        growth = slope * (stable_samples[-1][0] - stable_samples[0][0])
        fine = growth <= max(MAX_GROWTH_MEGABYTES, MAX_GROWTH_FRACTION * mean)
        verdict = "stable" if fine else "GROWING"
        print(
            f"{title}: {mean:.1f} MB on average after the warm-up, {3600 * slope:+.1f} MB per hour "
            f"({growth:+.2f} MB in {stable_samples[-1][0] - stable_samples[0][0]:.0f} s): {verdict}"
        )
        return fine


def _slope(samples: list[tuple[float, float]]) -> float:
    """Megabytes a second, by least squares."""
    count = len(samples)
    middle, mean = (sum(item[axis] for item in samples) / count for axis in (0, 1))
    spread = sum((when - middle) ** 2 for when, _ in samples)
    return sum((when - middle) * (size - mean) for when, size in samples) / max(spread, 1e-9)


def resident(process: int) -> float:
    """Resident memory in MB; 0 if the process has exited."""
    try:
        result = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(result[1]) / 1024 if result else 0.0


def children(process: int) -> list[int]:
    """The process ids of its children."""
    try:
        return [int(item) for item in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def run_command(*args: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a command in a process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, args)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


# ---- the server


@dataclass
class Client:
    """Sends requests, and counts and checks the responses."""

    port: int
    expected: dict[str, str]
    ends: float
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def work(self, seed: int) -> None:
        """Send one request after the other until the deadline."""
        rng = random.Random(seed)
        while time.monotonic() < self.ends:
            await rng.choice(self.request_kinds())(rng)
            await asyncio.sleep(PAUSE)

    def request_kinds(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        """The kinds of requests, translations more often."""
        return [
            *[self.translate] * 6,
            self.translate_with_details,
            self.invalid_body,
            self.unknown_path,
            self.translate_file,
            self.inspect,
            self.disconnect,
        ]

    def count(self, kind: str, status: int, right: bool) -> None:
        """Count a response, and whether it is correct."""
        self.answers[f"{kind} {status}"] += 1
        if not right:
            self.wrong.append(f"{kind}: {status}")

    async def translate(self, rng: random.Random) -> None:
        """A sentence with a known translation."""
        text = rng.choice(list(self.expected))
        status, body = await self.post("/translate", {"q": text, "source": "en", "target": "fr"})
        self.count("translation", status, status == 200 and _json(body).get("translatedText") == self.expected[text])

    async def translate_with_details(self, rng: random.Random) -> None:
        """A unique longer text, with all details."""
        text = " ".join(rng.sample(list(self.expected), 4)) + f" {rng.random()}"
        details = {"n_best": 3, "alignments": True, "tokens": True, "stream": False}
        status, body = await self.post("/api/translate", {"text": text, "source": "en", "target": "fr", **details})
        self.count("details", status, status == 200 and bool(_json(body)))

    async def invalid_body(self, rng: random.Random) -> None:
        """An invalid body."""
        path = rng.choice(["/translate", "/v2/translate", "/api/translate", "/api/trace", "/detect"])
        body = rng.choice([b"{", b"null", b'{"q": 5}', b"[" * 3000, b"\xff\xfe", b'{"\\ud800": 1}', b"{}"])
        status, answer = await self.send("POST", path, body)
        self.count("wrong", status, status == 400 and bool(_json(answer).get("error")))

    async def unknown_path(self, rng: random.Random) -> None:
        """A path that does not exist."""
        path = f"/{rng.getrandbits(64):x}?a={'b' * rng.randrange(2000)}"
        status, answer = await self.send("GET", path)
        self.count("unknown path", status, status == 404 and bool(_json(answer).get("error")))

    async def translate_file(self, rng: random.Random) -> None:
        """Translate and download a file."""
        text = "\n".join(rng.sample(list(self.expected), 3))
        fields = {"source": "en", "target": "fr"}
        body = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
        disposition = 'Content-Disposition: form-data; name="file"; filename="a.txt"'
        body += f"--x\r\n{disposition}\r\n\r\n{text}\r\n--x--\r\n"
        kind = "multipart/form-data; boundary=x"
        status, response = await self.send("POST", "/translate_file", body.encode(), kind)
        self.count("file", status, status == 200)
        if status == 200:
            path = "/" + _json(response)["translatedFileUrl"].split("/", 3)[3]
            status, _ = await self.send("GET", path)
            self.count("download", status, status == 200)

    async def inspect(self, rng: random.Random) -> None:
        """A trace, its tensors and the arithmetic of a cell."""
        text = rng.choice(list(self.expected)) + f" {rng.randrange(10**6)}"
        status, body = await self.post("/api/trace", {"source": text})
        self.count("trace", status, status == 200)
        if status == 200:
            base = f"/api/trace/{_json(body)['id']}"
            for path in ("tensors?names=lens.ids", "cell?kind=cross&layer=0&head=1&row=0"):
                status, _ = await self.send("GET", f"{base}/{path}")
                self.count("trace details", status, status == 200)

    async def disconnect(self, rng: random.Random) -> None:
        """Disconnect before the response."""
        body = json.dumps({"q": " ".join(self.expected) + str(rng.random()), "source": "en", "target": "fr"})
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_request("POST", "/translate", body.encode(), "application/json"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        self.answers["disconnected"] += 1

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Send JSON."""
        return await self.send("POST", path, json.dumps(body).encode())

    async def send(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """Send one request on a new connection; status 0 without a response."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(_request(method, path, body, kind))
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
        except (OSError, TimeoutError):
            return 0, b""
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, rest


def _request(method: str, path: str, body: bytes, kind: str) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _json(body: bytes) -> dict[str, Any]:
    try:
        result = json.loads(body)
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {"list": result}


async def soak_server(folder: Path, minutes: float) -> bool:
    """Whether every response was correct and memory is stable."""
    sentences = [pair.source for pair in generate_pairs(200, seed=12)]
    engine = heedful.load(folder, device="cpu")
    expected = dict(zip(sentences, (item.text for item in engine.translate(sentences)), strict=True))
    args = ["--port", "0", "--device", "cpu", "--set", f"server.cache_entries={CACHE_ENTRIES}"]
    with run_command("serve", f"{folder}=en-fr", *args) as server:
        port = await asyncio.to_thread(_port, server)
        await _ready(Client(port, {}, 0.0))
        ends = time.monotonic() + 60 * minutes
        client, memory = Client(port, expected, ends), Memory(server.pid, ends)
        print(f"server: {engine.name}, {CLIENTS} clients, {minutes:g} minutes")
        watching = asyncio.create_task(_watch(memory, 60 * minutes / SAMPLES))
        draining = asyncio.create_task(asyncio.to_thread(server.stderr.read))  # type: ignore[union-attr]
        await asyncio.gather(*(client.work(seed) for seed in range(CLIENTS)))
        await watching
        server.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.wait, 60)
        output = await draining
    print(f"  {sum(client.answers.values()):,} requests: {dict(sorted(client.answers.items()))}")
    print(f"  wrong responses: {len(client.wrong)} {client.wrong[:5]}; exit status {status}")
    if "Traceback" in output:
        print(output[-3000:])
    return memory.is_stable("server") and not client.wrong and status == 0 and "Traceback" not in output


def _port(server: "subprocess.Popen[str]") -> int:
    assert server.stderr
    for line in server.stderr:
        if result := re.search(r"serving on http://[^:]+:(\d+)", line):
            return int(result[1])
    raise SystemExit("the server did not start")


async def _ready(client: Client) -> None:
    """Wait until the model is loaded."""
    while (await client.send("GET", "/ready"))[0] != 200:
        await asyncio.sleep(0.2)


async def _watch(memory: Memory, seconds: float) -> None:
    while time.monotonic() < memory.ends:
        memory.sample()
        await asyncio.sleep(seconds)


# ---- the training


def soak_training(pairs: Path, folder: Path, minutes: float) -> bool:
    """Whether training finished and memory is stable."""
    frequent_events = {
        "validate_every": 25,
        "checkpoint_minutes": 0.05,
        "snapshots": 50,
        "keep_last": 2,
        "bleu_sentences": 10,
    }
    training_settings = {
        **SMALL_SETTINGS["training"],
        **frequent_events,
        "max_updates": 0,
        "max_epochs": 100_000,
        "patience": 0,
    }  # type: ignore[dict-item]
    settings = {**SMALL_SETTINGS, "training": training_settings}
    assignments = [
        f"{section}.{name}={value}" if name else f"{section}={value}"
        for section, values in settings.items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    options = [arg for assignment in assignments for arg in ("--set", assignment)]
    print(f"training: validation every 25 updates, checkpoints every 3 seconds, {minutes:g} minutes")
    with run_command(
        "train", pairs, "-o", folder, "--languages", "en-fr", "--time", f"{round(60 * minutes)}s", "--quiet", *options
    ) as process:
        memory = Memory(process.pid, time.monotonic() + 60 * minutes + 120)
        while process.poll() is None and time.monotonic() < memory.ends:
            if (folder / "training" / "metrics.jsonl").exists():  # training has started
                memory.sample()
            time.sleep(60 * minutes / SAMPLES)
        status = process.poll()
        output = process.stderr.read() if process.stderr and status is not None else ""
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines() if status == 0 else []
    validations = sum("validation_loss" in line for line in lines)
    updates = json.loads(lines[-1])["update"] if lines else 0
    print(f"  {updates:,} updates, {validations:,} validations; exit status {status} {output[-500:]}")
    memory.samples = memory.samples[:-3]  # the model is written at the end
    return memory.is_stable("training") and status == 0


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else "both"
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    fine = []
    with tempfile.TemporaryDirectory() as directory:
        pairs, folder = Path(directory) / "pairs.tsv", Path(directory) / "model"
        write_tsv([(pair.source, pair.target) for pair in generate_pairs(3000)], pairs)
        if what != "training":
            heedful.train(pairs, folder, languages=("en", "fr"), settings=SMALL_SETTINGS, report=Reporter(quiet=True))
            fine.append(asyncio.run(soak_server(folder, minutes)))
        if what != "server":
            fine.append(soak_training(pairs, Path(directory) / "long", minutes))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
