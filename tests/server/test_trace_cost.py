"""What looking inside may cost: one worker, a short queue, bounded memory, nothing computed twice."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from heedful.engines.segmented import SegmentedEngine
from heedful.inspection.asked import Asked
from heedful.inspection.record import Record, record
from heedful.server import inspecting
from heedful.server.inspecting import WAITING
from heedful.server.texts import LONG
from tests.server.serving import Answer, Running, ask, serve_process, served, wait_until

pytestmark = pytest.mark.long

SENTENCE = "The dog was too tired."
OTHERS = [f"Dog {number} was too tired." for number in range(300)]


@pytest.fixture(scope="module")
def running(engine: SegmentedEngine, quick_model: Path) -> Iterator[Running]:
    """A server of a real model, open to inspection."""
    with served(engine, folder=quick_model) as found:
        yield found


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

    def __call__(self, bundle: Any, asked: Asked) -> Record:
        self.sources.append(asked.source)
        assert self.gate.wait(30)
        return record(bundle, asked)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched()
    monkeypatch.setattr(inspecting, "record", found)
    yield found
    found.gate.set()


def test_a_question_is_answered_once(address: str, watched: Watched) -> None:
    first, second = (trace(address, OTHERS[0]) for _ in range(2))
    assert first.body == second.body
    third = trace(address, f"{OTHERS[0]} And more.")  # the same sentence in another text
    assert third.json["id"] == first.json["id"]
    assert watched.sources == [OTHERS[0]]
    trace(address, OTHERS[0], beam=2)
    assert len(watched.sources) == 2


def test_many_who_ask_the_same_wait_for_one_answer(running: Running, watched: Watched) -> None:
    watched.gate.clear()
    with ThreadPoolExecutor(WAITING * 2) as pool:
        asking = [pool.submit(trace, running.address, OTHERS[1]) for _ in range(WAITING * 2)]
        wait_until(lambda: running.state.in_flight == WAITING * 2)
        watched.gate.set()
        answers = [each.result() for each in asking]
    accepted = [answer for answer in answers if answer.status == 200]
    assert len({answer.body for answer in accepted}) == 1
    assert len(accepted) >= WAITING  # making the answers is work too, and may be refused
    assert watched.sources == [OTHERS[1]]


def test_a_full_queue_refuses_and_recovers(running: Running, watched: Watched) -> None:
    watched.gate.clear()
    with ThreadPoolExecutor(WAITING + 5) as pool:
        asking = [pool.submit(trace, running.address, text) for text in OTHERS[10 : 10 + WAITING + 5]]
        wait_until(lambda: sum(each.done() for each in asking) == 5)
        refused = [each.result() for each in asking if each.done()]
        assert {answer.status for answer in refused} == {503}
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert ask(running.address, "/translate", {"q": "hi", "source": "en", "target": "fr"}).status == 200
        watched.gate.set()
        answers = [each.result() for each in asking]
    assert [answer.status for answer in answers].count(200) == WAITING
    wait_until(lambda: running.state.inspector._waiting == 0)
    assert trace(running.address, OTHERS[10 + WAITING + 4]).status == 200


def test_what_takes_too_long_is_refused_and_then_there(
    engine: SegmentedEngine, quick_model: Path, watched: Watched
) -> None:
    watched.gate.clear()
    with served(engine, folder=quick_model, deadline_seconds=0.5) as running:
        answer = trace(running.address)
        assert answer.status == 503
        assert "took too long" in answer.error
        assert answer.headers["retry-after"]
        watched.gate.set()
        wait_until(lambda: running.state.inspector._waiting == 0)
        assert trace(running.address).status == 200
    assert watched.sources == [SENTENCE]


def test_nobody_works_for_clients_that_have_gone(running: Running, watched: Watched) -> None:
    inspector = running.state.inspector
    watched.gate.clear()
    host, port = running.address.removeprefix("http://").split(":")
    gone = []
    for text in OTHERS[50:58]:
        body = json.dumps({"source": text}).encode()
        connection = socket.create_connection((host, int(port)))
        head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        gone.append(connection)
    wait_until(lambda: inspector._waiting == len(gone))
    for connection in gone:
        connection.close()
    wait_until(lambda: inspector._waiting == 1)  # what has begun is finished
    watched.gate.set()
    wait_until(lambda: inspector._waiting == 0)
    assert len(watched.sources) == 1
    [begun] = watched.sources
    dropped = next(text for text in OTHERS[50:58] if text != begun)
    assert trace(running.address, begun).status == trace(running.address, dropped).status == 200
    assert watched.sources == [begun, dropped]  # the finished one was kept


@pytest.fixture
def alone(engine: SegmentedEngine, quick_model: Path) -> Iterator[Running]:
    """A server for one test."""
    with served(engine, folder=quick_model) as found:
        yield found


def test_old_records_make_room(alone: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by bytes however many ask; what was forgotten can be asked again."""
    monkeypatch.setattr(inspecting, "KEPT_BYTES", most := 300_000)
    running, inspector, names = alone, alone.state.inspector, []
    for text in OTHERS[60:260]:
        names.append(trace(running.address, text, target="le").json["id"])
        assert inspector.kept_bytes <= most
    assert len(set(names)) == 200
    assert len(inspector._records) == len(inspector._names) < 100
    assert not inspector._making
    path = "tensors?names=lens.ids"
    assert ask(running.address, f"/api/trace/{names[-1]}/{path}").status == 200
    forgotten = ask(running.address, f"/api/trace/{names[0]}/{path}")
    assert forgotten.status == 404
    assert "ask for it again" in forgotten.error
    assert trace(running.address, OTHERS[60], target="le").json["id"] == names[0]
    assert ask(running.address, f"/api/trace/{names[0]}/{path}").status == 200


