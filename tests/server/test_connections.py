"""Raw sockets: clients that send slowly or nothing, do not read, or are too many; rejections before the body."""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heedful.server.middleware import MAX_DISCARD_FACTOR
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import SECONDS, RunningServer, ask, served, wait_until

HEALTH_REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
KEY = "s3cret-key"

TIMEOUT = 2.0
"""A timeout of the server that a busy machine does not reach between two calls of a test."""
SHORT_TIMEOUT = 0.5
"""The same where nothing has to arrive in time."""


@contextmanager
def connect(running: RunningServer) -> Iterator[socket.socket]:
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    result = b""
    try:
        while chunk := connection.recv(65_536):
            result += chunk
    except ConnectionError:
        pass
    return result


def request_header(path: str, length: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read_status_line(connection: socket.socket) -> bytes:
    return connection.recv(65_536).partition(b"\r\n")[0]


def send_endless_body(connection: socket.socket) -> None:
    """Send a body until the server closes the connection."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        connection.sendall(b"a" * 1000)
        time.sleep(0.02)


class TestHeader:
    def test_header_missing_closes_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=SHORT_TIMEOUT) as running, connect(running) as connection:
            assert read_all(connection) == b""

    def test_header_slow_closes_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=TIMEOUT) as running, connect(running) as connection:
            connection.settimeout(0.02)
            deadline, result = time.monotonic() + SECONDS, b""
            while not result:
                assert time.monotonic() < deadline, "the connection stays open"
                connection.sendall(b"G")
                try:
                    result = connection.recv(1000)
                except TimeoutError:
                    continue
            assert result.startswith(b"HTTP/1.1 408 ")
            assert b"Connection: close" in result

    def test_header_of_second_request_times_out(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=TIMEOUT) as running, connect(running) as connection:
            connection.sendall(HEALTH_REQUEST)
            assert read_status_line(connection) == b"HTTP/1.1 200 OK"
            connection.sendall(b"GET /hea")
            assert b"HTTP" not in read_all(connection)  # only the rest of the first response

    def test_requests_in_time_share_connection(self) -> None:
        with served(FakeTranslator(), header_timeout_seconds=TIMEOUT) as running:
            connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=SECONDS)
            for _ in range(3):
                connection.request("GET", "/health")
                open_socket = connection.sock
                assert connection.getresponse().read() == b'{"status":"ok"}'
                assert connection.sock is open_socket
                time.sleep(0.4 * TIMEOUT)
            connection.close()

    def test_long_translation_keeps_connection(self) -> None:
        engine = FakeTranslator(1.5 * TIMEOUT)
        with served(engine, header_timeout_seconds=TIMEOUT, body_timeout_seconds=TIMEOUT) as running:
            response = ask(running.address, "/translate", {"q": "slow", "source": "en", "target": "fr"})
            assert response.json == {"translatedText": "SLOW"}

    def test_rejected_body_that_continues_closes_connection(self) -> None:
        with (
            served(FakeTranslator(), header_timeout_seconds=TIMEOUT, api_keys=(KEY,)) as running,
            connect(running) as connection,
        ):
            connection.sendall(request_header("/translate", 10**9, "Authorization: Bearer wrong"))
            assert read_status_line(connection) == b"HTTP/1.1 403 Forbidden"
            with pytest.raises(ConnectionError):
                send_endless_body(connection)


class TestBody:
    def test_body_missing_returns_408(self) -> None:
        with served(FakeTranslator(), body_timeout_seconds=SHORT_TIMEOUT) as running, connect(running) as connection:
            connection.sendall(request_header("/translate", 10) + b"{")
            result = read_all(connection)
            assert result.startswith(b"HTTP/1.1 408 ")
            assert b"did not arrive in time" in result
            assert running.state.in_flight == 0

    @pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
    def test_body_of_unthrottled_path_is_not_read(self, path: str) -> None:
        with served(FakeTranslator(), header_timeout_seconds=TIMEOUT) as running, connect(running) as connection:
            connection.sendall(request_header(path, 10**12).replace(b"POST", b"GET"))
            assert read_status_line(connection) == b"HTTP/1.1 200 OK"
            with pytest.raises(ConnectionError):
                send_endless_body(connection)

    def test_body_of_health_request_is_ignored(self) -> None:
        with served(FakeTranslator()) as running:
            assert ask(running.address, "/health", {"some": "body"}, method="GET").status == 200

    @pytest.mark.parametrize("chunked", [False, True])
    def test_body_far_over_limit_closes_connection(self, chunked: bool) -> None:
        """A body slightly over the limit is read and discarded; a larger one closes the connection."""
        limit = 1000
        max_size = MAX_DISCARD_FACTOR * limit
        header = "Transfer-Encoding: chunked" if chunked else "Accept: */*"
        with served(FakeTranslator(), max_body_bytes=limit, body_timeout_seconds=SECONDS) as running:
            for size, closed in ((max_size, False), (max_size + 1, True)):
                request_head = request_header("/translate", size, header)
                request_body = b"a" * size
                if chunked:
                    request_head = request_head.replace(f"Content-Length: {size}\r\n".encode(), b"")
                    request_body = b"%x\r\n%s\r\n" % (size, request_body) + (b"" if closed else b"0\r\n\r\n")
                with connect(running) as connection:
                    connection.sendall(request_head if closed and not chunked else request_head + request_body)
                    result = connection.recv(65_536)
                    assert result.startswith(b"HTTP/1.1 413 ")
                    assert (b"connection: close" in result.lower()) == closed
                    if closed:
                        assert b"\r\n" not in read_all(connection)


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
        with served(FakeTranslator(), api_keys=(KEY,)) as running, connect(running) as connection:
            connection.sendall(request_header(path, 10, header))
            assert read_status_line(connection) == b"HTTP/1.1 403 Forbidden"

    @pytest.mark.parametrize(
        ("path", "header"), [("/translate", "Accept: */*"), ("/translate", f"Authorization: Bearer {KEY}")]
    )
    def test_possible_key_in_body_waits_for_body(self, path: str, header: str) -> None:
        settings = {"api_keys": (KEY,), "body_timeout_seconds": SHORT_TIMEOUT}
        with served(FakeTranslator(), **settings) as running, connect(running) as connection:
            connection.sendall(request_header(path, 10, header))
            assert read_status_line(connection) == b"HTTP/1.1 408 Request Timeout"


def test_too_many_connections_close_the_most_idle() -> None:
    with (
        served(FakeTranslator(), max_connections=3, header_timeout_seconds=60) as running,
        connect(running) as first,
        connect(running) as second,
        connect(running) as third,
        connect(running) as fourth,
    ):
        assert read_all(first) == b""
        for connection in (second, third, fourth):
            connection.sendall(HEALTH_REQUEST)
            assert read_status_line(connection) == b"HTTP/1.1 200 OK"


def test_too_many_connections_keep_busy_ones() -> None:
    engine = FakeTranslator()
    with served(engine, max_connections=1) as running, connect(running) as first:
        engine.gate.clear()
        body = b'{"q": "hello", "source": "en", "target": "fr"}'
        first.sendall(request_header("/translate", len(body), "Content-Type: application/json") + body)
        wait_until(lambda: ["hello"] in engine.batches)
        with connect(running) as second:
            assert read_all(second) == b""
        engine.gate.set()
        assert read_status_line(first) == b"HTTP/1.1 200 OK"


def test_unread_response_closes_connection() -> None:
    with served(FakeTranslator(), write_timeout_seconds=SHORT_TIMEOUT) as running, connect(running) as connection:
        name = running.state.files.put(b"a" * 50_000_000, "text/plain", "a.txt", ".txt")
        connection.sendall(f"GET /download_file/{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(lambda: running.state.in_flight == 1)
        wait_until(lambda: running.state.in_flight == 0)
        assert len(read_all(connection)) < 50_000_000
