"""Servers for tests: the real command in a process, or an app in a thread; and a client for both."""

import http.client
import json
import logging
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from prometheus_client import Counter

from heedful.cli.serve import _load_model
from heedful.progress import Reporter
from heedful.server.app import create_app, create_server
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.server.model_registry import ModelRegistry, ServedDirection, ServedLanguageModel, load_registry
from heedful.server.state import ServerState
from tests.processes import command_without

SECONDS = 120
"""How long to wait for a server; on an idle machine everything takes a few seconds."""


@dataclass(frozen=True)
class Response:
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
) -> Response:
    """Send one request: ``body`` as JSON (bytes unchanged), or ``form``, or neither."""
    request_headers = {**(headers or {})}
    content: bytes | None = body if isinstance(body, bytes) else None
    if form is not None:
        content = urlencode(form, doseq=True).encode()
        request_headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    elif body is not None and content is None:
        content = json.dumps(body).encode()
        request_headers.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
    try:
        connection.request(method or ("GET" if content is None else "POST"), path, content, request_headers)
        response = connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, response_headers, response.read())
    finally:
        connection.close()


def multipart(fields: Mapping[str, str], file: tuple[str, bytes] | None = None) -> tuple[bytes, str]:
    """Build a multipart body and its content type."""
    sections = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()
    ]
    if file:
        disposition = f'Content-Disposition: form-data; name="file"; filename="{file[0]}"\r\n\r\n'
        sections.append(disposition.encode() + file[1])
    body = b"".join(b"--border\r\n" + section + b"\r\n" for section in sections) + b"--border--\r\n"
    return body, "multipart/form-data; boundary=border"


def read_value(counter: Counter) -> float:
    """The value of a counter."""
    [family] = counter.collect()
    return family.samples[0].value


def wait_until(condition: Any, seconds: float = SECONDS) -> None:
    """Wait until another thread or process makes a condition true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@dataclass(frozen=True)
class RunningServer:
    """A server in a thread, with its state."""

    address: str
    state: ServerState

    @property
    def batcher(self) -> Batcher:
        return next(iter(self.state.registry)).batcher


@contextmanager
def served(
    *engines: Any, folder: Path = Path("fake"), language_models: Sequence[ServedLanguageModel] = (), **settings: Any
) -> Iterator[RunningServer]:
    """Serve these translators and language models in a thread."""
    config = ServerConfig(**{"workers": 1, "request_timeout_seconds": 10 * SECONDS, **settings})
    directions = []
    for engine in engines:
        assert engine.model_folder.config.languages
        source, target = engine.model_folder.config.languages
        directions.append(ServedDirection(source, target, folder, Batcher(engine, config)))
    with serve_registry(ModelRegistry(directions, language_models), config) as running:
        yield running


@contextmanager
def serve_registry(directions: ModelRegistry, config: ServerConfig) -> Iterator[RunningServer]:
    """Serve the models of a registry in a thread."""
    app = create_app(directions, config)
    server = create_server(app, Reporter(quiet=True))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    running = RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.server)
    try:
        wait_until(lambda: running.state.phase == "ready")
        yield running
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def serve_folders(*folders: Path) -> Iterator[str]:
    """Serve model folders in a thread and yield the address; at the end no error was logged.

    A process of its own would take seconds to start.
    """
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    config = ServerConfig(request_timeout_seconds=10 * SECONDS)
    registry = load_registry(list(map(str, folders)), config, lambda folder: _load_model(folder, "auto", "cpu", 0))
    logging.getLogger().addHandler(handler)
    try:
        with serve_registry(registry, config) as running:
            yield running.address
    finally:
        logging.getLogger().removeHandler(handler)
    assert not errors, errors


class ServeProcess:
    """``heedful serve`` with a real model."""

    def __init__(self, *args: str | Path, missing: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*command_without(*missing), "serve", *map(str, args)],
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
        match = re.search(r"serving on (http://\S+?);", self.output)
        assert match, self.output
        wait_until(lambda: is_ready(match[1]), SECONDS)
        return match[1]

    def stop(self, number: int) -> int:
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


def is_ready(address: str) -> bool:
    try:
        return ask(address, "/ready").status == 200
    except OSError:
        return False


@contextmanager
def serve_process(*args: str | Path, missing: Sequence[str] = ()) -> Iterator[ServeProcess]:
    """Start a real server on a free port; packages in ``missing`` cannot be imported."""
    timeout = f"server.request_timeout_seconds={10 * SECONDS}"
    process = ServeProcess(*args, "--port", "0", "--set", timeout, missing=missing)
    try:
        yield process
    finally:
        process.close()
