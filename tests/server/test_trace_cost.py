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
from heedful.server import trace_worker
from heedful.server.trace_worker import MAX_QUEUED
from heedful.server.translation_service import MIN_THREAD_CHARACTERS
from tests.server.server_process import SECONDS, Response, RunningServer, ask, serve_process, served, wait_until

pytestmark = pytest.mark.long

SENTENCE = "The dog was too tired."
SENTENCES = [f"Dog {number} was too tired." for number in range(300)]


@pytest.fixture(scope="module")
def server(engine: Translator, quick_model: Path) -> Iterator[RunningServer]:
    """A server of a real model, with its state."""
    with served(engine, folder=quick_model) as server:
        yield server


@pytest.fixture(scope="module")
def address(server: RunningServer) -> str:
    return server.address


def trace(address: str, source: str = SENTENCE, **more: object) -> Response:
    return ask(address, "/api/trace", {"source": source, **more})


class RecordingTrace:
    """``compute_trace`` that records its calls, and waits while its gate is closed."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, model_folder: Any, trace_request: TraceRequest) -> Trace:
        self.sources.append(trace_request.source)
        assert self.gate.wait(SECONDS)
        return compute_trace(model_folder, trace_request)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingTrace]:
    recorder = RecordingTrace()
    monkeypatch.setattr("heedful.interpret.trace.compute_trace", recorder)
    yield recorder
    recorder.gate.set()


def test_trace_same_request_computed_once(address: str, recorder: RecordingTrace) -> None:
    first, second = (trace(address, SENTENCES[0]) for _ in range(2))
    assert first.body == second.body
    third = trace(address, f"{SENTENCES[0]} And more.")  # the same sentence in another text
    assert third.json["id"] == first.json["id"]
    assert recorder.sources == [SENTENCES[0]]
    trace(address, SENTENCES[0], beam_size=2)
    assert len(recorder.sources) == 2


def test_trace_concurrent_requests_share_computation(server: RunningServer, recorder: RecordingTrace) -> None:
    recorder.gate.clear()
    with ThreadPoolExecutor(MAX_QUEUED * 2) as pool:
        futures = [pool.submit(trace, server.address, SENTENCES[1]) for _ in range(MAX_QUEUED * 2)]
        wait_until(lambda: server.state.in_flight == MAX_QUEUED * 2)
        recorder.gate.set()
        responses = [item.result() for item in futures]
    accepted = [response for response in responses if response.status == 200]
    assert len({response.body for response in accepted}) == 1
    assert len(accepted) >= MAX_QUEUED  # serializing the responses is queued too, and may be rejected
    assert recorder.sources == [SENTENCES[1]]


def test_trace_full_queue_rejects_and_recovers(server: RunningServer, recorder: RecordingTrace) -> None:
    recorder.gate.clear()
    with ThreadPoolExecutor(MAX_QUEUED + 5) as pool:
        futures = [pool.submit(trace, server.address, text) for text in SENTENCES[10 : 10 + MAX_QUEUED + 5]]
        wait_until(lambda: sum(item.done() for item in futures) == 5)
        rejected = [item.result() for item in futures if item.done()]
        assert {response.status for response in rejected} == {503}
        assert all(int(response.headers["retry-after"]) > 0 for response in rejected)
        assert ask(server.address, "/translate", {"q": "hi", "source": "en", "target": "fr"}).status == 200
        recorder.gate.set()
        responses = [item.result() for item in futures]
    assert [response.status for response in responses].count(200) == MAX_QUEUED
    wait_until(lambda: server.state.trace_worker._queued == 0)
    assert trace(server.address, SENTENCES[10 + MAX_QUEUED + 4]).status == 200


def test_trace_after_deadline_is_cached(engine: Translator, quick_model: Path, recorder: RecordingTrace) -> None:
    recorder.gate.clear()
    with served(engine, folder=quick_model, request_timeout_seconds=2) as server:
        response = trace(server.address)
        assert response.status == 503
        assert "took too long" in response.error
        assert response.headers["retry-after"]
        recorder.gate.set()
        wait_until(lambda: server.state.trace_worker._queued == 0)
        assert trace(server.address).status == 200
    assert recorder.sources == [SENTENCE]


def test_trace_disconnected_clients_drop_jobs(server: RunningServer, recorder: RecordingTrace) -> None:
    worker = server.state.trace_worker
    recorder.gate.clear()
    host, port = server.address.removeprefix("http://").split(":")
    connections = []
    for text in SENTENCES[50:58]:
        body = json.dumps({"source": text}).encode()
        connection = socket.create_connection((host, int(port)))
        head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connections.append(connection)
    wait_until(lambda: worker._queued == len(connections))
    for connection in connections:
        connection.close()
    wait_until(lambda: worker._queued == 1)  # the running one is finished
    recorder.gate.set()
    wait_until(lambda: worker._queued == 0)
    assert len(recorder.sources) == 1
    [started] = recorder.sources
    dropped = next(text for text in SENTENCES[50:58] if text != started)
    assert trace(server.address, started).status == trace(server.address, dropped).status == 200
    assert recorder.sources == [started, dropped]  # the finished one is cached


@pytest.fixture
def fresh_server(engine: Translator, quick_model: Path) -> Iterator[RunningServer]:
    """A server for one test."""
    with served(engine, folder=quick_model) as server:
        yield server


def test_trace_cache_evicts_oldest(fresh_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded in bytes, whatever the number of requests; evicted traces can be requested again."""
    monkeypatch.setattr(trace_worker, "MAX_STORED_BYTES", max_bytes := 300_000)
    server, worker, trace_ids = fresh_server, fresh_server.state.trace_worker, []
    for text in SENTENCES[60:260]:
        trace_ids.append(trace(server.address, text, target="le").json["id"])
        assert worker.stored_bytes <= max_bytes
    assert len(set(trace_ids)) == 200
    assert len(worker._traces) == len(worker._trace_ids) < 100
    assert not worker._running_jobs
    path = "tensors?names=lens.ids"
    assert ask(server.address, f"/api/trace/{trace_ids[-1]}/{path}").status == 200
    evicted = ask(server.address, f"/api/trace/{trace_ids[0]}/{path}")
    assert evicted.status == 404
    assert "request it again" in evicted.error
    assert trace(server.address, SENTENCES[60], target="le").json["id"] == trace_ids[0]
    assert ask(server.address, f"/api/trace/{trace_ids[0]}/{path}").status == 200


