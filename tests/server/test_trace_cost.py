"""The cost of traces: one worker, a short queue, bounded memory, nothing computed twice."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from heedful.inference.translator import Translator
from heedful.interpret.trace import Trace, compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.server import trace_worker as inspecting
from heedful.server.trace_worker import MAX_QUEUED
from heedful.server.translation_service import MIN_THREAD_CHARACTERS
from tests.server.server_process import Answer, Running, ask, serve_process, served, wait_until

pytestmark = pytest.mark.long

SENTENCE = "The dog was too tired."
OTHERS = [f"Dog {number} was too tired." for number in range(300)]


@pytest.fixture(scope="module")
def running(engine: Translator, quick_model: Path) -> Iterator[Running]:
    """A server of a real model, open to inspection."""
    with served(engine, folder=quick_model) as outcome:
        yield outcome


@pytest.fixture(scope="module")
def address(running: Running) -> str:
    return running.address


def trace(address: str, source: str = SENTENCE, **more: object) -> Answer:
    return ask(address, "/api/trace", {"source": source, **more})


class Watched:
    """``record`` that counts, and waits while its gate is closed."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, bundle: Any, request_body: TraceRequest) -> Trace:
        self.sources.append(request_body.source)
        assert self.gate.wait(30)
        return compute_trace(bundle, request_body)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    outcome = Watched()
    monkeypatch.setattr(inspecting, "compute_trace", outcome)
    yield outcome
    outcome.gate.set()


def test_trace_same_request_computed_once(address: str, watched: Watched) -> None:
    first, second = (trace(address, OTHERS[0]) for _ in range(2))
    assert first.body == second.body
    third = trace(address, f"{OTHERS[0]} And more.")  # the same sentence in another text
    assert third.json["id"] == first.json["id"]
    assert watched.sources == [OTHERS[0]]
    trace(address, OTHERS[0], beam_size=2)
    assert len(watched.sources) == 2


def test_trace_concurrent_requests_share_computation(running: Running, watched: Watched) -> None:
    watched.gate.clear()
    with ThreadPoolExecutor(MAX_QUEUED * 2) as pool:
        asking = [pool.submit(trace, running.address, OTHERS[1]) for _ in range(MAX_QUEUED * 2)]
        wait_until(lambda: running.state.in_flight == MAX_QUEUED * 2)
        watched.gate.set()
        answers = [item.result() for item in asking]
    accepted = [answer for answer in answers if answer.status == 200]
    assert len({answer.body for answer in accepted}) == 1
    assert len(accepted) >= MAX_QUEUED  # making the answers is work too, and may be refused
    assert watched.sources == [OTHERS[1]]


def test_trace_full_queue_rejects_and_recovers(running: Running, watched: Watched) -> None:
    watched.gate.clear()
    with ThreadPoolExecutor(MAX_QUEUED + 5) as pool:
        asking = [pool.submit(trace, running.address, text) for text in OTHERS[10 : 10 + MAX_QUEUED + 5]]
        wait_until(lambda: sum(item.done() for item in asking) == 5)
        refused = [item.result() for item in asking if item.done()]
        assert {answer.status for answer in refused} == {503}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert ask(running.address, "/translate", {"q": "hi", "source": "en", "target": "fr"}).status == 200
        watched.gate.set()
        answers = [item.result() for item in asking]
    assert [answer.status for answer in answers].count(200) == MAX_QUEUED
    wait_until(lambda: running.state.trace_worker._queued == 0)
    assert trace(running.address, OTHERS[10 + MAX_QUEUED + 4]).status == 200


def test_trace_after_deadline_is_cached(engine: Translator, quick_model: Path, watched: Watched) -> None:
    watched.gate.clear()
    with served(engine, folder=quick_model, request_timeout_seconds=0.5) as running:
        answer = trace(running.address)
        assert answer.status == 503
        assert "took too long" in answer.error
        assert answer.headers["retry-after"]
        watched.gate.set()
        wait_until(lambda: running.state.trace_worker._queued == 0)
        assert trace(running.address).status == 200
    assert watched.sources == [SENTENCE]


def test_trace_disconnected_clients_drop_jobs(running: Running, watched: Watched) -> None:
    inspector = running.state.trace_worker
    watched.gate.clear()
    host, port = running.address.removeprefix("http://").split(":")
    gone = []
    for text in OTHERS[50:58]:
        body = json.dumps({"source": text}).encode()
        connection = socket.create_connection((host, int(port)))
        head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        gone.append(connection)
    wait_until(lambda: inspector._queued == len(gone))
    for connection in gone:
        connection.close()
    wait_until(lambda: inspector._queued == 1)  # what has begun is finished
    watched.gate.set()
    wait_until(lambda: inspector._queued == 0)
    assert len(watched.sources) == 1
    [started_at] = watched.sources
    dropped = next(text for text in OTHERS[50:58] if text != started_at)
    assert trace(running.address, started_at).status == trace(running.address, dropped).status == 200
    assert watched.sources == [started_at, dropped]  # the finished one was kept


@pytest.fixture
def alone(engine: Translator, quick_model: Path) -> Iterator[Running]:
    """A server for one test."""
    with served(engine, folder=quick_model) as outcome:
        yield outcome


