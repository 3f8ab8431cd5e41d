"""Clients that are slow, silent, deaf or too many, on raw sockets; what is decided before a body comes."""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import Running, ask, served, wait_until

HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
KEY = "s3cret-key"


@contextmanager
def connected(running: Running) -> Iterator[socket.socket]:
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection


def all_from(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    result = b""
    try:
        while chunk := connection.recv(65_536):
            result += chunk
    except ConnectionError:
        pass
    return result


def post(path: str, length: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def first_line(connection: socket.socket) -> bytes:
    return connection.recv(65_536).partition(b"\r\n")[0]


def send_on(connection: socket.socket) -> None:
    """A body without an end, or nearly."""
    for _ in range(1000):
        connection.sendall(b"a" * 1000)
        time.sleep(0.02)


class TestHeader:
    def test_header_missing_closes_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=0.3) as running, connected(running) as connection:
            assert all_from(connection) == b""

    def test_header_slow_closes_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=0.5) as running, connected(running) as connection:
            connection.settimeout(0.02)
            ends, result = time.monotonic() + 20, b""
            while not result:
                assert time.monotonic() < ends, "it may go on for ever"
                connection.sendall(b"G")
                try:
                    result = connection.recv(1000)
                except TimeoutError:
                    continue
            assert result.startswith(b"HTTP/1.1 408 ")
            assert b"Connection: close" in result

    def test_header_of_second_request_times_out(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=0.3) as running, connected(running) as connection:
            connection.sendall(HEAD)
            assert first_line(connection) == b"HTTP/1.1 200 OK"
            connection.sendall(b"GET /hea")
            assert b"HTTP" not in all_from(connection)  # only the end of the first answer

    def test_requests_in_time_share_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=0.5) as running:
            connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=20)
            for _ in range(3):
                connection.request("GET", "/health")
                mine = connection.sock
                assert connection.getresponse().read() == b'{"status":"ok"}'
                assert connection.sock is mine
                time.sleep(0.3)
            connection.close()

    def test_long_translation_keeps_connection(self) -> None:
        engine = FakeTranslator(0.6)
        with served(engine, header_timeout_seconds=0.2, body_timeout_seconds=0.2) as running:
            answer = ask(running.address, "/translate", {"q": "slow", "source": "en", "target": "fr"})
            assert answer.json == {"translatedText": "SLOW"}

    def test_rejected_body_that_continues_closes_connection(self) -> None:
        with (
            served(FakeTranslator(), header_timeout_seconds=0.3, api_keys=(KEY,)) as running,
            connected(running) as connection,
        ):
            connection.sendall(post("/translate", 10**9, "Authorization: Bearer wrong"))
            assert first_line(connection) == b"HTTP/1.1 403 Forbidden"
            with pytest.raises(ConnectionError):
                send_on(connection)


class TestBody:
    def test_body_missing_returns_408(self) -> None:
        with served(FakeTranslator(), body_timeout_seconds=0.3) as running, connected(running) as connection:
            connection.sendall(post("/translate", 10) + b"{")
            result = all_from(connection)
            assert result.startswith(b"HTTP/1.1 408 ")
            assert b"did not arrive in time" in result
            assert running.state.in_flight == 0

    @pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
    def test_body_of_unthrottled_path_is_not_read(self, path: str) -> None:
        with served(FakeTranslator(), header_timeout_seconds=0.3) as running, connected(running) as connection:
            connection.sendall(post(path, 10**12).replace(b"POST", b"GET"))
            assert first_line(connection) == b"HTTP/1.1 200 OK"
            with pytest.raises(ConnectionError):
                send_on(connection)

    def test_body_of_health_request_is_ignored(self) -> None:
        with served(FakeTranslator()) as running:
            assert ask(running.address, "/health", {"some": "body"}, method="GET").status == 200

    @pytest.mark.parametrize("chunked", [False, True])
    def test_body_far_over_limit_closes_connection(self, chunked: bool) -> None:
        """Just so much more than the limit is thrown away; beyond it nothing is awaited."""
        limit = 1000
        border = 8 * limit  # as guard.DISCARDED says
        kind = "Transfer-Encoding: chunked" if chunked else "Accept: */*"
        with served(FakeTranslator(), max_body_bytes=limit, body_timeout_seconds=20) as running:
            for size, closed in ((border, False), (border + 1, True)):
                head = post("/translate", size, kind)
                sent = b"a" * size
                if chunked:
                    head = head.replace(f"Content-Length: {size}\r\n".encode(), b"")
                    sent = b"%x\r\n%s\r\n" % (size, sent) + (b"" if closed else b"0\r\n\r\n")
                with connected(running) as connection:
                    connection.sendall(head if closed and not chunked else head + sent)
                    result = connection.recv(65_536)
                    assert result.startswith(b"HTTP/1.1 413 ")
                    assert (b"connection: close" in result.lower()) == closed
                    if closed:
                        assert b"\r\n" not in all_from(connection)


class TestKeys:
    @pytest.mark.parametrize(
        ("path", "header"),
        [
            ("/translate", "Authorization: Bearer wrong"),
            ("/translate", "Authorization: Bearer"),
            ("/v2/translate", "Authorization: DeepL-Auth-Key wrong"),
            ("/translate_file?api_key=wrong", "Accept: */*"),
            ("/api/translate", "Accept: */*"),
        ],
    )
    def test_wrong_key_rejected_before_body(self, path: str, header: str) -> None:
        with served(FakeTranslator(), api_keys=(KEY,)) as running, connected(running) as connection:
            connection.sendall(post(path, 10, header))
            assert first_line(connection) == b"HTTP/1.1 403 Forbidden"

    @pytest.mark.parametrize(
        ("path", "header"), [("/translate", "Accept: */*"), ("/translate", f"Authorization: Bearer {KEY}")]
    )
    def test_possible_key_in_body_waits_for_body(self, path: str, header: str) -> None:
        settings = {"api_keys": (KEY,), "body_timeout_seconds": 0.3}
        with served(FakeTranslator(), **settings) as running, connected(running) as connection:
            connection.sendall(post(path, 10, header))
            assert first_line(connection) == b"HTTP/1.1 408 Request Timeout"


def test_too_many_connections_close_the_most_idle() -> None:
    with (
        served(FakeTranslator(), max_connections=3, header_timeout_seconds=60) as running,
        connected(running) as first,
        connected(running) as second,
        connected(running) as third,
        connected(running) as fourth,
    ):
        assert all_from(first) == b""
        for connection in (second, third, fourth):
            connection.sendall(HEAD)
            assert first_line(connection) == b"HTTP/1.1 200 OK"


def test_too_many_connections_keep_busy_ones() -> None:
    engine = FakeTranslator()
    with served(engine, max_connections=1) as running, connected(running) as first:
        engine.gate.clear()
        body = b'{"q": "hello", "source": "en", "target": "fr"}'
        first.sendall(post("/translate", len(body), "Content-Type: application/json") + body)
        wait_until(lambda: ["hello"] in engine.batches)
        with connected(running) as second:
            assert all_from(second) == b""
        engine.gate.set()
        assert first_line(first) == b"HTTP/1.1 200 OK"


def test_unread_response_closes_connection() -> None:
    with served(FakeTranslator(), write_timeout_seconds=0.3) as running, connected(running) as connection:
        name = running.state.files.put(b"a" * 50_000_000, "text/plain", "a.txt", ".txt")
        connection.sendall(f"GET /download_file/{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(lambda: running.state.in_flight == 1)
        wait_until(lambda: running.state.in_flight == 0)
        assert len(all_from(connection)) < 50_000_000
