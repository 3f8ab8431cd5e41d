"""POST /api/alternatives: equal to the translator's, and admitted like other requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from heedful.inference.translator import Translator
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import Answer, ask, served, wait_until

TEXT = "The dog is tired."
ASKED = {"text": TEXT, "source": "en", "target": "fr"}


def alternatives(address: str, **request_body: Any) -> Answer:
    return ask(address, "/api/alternatives", {**ASKED, **request_body})


@pytest.mark.parametrize("prefix", ["", "Le ", "Le chi"])
@pytest.mark.parametrize("count", [1, 5])
def test_alternatives_match_translator(address: str, engine: Translator, prefix: str, count: int) -> None:
    answer = alternatives(address, prefix=prefix, count=count)
    assert answer.status == 200, answer.body
    expected = engine.alternatives(TEXT, prefix, count=count)
    assert len(answer.json["alternatives"]) == count
    for outcome, item in zip(answer.json["alternatives"], expected, strict=True):
        assert outcome == {
            "id": item.token_id,
            "subword": item.subword,
            "word": item.word,
            "probability": pytest.approx(item.probability, rel=1e-4),
            "text": item.translation.text,
            "score": pytest.approx(item.translation.score, rel=1e-4),
        }


def test_alternatives_detect_language(address: str) -> None:
    expected = alternatives(address).json
    assert ask(address, "/api/alternatives", {"text": TEXT, "target": "fr"}).json == expected


@pytest.mark.parametrize("request_body", [{"text": ""}, {"text": " \n"}, {"source": "fr"}])
def test_alternatives_without_words_empty(address: str, request_body: dict[str, str]) -> None:
    assert alternatives(address, **request_body).json == {"alternatives": []}


@pytest.mark.parametrize(
    ("wrong", "reason"),
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
def test_alternatives_invalid_request_returns_400(address: str, wrong: dict[str, object], reason: str) -> None:
    answer = alternatives(address, **wrong)
    assert answer.status == 400
    assert reason in answer.error


def test_alternatives_require_key() -> None:
    with served(FakeTranslator(), api_keys=("s3cret",)) as running:
        assert alternatives(running.address).status == 403
        shown = {"Authorization": "Bearer s3cret"}
        assert ask(running.address, "/api/alternatives", ASKED, headers=shown).status == 200


def test_alternatives_count_in_queue() -> None:
    """Three words and an end, eight times: 32 tokens."""
    with served(FakeTranslator(), max_queue_tokens=31) as running:
        assert alternatives(running.address, text="one two three").status == 413
        assert alternatives(running.address, text="one two three", count=7).status == 200
    engine = FakeTranslator()
    with served(engine, max_queue_tokens=40) as running, ThreadPoolExecutor(2) as pool:
        engine.gate.clear()
        first = pool.submit(alternatives, running.address, text="in the way", count=1)
        wait_until(lambda: ["in the way"] in engine.batches)
        second = pool.submit(alternatives, running.address, text="one two three")
        wait_until(lambda: running.batcher.waiting_tokens == 32)
        refused = alternatives(running.address, text="one two three", count=3)
        assert (refused.status, refused.error) == (503, "the server is busy")
        engine.gate.set()
        assert [first.result().status, second.result().status] == [200, 200]


def test_alternatives_deadline_frees_worker() -> None:
    engine = FakeTranslator()
    with served(engine, request_timeout_seconds=0.3) as running:
        engine.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(alternatives, running.address, text="held up", count=1)
            wait_until(lambda: ["held up"] in engine.batches)
            waiting = pool.submit(alternatives, running.address, text="never begun", count=1)
            for answer in (late.result(), waiting.result()):
                assert answer.status == 503
                assert "too long" in answer.error
        engine.gate.set()
        assert alternatives(running.address, text="after", count=1).status == 200
        assert ["never begun"] not in engine.batches


def test_alternatives_failing_translator_returns_500(caplog: pytest.LogCaptureFixture) -> None:
    with served(FakeTranslator()) as running:
        answer = alternatives(running.address, text="poison")
        assert (answer.status, answer.error) == (500, "the translation failed")
        assert alternatives(running.address, text="fine").status == 200
    assert "ZeroDivisionError" in caplog.text
