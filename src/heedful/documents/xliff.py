"""XLIFF 1.2 and 2.x: units without a target get one, with the state of a machine translation.

Unchanged: untranslatable and approved units, alternatives, notes, binary units.
"""

from collections.abc import Iterator

from heedful.documents.base import TOOL_NAME, FillOptions, UnitCounts
from heedful.documents.xml_document import (
    LANGUAGE_ATTRIBUTE,
    SPACE_ATTRIBUTE,
    XmlDocument,
    XmlEdit,
    XmlElement,
    XmlFile,
    XmlSegment,
    edit_attributes,
    set_attributes,
)

XLIFF_NAMESPACE = "urn:oasis:names:tc:xliff:document:"

_UNTRANSLATED_STATES = {"new", "needs-translation"}

_DRAFT_STATES = _UNTRANSLATED_STATES | {
    f"{state}-{step}" for state in ("needs", "needs-review") for step in ("adaptation", "l10n", "translation")
}

_GETTEXT_HEADER = "x-gettext-domain-header"


class Xliff1Document(XmlDocument):
    """XLIFF 1.0 to 1.2."""

    format_name = "XLIFF 1"
    unit_names = frozenset({"trans-unit"})
    language_element, source_attribute, target_attribute = "file", "source-language", "target-language"
    needs_target = False

    def find_segments(
        self, file: XmlFile, unit: XmlElement, options: FillOptions, counts: UnitCounts
    ) -> Iterator[XmlSegment]:
        """A unit is one segment; sentences marked in it are translated one by one."""
        source, target = unit.find_child("seg-source") or unit.find_child("source"), unit.find_child("target")
        is_header = unit.attributes.get("restype") == _GETTEXT_HEADER
        is_locked = is_header or unit.lookup_attribute("translate", "yes") == "no"
        if is_locked or source is None or not file.read_content(source):
            counts.skipped += 1
            return
        attributes = target.attributes if target else {}
        is_copy = file.read_content(target) == file.read_content(unit.find_child("source"))
        is_untranslated = is_copy and attributes.get("state") in _UNTRANSLATED_STATES
        is_draft = unit.attributes.get("approved") != "yes" and (
            attributes.get("state-qualifier") == "mt-suggestion" or attributes.get("state") in _DRAFT_STATES
        )
        if file.read_content(target) and not is_untranslated and not options.should_retranslate(is_draft):
            counts.unchanged += 1
        else:
            yield XmlSegment(source, unit, target)

    def segment_edits(
        self, file: XmlFile, segment: XmlSegment, content: str, options: FillOptions
    ) -> Iterator[XmlEdit]:
        """A target after the source, or instead of the old one."""
        state = "needs-review-translation" if options.mark == "fuzzy" else "translated"
        if segment.unit.attributes.get("approved") == "yes":
            yield edit_attributes(file, segment.unit, {"approved": "no"})
        yield _edit_target(file, segment, content, {"state": state, "state-qualifier": "mt-suggestion"}, options)


class Xliff2Document(XmlDocument):
    """XLIFF 2.0 and later."""

    format_name = "XLIFF 2"
    unit_names = frozenset({"unit"})
    language_element, source_attribute, target_attribute = "xliff", "srcLang", "trgLang"

    def find_segments(
        self, file: XmlFile, unit: XmlElement, options: FillOptions, counts: UnitCounts
    ) -> Iterator[XmlSegment]:
        """The segments of a unit, without the ignorable elements between them."""
        for child in unit.children:
            if (child.name, child.namespace) != ("segment", unit.namespace):
                continue
            source, target = child.find_child("source"), child.find_child("target")
            if unit.lookup_attribute("translate", "yes") == "no" or source is None or not file.read_content(source):
                counts.skipped += 1
                continue
            is_initial = child.attributes.get("state", "initial") == "initial"
            is_initial |= child.attributes.get("subState", "").startswith(f"{TOOL_NAME}:")
            is_untranslated = is_initial and file.read_content(target) == file.read_content(source)
            if file.read_content(target) and not is_untranslated and not options.should_retranslate(is_initial):
                counts.unchanged += 1
            else:
                yield XmlSegment(source, child, target)

    def segment_edits(
        self, file: XmlFile, segment: XmlSegment, content: str, options: FillOptions
    ) -> Iterator[XmlEdit]:
        """The state of the segment, and a target after its source or instead of the old one."""
        state = "initial" if options.mark == "fuzzy" else "translated"
        yield edit_attributes(file, segment.unit, {"state": state, "subState": f"{TOOL_NAME}:mt"})
        yield _edit_target(file, segment, content, {}, options)


def _edit_target(
    file: XmlFile, segment: XmlSegment, content: str, attributes: dict[str, str], options: FillOptions
) -> XmlEdit:
    source = segment.unit.find_child("source") or segment.source
    name = f"{file.read_prefix(source)}target"
    if target := segment.old_target:
        tag = file.read_text(target.start, target.content_start).rstrip("/> \t\r\n") + ">"
        return XmlEdit(target.start, target.end, f"{set_attributes(tag, attributes)}{content}</{name}>")
    if SPACE_ATTRIBUTE in source.attributes:
        attributes = {"xml:space": source.attributes[SPACE_ATTRIBUTE], **attributes}
    if LANGUAGE_ATTRIBUTE in source.attributes and options.target:
        attributes = {"xml:lang": options.target, **attributes}
    text = f"{set_attributes(f'<{name}>', attributes)}{content}</{name}>"
    last = segment.unit.find_child("seg-source") or source
    return XmlEdit(last.end, last.end, file.read_indentation(source) + text)
