"""Files that are whole or not there: written aside, synced, then renamed into place."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """A UTF-8 file, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
    """A file, whole or not at all, even through a power cut."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
