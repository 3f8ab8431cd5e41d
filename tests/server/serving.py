"""Servers for tests: the real command as a process, or an app with a fake engine in a thread."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from heedful.progress import Reporter
from heedful.server.app import new_app
from heedful.server.batching import Batcher, ServedEngine
from heedful.server.config import ServerConfig
from heedful.server.models import Direction, Directions, PlainModel
from heedful.server.running import new_server
from heedful.server.state import Server

SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """A response that has been read."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"].startswith("application/json"), self.body
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error, which is JSON always."""
        assert self.status >= 400, self.body
        return str(self.json["error"])


def ask(
    address: str,
    path: str,
    body: object = None,
    *,
    method: str = "",
    form: Mapping[str, Any] | Sequence[tuple[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request: ``body`` as JSON (bytes as they are), or ``form``, or neither."""
    sent = {**(headers or {})}
    content: bytes | None = body if isinstance(body, bytes) else None
    if form is not None:
        content = urlencode(form, doseq=True).encode()
        sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
    elif body is not None and content is None:
        content = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
    try:
        connection.request(method or ("GET" if content is None else "POST"), path, content, sent)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def multipart(fields: Mapping[str, str], file: tuple[str, bytes] | None = None) -> tuple[bytes, str]:
    """A multipart body and its content type."""
    parts = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in fields.items()
    ]
    if file:
        head = f'Content-Disposition: form-data; name="file"; filename="{file[0]}"\r\n\r\n'
        parts.append(head.encode() + file[1])
    body = b"".join(b"--border\r\n" + part + b"\r\n" for part in parts) + b"--border--\r\n"
    return body, "multipart/form-data; boundary=border"


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for something that another thread or process does."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


# ---- an app in a thread


@dataclass(frozen=True)
class Running:
    """A server in a thread, open to inspection."""

    address: str
    state: Server

    @property
    def batcher(self) -> Batcher:
        return next(iter(self.state.directions)).batcher


@contextmanager
def served(
    *engines: ServedEngine, folder: Path = Path("fake"), plain: Sequence[PlainModel] = (), **settings: Any
) -> Iterator[Running]:
    """These engines, and models of plain text, behind HTTP, in a thread."""
    config = ServerConfig(**{"workers": 1, **settings})
    directions = []
    for engine in engines:
        assert engine.bundle.config.languages
        source, target = engine.bundle.config.languages
        directions.append(Direction(source, target, folder, Batcher(engine, config)))
    with running_server(Directions(directions, plain), config) as running:
        yield running


@contextmanager
def running_server(directions: Directions, config: ServerConfig) -> Iterator[Running]:
    """These models behind HTTP, in a thread."""
    app = new_app(directions, config)
    server = new_server(app, Reporter(quiet=True))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    running = Running(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.server)
    try:
        wait_until(lambda: running.state.phase == "ready")
        yield running
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listening.close()
    assert not thread.is_alive()


# ---- the command as a process


class ServeProcess:
    """``heedful serve`` with a real model."""

    def __init__(self, *words: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "heedful", "serve", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def address(self) -> str:
        """Where it listens, once it is ready."""
        wait_until(lambda: "serving on" in self.output or self.process.poll() is not None, SECONDS)
        found = re.search(r"serving on (http://\S+?);", self.output)
        assert found, self.output
        wait_until(lambda: _ready(found[1]), SECONDS)
        return found[1]

    def end(self, number: int) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        self.reader.join(SECONDS)
        assert self.process.stderr
        self.process.stderr.close()
        assert "Traceback" not in self.output, self.output


def _ready(address: str) -> bool:
    try:
        return ask(address, "/ready").status == 200
    except OSError:
        return False


@contextmanager
def serve_process(*words: str | Path) -> Iterator[ServeProcess]:
    """A real server on any free port."""
    process = ServeProcess(*words, "--port", "0")
    try:
        yield process
    finally:
        process.close()
