"""Translate documents with a fake model that converts text to uppercase."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from heedful.data.glossary import Glossary
from heedful.documents.translate import DocumentOptions, fill_document, open_document
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import LineOptions
from heedful.inference.translation import Alternative, Translation
from heedful.progress import Reporter

QUIET = Reporter(quiet=True)


class UppercaseTranslator:
    """Converts text to uppercase, word by word."""

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
    """Translate a document to uppercase; returns the path of the new file."""
    target = source.with_name(f"translated-{source.name}")
    options = DocumentOptions(retranslate=retranslate, mark=mark, languages=languages)
    options.check()
    line_options = LineOptions(GenerationConfig())
    fill_document(open_document(source), UppercaseTranslator(), line_options, target, options, QUIET)
    return target
