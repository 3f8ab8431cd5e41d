"""Run commands as forks of one process that has already imported torch.

    python -m tests.forked_commands SOCKET

The tests run several hundred commands, and imports would cost each a second or two. A fork is a complete
process with its own streams, environment, signals and exit status; only the imports, and with them Python's
hash seed, come from the parent. Tests of startup, imports and kills start a new interpreter instead.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

PRELOADED_MODULES = (
    "ctranslate2",
    "sacrebleu",
    "heedful.cli.main",
    "heedful.workflows.train",
    "heedful.workflows.evaluate",
    "heedful.workflows.compare",
    "heedful.inference.bulk",
    "heedful.inference.pytorch_backend",
    "heedful.interpret.attention_report",
    "heedful.interpret.explain",
    "heedful.server.app",
)
"""What most commands import; none of them may start a thread."""

MAX_REQUEST_BYTES = 1 << 20
"""Arguments and environment of one command."""


class ForkServer:
    """Client of the forking process, which starts on first use and exits with the tests."""

    def __init__(self) -> None:
        self._start_lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="fork-server-")
        self._socket_path = str(Path(self._folder.name) / "socket")

    def run(
        self, args: Sequence[str], stdin: bytes, timeout: float, environment: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        """Exit status, stdout and stderr of a command."""
        self._start(timeout)
        request = {"args": list(args), "environment": dict(environment), "folder": str(Path.cwd())}
        pipes = [os.pipe() for _ in range(3)]  # (read end, write end) of stdin, stdout, stderr
        child_ends = [pipes[0][0], pipes[1][1], pipes[2][1]]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, ThreadPoolExecutor(3) as pool:
            connection.connect(self._socket_path)
            socket.send_fds(connection, [json.dumps(request).encode()], child_ends)
            for descriptor in child_ends:
                os.close(descriptor)
            pool.submit(_write, pipes[0][1], stdin)
            outputs = [pool.submit(_read, pipes[number][0]) for number in (1, 2)]
            pid = int(connection.recv(64))
            connection.settimeout(timeout)
            try:
                status = int(connection.recv(64))
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(args), timeout) from None
            out, err = (output.result() for output in outputs)
        return status, out, err

    def _start(self, timeout: float) -> None:
        with self._start_lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forked_commands", self._socket_path],
                    stdin=subprocess.PIPE,  # closes when the tests exit, which ends the server
                    stdout=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[1],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            deadline = time.monotonic() + timeout
            while not Path(self._socket_path).exists():
                assert self._process.poll() is None, "the fork server exited at startup"
                assert time.monotonic() < deadline, "the fork server did not start in time"
                time.sleep(0.01)


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def serve(path: str) -> None:
    """Fork once per request until standard input closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap the forks that wait for commands
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                _handle_request(connection)
            connection.close()


def _handle_request(connection: socket.socket) -> None:
    """Start the requested command; send its pid, then its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
    pid = os.fork()
    if not pid:
        connection.close()
        _run_command(json.loads(request), streams)
    for descriptor in (0, *streams):
        os.close(descriptor)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the client has timed out
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run_command(request: dict[str, Any], streams: Sequence[int]) -> None:
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    # The parent's stream objects belong to other files and may believe that they can seek.
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv[1:] = request["args"]
    try:
        runpy.run_module("heedful", run_name="__main__", alter_sys=True)
    except BaseException:  # the command line exits without an exception; anything else is a bug
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Import what most commands need, then serve."""
    from heedful.devices import configure_process

    configure_process()
    for name in PRELOADED_MODULES:
        import_module(name)
    assert "torch" in sys.modules, "no preloaded module imports torch"
    threads = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").exists() else 1
    assert threads == 1, f"{threads} threads are running, but a fork would inherit only one"
    serve(sys.argv[1])


if __name__ == "__main__":
    main()
