"""What a server admits, rejects and drops, with a translator whose pace the test controls."""

import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from heedful.server.batching import Batcher
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import Answer, Running, ask, multipart, served, wait_until

KEY = "s3cret-key"


def translate(running: Running, text: str, **more: Any) -> Answer:
    return ask(running.address, "/translate", {"q": text, "source": "en", "target": "fr", **more})


class TestOverload:
    def test_overload_rejects_fast_and_answers_correctly(self) -> None:
        engine = FakeTranslator(0.02)
        seconds: list[float] = []

        def one(number: int) -> tuple[int, Answer]:
            started_at = time.monotonic()
            answer = translate(running, f"sentence number {number}")
            if answer.status == 503:
                seconds.append(time.monotonic() - started_at)
            return number, answer

        with served(engine, max_queue_tokens=40, max_batch_tokens=16) as running:
            with ThreadPoolExecutor(40) as pool:
                answers = list(pool.map(one, range(400)))
            later = translate(running, "after it all")
        accepted = [(number, answer) for number, answer in answers if answer.status == 200]
        refused = [answer for _, answer in answers if answer.status == 503]
        assert len(accepted) + len(refused) == 400
        assert accepted
        assert refused
        for number, answer in accepted:
            assert answer.json == {"translatedText": f"SENTENCE NUMBER {number}"}
        for answer in refused:
            assert answer.error == "the server is busy"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json["request_id"] == answer.headers["x-request-id"]
        assert sorted(seconds)[len(seconds) // 2] < 10  # at once, not after the queue
        assert later.json == {"translatedText": "AFTER IT ALL"}

    def test_concurrent_clients_share_batches(self) -> None:
        engine = FakeTranslator(0.05)
        with served(engine) as running, ThreadPoolExecutor(32) as pool:
            outcome = list(pool.map(lambda number: translate(running, f"text {number}").json, range(96)))
        assert outcome == [{"translatedText": f"TEXT {number}"} for number in range(96)]
        assert len(engine.batches) < 48

    def test_same_text_of_many_clients_translated_once(self) -> None:
        engine = FakeTranslator(0.05)
        with served(engine) as running, ThreadPoolExecutor(16) as pool:
            outcome = list(pool.map(lambda _: translate(running, "same").json, range(48)))
        assert outcome == [{"translatedText": "SAME"}] * 48
        assert engine.batches.count(["same"]) == 1

    @pytest.mark.parametrize("more", [{}, {"format": "html"}])
    def test_full_queue_rejects_text_with_placeholders(self, more: dict[str, str]) -> None:
        engine = FakeTranslator()
        with served(engine, max_queue_tokens=8) as running, ThreadPoolExecutor(2) as pool:
            engine.gate.clear()
            first = pool.submit(translate, running, "in the way")
            wait_until(lambda: ["in the way"] in engine.batches)
            second = pool.submit(translate, running, "a b c d e f")
            wait_until(lambda: running.batcher.waiting_tokens == 7)
            assert translate(running, "hello %s", **more).status == 503
            engine.gate.set()
            assert [first.result().status, second.result().status] == [200, 200]

    def test_too_many_requests_rejected_with_503(self) -> None:
        engine = FakeTranslator()
        with served(engine, max_requests=2) as running, ThreadPoolExecutor(2) as pool:
            engine.gate.clear()
            waiting = [pool.submit(translate, running, f"text {i}") for i in range(2)]
            wait_until(lambda: running.state.in_flight == 2)
            refused = translate(running, "one more")
            assert refused.status == 503
            assert refused.headers["retry-after"] == "1"
            for path in ("/health", "/ready", "/metrics"):
                assert ask(running.address, path).status == 200
            engine.gate.set()
            assert [item.result().status for item in waiting] == [200, 200]


class TestTimeouts:
    def test_deadline_passed_returns_503(self) -> None:
        engine = FakeTranslator()
        with served(engine, request_timeout_seconds=0.3) as running:
            engine.gate.clear()
            with ThreadPoolExecutor(2) as pool:
                late = pool.submit(translate, running, "held up")
                wait_until(lambda: ["held up"] in engine.batches)
                waiting = pool.submit(translate, running, "never begun")
                for answer in (late.result(), waiting.result()):
                    assert answer.status == 503
                    assert "too long" in answer.error
                    assert answer.headers["retry-after"]
            engine.gate.set()
            assert translate(running, "after").status == 200
            assert ["never begun"] not in engine.batches

    def test_missing_body_returns_408(self) -> None:
        with served(FakeTranslator(), request_timeout_seconds=0.3) as running:
            host, port = running.address.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
                assert connection.recv(1000).startswith(b"HTTP/1.1 408")
            assert running.state.in_flight == 0

    def test_disconnected_client_drops_work(self) -> None:
        engine = FakeTranslator()
        with served(engine) as running:
            engine.gate.clear()
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(translate, running, "in the way")
                wait_until(lambda: ["in the way"] in engine.batches)
                gone = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
                body = json.dumps({"q": "for nobody", "source": "en", "target": "fr"})
                gone.request("POST", "/translate", body, {"Content-Type": "application/json"})
                wait_until(lambda: running.batcher.waiting_tokens > 0)
                gone.close()
                wait_until(lambda: running.batcher.waiting_tokens == 0)
                engine.gate.set()
                assert first.result().status == 200
            wait_until(lambda: running.state.in_flight == 0)
            assert running.state.metrics.disconnected == 1
            assert translate(running, "after").status == 200
        assert ["for nobody"] not in engine.batches

    def test_disconnected_stream_ends(self) -> None:
        engine = FakeTranslator(0.005)
        with served(engine) as running:
            gone = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
            body = json.dumps({"text": "word " * 4000, "source": "en", "target": "fr", "stream": True})
            gone.request("POST", "/api/translate", body, {"Content-Type": "application/json"})
            assert gone.getresponse().readline() == b'data: {"delta": "WORD "}\n'
            gone.sock.close()
            gone.close()
            wait_until(lambda: running.state.in_flight == 0)
            assert translate(running, "after").status == 200

    def test_failing_stream_sends_error(self) -> None:
        with served(FakeTranslator(), max_queue_tokens=20) as running:
            request_body = {"source": "en", "target": "fr", "stream": True}
            late = ask(running.address, "/api/translate", {**request_body, "text": "good poison"})
            assert late.status == 200
            assert late.body.endswith(b'event: error\ndata: {"error": "the translation failed"}\n\n')
            early = ask(running.address, "/api/translate", {**request_body, "text": "poison"})
            assert early.status == 500
            assert ask(running.address, "/api/translate", {**request_body, "text": "a " * 99}).status == 413


class TestFailures:
    def test_failing_translator_returns_500(self, caplog: pytest.LogCaptureFixture) -> None:
        with served(FakeTranslator()) as running:
            answer = translate(running, "poison")
            assert answer.status == 500
            assert answer.json == {"error": "the translation failed", "request_id": answer.headers["x-request-id"]}
            assert translate(running, "fine").json == {"translatedText": "FINE"}
        assert "ZeroDivisionError" in caplog.text
        assert answer.headers["x-request-id"] in caplog.text

    def test_internal_error_returns_500_with_request_id(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: Any
    ) -> None:
        with served(FakeTranslator()) as running:
            monkeypatch.setattr(Batcher, "translate", None)
            answer = ask(
                running.address,
                "/translate",
                {"q": "a", "source": "en", "target": "fr"},
                headers={"X-Request-ID": "mine-1"},
            )
            assert answer.status == 500
            assert answer.json == {"error": "internal server error", "request_id": "mine-1"}
            monkeypatch.undo()
            assert translate(running, "fine").status == 200
        assert "mine-1" in caplog.text


class TestLimits:
    def test_api_keys_required_on_protected_routes(self) -> None:
        with served(FakeTranslator(), api_keys=("other", KEY)) as running:
            assert translate(running, "a").status == 403
            assert translate(running, "a", api_key="wrong").status == 403
            assert translate(running, "a", api_key=[KEY]).status == 403
            assert translate(running, "a", api_key=KEY).status == 200
            request_body = {"q": "a", "source": "en", "target": "fr"}
            deepls = {"text": "a", "target_lang": "FR"}
            bearer, deepl = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"DeepL-Auth-Key {KEY}"}
            own = {"text": "a", "source": "en", "target": "fr"}
            for path, body in (("/translate", request_body), ("/v2/translate", deepls), ("/api/translate", own)):
                assert ask(running.address, path, body).status == 403
                for headers in (bearer, deepl):
                    assert ask(running.address, path, body, headers=headers).status == 200
            assert ask(running.address, "/detect", {"q": "a"}).status == 403
            assert ask(running.address, "/metrics").status == 403
            assert ask(running.address, "/metrics", headers=bearer).status == 200
            assert ask(running.address, "/translate?api_key=" + KEY, request_body).status == 200
            for path in ("/health", "/ready", "/languages", "/frontend/settings", "/spec"):
                assert ask(running.address, path).status == 200
            assert ask(running.address, "/frontend/settings").json["keyRequired"] is True

    def test_rate_limit_ignores_forwarded_address(self) -> None:
        with served(FakeTranslator(), requests_per_minute=3) as running:
            answers = [
                ask(running.address, "/languages", headers={"X-Forwarded-For": f"10.0.0.{number}"})
                for number in range(5)
            ]
            assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
            assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
            assert answers[-1].error == "too many requests"
            assert ask(running.address, "/health").status == 200

    def test_body_over_limit_returns_413(self) -> None:
        with served(FakeTranslator(), max_body_bytes=1000, max_file_bytes=2000) as running:
            for size in (1500, 20_000):
                assert ask(running.address, "/translate", b"a" * size).status == 413
            connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
            connection.request("POST", "/translate", iter([b"a" * 900] * 3), encode_chunked=True)
            response = connection.getresponse()
            assert response.status == 413
            assert json.loads(response.read())["error"]
            connection.close()
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a" * 2001))
            answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind})
            assert answer.status == 413
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a" * 1900))
            assert ask(running.address, "/translate_file", body, headers={"Content-Type": kind}).status == 200

    def test_file_with_too_many_characters_returns_413(self) -> None:
        with served(FakeTranslator(), max_file_characters=5) as running:
            for text, status in (("äöüßé", 200), ("äöüßéa", 413)):
                body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", text.encode()))
                answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind})
                assert answer.status == status
            assert answer.error == "the file has more than 5 characters"

    @pytest.mark.parametrize("host", ["evil.example/path", "user@evil.example", "a b", "a:b", "[::1", "x:123456", ""])
    def test_invalid_host_header_returns_400(self, host: str) -> None:
        engine = FakeTranslator()
        with served(engine) as running:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            headers = {"Content-Type": kind, "Host": host}
            answer = ask(running.address, "/translate_file", body, headers=headers)
            assert answer.status == 400
            assert ["text"] not in engine.batches

    @pytest.mark.parametrize("host", ["translate.example", "my_server:80", "[::1]:5000"])
    @pytest.mark.parametrize("public", ["", "https://public.example/translate/"])
    def test_file_link_uses_host_or_public_url(self, host: str, public: str) -> None:
        with served(FakeTranslator(), public_url=public) as running:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind, "Host": host})
            base = public.rstrip("/") or f"http://{host}"
            assert answer.json["translatedFileUrl"].startswith(f"{base}/download_file/")

    def test_request_id_valid_is_kept_else_generated(self) -> None:
        with served(FakeTranslator()) as running:
            given = ask(running.address, "/health", headers={"X-Request-ID": "my-id.1"})
            assert given.headers["x-request-id"] == "my-id.1"
            for odd in ("", "a b", "x" * 65, "<script>"):
                made = ask(running.address, "/health", headers={"X-Request-ID": odd}).headers["x-request-id"]
                assert re.fullmatch("[0-9a-f]{16}", made)

    def test_cors_disabled_by_default(self) -> None:
        origin = {"Origin": "https://site.example"}
        with served(FakeTranslator()) as running:
            assert "access-control-allow-origin" not in ask(running.address, "/health", headers=origin).headers
        with served(FakeTranslator(), cors_origins=("https://site.example",)) as running:
            allowed = ask(running.address, "/languages", headers=origin)
            assert allowed.headers["access-control-allow-origin"] == "https://site.example"
            other = ask(running.address, "/languages", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers

    def test_phase_not_ready_rejects_requests(self) -> None:
        engine = FakeTranslator()
        with served(engine) as running:
            running.state.phase = "draining"
            assert ask(running.address, "/ready").status == 503
            assert ask(running.address, "/ready").json == {"status": "draining"}
            assert ask(running.address, "/health").status == 200
            assert b"heedful_ready 0\n" in ask(running.address, "/metrics").body
            refused = translate(running, "late")
            assert refused.status == 503
            assert refused.headers["retry-after"]
            running.state.phase = "ready"


def test_two_models_translate_both_directions() -> None:
    there, back = FakeTranslator(), FakeTranslator(languages=("fr", "en"))
    with served(there, back) as running:
        languages = ask(running.address, "/languages").json
        assert [(item["code"], item["targets"]) for item in languages] == [("en", ["fr"]), ("fr", ["en"])]
        texts = ["The dog did not sleep last night.", "Le chien n'a pas dormi cette nuit."]
        for target, expected in (("fr", [texts[0].upper(), texts[1]]), ("en", [texts[0], texts[1].upper()])):
            request_body = {"q": texts, "source": "auto", "target": target}
            assert ask(running.address, "/translate", request_body).json["translatedText"] == expected
        both = {"q": texts[1], "source": "fr", "target": "en"}
        assert ask(running.address, "/translate", both).json["translatedText"] == texts[1].upper()
    assert [texts[0]] in there.batches
    assert [texts[1]] in back.batches


@pytest.mark.parametrize("separator", ["\n", " ", "\n%s "])
@pytest.mark.long
def test_long_file_passes_small_queue(separator: str) -> None:
    text = "".join(f"This is line number {number}.{separator}" for number in range(3000))
    with served(FakeTranslator(), max_queue_tokens=4000, cache_entries=0) as running:
        body, kind = multipart({"source": "en", "target": "fr"}, ("long.txt", text.encode()))
        answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind})
        path = answer.json["translatedFileUrl"].removeprefix(running.address)
        assert ask(running.address, path).body.decode() == text.upper().replace("%S", "%s")
        assert translate(running, text[:20_000]).status == 413


