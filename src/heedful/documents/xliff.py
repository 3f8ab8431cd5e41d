"""XLIFF 1.2 and 2.x: units without a target get one, in the state that says a machine wrote it.

Left alone: units that are not to be translated or are approved, alternatives, notes, binary units.
"""

from collections.abc import Iterator

from heedful.documents.filling import NAME, Wishes
from heedful.documents.safe_xml import Element, XmlFile
from heedful.documents.xml_document import (
    LANGUAGE,
    SPACE,
    Edit,
    Segment,
    XmlDocument,
    blank_before,
    prefix_of,
    visible,
    with_attributes,
)

NAMESPACE = "urn:oasis:names:tc:xliff:document:"
_DRAFTS = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "needs-review-adaptation"}
_DRAFTS |= {"needs-review-l10n", "needs-review-translation"}
_HEADER = "x-gettext-domain-header"
_UNTRANSLATED = {"new", "needs-translation"}


class Xliff1Document(XmlDocument):
    """XLIFF 1.0 to 1.2."""

    kind = "XLIFF 1"
    unit_names = frozenset({"trans-unit"})
    needs_target = False

    def look(self, element: Element) -> None:
        """Every file says its languages; the first that does so counts."""
        if element.name == "file":
            self.source_language = self.source_language or element.attributes.get("source-language", "")
            self.target_language = self.target_language or element.attributes.get("target-language", "")

    def prepare(self, file: XmlFile, element: Element, wishes: Wishes) -> Iterator[Edit]:
        """A file without a target language gets one."""
        if element.name == "file" and wishes.target and not element.attributes.get("target-language"):
            yield _with(file, element, {"target-language": wishes.target})

    def segments(self, file: XmlFile, unit: Element, wishes: Wishes) -> Iterator[Segment | bool]:
        """A unit is one segment; sentences that are marked in it are translated one by one."""
        source, target = unit.child("seg-source") or unit.child("source"), unit.child("target")
        header = unit.attributes.get("restype") == _HEADER
        if header or unit.inherited("translate", "yes") == "no" or not visible(file, source):
            yield False
            return
        assert source is not None
        if self._is_done(file, unit, target) and not wishes.redoes(_is_draft(unit, target)):
            yield True
        else:
            yield Segment(source, unit, target)

    def _is_done(self, file: XmlFile, unit: Element, target: Element | None) -> bool:
        """Whether there is a translation; a copy of the source that is said to be new is none."""
        copied = visible(file, target) == visible(file, unit.child("source"))
        untranslated = target is not None and target.attributes.get("state") in _UNTRANSLATED
        return bool(visible(file, target)) and not (copied and untranslated)

    def edits(self, file: XmlFile, segment: Segment, content: str, wishes: Wishes) -> Iterator[Edit]:
        """A target after the source, or instead of the old one."""
        state = "needs-review-translation" if wishes.mark == "fuzzy" else "translated"
        marks: dict[str, str | None] = {"state": state, "state-qualifier": "mt-suggestion"}
        if segment.unit.attributes.get("approved") == "yes":
            yield _with(file, segment.unit, {"approved": "no"})
        yield from _target(file, segment, content, marks, wishes)


class Xliff2Document(XmlDocument):
    """XLIFF 2.0 and later."""

    kind = "XLIFF 2"
    unit_names = frozenset({"unit"})

    def look(self, element: Element) -> None:
        """The root says the languages."""
        if element.name == "xliff":
            self.source_language = element.attributes.get("srcLang", "")
            self.target_language = element.attributes.get("trgLang", "")

    def prepare(self, file: XmlFile, element: Element, wishes: Wishes) -> Iterator[Edit]:
        """A root without a target language gets one."""
        if element.name == "xliff" and not element.attributes.get("trgLang"):
            yield _with(file, element, {"trgLang": wishes.target})

    def segments(self, file: XmlFile, unit: Element, wishes: Wishes) -> Iterator[Segment | bool]:
        """The segments of a unit; what stands between them is ignorable."""
        for each in unit.children:
            if (each.name, each.space) != ("segment", unit.space):
                continue
            source, target = each.child("source"), each.child("target")
            if unit.inherited("translate", "yes") == "no" or source is None or not visible(file, source):
                yield False
            elif self._is_done(file, each) and not wishes.redoes(_is_initial(each)):
                yield True
            else:
                yield Segment(source, each, target)

    def _is_done(self, file: XmlFile, segment: Element) -> bool:
        target = visible(file, segment.child("target"))
        copied = target == visible(file, segment.child("source")) and _is_initial(segment)
        return bool(target) and not copied

    def edits(self, file: XmlFile, segment: Segment, content: str, wishes: Wishes) -> Iterator[Edit]:
        """The state of the segment, and a target after its source or instead of the old one."""
        state = "initial" if wishes.mark == "fuzzy" else "translated"
        yield _with(file, segment.unit, {"state": state, "subState": f"{NAME}:mt"})
        yield from _target(file, segment, content, {}, wishes)


def _target(
    file: XmlFile, segment: Segment, content: str, marks: dict[str, str | None], wishes: Wishes
) -> Iterator[Edit]:
    source = segment.unit.child("source") or segment.source
    last = segment.unit.child("seg-source") or source
    name = f"{prefix_of(file, source)}target"
    if segment.old:
        tag = file.text(segment.old.start, segment.old.content)
        tag = tag.rstrip("/> \t\r\n") + ">"
        yield Edit(segment.old.start, segment.old.end, f"{with_attributes(tag, marks)}{content}</{name}>")
        return
    if SPACE in source.attributes:
        marks = {"xml:space": source.attributes[SPACE], **marks}
    if LANGUAGE in source.attributes and wishes.target:
        marks = {"xml:lang": wishes.target, **marks}
    text = f"{with_attributes(f'<{name}>', marks)}{content}</{name}>"
    yield Edit(last.end, last.end, blank_before(file, source) + text)


def _with(file: XmlFile, element: Element, attributes: dict[str, str | None]) -> Edit:
    """An element's tag with attributes changed."""
    tag = file.text(element.start, element.content)
    return Edit(element.start, element.content, with_attributes(tag, attributes))


def _is_draft(unit: Element, target: Element | None) -> bool:
    told = target.attributes if target else {}
    machine = told.get("state-qualifier") == "mt-suggestion"
    return unit.attributes.get("approved") != "yes" and (machine or told.get("state") in _DRAFTS)


def _is_initial(segment: Element) -> bool:
    told = segment.attributes
    return told.get("state", "initial") == "initial" or told.get("subState", "").startswith(f"{NAME}:")
