"""Write a file and read its records, pairs or errors, for the tests of formats."""

from pathlib import Path
from typing import Any

from heedful.data.config import ReadingConfig
from heedful.data.formats.base import PairRecord, ReadOptions
from heedful.data.reader import read_pairs


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def records(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[PairRecord]:
    return list(read_pairs([path], ReadOptions(languages, ReadingConfig(**settings))))


def pairs(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[tuple[str, str]]:
    return [
        (record.source, record.target)
        for record in records(path, languages, **settings)
        if record.source is not None and record.target is not None
    ]


def errors(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[tuple[int, str]]:
    """Lines and errors of unreadable records."""
    return [(record.line, record.error) for record in records(path, languages, **settings) if record.error]
