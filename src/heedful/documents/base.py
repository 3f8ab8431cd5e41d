"""What all document formats share: options, unit counts, the Document protocol and a caching translator."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, Protocol, TypeVar

from heedful.data.glossary import Glossary
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import translate_lines
from heedful.inference.projection import TranslationGenerator, combine_generators, run_generator
from heedful.inference.translation import Alternative
from heedful.inference.translator import Translator
from heedful.progress import ProgressTask, format_count
from heedful.tokenization.protected_spans import ProtectionRules

RetranslateMode = Literal["", "drafts", "all"]
ReviewMark = Literal["fuzzy", "comment"]

ResultT = TypeVar("ResultT")

TOOL_NAME = "heedful"

_INVALID_CHARACTERS = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]+")
"""Characters that XML forbids, and line breaks."""

_MAX_CACHE_SIZE = 200_000


@dataclass(frozen=True, slots=True)
class FillOptions:
    """How the units of a document are translated."""

    source: str = ""
    """The source language, if known."""
    target: str = ""
    retranslate: RetranslateMode = ""
    """Which existing translations to replace: none, drafts (not reviewed) or all."""
    mark: ReviewMark = "fuzzy"
    """Whether new translations need a review before use, or only get a comment."""
    rules: ProtectionRules = field(default_factory=ProtectionRules)

    def should_retranslate(self, draft: bool) -> bool:
        """Whether an existing translation is replaced."""
        return self.retranslate == "all" or (self.retranslate == "drafts" and draft)


@dataclass
class UnitCounts:
    """How many units of a document were translated, left unchanged or skipped."""

    translated: int = 0
    unchanged: int = 0
    """Already translated."""
    skipped: int = 0
    """Not translatable, or without a valid translation."""

    def __str__(self) -> str:
        return (
            f"{format_count(self.translated, 'unit')} translated, {self.unchanged:,} unchanged, "
            f"{self.skipped:,} skipped"
        )


class Document(Protocol):
    """A localization file that was read without errors."""

    format_name: str
    """Shown to users."""
    source_language: str
    """As declared in the file; may be empty."""
    target_language: str
    needs_target: bool
    """Whether it needs a target language to be written."""

    def count_units(self, options: FillOptions) -> int:
        """How many units will be translated."""
        ...

    def write_translation(self, options: FillOptions, translator: "CachingTranslator", file: BinaryIO) -> UnitCounts:
        """Write the document with its units translated."""
        ...


class CachingTranslator:
    """Translates the texts of a document, each distinct text once."""

    def __init__(
        self,
        translator: Translator,
        generation_config: GenerationConfig | None = None,
        task: ProgressTask | None = None,
        glossary: Glossary | None = None,
    ) -> None:
        self.translator, self.generation_config = translator, generation_config
        self.task, self.glossary = task, glossary
        self.incomplete_count = 0
        self._cache: dict[tuple[bool, str], Alternative] = {}

    def translate(
        self, generators: Sequence[TranslationGenerator[ResultT]], *, with_alignment: bool = False
    ) -> list[ResultT]:
        """Run one generator per unit, in common batches; returns their results."""
        remaining_units = len(generators)

        def advance(amount: int) -> None:
            nonlocal remaining_units
            remaining_units -= amount
            if self.task and amount:
                self.task.advance(amount)

        def translate_batch(texts: Sequence[str]) -> list[Alternative]:
            if len(self._cache) > _MAX_CACHE_SIZE:
                self._cache.clear()
            new_texts = [text for text in dict.fromkeys(texts) if (with_alignment, text) not in self._cache]
            translations = translate_lines(
                self.translator,
                new_texts,
                self.generation_config,
                details=with_alignment,
                interactive=False,
                glossary=self.glossary,
            )
            for text, translation in zip(new_texts, translations, strict=True):
                best = translation.alternatives[0]
                clean_text = _INVALID_CHARACTERS.sub(" ", best.text).strip()
                self._cache[with_alignment, text] = Alternative(
                    clean_text, alignment=best.alignment, complete=best.complete
                )
                self.incomplete_count += not translation.complete
                advance(min(1, remaining_units))
            return [self._cache[with_alignment, text] for text in texts]

        results = run_generator(combine_generators(generators), translate_batch)
        advance(remaining_units)
        return results
