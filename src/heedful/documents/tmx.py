"""TMX translation memories: a unit without the target language gets a variant marked as machine-translated."""

from collections.abc import Iterator
from pathlib import Path

from heedful.documents.base import TOOL_NAME, FillOptions, UnitCounts
from heedful.documents.xml_document import (
    LANGUAGE_ATTRIBUTE,
    XmlDocument,
    XmlEdit,
    XmlElement,
    XmlFile,
    XmlSegment,
    escape_attribute,
)
from heedful.tokenization.languages import languages_match
from heedful.version import __version__


class TmxDocument(XmlDocument):
    """A translation memory, of any version of TMX."""

    format_name = "TMX"
    unit_names = frozenset({"tu"})
    language_element, source_attribute = "header", "srclang"
    target_code = ""
    """The target language as the file spells it, such as de-DE, once a unit has it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.source_language = self.source_language.replace("*all*", "")

    def find_segments(
        self, file: XmlFile, unit: XmlElement, options: FillOptions, counts: UnitCounts
    ) -> Iterator[XmlSegment]:
        """A unit is one segment, if it has the source language and lacks the target language."""
        variants = [element for element in unit.children if element.name == "tuv"]
        source = _find_variant(variants, options.source)
        segment = source.find_child("seg") if source else None
        if segment is None or not file.read_content(segment):
            counts.skipped += 1
            return
        existing = _find_variant([element for element in variants if element is not source], options.target)
        if existing:  # count_units has seen all units before the first is written
            is_exact = _variant_language(existing).lower() == options.target.lower()
            self.target_code = _variant_language(existing) if is_exact or not self.target_code else self.target_code
            is_draft = existing.attributes.get("creationtool") == TOOL_NAME
            if file.read_content(existing.find_child("seg")) and not options.should_retranslate(is_draft):
                counts.unchanged += 1
                return
        yield XmlSegment(segment, unit, existing)

    def segment_edits(
        self, file: XmlFile, segment: XmlSegment, content: str, options: FillOptions
    ) -> Iterator[XmlEdit]:
        """A new variant after the others, or instead of the old one."""
        variant = segment.source.parent
        assert variant is not None
        language = "xml:lang" if LANGUAGE_ATTRIBUTE in variant.attributes else "lang"
        prefix = file.read_prefix(variant)
        inner, outer = file.read_indentation(segment.source), file.read_indentation(variant)
        text = (
            f'<{prefix}tuv {language}="{escape_attribute(self.target_code or options.target)}" '
            f'creationtool="{TOOL_NAME}" creationtoolversion="{__version__}" creationid="{TOOL_NAME}">'
            f'{inner}<{prefix}prop type="x-machine-translated">yes</{prefix}prop>'
            f"{inner}<{prefix}seg>{content}</{prefix}seg>{outer if inner else ''}</{prefix}tuv>"
        )
        if segment.old_target:
            yield XmlEdit(segment.old_target.start, segment.old_target.end, text)
        else:
            last = [child for child in segment.unit.children if child.name == "tuv"][-1]
            yield XmlEdit(last.end, last.end, outer + text)


def _find_variant(variants: list[XmlElement], language: str) -> XmlElement | None:
    """The variant with this language code, else one with a code of the same language."""
    codes = [(variant, _variant_language(variant)) for variant in variants]
    exact = [variant for variant, code in codes if code.lower() == language.lower()]
    similar = [variant for variant, code in codes if code and languages_match(code, language)]
    return next(iter([*exact, *similar]), None)


def _variant_language(variant: XmlElement) -> str:
    return variant.attributes.get(LANGUAGE_ATTRIBUTE, variant.attributes.get("lang", ""))
