"""Commands in processes of their own that need not import torch first: forks of one that has.

    python -m tests.warm SOCKET

Several hundred commands are given in the tests, and each would spend a second or two on imports. A fork is a
whole process with its own streams, surroundings, signals and end; only the imports, and with them the seed of
Python's hashes, are those of its parent. Tests of starting, of imports and of kills start Python anew.
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
from pathlib import Path
from typing import Any

LONGEST = 1 << 20
"""Bytes of words and surroundings."""


class Warm:
    """The parent of such processes: started when it is first needed, ends with the tests."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._place = tempfile.TemporaryDirectory(prefix="warm-")
        self._path = str(Path(self._place.name) / "socket")

    def run(
        self, words: Sequence[str], stdin: bytes, seconds: float, surroundings: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        """The status of a command, and what it wrote to both streams."""
        self._start(seconds)
        asked = {"words": list(words), "surroundings": dict(surroundings), "folder": str(Path.cwd())}
        streams = [os.pipe() for _ in range(3)]  # each: to read, to write
        theirs = [streams[0][0], streams[1][1], streams[2][1]]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, ThreadPoolExecutor(3) as pool:
            line.connect(self._path)
            socket.send_fds(line, [json.dumps(asked).encode()], theirs)
            for number in theirs:
                os.close(number)
            pool.submit(_write, streams[0][1], stdin)
            read = [pool.submit(_read, streams[number][0]) for number in (1, 2)]
            pid = int(line.recv(64))
            line.settimeout(seconds)
            try:
                status = int(line.recv(64))
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), seconds) from None
            out, err = (each.result() for each in read)
        return status, out, err

    def _start(self, seconds: float) -> None:
        with self._starting:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.warm", self._path],
                    stdin=subprocess.PIPE,  # its end is the end of the tests
                    stdout=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[1],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            until = time.monotonic() + seconds
            while not Path(self._path).exists():
                assert self._process.poll() is None, "it does not start"
                assert time.monotonic() < until, "it does not start in time"
                time.sleep(0.01)


def _write(number: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(number, "wb") as stream:
        stream.write(data)


def _read(number: int) -> bytes:
    with os.fdopen(number, "rb") as stream:
        return stream.read()


def serve(path: str) -> None:
    """Fork for whoever asks, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"{path}.new")
        listening.listen()
        Path(f"{path}.new").rename(path)
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            line, _ = listening.accept()
            if not os.fork():
                listening.close()
                _answer(line)
            line.close()


def _answer(line: socket.socket) -> None:
    """Start what is asked for, and tell its number, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, streams, _, _ = socket.recv_fds(line, LONGEST, 3)
    pid = os.fork()
    if not pid:
        line.close()
        _become(json.loads(asked), streams)
    for number in (0, *streams):
        os.close(number)
    line.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # it was not waited for any longer
        line.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(asked: dict[str, Any], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Python's own were made for other files: they may think that they can seek.
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(asked["surroundings"])
    os.chdir(asked["folder"])
    sys.argv[1:] = asked["words"]
    try:
        runpy.run_module("heedful", run_name="__main__", alter_sys=True)
    except BaseException:  # the command line ends by itself; all else is a mistake of ours
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Import what most commands need, and serve."""
    from heedful.process import prepare

    prepare()
    import ctranslate2  # noqa: F401
    import sacrebleu  # noqa: F401
    import tokenizers  # noqa: F401

    import heedful.api
    import heedful.cli  # noqa: F401

    running = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").exists() else 1
    assert running == 1, f"{running} threads: a fork would have one of them only"
    serve(sys.argv[1])


if __name__ == "__main__":
    main()