def test_trace_cache_evicts_oldest(alone: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by bytes however many ask; what was forgotten can be asked again."""
    monkeypatch.setattr(inspecting, "MAX_STORED_BYTES", most := 300_000)
    running, inspector, names = alone, alone.state.trace_worker, []
    for text in OTHERS[60:260]:
        names.append(trace(running.address, text, target="le").json["id"])
        assert inspector.stored_bytes <= most
    assert len(set(names)) == 200
    assert len(inspector._traces) == len(inspector._trace_ids) < 100
    assert not inspector._running_jobs
    path = "tensors?names=lens.ids"
    assert ask(running.address, f"/api/trace/{names[-1]}/{path}").status == 200
    forgotten = ask(running.address, f"/api/trace/{names[0]}/{path}")
    assert forgotten.status == 404
    assert "request it again" in forgotten.error
    assert trace(running.address, OTHERS[60], target="le").json["id"] == names[0]
    assert ask(running.address, f"/api/trace/{names[0]}/{path}").status == 200


def test_trace_cache_counts_manifests(alone: Running) -> None:
    """A wide beam has few tensors more, but thousands of candidates."""
    inspector = alone.state.trace_worker
    outcome = trace(alone.address, beam_size=16).json
    [stored] = inspector._traces.values()
    tensors = sum(tensor.nbytes for tensor in stored.trace.activations.tensors.values())
    assert inspector.stored_bytes >= tensors + 250 * len(outcome["beam_search"]["nodes"])


def test_trace_cache_counts_extra_weights(alone: Running, engine: Translator) -> None:
    """A checkpoint is a whole model: kept records must not keep more and more of them."""
    inspector = alone.state.trace_worker
    weights = sum(parameter.nbytes for parameter in engine.model_folder.translation_model.parameters())
    [checkpoint, *_] = ask(alone.address, "/api/models").json[0]["checkpoints"]

    def added(**more: object) -> int:
        before = inspector.stored_bytes
        assert trace(alone.address, target="le", **more).status == 200
        [*_, newest] = inspector._traces.values()
        manifest = inspecting.BYTES_PER_MANIFEST_CHARACTER * len(
            json.dumps(newest.trace.manifest)
        )  # not two are the same
        return inspector.stored_bytes - before - manifest

    tensors = added()
    assert added(checkpoint=checkpoint) == tensors + weights
    assert added(checkpoint=checkpoint, temperature=2.0) == tensors  # the same weights again
    own = 4 * engine.model_folder.config.model.d_model**2
    assert added(ablated_heads=["cross.0.1"]) == tensors + own  # its own W^O
    assert added(ablated_heads=["cross.0.1", "cross.0.0", "encoder.0.0"]) == tensors + 2 * own


def test_sigterm_finishes_trace(quick_model: Path) -> None:
    """The trace that was accepted is answered, and the process ends with status 0."""
    words = "dog " * 400
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(trace, address, words, beam_size=16)
            wait_until(
                lambda: "heedful_requests_in_flight 1" in ask(address, "/metrics").body.decode() or asking.done()
            )
            assert process.end(signal.SIGTERM) == 0
            assert asking.result().status == 200
    assert process.output.endswith("stopped\n")


def test_sigterm_after_disconnect_exits(quick_model: Path) -> None:
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        host, port = process.address.removeprefix("http://").split(":")
        body = json.dumps({"source": "dog " * 400, "beam_size": 16}).encode()
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
        assert process.end(signal.SIGTERM) == 0


def test_trace_long_text_split_in_thread(
    engine: Translator, quick_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    split = engine.split_segments

    def segments(text: str) -> Any:
        threads.append(threading.current_thread().name)
        return split(text)

    monkeypatch.setattr(engine, "split_segments", segments)
    with served(engine, folder=quick_model) as running:
        threads.clear()
        assert trace(running.address, f"{SENTENCE} " * (MIN_THREAD_CHARACTERS // len(SENTENCE) + 1)).status == 200
    assert threads
    assert all(name.startswith("asyncio") for name in threads), threads


def test_trace_and_translate_concurrently_unchanged(engine: Translator, quick_model: Path) -> None:
    """One model serves both; neither changes what the other computes, nor the model."""
    before = {name: value.clone() for name, value in engine.model_folder.translation_model.state_dict().items()}
    texts = OTHERS[:24]
    expected = [outcome.text for outcome in engine.translate(texts)]
    with served(engine, folder=quick_model, workers=2, cache_entries=0) as running:

        def looked(text: str) -> Any:
            answer = trace(running.address, text, ablated_heads=["cross.0.0"] if "3" in text else [])
            return answer.json["translation"] if answer.status == 200 else None

        def translated(text: str) -> Any:
            body = {"q": text, "source": "en", "target": "fr"}
            return ask(running.address, "/translate", body).json["translatedText"]

        with ThreadPoolExecutor(8) as pool:
            seen, outcome = pool.map(looked, texts), pool.map(translated, texts)
            assert list(outcome) == expected
            inside = list(seen)
        alone = [looked(text) for text in texts]
    assert [one for one in inside if one] == [two for one, two in zip(inside, alone, strict=True) if one]
    for name, value in engine.model_folder.translation_model.state_dict().items():
        assert value.equal(before[name]), name
    assert not any(module.training for module in engine.model_folder.translation_model.modules())
