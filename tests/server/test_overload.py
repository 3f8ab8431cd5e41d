"""One minute of tenfold overload of the real server: correct responses, bounded memory, nothing lost."""

import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from itertools import count
from pathlib import Path
from statistics import median

import pytest

import heedful
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.inference.loading import EngineName
from tests.server.server_process import SECONDS, Response, ServeProcess, ask, serve_process

FITTING_CLIENTS = 6
"""Clients whose sentences fill the queue."""
CLIENTS = 10 * FITTING_CLIENTS
WARM_UP_SECONDS = 10.0
OVERLOAD_SECONDS = 60.0
MAX_MEMORY_GROWTH = 1.25
"""Memory at the end over memory after warming up."""
ALL_SENTENCES = [pair.source for pair in generate_pairs(2040)]
SENTENCES, BEFORE, AFTER = ALL_SENTENCES[:2000], ALL_SENTENCES[2000:2020], ALL_SENTENCES[2020:]
"""Sentences of the many clients, and of one client alone before and after them."""


@dataclass(frozen=True)
class Exchange:
    """One request and its response."""

    text: str
    started_at: float
    seconds: float
    response: Response | None
    """None if the connection broke."""

    @property
    def status(self) -> int:
        return self.response.status if self.response else 0


def translate(address: str, text: str) -> Exchange:
    started_at = time.monotonic()
    try:
        response = ask(address, "/translate", {"q": text, "source": "en", "target": "fr"})
    except (OSError, HTTPException):
        response = None
    return Exchange(text, started_at, time.monotonic() - started_at, response)


@contextmanager
def run_clients(address: str) -> Iterator[list[Exchange]]:
    """Run clients that send one sentence after the other without a pause; yields their exchanges."""
    exchanges: list[Exchange] = []
    numbers, stop = count(), threading.Event()

    def client() -> None:
        while not stop.is_set():
            exchanges.append(translate(address, SENTENCES[next(numbers) % len(SENTENCES)]))
            if not exchanges[-1].response:
                stop.wait(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        client_tasks = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            yield exchanges
        finally:
            stop.set()
    for client_task in client_tasks:
        client_task.result()


def read_memory(process: ServeProcess) -> float:
    """Memory of the process, in MiB."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert match
    return int(match[1]) / 1024


def check_exchanges(exchanges: Sequence[Exchange], expected: dict[str, str]) -> None:
    """Each response is the translation of its own sentence, or a 503 with a Retry-After header."""
    for exchange in exchanges:
        assert exchange.response, "the connection broke"
        if exchange.status == 200:
            assert exchange.response.json == {"translatedText": expected[exchange.text]}
        else:
            assert exchange.status == 503
            assert exchange.response.error
            assert 1 <= int(exchange.response.headers["retry-after"]) <= 60


def sort_seconds(exchanges: Sequence[Exchange], status: int) -> list[float]:
    return sorted(exchange.seconds for exchange in exchanges if exchange.status == status)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pytorch", "ctranslate2"])
def test_overload_one_minute_stays_correct(quick_model: Path, name: EngineName) -> None:
    engine = heedful.load(quick_model, engine=name, device="cpu")
    expected = {
        text: translation.text for text, translation in zip(ALL_SENTENCES, engine.translate(ALL_SENTENCES), strict=True)
    }
    tokens = max(len(engine.model_folder.tokenizer.source.encode(text)) + 1 for text in ALL_SENTENCES)
    limits = {
        "max_queue_tokens": FITTING_CLIENTS * tokens,
        "max_batch_tokens": FITTING_CLIENTS * tokens // 2,
        "cache_entries": 50,  # full after warming up, and never hit: all sentences come in turn
    }
    args = [arg for limit in limits for arg in ("--set", f"server.{limit}={limits[limit]}")]
    with serve_process(quick_model, "--engine", name, "--device", "cpu", *args) as process:
        address = process.address
        with run_clients(address) as early:
            time.sleep(WARM_UP_SECONDS)
        before = read_memory(process)
        alone = [translate(address, text) for text in BEFORE]
        with run_clients(address) as exchanges:
            time.sleep(OVERLOAD_SECONDS)
        after = read_memory(process)
        later = [translate(address, text) for text in AFTER]
        with run_clients(address) as last:
            time.sleep(1)
            signal_time = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            status = process.process.wait(SECONDS)
    answered, rejected = sort_seconds(exchanges, 200), sort_seconds(exchanges, 503)
    drained = [
        exchange for exchange in last if exchange.started_at < signal_time <= exchange.started_at + exchange.seconds
    ]
    print(
        f"\n{name}: {len(answered)} answered (median {median(answered):.3f} s), {len(rejected)} rejected "
        f"(median {median(rejected):.3f} s, 99 % within {rejected[len(rejected) * 99 // 100]:.3f} s); memory "
        f"{before:.0f} MiB, then {after:.0f} MiB; alone "
        f"{median(sort_seconds(alone, 200)):.4f} s a request before, {median(sort_seconds(later, 200)):.4f} s after; "
        f"in flight at SIGTERM {len(drained)}, of these 200: {len(sort_seconds(drained, 200))}"
    )
    check_exchanges([*early, *alone, *exchanges, *later], expected)
    assert len(rejected) > len(answered) / 10, "the server was not overloaded"
    assert median(rejected) < median(answered)  # without waiting in the queue
    assert after < MAX_MEMORY_GROWTH * before
    assert len(sort_seconds(later, 200)) == len(later)
    assert median(sort_seconds(later, 200)) < 10 * median(sort_seconds(alone, 200))
    assert status == 0
    assert process.output.endswith("stopped\n")
    assert sort_seconds(drained, 200)
    check_exchanges([exchange for exchange in last if exchange.response or exchange.started_at < signal_time], expected)
