"""Load test of the server: batching, overload, recovery, SIGTERM. A real process, on loopback.

    python benchmarks/server_load.py [MODEL] [FILE OF SENTENCES] [SECONDS OF OVERLOAD]

Every answer is compared with the offline translation of the same engine. CPU seconds are the server's own,
from /proc: they do not depend on what else the machine does.
"""

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.inference.loading import load

PHASE_SECONDS = 10
CLIENTS = 64
LANGUAGES = {"source": "en", "target": "fr"}
"""Of the model; set from its config."""
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Counts:
    """What came back in a phase."""

    answers: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    slowest_refusal: float = 0.0


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "demo/model"
    sentences = (
        Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
        if len(sys.argv) > 2
        else [pair.source for pair in generate_pairs(1000, seed=12)]
    )
    overload_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    engine = load(model, workers=1)
    languages = engine.model_folder.config.languages or ("en", "de")
    LANGUAGES["source"], LANGUAGES["target"] = languages
    expected = dict(zip(sentences, (item.text for item in engine.translate(sentences)), strict=True))
    # Nothing is remembered, so that every request is work; the queue is short, so that overload comes soon.
    settings = ["--set", "server.cache_entries=0", "--set", "server.max_queue_tokens=4096"]
    server = subprocess.Popen(
        [sys.executable, "-m", "heedful", "serve", f"{model}={'-'.join(languages)}", "--port", "0", *settings],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        port = _port(server)
        while not await _ready(port):
            await asyncio.sleep(0.1)
        print(f"{model}, {engine.name}, port {port}, {len(sentences):,} sentences, each its own request")
        alone = await _phase(server, port, expected, 1, PHASE_SECONDS, "one client")
        many = await _phase(server, port, expected, CLIENTS, PHASE_SECONDS, f"{CLIENTS} clients")
        print(f"  sentences a CPU second: {many / alone:.2f} times those of one client")
        await _phase(server, port, expected, 10 * CLIENTS, overload_seconds, f"{10 * CLIENTS} clients")
        after = await _phase(server, port, expected, CLIENTS, PHASE_SECONDS, f"{CLIENTS} clients again")
        print(f"  after the overload: {after / many:.2f} times as before it")
        await _terminate(server, port, expected)
    finally:
        server.kill()
        server.wait()


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stderr
    for line in server.stderr:
        if result := re.search(r"serving on http://[^:]+:(\d+)", line):
            return int(result[1])
    raise SystemExit("the server did not start")


async def _phase(
    server: subprocess.Popen[str], port: int, expected: dict[str, str], clients: int, seconds: float, title: str
) -> float:
    """So many clients, each asking again as soon as it is answered; returns sentences a CPU second."""
    counts, ends = Counts(), time.monotonic() + seconds
    before, began = _cpu(server.pid), time.monotonic()
    memory = _memory(server.pid)
    todo = list(expected)
    await asyncio.gather(*(_client(port, todo, expected, n, ends, counts) for n in range(clients)))
    cpu, wall = _cpu(server.pid) - before, time.monotonic() - began
    done = counts.answers[200]
    print(
        f"{title:20} {done / wall:8.1f} sentences/s  {done / max(cpu, 0.01):8.1f} a CPU second"
        f"  answers {dict(counts.answers)}  wrong {counts.wrong}"
        f"  slowest refusal {1000 * counts.slowest_refusal:.0f} ms"
        f"  memory {memory} -> {_memory(server.pid)} MB"
    )
    return done / max(cpu, 0.01)


async def _client(
    port: int, todo: list[str], expected: dict[str, str], number: int, ends: float, counts: Counts
) -> None:
    index = number * 7919
    while time.monotonic() < ends:
        index += 1
        text = todo[index % len(todo)]
        began = time.monotonic()
        status, answer = await _request(port, text)
        counts.answers[status] += 1
        if status == 200:
            counts.wrong += answer.get("translatedText") != expected[text]
        else:
            counts.slowest_refusal = max(counts.slowest_refusal, time.monotonic() - began)
            await asyncio.sleep(0.1)  # a client that is refused does not hammer


async def _request(port: int, text: str) -> tuple[int, dict[str, str]]:
    """One request on a connection of its own; 0 if there was no answer."""
    body = json.dumps({"q": text, **LANGUAGES}).encode()
    head = (
        "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        top, _, rest = answer.partition(b"\r\n\r\n")
        return int(top.split()[1]), json.loads(rest)
    except (OSError, ValueError, IndexError):
        return 0, {}


async def _ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return b" 200 " in answer.partition(b"\r\n")[0]


async def _terminate(server: subprocess.Popen[str], port: int, expected: dict[str, str]) -> None:
    """SIGTERM while 32 requests are at work: those that were accepted are answered, and it exits with 0."""
    texts = list(expected)[:32]
    tasks = [asyncio.create_task(_request(port, text)) for text in texts]
    await asyncio.sleep(0.05)
    server.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*tasks)
    right = sum(a.get("translatedText") == expected[t] for t, (s, a) in zip(texts, answers, strict=True) if s == 200)
    status = await asyncio.to_thread(server.wait, 60)
    print(f"SIGTERM in the middle: {Counter(s for s, _ in answers)}, {right} right, exit status {status}")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _memory(pid: int) -> int:
    result = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(result[1]) // 1024 if result else 0


if __name__ == "__main__":
    asyncio.run(main())