def test_manifests_are_counted(alone: Running) -> None:
    """A wide beam has few tensors more, but thousands of candidates."""
    inspector = alone.state.inspector
    found = trace(alone.address, beam=16).json
    [kept] = inspector._records.values()
    tensors = sum(tensor.nbytes for tensor in kept.record.seen.tensors.values())
    assert inspector.kept_bytes >= tensors + 250 * len(found["beam"]["nodes"])


def test_weights_that_only_records_use_are_counted(alone: Running, engine: SegmentedEngine) -> None:
    """A checkpoint is a whole model: kept records must not keep more and more of them."""
    inspector = alone.state.inspector
    weights = sum(parameter.nbytes for parameter in engine.bundle.model.parameters())
    [checkpoint, *_] = ask(alone.address, "/api/models").json[0]["checkpoints"]

    def added(**more: object) -> int:
        before = inspector.kept_bytes
        assert trace(alone.address, target="le", **more).status == 200
        [*_, newest] = inspector._records.values()
        manifest = inspecting.MANIFEST_BYTES * len(json.dumps(newest.record.manifest))  # not two are the same
        return inspector.kept_bytes - before - manifest

    tensors = added()
    assert added(checkpoint=checkpoint) == tensors + weights
    assert added(checkpoint=checkpoint, temperature=2.0) == tensors  # the same weights again
    own = 4 * engine.bundle.config.model.width**2
    assert added(off=["cross.0.1"]) == tensors + own  # its own W^O
    assert added(off=["cross.0.1", "cross.0.0", "encoder.0.0"]) == tensors + 2 * own


def test_a_signal_while_tracing(quick_model: Path) -> None:
    """The trace that was accepted is answered, and the process ends with status 0."""
    words = "dog " * 400
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        address = process.address
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(trace, address, words, beam=16)
            wait_until(
                lambda: (
                    "heedful_requests_in_flight 1" in ask(address, "/metrics").body.decode() or asking.done()
                )
            )
            assert process.end(signal.SIGTERM) == 0
            assert asking.result().status == 200
    assert process.output.endswith("stopped\n")


def test_a_signal_when_the_one_who_asked_has_gone(quick_model: Path) -> None:
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        host, port = process.address.removeprefix("http://").split(":")
        body = json.dumps({"source": "dog " * 400, "beam": 16}).encode()
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
        assert process.end(signal.SIGTERM) == 0


def test_long_texts_are_split_beside_the_event_loop(
    engine: SegmentedEngine, quick_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    split = engine.segments

    def segments(text: str) -> Any:
        threads.append(threading.current_thread().name)
        return split(text)

    monkeypatch.setattr(engine, "segments", segments)
    with served(engine, folder=quick_model) as running:
        threads.clear()
        assert trace(running.address, f"{SENTENCE} " * (LONG // len(SENTENCE) + 1)).status == 200
    assert threads
    assert all(name.startswith("asyncio") for name in threads), threads


def test_translating_and_looking_inside_at_the_same_time(engine: SegmentedEngine, quick_model: Path) -> None:
    """One model serves both; neither changes what the other computes, nor the model."""
    before = {name: value.clone() for name, value in engine.bundle.model.state_dict().items()}
    texts = OTHERS[:24]
    expected = [found.text for found in engine.translate(texts)]
    with served(engine, folder=quick_model, workers=2, cache_entries=0) as running:

        def looked(text: str) -> Any:
            answer = trace(running.address, text, off=["cross.0.0"] if "3" in text else [])
            return answer.json["translation"] if answer.status == 200 else None

        def translated(text: str) -> Any:
            body = {"q": text, "source": "en", "target": "fr"}
            return ask(running.address, "/translate", body).json["translatedText"]

        with ThreadPoolExecutor(8) as pool:
            seen, found = pool.map(looked, texts), pool.map(translated, texts)
            assert list(found) == expected
            inside = list(seen)
        alone = [looked(text) for text in texts]
    assert [one for one in inside if one] == [two for one, two in zip(inside, alone, strict=True) if one]
    for name, value in engine.bundle.model.state_dict().items():
        assert value.equal(before[name]), name
    assert not any(module.training for module in engine.bundle.model.modules())
