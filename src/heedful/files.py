"""Files that are whole or not there: written aside, synced, then renamed into place."""

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO

from heedful.errors import DiskError, HeedfulError

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
    with writing(path):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
            partial.replace(path)
        finally:
            with suppress(OSError):  # a disk that has become read-only is already being reported
                partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What can go wrong while a file or folder is written, in words for its user."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: Path | str, error: OSError) -> DiskError:
    """Why something cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(
            f"no room on the disk for {path}", hint="free some room; nothing that was complete is lost"
        )
    return DiskError(f"cannot write {path}: {error.strerror or error}", hint="check the folder")


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


def append_text(path: Path, text: str) -> None:
    """Add to a file; if there is no room for all of it, nothing is added."""
    with writing(path), path.open("ab", buffering=0) as file:
        before, data = file.tell(), text.encode()
        try:
            if (file.write(data) or 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(before)
            raise


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """What stands in a JSON file."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def append_line(path: Path, line: str, is_wanted: Callable[[str], bool]) -> None:
    """Add a line to a file that others may add to, if it is still wanted behind the line that is last."""
    with path.open("a+", encoding="utf-8", errors="replace") as file:
        hold(file, "", wait=True)
        file.seek(0)
        text = file.read()
        if is_wanted((text.splitlines() or [""])[-1]):
            cut_short = bool(text) and not text.endswith("\n")
            file.write("\n" * cut_short + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """The object in a JSON file that we wrote; ``hint`` says what to do when it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HeedfulError(f"cannot read {path}: {error}", hint=hint) from None
    if not isinstance(value, dict):
        raise HeedfulError(f"{path} is damaged: it holds no JSON object", hint=hint)
    return value


def checksum(path: Path) -> str:
    """Of a file: 128 bits of BLAKE2b."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


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
    if os.name != "posix":
        return
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


DELETIONS = 100
"""Of a folder that is to be locked, by others who give up; more in a row have another reason."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep a second process out of the folder, or waiting, while one works; a killed one holds no lock."""
    path, deleted = folder / "lock", 0
    while True:
        with writing(path):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = path.open("w")
            except (FileNotFoundError, FileExistsError):  # deleted at this very moment, or made anew
                deleted += 1
                if deleted == DELETIONS:
                    raise
                continue
        with file:
            hold(file, f"another process is at work in {folder}", wait=wait)
            if not _is_at(file, path):  # whoever had it has deleted it since, and the folder with it
                continue
            yield
            return


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


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
