"""Outcomes of readers on corrupt files: a reader succeeds or raises a HeedfulError, in time and without side effects.

A reader is a function of a folder in which one file is corrupt. Any exception other than a HeedfulError with a
message is a crash; so is a read that takes too long, writes outside the folder, starts a program or connects to
an address.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from hypothesis.strategies import SearchStrategy

from heedful.errors import HeedfulError

SECONDS = 120
"""A read that takes longer counts as a hang."""
Outcome = Literal["accepted", "rejected"]


@dataclass(frozen=True)
class Reader:
    """Something that reads a file of a user, or one that we wrote to disk."""

    name: str
    file: str
    """The file to corrupt, relative to the folder."""
    prepare: Callable[[Path], None]
    """Writes valid files to the folder, including this one."""
    read: Callable[[Path], object]
    """Reads it and checks the result."""
    inputs: Callable[[Sequence[bytes]], SearchStrategy[bytes]]
    """Generates corrupt files from valid ones."""
    more: Sequence[bytes] = ()
    """Further valid files."""
    slow: int = 1
    """Divides the number of inputs."""
    connects: bool = False
    """Whether it connects to a server on this machine."""


class HangError(BaseException):
    """Time limit exceeded; a BaseException, so that readers do not catch it."""


class ForbiddenEffectError(BaseException):
    """A reader wrote outside its folder, started a program or opened a connection."""


def read_outcome(reader: Reader, folder: Path, data: bytes) -> Outcome:
    """Whether a file is accepted or rejected; crashes are raised."""
    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        with time_limit(), restrict_effects(folder, connects=reader.connects):
            reader.read(folder)
    except HeedfulError as error:
        rejection = error
    else:
        return "accepted"
    assert rejection.problem.strip(), "an error without a message"
    return "rejected"


@contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise HangError if the block takes too long."""

    def raise_hang(_: int, frame: FrameType | None) -> None:
        raise HangError("".join(traceback.format_stack(frame, 5)))

    before = signal.signal(signal.SIGALRM, raise_hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- side effects

_ALLOWED_FOLDERS: list[str] = []
"""Where files may be written now; nothing is checked while it is empty."""
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATH_EVENTS = {"os.mkdir", "os.remove", "os.rmdir"}
_FORBIDDEN = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "pickle.find_class"}


@contextmanager
def restrict_effects(folder: Path, *, connects: bool = False) -> Iterator[None]:
    """Raise if something is written outside a folder and our temporary folders."""
    _watch()
    _FORBIDDEN.discard("socket.connect") if connects else _FORBIDDEN.add("socket.connect")
    _ALLOWED_FOLDERS[:] = [str(folder.resolve()), f"{tempfile.gettempdir()}/heedful-"]
    try:
        yield
    finally:
        _ALLOWED_FOLDERS.clear()


_watching = False


def _watch() -> None:
    """Install the audit hook once; it cannot be removed."""
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _ALLOWED_FOLDERS:
        return
    if event in _FORBIDDEN:
        raise ForbiddenEffectError(f"{event} {arguments!r:.200}")
    if event == "open" and _is_write(arguments):
        _check_path(arguments[0])
    elif event in ("os.rename", "os.link", "os.symlink"):
        _check_path(arguments[0])
        _check_path(arguments[1])
    elif event in _PATH_EVENTS:
        _check_path(arguments[0], arguments[-1])


def _is_write(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    return any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITE_FLAGS)


def _check_path(path: object, folder: object = -1) -> None:
    """``folder`` is the descriptor of the folder that a path is relative to."""
    if not isinstance(path, (str, bytes, os.PathLike)):  # an open file descriptor
        return
    text = os.fsdecode(path)
    base = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else ""
    real_path = os.path.realpath(f"{base}/{text}" if base and not text.startswith("/") else text)
    if not real_path.startswith((*_ALLOWED_FOLDERS, "/dev/null")) and "__pycache__" not in real_path:
        raise ForbiddenEffectError(f"written: {real_path}")
