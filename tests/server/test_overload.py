"""One minute of tenfold overload of the real command: correct responses, flat memory, nothing lost."""

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
from tests.server.server_process import Answer, ServeProcess, ask, serve_process

FITTING = 6
"""Clients whose sentences fill the queue."""
CLIENTS = 10 * FITTING
WARM_UP = 10.0
OVERLOAD = 60.0
GROWTH = 1.25
"""Memory at the end over memory after warming up."""
QUICK = 1.0
"""Seconds in which half of the refusals must have come; the clients keep the machine busy too."""
ALL = [pair.source for pair in generate_pairs(2040)]
SENTENCES, BEFORE, AFTER = ALL[:2000], ALL[2000:2020], ALL[2020:]
"""Of the crowd, and of one client that is alone before it and after it."""


@dataclass(frozen=True)
class Seen:
    """What a client has seen of one request."""

    text: str
    started_at: float
    seconds: float
    answer: Answer | None
    """None if the connection broke."""

    @property
    def status(self) -> int:
        return self.answer.status if self.answer else 0


def translate(address: str, text: str) -> Seen:
    started_at = time.monotonic()
    try:
        answer = ask(address, "/translate", {"q": text, "source": "en", "target": "fr"})
    except (OSError, HTTPException):
        answer = None
    return Seen(text, started_at, time.monotonic() - started_at, answer)


@contextmanager
def crowd(address: str) -> Iterator[list[Seen]]:
    """Clients that ask for one sentence after the other without a pause; what they have seen."""
    seen: list[Seen] = []
    numbers, stop = count(), threading.Event()

    def client() -> None:
        while not stop.is_set():
            seen.append(translate(address, SENTENCES[next(numbers) % len(SENTENCES)]))
            if not seen[-1].answer:
                stop.wait(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            yield seen
        finally:
            stop.set()
    for item in clients:
        item.result()


def resident(process: ServeProcess) -> float:
    """Memory of the process, in MiB."""
    outcome = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert outcome
    return int(outcome[1]) / 1024


def check(seen: Sequence[Seen], expected: dict[str, str]) -> None:
    """Each answer is the translation of its own sentence, or a refusal that says when to come again."""
    for item in seen:
        assert item.answer, "the connection broke"
        if item.status == 200:
            assert item.answer.json == {"translatedText": expected[item.text]}
        else:
            assert item.status == 503
            assert item.answer.error
            assert 1 <= int(item.answer.headers["retry-after"]) <= 60


def seconds(seen: Sequence[Seen], status: int) -> list[float]:
    return sorted(item.seconds for item in seen if item.status == status)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("name", ["pytorch", "ctranslate2"])
def test_overload_one_minute_stays_correct(quick_model: Path, name: EngineName) -> None:
    if name != "pytorch":
        pytest.importorskip(name)
    engine = heedful.load(quick_model, engine=name, device="cpu")
    expected = {text: outcome.text for text, outcome in zip(ALL, engine.translate(ALL), strict=True)}
    tokens = max(len(engine.model_folder.tokenizer.source.encode(text)) + 1 for text in ALL)
    limits = {
        "max_queue_tokens": FITTING * tokens,
        "max_batch_tokens": FITTING * tokens // 2,
        "cache_entries": 50,  # full after warming up, and of no use: all sentences come in turn
    }
    words = [word for limit in limits for word in ("--set", f"server.{limit}={limits[limit]}")]
    with serve_process(quick_model, "--engine", name, "--device", "cpu", *words) as process:
        address = process.address
        with crowd(address) as early:
            time.sleep(WARM_UP)
        before = resident(process)
        alone = [translate(address, text) for text in BEFORE]
        with crowd(address) as seen:
            time.sleep(OVERLOAD)
        after = resident(process)
        later = [translate(address, text) for text in AFTER]
        with crowd(address) as last:
            time.sleep(1)
            signalled = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            status = process.process.wait(60)
    answered, refused = seconds(seen, 200), seconds(seen, 503)
    drained = [item for item in last if item.started_at < signalled <= item.started_at + item.seconds]
    print(
        f"\n{name}: {len(answered)} answered (median {median(answered):.3f} s), {len(refused)} refused "
        f"(median {median(refused):.3f} s, 99 % within {refused[len(refused) * 99 // 100]:.3f} s); memory "
        f"{before:.0f} MiB, then {after:.0f} MiB; alone "
        f"{median(seconds(alone, 200)):.4f} s a request before, {median(seconds(later, 200)):.4f} s after; "
        f"under way at SIGTERM {len(drained)}, of these 200: {len(seconds(drained, 200))}"
    )
    check([*early, *alone, *seen, *later], expected)
    assert len(refused) > len(answered) / 10, "this was no overload"
    assert median(refused) < QUICK
    assert after < GROWTH * before
    assert len(seconds(later, 200)) == len(later)
    assert median(seconds(later, 200)) < 3 * median(seconds(alone, 200))
    assert status == 0
    assert process.output.endswith("stopped\n")
    assert seconds(drained, 200)
    check([item for item in last if item.answer or item.started_at < signalled], expected)
