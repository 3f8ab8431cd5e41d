"""Files that are whole or not there: written aside, synced, then renamed into place."""

import gzip
import io
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO

from heedful.errors import HeedfulError

_GZIP_MAGIC = b"\x1f\x8b"

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: no locks, the rest works
    fcntl = None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name only when it is complete, even through a power cut."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        partial.replace(path)
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise HeedfulError(f"cannot write {path}: {error.strerror}", hint="check the folder") from None
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def built_aside(path: Path) -> Iterator[Path]:
    """A place to make a new file or folder, which gets the name ``path`` when all is well, and else goes.

    What is there already is never touched.
    """
    check_new(path)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", dir=path.parent))
    try:
        yield aside / path.name
        check_new(path)
        (aside / path.name).rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_new(path: Path) -> None:
    """An error if something is there, or nothing can be."""
    if path.exists() or path.is_symlink():
        raise HeedfulError(f"{path} exists already", hint="name another, or remove it first")
    check_writable(path)


def write_bytes(path: Path, data: bytes) -> None:
    """A file, whole or not at all."""
    with whole_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """A UTF-8 file, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The object in a JSON file that we wrote; ``hint`` says what to do when it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HeedfulError(f"cannot read {path}: {error}", hint=hint) from None
    if not isinstance(value, dict):
        raise HeedfulError(f"{path} is damaged: it holds no JSON object", hint=hint)
    return value


def check_writable(path: Path) -> None:
    """An output that could not be written is an error before the work, not after it."""
    if path.is_dir():
        raise HeedfulError(f"{path} is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise HeedfulError(f"there is no folder {path.parent}", hint=f"make it: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise HeedfulError(f"cannot write to {path.parent}: permission denied")


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut; where folders cannot be opened, they do anyway."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep a second process out of the folder, or waiting, while one works; a killed one holds no lock."""
    with (folder / "lock").open("w") as file:
        hold(file, f"another process is at work in {folder}", wait=wait)
        yield


def hold(file: IO[str], problem: str, *, wait: bool = False) -> None:
    """Keep others from an open file until it is closed, or say that somebody has it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise HeedfulError(problem, hint="let it end, or stop it first") from None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What can go wrong while a file is read, in words for its user."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeedfulError(f"{path} is a damaged gzip file: {error}", hint="fetch or pack it again") from None
    except FileNotFoundError:
        raise HeedfulError(f"no such file: {path}", hint="check the path") from None
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror or error}") from None


@contextmanager
def unpacked(plain: io.BufferedReader) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, unpacked if it starts as gzip does, whatever its name."""
    if not plain.peek(2).startswith(_GZIP_MAGIC):
        yield plain
        return
    # GzipFile reads lines in Python; the buffer around it does so in C.
    with io.BufferedReader(gzip.GzipFile(fileobj=plain), buffer_size=1 << 17) as stream:
        yield stream
