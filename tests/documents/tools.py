"""Other programs that make and check files for tests, and our own way from file to file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.commands.documents import DocumentOptions, translate_document
from heedful.decoding.config import SearchConfig
from heedful.documents.recognition import recognised
from heedful.progress import Reporter
from tests.server.engines import FakeEngine

QUIET = Reporter(quiet=True)


def tool(name: str, *words: str | Path, status: int | None = 0) -> str:
    """What a program prints; where it is missing the test is skipped, or fails if tools are required."""
    beside = Path(sys.executable).with_name(name)  # the translate toolkit's
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([path, *map(str, words)], capture_output=True, text=True, env=_plain_environment())
    assert status is None or done.returncode == status, done.stderr
    return done.stdout + done.stderr


def _plain_environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", "PYTHONWARNINGS": "ignore"}


def filled(source: Path, again: str = "", mark: str = "", languages: str = "") -> Path:
    """The document with capitals for translations, beside the source."""
    read = recognised(source)
    assert read is not None
    target = source.with_name(f"filled-{source.name}")
    options = DocumentOptions(again, mark, languages)
    translate_document(read(source), FakeEngine(), SearchConfig(), target, options, QUIET)
    return target