@pytest.mark.parametrize("more", [{}, {"format": "html"}])
def test_alternatives_need_one_search(more: dict[str, str]) -> None:
    engine = FakeTranslator()
    with served(engine, cache_entries=0) as running:
        outcome = translate(running, "hello %s", alternatives=2, **more).json
    assert outcome["translatedText"].startswith("HELLO")
    texts = [text for call in engine.batches for text in call]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("text", "kind", "complete"),
    [
        ("An endless story.", "text", False),
        ("Short. An endless story.", "text", False),
        ("Short. A story.", "text", True),
        ("An endless story of %s.", "text", False),
        ("A story of %s. It is https://endless.example.", "text", True),
        ("<p>Short.</p><p>An <b>endless</b> story.</p>", "html", False),
        ("<p>Short.</p><p class='endless'>A <b>short</b> story.</p>", "html", True),
    ],
)
def test_incomplete_translation_is_reported(text: str, kind: str, complete: bool) -> None:
    with served(FakeTranslator()) as running:
        request_body = {"text": ["Another one.", text], "source": "en", "target": "fr", "format": kind}
        outcome = ask(running.address, "/api/translate", request_body).json["translations"]
    assert [item["complete"] for item in outcome] == [True, complete]


def test_metrics_valid_prometheus_text() -> None:
    with served(FakeTranslator(), api_keys=(KEY,)) as running:
        for number in range(3):
            translate(running, f"text {number % 2}", api_key=KEY)
        translate(running, "text", api_key="wrong")
        ask(running.address, '/no"such\npath'.replace("\n", "%0a"))
        text = ask(running.address, "/metrics", headers={"Authorization": f"Bearer {KEY}"}).body.decode()
    sample = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\]*",?)*)\})? ([0-9.e+-]+)')
    values: dict[str, float] = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        else:
            outcome = sample.fullmatch(line)
            assert outcome, line
            family = outcome[1] if outcome[1] in types else re.sub("_(bucket|sum|count)$", "", outcome[1])
            assert family in types, line
            values[f"{outcome[1]}{{{outcome[2] or ''}}}"] = float(outcome[3])
    assert values['heedful_requests_total{route="/translate",status="200"}'] == 3
    assert values['heedful_requests_total{route="/translate",status="403"}'] == 1
    assert values['heedful_requests_total{route="none",status="404"}'] == 1
    assert values['heedful_cached_total{model="en-fr"}'] == 1
    assert values["heedful_ready{}"] == 1
    assert values['heedful_batch_seconds_bucket{model="en-fr",le="+Inf"}'] == 3
    assert KEY not in text
    assert "127.0.0.1" not in text


def test_shutdown_leaves_no_thread() -> None:
    before = threading.active_count()
    with served(FakeTranslator()) as running:
        translate(running, "a")
    wait_until(lambda: threading.active_count() <= before)
