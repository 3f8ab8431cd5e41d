"""External tools that create and check files, and the translation of a file with a fake model."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heedful.data.glossary import Glossary
from heedful.documents.translate import DocumentOptions, fill_document, open_document
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import LineOptions
from heedful.inference.translation import Alternative, Translation
from heedful.progress import Reporter

QUIET = Reporter(quiet=True)


def tool(name: str, *words: str | Path, status: int | None = 0) -> str:
    """The output of a program; if it is missing, the test is skipped, or fails if tools are required."""
    beside = Path(sys.executable).with_name(name)  # the translate toolkit's
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    process = subprocess.run([path, *map(str, words)], capture_output=True, text=True, env=_plain_environment())
    assert status is None or process.returncode == status, process.stderr
    return process.stdout + process.stderr


def _plain_environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", "PYTHONWARNINGS": "ignore"}


class UppercaseTranslator:
    """Translates into capitals, word by word."""

    concurrent_batches = 1

    def __init__(self) -> None:
        self.model_folder: Any = SimpleNamespace(config=SimpleNamespace(languages=("en", "fr")))
        self.model_folder.for_language = lambda language: self.model_folder

    def translate(
        self,
        texts: Sequence[str],
        generation_config: GenerationConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        return [Translation(text, (_uppercase(text),)) for text in texts]


def _uppercase(text: str) -> Alternative:
    words = tuple(text.upper().split())
    alignment = tuple((index, index) for index in range(len(words)))
    return Alternative(text.upper(), -1.0, -1.0, words, (), alignment, complete="endless" not in text)


def translate_file(source: Path, retranslate: str = "", mark: str = "", languages: str = "") -> Path:
    """Translate a document into capitals; returns the path of the new file."""
    target = source.with_name(f"translated-{source.name}")
    options = DocumentOptions(retranslate=retranslate, mark=mark, languages=languages)
    options.check()
    line_options = LineOptions(GenerationConfig())
    fill_document(open_document(source), UppercaseTranslator(), line_options, target, options, QUIET)
    return target
