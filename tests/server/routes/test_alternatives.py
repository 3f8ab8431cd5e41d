"""POST /api/alternatives: results equal those of the translator; the queue limits apply."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from heedful.inference.translator import Translator
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import Response, ask, served, wait_until

TEXT = "The dog is tired."
REQUEST = {"text": TEXT, "source": "en", "target": "fr"}


def request_alternatives(address: str, **request_body: Any) -> Response:
    return ask(address, "/api/alternatives", {**REQUEST, **request_body})


@pytest.mark.parametrize("prefix", ["", "Le ", "Le chi"])
@pytest.mark.parametrize("count", [1, 5])
def test_alternatives_match_translator(address: str, engine: Translator, prefix: str, count: int) -> None:
    response = request_alternatives(address, prefix=prefix, count=count)
    assert response.status == 200, response.body
    expected = engine.alternatives(TEXT, prefix, count=count)
    assert len(response.json["alternatives"]) == count
    for actual, alternative in zip(response.json["alternatives"], expected, strict=True):
        assert actual == {
            "id": alternative.token_id,
            "subword": alternative.subword,
            "word": alternative.word,
            "probability": pytest.approx(alternative.probability, rel=1e-4),
            "text": alternative.translation.text,
            "score": pytest.approx(alternative.translation.score, rel=1e-4),
        }


def test_alternatives_without_source_detect_language(address: str) -> None:
    expected = request_alternatives(address).json
    assert ask(address, "/api/alternatives", {"text": TEXT, "target": "fr"}).json == expected


@pytest.mark.parametrize("request_body", [{"text": ""}, {"text": " \n"}, {"source": "fr"}])
def test_alternatives_without_words_empty(address: str, request_body: dict[str, str]) -> None:
    assert request_alternatives(address, **request_body).json == {"alternatives": []}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": 5}, "text"),
        ({"text": ["a"]}, "text"),
        ({"target": "xx"}, "not supported"),
        ({"target": None}, "target"),
        ({"source": "fr", "target": "en"}, "not translated into"),
        ({"count": 0}, "count"),
        ({"count": 21}, "count"),
        ({"count": "3"}, "count"),
        ({"prefix": "a" * 1001}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"unknown": 1}, "unknown"),
        ({"text": "The dog is tired. I am a student."}, "one sentence"),
        ({"text": "x" * 3000}, "one sentence"),
        ({"text": "x" * 50_001}, "characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_alternatives_invalid_request_returns_400(address: str, fields: dict[str, object], reason: str) -> None:
    response = request_alternatives(address, **fields)
    assert response.status == 400
    assert reason in response.error


def test_alternatives_require_key() -> None:
    with served(FakeTranslator(), api_keys=("s3cret",)) as server:
        assert request_alternatives(server.address).status == 403
        headers = {"Authorization": "Bearer s3cret"}
        assert ask(server.address, "/api/alternatives", REQUEST, headers=headers).status == 200


def test_alternatives_count_in_queue() -> None:
    """Three words and END, for eight alternatives: 32 tokens."""
    with served(FakeTranslator(), max_queue_tokens=31) as server:
        assert request_alternatives(server.address, text="one two three").status == 413
        assert request_alternatives(server.address, text="one two three", count=7).status == 200
    engine = FakeTranslator()
    with served(engine, max_queue_tokens=40) as server, ThreadPoolExecutor(2) as pool:
        engine.gate.clear()
        first = pool.submit(request_alternatives, server.address, text="blocking", count=1)
        wait_until(lambda: ["blocking"] in engine.batches)
        second = pool.submit(request_alternatives, server.address, text="one two three")
        wait_until(lambda: server.batcher.waiting_tokens == 32)
        rejected = request_alternatives(server.address, text="one two three", count=3)
        assert (rejected.status, rejected.error) == (503, "the server is busy")
        engine.gate.set()
        assert [first.result().status, second.result().status] == [200, 200]


def test_alternatives_deadline_frees_worker() -> None:
    engine = FakeTranslator()
    with served(engine, request_timeout_seconds=2) as server:
        engine.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(request_alternatives, server.address, text="blocked", count=1)
            wait_until(lambda: ["blocked"] in engine.batches)
            waiting = pool.submit(request_alternatives, server.address, text="never started", count=1)
            for response in (late.result(), waiting.result()):
                assert response.status == 503
                assert "too long" in response.error
        engine.gate.set()
        assert request_alternatives(server.address, text="after", count=1).status == 200
        assert ["never started"] not in engine.batches


def test_alternatives_failing_translator_returns_500(caplog: pytest.LogCaptureFixture) -> None:
    with served(FakeTranslator()) as server:
        response = request_alternatives(server.address, text="poison")
        assert (response.status, response.error) == (500, "the translation failed")
        assert request_alternatives(server.address, text="fine").status == 200
    assert "ZeroDivisionError" in caplog.text