def test_trace_cache_counts_manifests(fresh_server: RunningServer) -> None:
    """A wide beam adds few tensors, but thousands of candidates."""
    worker = fresh_server.state.trace_worker
    manifest = trace(fresh_server.address, beam_size=16).json
    [stored] = worker._traces.values()
    tensors = sum(tensor.nbytes for tensor in stored.trace.activations.tensors.values())
    assert worker.stored_bytes >= tensors + 250 * len(manifest["beam_search"]["nodes"])


def test_trace_cache_counts_extra_weights(fresh_server: RunningServer, engine: Translator) -> None:
    """A checkpoint is a complete model: cached traces must not hold more and more of them."""
    worker = fresh_server.state.trace_worker
    weights = sum(parameter.nbytes for parameter in engine.model_folder.translation_model.parameters())
    [checkpoint, *_] = ask(fresh_server.address, "/api/models").json[0]["checkpoints"]

    def count_added_bytes(**more: object) -> int:
        before = worker.stored_bytes
        assert trace(fresh_server.address, target="le", **more).status == 200
        [*_, newest] = worker._traces.values()
        manifest = trace_worker.BYTES_PER_MANIFEST_CHARACTER * len(
            json.dumps(newest.trace.manifest)
        )  # differs for every trace
        return worker.stored_bytes - before - manifest

    tensors = count_added_bytes()
    assert count_added_bytes(checkpoint=checkpoint) == tensors + weights
    assert count_added_bytes(checkpoint=checkpoint, temperature=2.0) == tensors  # the same weights again
    projection_bytes = 4 * engine.model_folder.config.model.d_model**2
    assert count_added_bytes(ablated_heads=["cross.0.1"]) == tensors + projection_bytes  # its own W^O
    assert count_added_bytes(ablated_heads=["cross.0.1", "cross.0.0", "encoder.0.0"]) == tensors + 2 * projection_bytes


def test_sigterm_finishes_trace(quick_model: Path) -> None:
    """An accepted trace is completed, and the process exits with status 0."""
    text = "dog " * 400
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        with ThreadPoolExecutor(2) as pool:
            future = pool.submit(trace, address, text, beam_size=16)
            wait_until(
                lambda: "heedful_requests_in_flight 1" in ask(address, "/metrics").body.decode() or future.done()
            )
            assert process.stop(signal.SIGTERM) == 0
            assert future.result().status == 200
    assert process.output.endswith("stopped\n")


def test_sigterm_after_disconnect_exits(quick_model: Path) -> None:
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        host, port = process.address.removeprefix("http://").split(":")
        body = json.dumps({"source": "dog " * 400, "beam_size": 16}).encode()
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
        assert process.stop(signal.SIGTERM) == 0


def test_trace_long_text_split_in_thread(
    engine: Translator, quick_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    split = engine.split_segments

    def segments(text: str, target_language: str = "") -> Any:
        threads.append(threading.current_thread().name)
        return split(text, target_language)

    monkeypatch.setattr(engine, "split_segments", segments)
    with served(engine, folder=quick_model) as server:
        threads.clear()
        assert trace(server.address, f"{SENTENCE} " * (MIN_THREAD_CHARACTERS // len(SENTENCE) + 1)).status == 200
    assert threads
    assert all(name.startswith("asyncio") for name in threads), threads


def test_trace_and_translate_concurrently_unchanged(engine: Translator, quick_model: Path) -> None:
    """One model serves both; neither changes the results of the other, nor the weights."""
    before = {name: value.clone() for name, value in engine.model_folder.translation_model.state_dict().items()}
    texts = SENTENCES[:24]
    expected = [translation.text for translation in engine.translate(texts)]
    with served(engine, folder=quick_model, workers=2, cache_entries=0) as server:

        def trace_text(text: str) -> Any:
            response = trace(server.address, text, ablated_heads=["cross.0.0"] if "3" in text else [])
            return response.json["translation"] if response.status == 200 else None

        def translate_text(text: str) -> Any:
            body = {"q": text, "source": "en", "target": "fr"}
            return ask(server.address, "/translate", body).json["translatedText"]

        with ThreadPoolExecutor(8) as pool:
            traced, translated = pool.map(trace_text, texts), pool.map(translate_text, texts)
            assert list(translated) == expected
            concurrent = list(traced)
        sequential = [trace_text(text) for text in texts]
    assert [first for first in concurrent if first] == [
        second for first, second in zip(concurrent, sequential, strict=True) if first
    ]
    for name, value in engine.model_folder.translation_model.state_dict().items():
        assert value.equal(before[name]), name
    assert not any(module.training for module in engine.model_folder.translation_model.modules())
