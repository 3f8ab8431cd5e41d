"""Requests that the server admits, rejects and drops, with a translator that the test can block."""

import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from heedful.server.batching import Batcher
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import SECONDS, Response, RunningServer, ask, multipart, read_value, served, wait_until

KEY = "s3cret-key"


def translate(server: RunningServer, text: str, **more: Any) -> Response:
    return ask(server.address, "/translate", {"q": text, "source": "en", "target": "fr", **more})


class TestOverload:
    def test_overload_rejects_fast_and_answers_correctly(self) -> None:
        engine = FakeTranslator(0.02)
        with served(engine, max_queue_tokens=40, max_batch_tokens=16) as server:
            engine.gate.clear()
            with ThreadPoolExecutor(40) as pool:
                futures = [pool.submit(translate, server, f"sentence number {number}") for number in range(400)]
                # Rejections do not wait for the queue: nothing is translated yet.
                wait_until(lambda: sum(future.done() for future in futures) >= 200)
                engine.gate.set()
                responses = [future.result() for future in futures]
            later = translate(server, "after overload")
        accepted = [(number, response) for number, response in enumerate(responses) if response.status == 200]
        rejected = [response for response in responses if response.status == 503]
        assert len(accepted) + len(rejected) == 400
        assert accepted
        assert len(rejected) >= 200
        for number, response in accepted:
            assert response.json == {"translatedText": f"SENTENCE NUMBER {number}"}
        for response in rejected:
            assert response.error == "the server is busy"
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert response.json["request_id"] == response.headers["x-request-id"]
        assert later.json == {"translatedText": "AFTER OVERLOAD"}

    def test_concurrent_clients_share_batches(self) -> None:
        engine = FakeTranslator()
        with served(engine) as server, ThreadPoolExecutor(96) as pool:
            engine.gate.clear()
            futures = [pool.submit(translate, server, f"text {number}") for number in range(96)]
            wait_until(lambda: server.state.in_flight == 96)
            engine.gate.set()
            results = [future.result().json for future in futures]
        assert results == [{"translatedText": f"TEXT {number}"} for number in range(96)]
        assert len(engine.batches) < 48

    def test_same_text_of_many_clients_translated_once(self) -> None:
        engine = FakeTranslator(0.05)
        with served(engine) as server, ThreadPoolExecutor(16) as pool:
            results = list(pool.map(lambda _: translate(server, "same").json, range(48)))
        assert results == [{"translatedText": "SAME"}] * 48
        assert engine.batches.count(["same"]) == 1

    @pytest.mark.parametrize("more", [{}, {"format": "html"}])
    def test_full_queue_rejects_text_with_placeholders(self, more: dict[str, str]) -> None:
        engine = FakeTranslator()
        with served(engine, max_queue_tokens=8) as server, ThreadPoolExecutor(2) as pool:
            engine.gate.clear()
            first = pool.submit(translate, server, "blocking")
            wait_until(lambda: ["blocking"] in engine.batches)
            second = pool.submit(translate, server, "a b c d e f")
            wait_until(lambda: server.batcher.waiting_tokens == 7)
            assert translate(server, "hello %s", **more).status == 503
            engine.gate.set()
            assert [first.result().status, second.result().status] == [200, 200]

    def test_too_many_requests_rejected_with_503(self) -> None:
        engine = FakeTranslator()
        with served(engine, max_requests=2) as server, ThreadPoolExecutor(2) as pool:
            engine.gate.clear()
            futures = [pool.submit(translate, server, f"text {i}") for i in range(2)]
            wait_until(lambda: server.state.in_flight == 2)
            rejected = translate(server, "one more")
            assert rejected.status == 503
            assert rejected.headers["retry-after"] == "1"
            for path in ("/health", "/ready", "/metrics"):
                assert ask(server.address, path).status == 200
            engine.gate.set()
            assert [future.result().status for future in futures] == [200, 200]


