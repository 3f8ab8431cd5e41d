"""Conversions to CTranslate2, in a cache of the user: a model folder is only read. Needs no PyTorch.

A conversion is named by a digest of all that determines it, so it is never outdated. CTranslate2 does not
validate its files: they are loaded only from a folder that nobody else can write to or replace, and with valid
checksums.
"""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from heedful.convert.ctranslate2.weights import export_ctranslate2
from heedful.errors import DiskError
from heedful.files import atomic_create, checksum, lock_folder, new_digest, wrap_write_errors, write_json
from heedful.model_folder import WEIGHTS_FILE, ModelFolder

Precision = Literal["float32", "int8"]

CACHE_VARIABLE = "HEEDFUL_CACHE"
"""Environment variable with the folder of the cache."""

MAX_CACHE_BYTES = 5_000_000_000
"""A new conversion deletes the least recently used ones beyond this size."""

MIN_UNUSED_SECONDS = 3600.0
"""A conversion used more recently is not deleted: another process may be about to load it."""

CHECKSUMS_FILE = "checksums.json"

_CONVERSION_NAME = re.compile(r"\.?[0-9a-f]{32}-")
"""Also of what an interrupted conversion left; a cache that is a link may contain other folders."""

CONVERSION_VERSION = 4
"""Increment when the conversion changes, so that existing conversions are not used."""


@contextmanager
def open_conversion(folder: Path, model_folder: ModelFolder, precision: Precision) -> Iterator[tuple[Path, str]]:
    """The converted model of ``folder``, to be loaded inside the block, and why it is not cached (else empty)."""
    try:
        conversion = _find_or_create(folder, model_folder, precision)
    except DiskError as error:
        with wrap_write_errors(Path(tempfile.gettempdir())):
            temporary = Path(tempfile.mkdtemp(prefix="heedful-"))  # private
        try:
            export_ctranslate2(model_folder, temporary, precision)
            yield temporary, error.problem
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    else:
        yield conversion, ""


def cache_folder() -> Path:
    """The folder of all conversions: of HEEDFUL_CACHE, or of the user's cache on this platform."""
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        try:
            home = Path.home()
        except RuntimeError as error:  # a user without a home
            raise DiskError(f"no cache: {error}") from None
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = home / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
        folder = str(base / "heedful")
    return Path(folder).absolute() / "ctranslate2"


def _find_or_create(folder: Path, model_folder: ModelFolder, precision: Precision) -> Path:
    cache = cache_folder()
    with wrap_write_errors(cache):
        for path in (*reversed(cache.parents), cache):
            path.mkdir(mode=0o700, exist_ok=True)
        cache = cache.resolve()  # a link may be replaced after the check
        _check_private(cache)
    conversion = cache / f"{_compute_key(folder, model_folder, precision)}-{precision}"
    with suppress(OSError):  # missing, or on a read-only disk
        os.utime(conversion)  # the last use; first, so that no other process deletes it from now on
    if not is_valid_conversion(conversion):
        with lock_folder(cache, wait=True), wrap_write_errors(cache):
            if not is_valid_conversion(conversion):  # another process may have converted the same model
                shutil.rmtree(conversion, ignore_errors=True)
                with atomic_create(conversion) as path:
                    export_ctranslate2(model_folder, path, precision)
                    write_json(path / CHECKSUMS_FILE, _compute_checksums(path))
                _evict(cache, conversion)
    return conversion


def _check_private(folder: Path) -> None:
    """Raise unless only this user can write to a resolved folder, and only this user and root can replace it.

    On Windows, folders of users are private by default.
    """
    get_user_id, get_group_id = getattr(os, "geteuid", None), getattr(os, "getegid", None)
    if get_user_id is None or get_group_id is None:
        return
    for path in (folder, *folder.parents):
        status = path.stat()
        owners = {get_user_id()} if path == folder else {get_user_id(), 0}
        # In a sticky folder (/tmp), others can create files, but not replace ours.
        is_sticky = path != folder and status.st_mode & stat.S_ISVTX
        if status.st_uid not in owners:
            raise DiskError(f"{path} belongs to another user")
        # The user's own group usually has no other members; with umask 002 it can write to ~/.cache.
        writable = 0o002 if path != folder and status.st_gid == get_group_id() else 0o022
        if status.st_mode & writable and not is_sticky:
            raise DiskError(f"other users can write to {path}")


def _compute_key(folder: Path, model_folder: ModelFolder, precision: Precision) -> str:
    """A digest of what determines a conversion; the tokens are numbered, so the tokenizer does not matter."""
    import ctranslate2  # type: ignore[import-untyped]

    model_config = model_folder.config.model.model_dump(mode="json")
    inputs = [CONVERSION_VERSION, ctranslate2.__version__, precision, model_config, checksum(folder / WEIGHTS_FILE)]
    return new_digest(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def is_valid_conversion(conversion: Path) -> bool:
    """Whether a conversion is complete and unchanged."""
    try:
        stored = json.loads((conversion / CHECKSUMS_FILE).read_text(encoding="utf-8"))
        return bool(stored == _compute_checksums(conversion))
    except (OSError, ValueError, RecursionError):  # missing or corrupt
        return False


def _compute_checksums(conversion: Path) -> dict[str, str]:
    files = sorted(path for path in conversion.iterdir() if path.name != CHECKSUMS_FILE)
    return {path.name: checksum(path) for path in files}


def _evict(cache: Path, new_conversion: Path) -> None:
    """Delete what an interrupted conversion left, and the least recently used ones if the cache is too large."""
    others = [path for path in cache.iterdir() if _CONVERSION_NAME.match(path.name) and path != new_conversion]
    total = _measure_size(new_conversion)
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        total += _measure_size(path)
        is_unused = time.time() - path.stat().st_mtime > MIN_UNUSED_SECONDS
        if path.name.startswith(".") or (total > MAX_CACHE_BYTES and is_unused):
            shutil.rmtree(path, ignore_errors=True)


def _measure_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
