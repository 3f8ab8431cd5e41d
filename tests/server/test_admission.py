"""What a server lets in, refuses and drops, with an engine whose pace the test decides."""

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
from tests.server.engines import FakeEngine
from tests.server.serving import Answer, Running, ask, multipart, served, wait_until

KEY = "s3cret-key"


def translate(running: Running, text: str, **more: Any) -> Answer:
    return ask(running.address, "/translate", {"q": text, "source": "en", "target": "fr", **more})


class TestOverload:
    def test_excess_is_refused_quickly_and_nothing_is_swapped(self) -> None:
        engine = FakeEngine(0.02)
        seconds: list[float] = []

        def one(number: int) -> tuple[int, Answer]:
            begun = time.monotonic()
            answer = translate(running, f"sentence number {number}")
            if answer.status == 503:
                seconds.append(time.monotonic() - begun)
            return number, answer

        with served(engine, queue_tokens=40, batch_tokens=16) as running:
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
        engine = FakeEngine(0.05)
        with served(engine) as running, ThreadPoolExecutor(32) as pool:
            found = list(pool.map(lambda number: translate(running, f"text {number}").json, range(96)))
        assert found == [{"translatedText": f"TEXT {number}"} for number in range(96)]
        assert len(engine.calls) < 48

    def test_the_same_text_of_many_is_translated_once(self) -> None:
        engine = FakeEngine(0.05)
        with served(engine) as running, ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda _: translate(running, "same").json, range(48)))
        assert found == [{"translatedText": "SAME"}] * 48
        assert engine.calls.count(["same"]) == 1

    @pytest.mark.parametrize("more", [{}, {"format": "html"}])
    def test_what_needs_several_rounds_is_refused_like_anything_else(self, more: dict[str, str]) -> None:
        engine = FakeEngine()
        with served(engine, queue_tokens=8) as running, ThreadPoolExecutor(2) as pool:
            engine.gate.clear()
            first = pool.submit(translate, running, "in the way")
            wait_until(lambda: ["in the way"] in engine.calls)
            second = pool.submit(translate, running, "a b c d e f")
            wait_until(lambda: running.batcher.waiting_tokens == 7)
            assert translate(running, "hello %s", **more).status == 503
            engine.gate.set()
            assert [first.result().status, second.result().status] == [200, 200]

    def test_too_many_requests_at_a_time(self) -> None:
        engine = FakeEngine()
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
            assert [each.result().status for each in waiting] == [200, 200]


class TestTime:
    def test_deadline(self) -> None:
        engine = FakeEngine()
        with served(engine, deadline_seconds=0.3) as running:
            engine.gate.clear()
            with ThreadPoolExecutor(2) as pool:
                late = pool.submit(translate, running, "held up")
                wait_until(lambda: ["held up"] in engine.calls)
                waiting = pool.submit(translate, running, "never begun")
                for answer in (late.result(), waiting.result()):
                    assert answer.status == 503
                    assert "too long" in answer.error
                    assert answer.headers["retry-after"]
            engine.gate.set()
            assert translate(running, "after").status == 200
            assert ["never begun"] not in engine.calls

    def test_a_body_that_does_not_come(self) -> None:
        with served(FakeEngine(), deadline_seconds=0.3) as running:
            host, port = running.address.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
                assert connection.recv(1000).startswith(b"HTTP/1.1 408")
            assert running.state.in_flight == 0

    def test_a_client_that_hangs_up(self) -> None:
        engine = FakeEngine()
        with served(engine) as running:
            engine.gate.clear()
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(translate, running, "in the way")
                wait_until(lambda: ["in the way"] in engine.calls)
                gone = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
                body = json.dumps({"q": "for nobody", "source": "en", "target": "fr"})
                gone.request("POST", "/translate", body, {"Content-Type": "application/json"})
                wait_until(lambda: running.batcher.waiting_tokens > 0)
                gone.close()
                wait_until(lambda: running.batcher.waiting_tokens == 0)
                engine.gate.set()
                assert first.result().status == 200
            wait_until(lambda: running.state.in_flight == 0)
            assert running.state.statistics.disconnected == 1
            assert translate(running, "after").status == 200
        assert ["for nobody"] not in engine.calls

    def test_a_stream_that_nobody_reads_ends(self) -> None:
        engine = FakeEngine(0.005)
        with served(engine) as running:
            gone = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
            body = json.dumps({"text": "word " * 4000, "source": "en", "target": "fr", "stream": True})
            gone.request("POST", "/api/translate", body, {"Content-Type": "application/json"})
            assert gone.getresponse().readline() == b'data: {"delta": "WORD "}\n'
            gone.sock.close()
            gone.close()
            wait_until(lambda: running.state.in_flight == 0)
            assert translate(running, "after").status == 200

    def test_streams_that_fail(self) -> None:
        with served(FakeEngine(), queue_tokens=20) as running:
            asked = {"source": "en", "target": "fr", "stream": True}
            late = ask(running.address, "/api/translate", {**asked, "text": "good poison"})
            assert late.status == 200
            assert late.body.endswith(b'event: error\ndata: {"error": "the translation failed"}\n\n')
            early = ask(running.address, "/api/translate", {**asked, "text": "poison"})
            assert early.status == 500
            assert ask(running.address, "/api/translate", {**asked, "text": "a " * 99}).status == 413