class TestTimeouts:
    def test_deadline_passed_returns_503(self) -> None:
        engine = FakeTranslator()
        with served(engine, request_timeout_seconds=2) as server:
            engine.gate.clear()
            with ThreadPoolExecutor(2) as pool:
                late = pool.submit(translate, server, "blocked")
                wait_until(lambda: ["blocked"] in engine.batches)
                waiting = pool.submit(translate, server, "never started")
                for response in (late.result(), waiting.result()):
                    assert response.status == 503
                    assert "too long" in response.error
                    assert response.headers["retry-after"]
            engine.gate.set()
            assert translate(server, "after").status == 200
            assert ["never started"] not in engine.batches

    def test_missing_body_returns_408(self) -> None:
        with served(FakeTranslator(), request_timeout_seconds=0.3) as server:
            host, port = server.address.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
                assert connection.recv(1000).startswith(b"HTTP/1.1 408")
            assert server.state.in_flight == 0

    def test_disconnected_client_drops_work(self) -> None:
        engine = FakeTranslator()
        with served(engine) as server:
            engine.gate.clear()
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(translate, server, "blocking")
                wait_until(lambda: ["blocking"] in engine.batches)
                client = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=SECONDS)
                body = json.dumps({"q": "abandoned", "source": "en", "target": "fr"})
                client.request("POST", "/translate", body, {"Content-Type": "application/json"})
                wait_until(lambda: server.batcher.waiting_tokens > 0)
                client.close()
                wait_until(lambda: server.batcher.waiting_tokens == 0)
                engine.gate.set()
                assert first.result().status == 200
            wait_until(lambda: server.state.in_flight == 0)
            assert read_value(server.state.metrics.disconnected) == 1
            assert translate(server, "after").status == 200
        assert ["abandoned"] not in engine.batches

    def test_disconnected_stream_ends(self) -> None:
        engine = FakeTranslator(0.1)  # the stream would take longer than wait_until
        with served(engine) as server:
            client = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=SECONDS)
            body = json.dumps({"text": "word " * 4000, "source": "en", "target": "fr", "stream": True})
            client.request("POST", "/api/translate", body, {"Content-Type": "application/json"})
            assert client.getresponse().readline() == b'data: {"delta": "WORD "}\n'
            client.sock.close()
            client.close()
            wait_until(lambda: server.state.in_flight == 0)
            assert translate(server, "after").status == 200

    def test_failing_stream_sends_error(self) -> None:
        with served(FakeTranslator(), max_queue_tokens=20) as server:
            request_body = {"source": "en", "target": "fr", "stream": True}
            late = ask(server.address, "/api/translate", {**request_body, "text": "good poison"})
            assert late.status == 200
            assert late.body.endswith(b'event: error\ndata: {"error": "the translation failed"}\n\n')
            early = ask(server.address, "/api/translate", {**request_body, "text": "poison"})
            assert early.status == 500
            assert ask(server.address, "/api/translate", {**request_body, "text": "a " * 99}).status == 413


class TestFailures:
    def test_failing_translator_returns_500(self, caplog: pytest.LogCaptureFixture) -> None:
        with served(FakeTranslator()) as server:
            response = translate(server, "poison")
            assert response.status == 500
            assert response.json == {"error": "the translation failed", "request_id": response.headers["x-request-id"]}
            assert translate(server, "fine").json == {"translatedText": "FINE"}
        assert "ZeroDivisionError" in caplog.text
        assert response.headers["x-request-id"] in caplog.text

    def test_internal_error_returns_500_with_request_id(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: Any
    ) -> None:
        with served(FakeTranslator()) as server:
            monkeypatch.setattr(Batcher, "translate", None)
            response = ask(
                server.address,
                "/translate",
                {"q": "a", "source": "en", "target": "fr"},
                headers={"X-Request-ID": "mine-1"},
            )
            assert response.status == 500
            assert response.json == {"error": "internal server error", "request_id": "mine-1"}
            monkeypatch.undo()
            assert translate(server, "fine").status == 200
        assert "mine-1" in caplog.text


