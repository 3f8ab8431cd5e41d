"""Load test of the server: batching, overload, recovery, SIGTERM. A real process, on loopback.

    python benchmarks/server_load.py [MODEL] [FILE OF SENTENCES] [SECONDS OF OVERLOAD]

Every response is compared with the offline translation of the same engine. CPU seconds are those of the server,
from /proc: they do not depend on other load.
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
    """Responses of a phase."""

    responses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    slowest_rejection: float = 0.0


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
    # No cache, so that every request is translated; a short queue, so that overload starts early.
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
        print(f"{model}, {engine.name}, port {port}, {len(sentences):,} sentences, one per request")
        alone = await _phase(server, port, expected, 1, PHASE_SECONDS, "one client")
        many = await _phase(server, port, expected, CLIENTS, PHASE_SECONDS, f"{CLIENTS} clients")
        print(f"  sentences per CPU second: {many / alone:.2f} times those of one client")
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
    """Run clients that send one request after the other; returns sentences per CPU second."""
    counts, deadline = Counts(), time.monotonic() + seconds
    before, start_time = _cpu(server.pid), time.monotonic()
    memory = _memory(server.pid)
    todo = list(expected)
    await asyncio.gather(*(_client(port, todo, expected, n, deadline, counts) for n in range(clients)))
    cpu, wall = _cpu(server.pid) - before, time.monotonic() - start_time
    translated = counts.responses[200]
    print(
        f"{title:20} {translated / wall:8.1f} sentences/s  {translated / max(cpu, 0.01):8.1f} per CPU second"
        f"  responses {dict(counts.responses)}  wrong {counts.wrong}"
        f"  slowest rejection {1000 * counts.slowest_rejection:.0f} ms"
        f"  memory {memory} -> {_memory(server.pid)} MB"
    )
    return translated / max(cpu, 0.01)


async def _client(
    port: int, todo: list[str], expected: dict[str, str], number: int, deadline: float, counts: Counts
) -> None:
    index = number * 7919
    while time.monotonic() < deadline:
        index += 1
        text = todo[index % len(todo)]
        start_time = time.monotonic()
        status, response = await _request(port, text)
        counts.responses[status] += 1
        if status == 200:
            counts.wrong += response.get("translatedText") != expected[text]
        else:
            counts.slowest_rejection = max(counts.slowest_rejection, time.monotonic() - start_time)
            await asyncio.sleep(0.1)  # a rejected client waits


async def _request(port: int, text: str) -> tuple[int, dict[str, str]]:
    """Send one request on a new connection; status 0 without a response."""
    body = json.dumps({"q": text, **LANGUAGES}).encode()
    head = (
        "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        response = await reader.read()
        writer.close()
        top, _, rest = response.partition(b"\r\n\r\n")
        return int(top.split()[1]), json.loads(rest)
    except (OSError, ValueError, IndexError):
        return 0, {}


async def _ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    response = await reader.read()
    writer.close()
    return b" 200 " in response.partition(b"\r\n")[0]


async def _terminate(server: subprocess.Popen[str], port: int, expected: dict[str, str]) -> None:
    """SIGTERM during 32 requests: accepted ones are completed, and the exit status is 0."""
    texts = list(expected)[:32]
    tasks = [asyncio.create_task(_request(port, text)) for text in texts]
    await asyncio.sleep(0.05)
    server.send_signal(signal.SIGTERM)
    responses = await asyncio.gather(*tasks)
    correct = sum(
        a.get("translatedText") == expected[t] for t, (s, a) in zip(texts, responses, strict=True) if s == 200
    )
    status = await asyncio.to_thread(server.wait, 60)
    print(f"SIGTERM during requests: {Counter(s for s, _ in responses)}, {correct} correct, exit status {status}")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _memory(pid: int) -> int:
    result = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(result[1]) // 1024 if result else 0


if __name__ == "__main__":
    asyncio.run(main())