class TestAccidents:
    def test_an_engine_that_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        with served(FakeEngine()) as running:
            answer = translate(running, "poison")
            assert answer.status == 500
            assert answer.json == {
                "error": "the translation failed",
                "request_id": answer.headers["x-request-id"],
            }
            assert translate(running, "fine").json == {"translatedText": "FINE"}
        assert "ZeroDivisionError" in caplog.text
        assert answer.headers["x-request-id"] in caplog.text

    def test_a_mistake_of_ours(self, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
        with served(FakeEngine()) as running:
            monkeypatch.setattr(Batcher, "translate", None)
            answer = ask(
                running.address,
                "/translate",
                {"q": "a", "source": "en", "target": "fr"},
                headers={"X-Request-ID": "mine-1"},
            )
            assert answer.status == 500
            assert answer.json == {"error": "internal error", "request_id": "mine-1"}
            monkeypatch.undo()
            assert translate(running, "fine").status == 200
        assert "mine-1" in caplog.text


class TestDoor:
    def test_keys(self) -> None:
        with served(FakeEngine(), api_keys=("other", KEY)) as running:
            assert translate(running, "a").status == 403
            assert translate(running, "a", api_key="wrong").status == 403
            assert translate(running, "a", api_key=[KEY]).status == 403
            assert translate(running, "a", api_key=KEY).status == 200
            asked = {"q": "a", "source": "en", "target": "fr"}
            deepls = {"text": "a", "target_lang": "FR"}
            bearer, deepl = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"DeepL-Auth-Key {KEY}"}
            own = {"text": "a", "source": "en", "target": "fr"}
            for path, body in (("/translate", asked), ("/v2/translate", deepls), ("/api/translate", own)):
                assert ask(running.address, path, body).status == 403
                for headers in (bearer, deepl):
                    assert ask(running.address, path, body, headers=headers).status == 200
            assert ask(running.address, "/detect", {"q": "a"}).status == 403
            assert ask(running.address, "/metrics").status == 403
            assert ask(running.address, "/metrics", headers=bearer).status == 200
            assert ask(running.address, "/translate?api_key=" + KEY, asked).status == 200
            for path in ("/health", "/ready", "/languages", "/frontend/settings", "/spec"):
                assert ask(running.address, path).status == 200
            assert ask(running.address, "/frontend/settings").json["keyRequired"] is True

    def test_rate_whatever_the_client_says_of_itself(self) -> None:
        with served(FakeEngine(), requests_a_minute=3) as running:
            answers = [
                ask(running.address, "/languages", headers={"X-Forwarded-For": f"10.0.0.{number}"})
                for number in range(5)
            ]
            assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
            assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
            assert answers[-1].error == "too many requests"
            assert ask(running.address, "/health").status == 200

    def test_bodies_are_bounded_however_they_come(self) -> None:
        with served(FakeEngine(), max_body_bytes=1000, file_bytes=2000) as running:
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

    def test_a_file_has_so_many_characters(self) -> None:
        with served(FakeEngine(), file_characters=5) as running:
            for text, status in (("äöüßé", 200), ("äöüßéa", 413)):
                body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", text.encode()))
                answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind})
                assert answer.status == status
            assert answer.error == "the file has more than 5 characters"

    @pytest.mark.parametrize(
        "host", ["evil.example/path", "user@evil.example", "a b", "a:b", "[::1", "x:123456", ""]
    )
    def test_only_a_host_gets_into_a_link(self, host: str) -> None:
        engine = FakeEngine()
        with served(engine) as running:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            headers = {"Content-Type": kind, "Host": host}
            answer = ask(running.address, "/translate_file", body, headers=headers)
            assert answer.status == 400
            assert ["text"] not in engine.calls

    @pytest.mark.parametrize("host", ["translate.example", "my_server:80", "[::1]:5000"])
    @pytest.mark.parametrize("public", ["", "https://public.example/translate/"])
    def test_links(self, host: str, public: str) -> None:
        with served(FakeEngine(), public_url=public) as running:
            body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"text"))
            answer = ask(
                running.address, "/translate_file", body, headers={"Content-Type": kind, "Host": host}
            )
            base = public.rstrip("/") or f"http://{host}"
            assert answer.json["translatedFileUrl"].startswith(f"{base}/download_file/")

    def test_request_ids(self) -> None:
        with served(FakeEngine()) as running:
            given = ask(running.address, "/health", headers={"X-Request-ID": "my-id.1"})
            assert given.headers["x-request-id"] == "my-id.1"
            for odd in ("", "a b", "x" * 65, "<script>"):
                made = ask(running.address, "/health", headers={"X-Request-ID": odd}).headers["x-request-id"]
                assert re.fullmatch("[0-9a-f]{16}", made)

    def test_cors_is_off_unless_asked_for(self) -> None:
        origin = {"Origin": "https://site.example"}
        with served(FakeEngine()) as running:
            assert (
                "access-control-allow-origin" not in ask(running.address, "/health", headers=origin).headers
            )
        with served(FakeEngine(), cors_origins=("https://site.example",)) as running:
            allowed = ask(running.address, "/languages", headers=origin)
            assert allowed.headers["access-control-allow-origin"] == "https://site.example"
            other = ask(running.address, "/languages", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers

    def test_phases(self) -> None:
        engine = FakeEngine()
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


def test_two_models_and_back() -> None:
    there, back = FakeEngine(), FakeEngine(languages=("fr", "en"))
    with served(there, back) as running:
        languages = ask(running.address, "/languages").json
        assert [(each["code"], each["targets"]) for each in languages] == [("en", ["fr"]), ("fr", ["en"])]
        texts = ["The dog did not sleep last night.", "Le chien n'a pas dormi cette nuit."]
        for target, expected in (("fr", [texts[0].upper(), texts[1]]), ("en", [texts[0], texts[1].upper()])):
            asked = {"q": texts, "source": "auto", "target": target}
            assert ask(running.address, "/translate", asked).json["translatedText"] == expected
        both = {"q": texts[1], "source": "fr", "target": "en"}
        assert ask(running.address, "/translate", both).json["translatedText"] == texts[1].upper()
    assert [texts[0]] in there.calls
    assert [texts[1]] in back.calls


@pytest.mark.parametrize("separator", ["\n", " ", "\n%s "])
def test_a_long_file_goes_through_a_small_queue(separator: str) -> None:
    text = "".join(f"This is line number {number}.{separator}" for number in range(3000))
    with served(FakeEngine(), queue_tokens=4000, cache_entries=0) as running:
        body, kind = multipart({"source": "en", "target": "fr"}, ("long.txt", text.encode()))
        answer = ask(running.address, "/translate_file", body, headers={"Content-Type": kind})
        path = answer.json["translatedFileUrl"].removeprefix(running.address)
        assert ask(running.address, path).body.decode() == text.upper().replace("%S", "%s")
        assert translate(running, text[:20_000]).status == 413


@pytest.mark.parametrize("more", [{}, {"format": "html"}])
def test_alternatives_are_found_by_one_search(more: dict[str, str]) -> None:
    engine = FakeEngine()
    with served(engine, cache_entries=0) as running:
        found = translate(running, "hello %s", alternatives=2, **more).json
    assert found["translatedText"].startswith("HELLO")
    texts = [text for call in engine.calls for text in call]
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
def test_what_was_cut_is_told(text: str, kind: str, complete: bool) -> None:
    with served(FakeEngine()) as running:
        asked = {"text": ["Another one.", text], "source": "en", "target": "fr", "format": kind}
        found = ask(running.address, "/api/translate", asked).json["translations"]
    assert [each["complete"] for each in found] == [True, complete]


def test_metrics_can_be_read() -> None:
    with served(FakeEngine(), api_keys=(KEY,)) as running:
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
            found = sample.fullmatch(line)
            assert found, line
            family = found[1] if found[1] in types else re.sub("_(bucket|sum|count)$", "", found[1])
            assert family in types, line
            values[f"{found[1]}{{{found[2] or ''}}}"] = float(found[3])
    assert values['heedful_requests_total{route="/translate",status="200"}'] == 3
    assert values['heedful_requests_total{route="/translate",status="403"}'] == 1
    assert values['heedful_requests_total{route="none",status="404"}'] == 1
    assert values['heedful_cached_total{model="en-fr"}'] == 1
    assert values["heedful_ready{}"] == 1
    assert values['heedful_batch_seconds_bucket{model="en-fr",le="+Inf"}'] == 3
    assert KEY not in text
    assert "127.0.0.1" not in text


def test_no_thread_stays_behind() -> None:
    before = threading.active_count()
    with served(FakeEngine()) as running:
        translate(running, "a")
    wait_until(lambda: threading.active_count() <= before)