class TestLimits:
    def test_api_keys_required_on_protected_routes(self) -> None:
        with served(FakeTranslator(), api_keys=("other", KEY)) as server:
            assert translate(server, "a").status == 403
            assert translate(server, "a", api_key="wrong").status == 403
            assert translate(server, "a", api_key=[KEY]).status == 403
            assert translate(server, "a", api_key=KEY).status == 200
            request_body = {"q": "a", "source": "en", "target": "fr"}
            deepl_body = {"text": "a", "target_lang": "FR"}
            bearer, deepl = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"DeepL-Auth-Key {KEY}"}
            native_body = {"text": "a", "source": "en", "target": "fr"}
            for path, body in (
                ("/translate", request_body),
                ("/v2/translate", deepl_body),
                ("/api/translate", native_body),
            ):
                assert ask(server.address, path, body).status == 403
                for headers in (bearer, deepl):
                    assert ask(server.address, path, body, headers=headers).status == 200
            assert ask(server.address, "/detect", {"q": "a"}).status == 403
            assert ask(server.address, "/metrics").status == 403
            assert ask(server.address, "/metrics", headers=bearer).status == 200
            assert ask(server.address, "/translate?api_key=" + KEY, request_body).status == 200
            for path in ("/health", "/ready", "/languages", "/frontend/settings", "/spec"):
                assert ask(server.address, path).status == 200
            assert ask(server.address, "/frontend/settings").json["keyRequired"] is True

    def test_rate_limit_ignores_forwarded_address(self) -> None:
        with served(FakeTranslator(), requests_per_minute=3) as server:
            responses = [
                ask(server.address, "/languages", headers={"X-Forwarded-For": f"10.0.0.{number}"})
                for number in range(5)
            ]
            assert [response.status for response in responses] == [200, 200, 200, 429, 429]
            assert 1 <= int(responses[-1].headers["retry-after"]) <= 20
            assert responses[-1].error == "too many requests"
            assert ask(server.address, "/health").status == 200

    def test_body_over_limit_returns_413(self) -> None:
        with served(FakeTranslator(), max_body_bytes=1000, max_file_bytes=2000) as server:
            for size in (1500, 20_000):
                assert ask(server.address, "/translate", b"a" * size).status == 413
            connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=SECONDS)
            connection.request("POST", "/translate", iter([b"a" * 900] * 3), encode_chunked=True)
            chunked_response = connection.getresponse()
            assert chunked_response.status == 413
            assert json.loads(chunked_response.read())["error"]
            connection.close()
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a" * 2001))
            response = ask(server.address, "/translate_file", body, headers={"Content-Type": kind})
            assert response.status == 413
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a" * 1900))
            assert ask(server.address, "/translate_file", body, headers={"Content-Type": kind}).status == 200

    def test_file_with_too_many_characters_returns_413(self) -> None:
        with served(FakeTranslator(), max_file_characters=5) as server:
            for text, status in (("äöüßé", 200), ("äöüßéa", 413)):
                body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", text.encode()))
                response = ask(server.address, "/translate_file", body, headers={"Content-Type": kind})
                assert response.status == status
            assert response.error == "the file has more than 5 characters"

    @pytest.mark.parametrize("host", ["evil.example/path", "user@evil.example", "a b", "a:b", "[::1", "x:123456", ""])
    def test_invalid_host_header_returns_400(self, host: str) -> None:
        engine = FakeTranslator()
        with served(engine) as server:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            headers = {"Content-Type": kind, "Host": host}
            response = ask(server.address, "/translate_file", body, headers=headers)
            assert response.status == 400
            assert ["text"] not in engine.batches

    @pytest.mark.parametrize("host", ["translate.example", "my_server:80", "[::1]:5000"])
    @pytest.mark.parametrize("public", ["", "https://public.example/translate/"])
    def test_file_link_uses_host_or_public_url(self, host: str, public: str) -> None:
        with served(FakeTranslator(), public_url=public) as server:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            response = ask(server.address, "/translate_file", body, headers={"Content-Type": kind, "Host": host})
            base = public.rstrip("/") or f"http://{host}"
            assert response.json["translatedFileUrl"].startswith(f"{base}/download_file/")

    def test_request_id_valid_is_kept_else_generated(self) -> None:
        with served(FakeTranslator()) as server:
            valid = ask(server.address, "/health", headers={"X-Request-ID": "my-id.1"})
            assert valid.headers["x-request-id"] == "my-id.1"
            for invalid_id in ("", "a b", "x" * 65, "<script>"):
                generated_id = ask(server.address, "/health", headers={"X-Request-ID": invalid_id}).headers[
                    "x-request-id"
                ]
                assert re.fullmatch("[0-9a-f]{16}", generated_id)

    def test_cors_disabled_by_default(self) -> None:
        origin = {"Origin": "https://site.example"}
        with served(FakeTranslator()) as server:
            assert "access-control-allow-origin" not in ask(server.address, "/health", headers=origin).headers
        with served(FakeTranslator(), cors_origins=("https://site.example",)) as server:
            allowed = ask(server.address, "/languages", headers=origin)
            assert allowed.headers["access-control-allow-origin"] == "https://site.example"
            other = ask(server.address, "/languages", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers

    def test_phase_not_ready_rejects_requests(self) -> None:
        engine = FakeTranslator()
        with served(engine) as server:
            server.state.phase = "draining"
            assert ask(server.address, "/ready").status == 503
            assert ask(server.address, "/ready").json == {"status": "draining"}
            assert ask(server.address, "/health").status == 200
            assert b"heedful_ready 0.0\n" in ask(server.address, "/metrics").body
            rejected = translate(server, "late")
            assert rejected.status == 503
            assert rejected.headers["retry-after"]
            server.state.phase = "ready"


def test_two_models_translate_both_directions() -> None:
    forward, backward = FakeTranslator(), FakeTranslator(languages=("fr", "en"))
    with served(forward, backward) as server:
        languages = ask(server.address, "/languages").json
        assert [(item["code"], item["targets"]) for item in languages] == [("en", ["fr"]), ("fr", ["en"])]
        texts = ["The dog did not sleep last night.", "Le chien n'a pas dormi cette nuit."]
        for target, expected in (("fr", [texts[0].upper(), texts[1]]), ("en", [texts[0], texts[1].upper()])):
            request_body = {"q": texts, "source": "auto", "target": target}
            assert ask(server.address, "/translate", request_body).json["translatedText"] == expected
        both = {"q": texts[1], "source": "fr", "target": "en"}
        assert ask(server.address, "/translate", both).json["translatedText"] == texts[1].upper()
    assert [texts[0]] in forward.batches
    assert [texts[1]] in backward.batches


@pytest.mark.parametrize("separator", ["\n", " ", "\n%s "])
@pytest.mark.long
def test_long_file_passes_small_queue(separator: str) -> None:
    text = "".join(f"This is line number {number}.{separator}" for number in range(3000))
    with served(FakeTranslator(), max_queue_tokens=4000, cache_entries=0) as server:
        body, kind = multipart({"source": "en", "target": "fr"}, ("long.txt", text.encode()))
        response = ask(server.address, "/translate_file", body, headers={"Content-Type": kind})
        path = response.json["translatedFileUrl"].removeprefix(server.address)
        assert ask(server.address, path).body.decode() == text.upper().replace("%S", "%s")
        assert translate(server, text[:20_000]).status == 413


@pytest.mark.parametrize("more", [{}, {"format": "html"}])
def test_alternatives_need_one_search(more: dict[str, str]) -> None:
    engine = FakeTranslator()
    with served(engine, cache_entries=0) as server:
        result = translate(server, "hello %s", alternatives=2, **more).json
    assert result["translatedText"].startswith("HELLO")
    texts = [text for batch in engine.batches for text in batch]
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
    with served(FakeTranslator()) as server:
        request_body = {"text": ["Another one.", text], "source": "en", "target": "fr", "format": kind}
        translations = ask(server.address, "/api/translate", request_body).json["translations"]
    assert [item["complete"] for item in translations] == [True, complete]


def test_metrics_valid_prometheus_text() -> None:
    with served(FakeTranslator(), FakeTranslator(languages=("fr", "en")), api_keys=(KEY,)) as server:
        for number in range(3):
            translate(server, f"text {number % 2}", api_key=KEY)
        translate(server, "text", api_key="wrong")
        ask(server.address, '/no"such%0apath')
        response = ask(server.address, "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    assert response.headers["content-type"] == CONTENT_TYPE_LATEST
    text = response.body.decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families) == 16
    assert all(family.documentation for family in families)
    values = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert values["heedful_requests_total", "/translate", "200"] == 3
    assert values["heedful_requests_total", "/translate", "403"] == 1
    assert values["heedful_requests_total", "none", "404"] == 1
    assert values["heedful_cached_total", "en-fr"] == 1
    assert values["heedful_cached_total", "fr-en"] == 0
    assert values["heedful_ready",] == 1
    assert values["heedful_queue_tokens", "en-fr"] == 0
    assert values["heedful_batch_seconds_bucket", "+Inf", "en-fr"] == 3
    assert KEY not in text
    assert "127.0.0.1" not in text


def test_metrics_of_two_servers_are_separate() -> None:
    with served(FakeTranslator()) as first, served(FakeTranslator()) as second:
        translate(first, "text")
        for server, sentences in ((first, 2), (second, 1)):  # one of each is the warm-up
            line = f'heedful_sentences_total{{model="en-fr"}} {sentences}.0'
            assert line in ask(server.address, "/metrics").body.decode()


def test_shutdown_leaves_no_thread() -> None:
    before = threading.active_count()
    with served(FakeTranslator()) as server:
        translate(server, "a")
    wait_until(lambda: threading.active_count() <= before)
