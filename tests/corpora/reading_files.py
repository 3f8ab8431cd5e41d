"""Shared by the tests of formats: write a file, read it, and see what came out."""

from pathlib import Path
from typing import Any

from heedful.corpora.formats import read_pairs
from heedful.corpora.reading import Reading, ReadingConfig, Record


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def records(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[Record]:
    return list(read_pairs([path], Reading(languages, ReadingConfig(**settings))))


def pairs(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[tuple[str, str]]:
    return [
        (record.source, record.target)
        for record in records(path, languages, **settings)
        if record.source is not None and record.target is not None
    ]


def faults(path: Path, languages: tuple[str, str] | None = None, **settings: Any) -> list[tuple[int, str]]:
    """Lines and reasons of what was dropped."""
    return [(record.line, record.fault) for record in records(path, languages, **settings) if record.fault]
