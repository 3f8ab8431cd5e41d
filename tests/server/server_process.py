"""Servers for tests: the real command as a process, or an app with a fake translator in a thread."""

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
from heedful.server.app import create_app, create_server
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.server.model_registry import ModelRegistry, ServedDirection, ServedLanguageModel
from heedful.server.state import ServerState

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
        """The message of an error, which is always JSON."""
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
    """Send one request: ``body`` as JSON (bytes unchanged), or ``form``, or neither."""
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
    """Build a multipart body and its content type."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if file:
        head = f'Content-Disposition: form-data; name="file"; filename="{file[0]}"\r\n\r\n'
        parts.append(head.encode() + file[1])
    body = b"".join(b"--border\r\n" + part + b"\r\n" for part in parts) + b"--border--\r\n"
    return body, "multipart/form-data; boundary=border"


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Wait until another thread or process makes a condition true."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "timed out"
        time.sleep(0.01)


@dataclass(frozen=True)
class Running:
    """A server in a thread, open to inspection."""

    address: str
    state: ServerState

    @property
    def batcher(self) -> Batcher:
        return next(iter(self.state.registry)).batcher


@contextmanager
def served(
    *engines: Any, folder: Path = Path("fake"), plain: Sequence[ServedLanguageModel] = (), **settings: Any
) -> Iterator[Running]:
    """Serve these translators and language models in a thread."""
    config = ServerConfig(**{"workers": 1, **settings})
    directions = []
    for engine in engines:
        assert engine.model_folder.config.languages
        source, target = engine.model_folder.config.languages
        directions.append(ServedDirection(source, target, folder, Batcher(engine, config)))
    with running_server(ModelRegistry(directions, plain), config) as running:
        yield running


@contextmanager
def running_server(directions: ModelRegistry, config: ServerConfig) -> Iterator[Running]:
    """Serve the models of a registry in a thread."""
    app = create_app(directions, config)
    server = create_server(app, Reporter(quiet=True))
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
        """Its address, once it is ready."""
        wait_until(lambda: "serving on" in self.output or self.process.poll() is not None, SECONDS)
        result = re.search(r"serving on (http://\S+?);", self.output)
        assert result, self.output
        wait_until(lambda: _ready(result[1]), SECONDS)
        return result[1]

    def end(self, number: int) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        """Stop it, by force if necessary."""
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
    """Start a real server on a free port."""
    process = ServeProcess(*words, "--port", "0")
    try:
        yield process
    finally:
        process.close()
