"""Soak test: memory of a server under valid and invalid requests, and of a training run that validates and saves often.

    python benchmarks/soak.py [server|training|both] [MINUTES]

Real processes on loopback, with a model of the demo grammar that is trained first. Every answer is checked.
The resident memory is sampled, printed, and judged by its slope after a warm-up; each part ends by itself.
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
"""Seconds between a client's requests: a load, and no overload."""
SAMPLES = 200
"""Of memory, over the whole time."""
SHOWN = 12
WARM_UP = 0.6
"""Share of the time after which memory should be steady: caches fill, allocators keep what they once had."""
REMEMBERED = 300
"""Translations that the server keeps: few, so that this is soon full and whatever else grows is seen."""
GROWTH = 0.02
"""Share of its memory, and ..."""
MEGABYTES = 4.0
"""... so much, that a process may grow by from then on before it is called a leak."""
SMALL = {
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
        """Look at it now."""
        self.samples.append((time.monotonic(), sum(map(resident, [self.process, *children(self.process)]))))

    def judged(self, title: str) -> bool:
        """Print the course and the verdict; whether it is steady."""
        started_at = self.samples[0][0]
        for when, size in self.samples[:: max(1, len(self.samples) // SHOWN)]:
            print(f"  {title} {when - started_at:6.0f} s {size:8.1f} MB")
        last = self.samples[-1][0]
        steady = [(when, size) for when, size in self.samples if when - started_at >= WARM_UP * (last - started_at)]
        slope, mean = _slope(steady), sum(size for _, size in steady) / len(steady)
        grown = slope * (steady[-1][0] - steady[0][0])
        fine = grown <= max(MEGABYTES, GROWTH * mean)
        verdict = "steady" if fine else "IT GROWS"
        print(
            f"{title}: {mean:.1f} MB on average after the warm-up, {3600 * slope:+.1f} MB an hour "
            f"({grown:+.2f} MB in {steady[-1][0] - steady[0][0]:.0f} s): {verdict}"
        )
        return fine


def _slope(samples: list[tuple[float, float]]) -> float:
    """Megabytes a second, by least squares."""
    count = len(samples)
    middle, mean = (sum(item[axis] for item in samples) / count for axis in (0, 1))
    spread = sum((when - middle) ** 2 for when, _ in samples)
    return sum((when - middle) * (size - mean) for when, size in samples) / max(spread, 1e-9)


def resident(process: int) -> float:
    """Megabytes; 0 of one that has ended."""
    try:
        result = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0.0
    return int(result[1]) / 1024 if result else 0.0


def children(process: int) -> list[int]:
    """Processes that it has started."""
    try:
        return [int(item) for item in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def run_command(*words: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """A command of ours as a process, which is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, words)],
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
    """Asks a server, and counts what comes back."""

    port: int
    expected: dict[str, str]
    ends: float
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def work(self, seed: int) -> None:
        """One request after the other, until the time is over."""
        choose = random.Random(seed)
        while time.monotonic() < self.ends:
            await choose.choice(self.questions())(choose)
            await asyncio.sleep(PAUSE)

    def questions(self) -> list[Callable[[random.Random], Awaitable[None]]]:
        """What is asked, the usual more often."""
        return [*[self.translate] * 6, self.rich, self.wrong_body, self.noise, self.file, self.look, self.leave]

    def count(self, kind: str, status: int, right: bool) -> None:
        """An answer, and whether it is as it should be."""
        self.answers[f"{kind} {status}"] += 1
        if not right:
            self.wrong.append(f"{kind}: {status}")

    async def translate(self, choose: random.Random) -> None:
        """A sentence, whose translation is known."""
        text = choose.choice(list(self.expected))
        status, body = await self.post("/translate", {"q": text, "source": "en", "target": "fr"})
        self.count("translation", status, status == 200 and _json(body).get("translatedText") == self.expected[text])

    async def rich(self, choose: random.Random) -> None:
        """A longer text that never comes again, with all that can be asked about it."""
        text = " ".join(choose.sample(list(self.expected), 4)) + f" {choose.random()}"
        wishes = {"n_best": 3, "alignments": True, "tokens": True, "stream": False}
        status, body = await self.post("/api/translate", {"text": text, "source": "en", "target": "fr", **wishes})
        self.count("details", status, status == 200 and bool(_json(body)))

    async def wrong_body(self, choose: random.Random) -> None:
        """A body that no route can use."""
        path = choose.choice(["/translate", "/v2/translate", "/api/translate", "/api/trace", "/detect"])
        body = choose.choice([b"{", b"null", b'{"q": 5}', b"[" * 3000, b"\xff\xfe", b'{"\\ud800": 1}', b"{}"])
        status, answer = await self.send("POST", path, body)
        self.count("wrong", status, status == 400 and bool(_json(answer).get("error")))

    async def noise(self, choose: random.Random) -> None:
        """What is no HTTP, or asks for nothing that there is."""
        path = f"/{choose.getrandbits(64):x}?a={'b' * choose.randrange(2000)}"
        status, answer = await self.send("GET", path)
        self.count("nowhere", status, status == 404 and bool(_json(answer).get("error")))

    async def file(self, choose: random.Random) -> None:
        """A file is translated and fetched."""
        text = "\n".join(choose.sample(list(self.expected), 3))
        parts = {"source": "en", "target": "fr"}
        body = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in parts.items())
        head = 'Content-Disposition: form-data; name="file"; filename="a.txt"'
        body += f"--x\r\n{head}\r\n\r\n{text}\r\n--x--\r\n"
        kind = "multipart/form-data; boundary=x"
        status, answer = await self.send("POST", "/translate_file", body.encode(), kind)
        self.count("file", status, status == 200)
        if status == 200:
            path = "/" + _json(answer)["translatedFileUrl"].split("/", 3)[3]
            status, _ = await self.send("GET", path)
            self.count("download", status, status == 200)

    async def look(self, choose: random.Random) -> None:
        """A look inside: a trace, its tensors and the arithmetic of a cell."""
        text = choose.choice(list(self.expected)) + f" {choose.randrange(10**6)}"
        status, body = await self.post("/api/trace", {"source": text})
        self.count("trace", status, status == 200)
        if status == 200:
            base = f"/api/trace/{_json(body)['id']}"
            for path in ("tensors?names=lens.ids", "cell?kind=cross&layer=0&head=1&row=0"):
                status, _ = await self.send("GET", f"{base}/{path}")
                self.count("inside", status, status == 200)

    async def leave(self, choose: random.Random) -> None:
        """Somebody hangs up before the answer."""
        body = json.dumps({"q": " ".join(self.expected) + str(choose.random()), "source": "en", "target": "fr"})
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(_request("POST", "/translate", body.encode(), "application/json"))
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        self.answers["left"] += 1

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """JSON."""
        return await self.send("POST", path, json.dumps(body).encode())

    async def send(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """One request on a connection of its own; 0 if there was no answer."""
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
    """Whether every answer was right and memory is steady."""
    sentences = [pair.source for pair in generate_pairs(200, seed=12)]
    engine = heedful.load(folder, device="cpu")
    expected = dict(zip(sentences, (item.text for item in engine.translate(sentences)), strict=True))
    words = ["--port", "0", "--device", "cpu", "--set", f"server.cache_entries={REMEMBERED}"]
    with run_command("serve", f"{folder}=en-fr", *words) as server:
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
        said = await draining
    print(f"  {sum(client.answers.values()):,} requests: {dict(sorted(client.answers.items()))}")
    print(f"  wrong answers: {len(client.wrong)} {client.wrong[:5]}; exit status {status}")
    if "Traceback" in said:
        print(said[-3000:])
    return memory.judged("server") and not client.wrong and status == 0 and "Traceback" not in said


def _port(server: "subprocess.Popen[str]") -> int:
    assert server.stderr
    for line in server.stderr:
        if result := re.search(r"serving on http://[^:]+:(\d+)", line):
            return int(result[1])
    raise SystemExit("the server did not start")


async def _ready(client: Client) -> None:
    """The model is loaded."""
    while (await client.send("GET", "/ready"))[0] != 200:
        await asyncio.sleep(0.2)


async def _watch(memory: Memory, seconds: float) -> None:
    while time.monotonic() < memory.ends:
        memory.sample()
        await asyncio.sleep(seconds)


# ---- the training


def soak_training(pairs: Path, folder: Path, minutes: float) -> bool:
    """Whether it trained to its end and memory is steady."""
    often = {"validate_every": 25, "save_minutes": 0.05, "snapshots": 50, "keep": 2, "bleu_sentences": 10}
    told = {**SMALL["training"], **often, "max_updates": 0, "max_epochs": 100_000, "patience": 0}  # type: ignore[dict-item]
    settings = {**SMALL, "training": told}
    words = [
        f"{section}.{name}={value}" if name else f"{section}={value}"
        for section, values in settings.items()
        for name, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    options = [part for word in words for part in ("--set", word)]
    print(f"training: validation every 25 updates, checkpoints every 3 seconds, {minutes:g} minutes")
    with run_command(
        "train", pairs, "-o", folder, "--languages", "en-fr", "--time", f"{round(60 * minutes)}s", "--quiet", *options
    ) as process:
        memory = Memory(process.pid, time.monotonic() + 60 * minutes + 120)
        while process.poll() is None and time.monotonic() < memory.ends:
            if (folder / "training" / "metrics.jsonl").exists():  # it has begun to learn
                memory.sample()
            time.sleep(60 * minutes / SAMPLES)
        status = process.poll()
        said = process.stderr.read() if process.stderr and status is not None else ""
    lines = (folder / "training" / "metrics.jsonl").read_text().splitlines() if status == 0 else []
    validations = sum("validation_loss" in line for line in lines)
    updates = json.loads(lines[-1])["update"] if lines else 0
    print(f"  {updates:,} updates, {validations:,} validations; exit status {status} {said[-500:]}")
    memory.samples = memory.samples[:-3]  # while it ends, it writes the model
    return memory.judged("training") and status == 0


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else "both"
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    fine = []
    with tempfile.TemporaryDirectory() as directory:
        pairs, folder = Path(directory) / "pairs.tsv", Path(directory) / "model"
        write_tsv([(pair.source, pair.target) for pair in generate_pairs(3000)], pairs)
        if what != "training":
            heedful.train(pairs, folder, languages=("en", "fr"), settings=SMALL, report=Reporter(quiet=True))
            fine.append(asyncio.run(soak_server(folder, minutes)))
        if what != "server":
            fine.append(soak_training(pairs, Path(directory) / "long", minutes))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
