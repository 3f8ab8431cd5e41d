"""What must hold whatever a reader is given: it succeeds or says what is wrong, soon, and does nothing else.

A reader is a function of a folder in which one file is damaged. Any exception but a HeedfulError with words
in it is a crash; so are a read that takes too long, a file written elsewhere, a program started, and an
address connected to.
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

SECONDS = 20
"""A read that takes longer hangs."""
Outcome = Literal["accepted", "refused"]


@dataclass(frozen=True)
class Reader:
    """Something that takes a file from outside, or back from disk."""

    name: str
    file: str
    """The one that is damaged, in the folder."""
    prepare: Callable[[Path], None]
    """Writes valid files into the folder, this one among them."""
    read: Callable[[Path], object]
    """Reads it, and checks what came out."""
    inputs: Callable[[Sequence[bytes]], SearchStrategy[bytes]]
    """From valid files to damaged ones."""
    more: Sequence[bytes] = ()
    """Further valid files."""
    slow: int = 1
    """So many times fewer inputs are tried."""
    connects: bool = False
    """Whether it asks a server on this machine."""


class HangError(BaseException):
    """The time is over; nothing catches it by accident."""


class OutsideError(BaseException):
    """Something was written, started or connected to that is no business of a reader's."""


def outcome(reader: Reader, folder: Path, data: bytes) -> Outcome:
    """What becomes of a file; what is neither is raised."""
    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        with in_time(), only_within(folder, connects=reader.connects):
            reader.read(folder)
    except HeedfulError as error:
        refusal = error
    else:
        return "accepted"
    assert refusal.problem.strip(), "a refusal without words"
    return "refused"


@contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raise if it takes too long."""

    def late(_: int, frame: FrameType | None) -> None:
        raise HangError("".join(traceback.format_stack(frame, 5)))

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- what else is done

_ALLOWED: list[str] = []
"""Where something may be written now; nothing is watched while it is empty."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.remove", "os.rmdir"}
_FORBIDDEN = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "pickle.find_class"}


@contextmanager
def only_within(folder: Path, *, connects: bool = False) -> Iterator[None]:
    """Raise if something is written outside of a folder (or of new ones for the time being)."""
    _watch()
    _FORBIDDEN.discard("socket.connect") if connects else _FORBIDDEN.add("socket.connect")
    _ALLOWED[:] = [str(folder.resolve()), f"{tempfile.gettempdir()}/heedful-"]
    try:
        yield
    finally:
        _ALLOWED.clear()


_watching = False


def _watch() -> None:
    """Python tells of what it does (audit events); once asked it cannot be asked to stop."""
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _ALLOWED:
        return
    if event in _FORBIDDEN:
        raise OutsideError(f"{event} {arguments!r:.200}")
    if event == "open" and _writes(arguments):
        _check_place(arguments[0])
    elif event in ("os.rename", "os.link", "os.symlink"):
        _check_place(arguments[0])
        _check_place(arguments[1])
    elif event in _CHANGES:
        _check_place(arguments[0], arguments[-1])


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    return any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)


def _check_place(path: object, folder: object = -1) -> None:
    """``folder`` is the descriptor of the one that a path is relative to."""
    if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor that is open already
        return
    text = os.fsdecode(path)
    base = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else ""
    place = os.path.realpath(f"{base}/{text}" if base and not text.startswith("/") else text)
    if not place.startswith((*_ALLOWED, "/dev/null")) and "__pycache__" not in place:
        raise OutsideError(f"written: {place}")
