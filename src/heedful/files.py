"""Atomic files, locks, checksums and readable I/O errors.

A file is written beside its path, synced and renamed, so it is complete or absent even after a power cut.
"""

import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from heedful.errors import DiskError, HeedfulError

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when complete."""
    partial = path.with_name(path.name + ".partial")
    with wrap_write_errors(path):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
            partial.replace(path)
        finally:
            with suppress(OSError):  # a read-only disk is already being reported
                partial.unlink(missing_ok=True)


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Convert OSError while writing to DiskError."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: Path | str, error: OSError) -> DiskError:
    """Describe why a path cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(f"no space left on the disk for {path}", hint="free some space; complete files are intact")
    return DiskError(f"cannot write {path}: {error.strerror or error}", hint="check the folder")


@contextmanager
def atomic_create(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a new file or folder, renamed to ``path`` on success and deleted on failure.

    An existing path is never overwritten.
    """
    check_not_exists(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", dir=path.parent))
    try:
        yield temporary / path.name
        check_not_exists(path)
        (temporary / path.name).rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_not_exists(path: Path) -> None:
    """Raise an error if the path exists or cannot be created."""
    if path.exists() or path.is_symlink():
        raise HeedfulError(f"{path} already exists", hint="use another name, or delete it first")
    check_writable(path)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_bytes(path, text.encode())


def append_text(path: Path, text: str) -> None:
    """Append to a file, all or nothing."""
    with wrap_write_errors(path), path.open("ab", buffering=0) as file:
        size_before, data = file.tell(), text.encode()
        try:
            if (file.write(data) or 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size_before)
            raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """The bytes of a JSON file."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def append_line(path: Path, line: str, should_append: Callable[[str], bool]) -> None:
    """Append a line to a file shared by processes, if ``should_append`` accepts its last line."""
    with path.open("a+", encoding="utf-8", errors="replace") as file:
        lock_file(file, "", wait=True)
        file.seek(0)
        text = file.read()
        if should_append((text.splitlines() or [""])[-1]):
            cut_short = bool(text) and not text.endswith("\n")
            file.write("\n" * cut_short + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Read a JSON object; ``hint`` says what to do if it is corrupt."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{path} is corrupt: {error}", hint=hint) from None
    if not isinstance(value, dict):
        raise HeedfulError(f"{path} is corrupt: not a JSON object", hint=hint)
    return value


def checksum(path: Path) -> str:
    """The checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_digest).hexdigest()


def new_digest(data: bytes = b"") -> "hashlib.blake2b":
    """The hash behind ``checksum``: 128 bits of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=16)


def check_writable(path: Path) -> None:
    """Raise an error before the work if its output cannot be written."""
    if path.is_dir():
        raise HeedfulError(f"{path} is a folder", hint="use the name of a file")
    if not path.parent.is_dir():
        raise HeedfulError(f"no such folder: {path.parent}", hint=f"create it: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise DiskError(f"cannot write to {path.parent}: permission denied")


def sync_folder(folder: Path) -> None:
    """Make renames in the folder durable; only POSIX systems need it."""
    if os.name != "posix":
        return
    with wrap_write_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


MAX_LOCK_RETRIES = 100
"""Retries while another process deletes and recreates the folder."""


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a folder; the lock ends with the process."""
    path, retries = folder / "lock", 0
    while True:
        with wrap_write_errors(path):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = path.open("w")
            except (FileNotFoundError, FileExistsError):  # another process just deleted or created it
                retries += 1
                if retries == MAX_LOCK_RETRIES:
                    raise
                continue
        with file:
            lock_file(file, f"another process is using {folder}", wait=wait)
            try:
                is_current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                is_current = False
            if is_current:  # else the previous holder deleted it with the folder
                yield
                return


def lock_file(file: IO[str], problem: str, *, wait: bool = False) -> None:
    """Lock an open file until it is closed; raise ``problem`` if another process holds the lock."""
    from filelock import lock_descriptor  # slow to import

    if not lock_descriptor(file.fileno(), blocking=wait):
        raise HeedfulError(problem, hint="wait until it ends, or stop it")


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[None]:
    """Convert errors while reading to HeedfulError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeedfulError(f"{path} is a corrupt gzip file: {error}", hint="download or compress it again") from None
    except FileNotFoundError:
        raise HeedfulError(f"no such file: {path}", hint="check the path") from None
    except OSError as error:
        raise HeedfulError(f"cannot read {path}: {error.strerror or error}") from None


def is_gzip(path: Path) -> bool:
    """Whether a file starts with gzip's magic number, whatever its name."""
    with wrap_read_errors(path), path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


@contextmanager
def decompress_gzip(file: io.BufferedReader) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, decompressed if it starts with gzip's magic number, whatever its name."""
    if not file.peek(2).startswith(_GZIP_MAGIC):
        yield file
        return
    # GzipFile reads lines in Python; BufferedReader does it in C.
    with io.BufferedReader(gzip.GzipFile(fileobj=file), buffer_size=1 << 17) as stream:
        yield stream


ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError, RuntimeError)
"""Exceptions of zipfile for a corrupt or unsupported archive."""
