"""TMX, translation memories: a unit without the target language gets a variant, marked as a machine's."""

from collections.abc import Iterator

import heedful
from heedful.documents.filling import NAME, Wishes, same_language
from heedful.documents.safe_xml import Element, XmlFile
from heedful.documents.xml_document import (
    LANGUAGE,
    Edit,
    Segment,
    XmlDocument,
    attribute,
    blank_before,
    prefix_of,
    visible,
)

_ALL = "*all*"


class TmxDocument(XmlDocument):
    """A translation memory, of any version of TMX."""

    kind = "TMX"
    unit_names = frozenset({"tu"})
    spelled = ""
    """The target language as the file calls it, such as de-DE, once a unit that has it was seen."""

    def look(self, element: Element) -> None:
        """The header says the source language."""
        if element.name == "header" and element.attributes.get("srclang", _ALL) != _ALL:
            self.source_language = element.attributes["srclang"]

    def prepare(self, file: XmlFile, element: Element, wishes: Wishes) -> Iterator[Edit]:
        """Nothing outside of units changes."""
        return iter(())

    def segments(self, file: XmlFile, unit: Element, wishes: Wishes) -> Iterator[Segment | bool]:
        """A unit is one segment, if it has the source language and lacks the target language."""
        variants = [each for each in unit.children if each.name == "tuv"]
        source = _of_language(variants, wishes.source)
        segment = source.child("seg") if source else None
        if segment is None or not visible(file, segment):
            yield False
            return
        old = _of_language([each for each in variants if each is not source], wishes.target)
        if old:  # units are gone through once to be counted: all is seen before anything is written
            exact = _language(old).lower() == wishes.target.lower()
            self.spelled = _language(old) if exact or not self.spelled else self.spelled
        if old and visible(file, old.child("seg")) and not wishes.redoes(_is_draft(old)):
            yield True
        else:
            yield Segment(segment, unit, old)

    def edits(self, file: XmlFile, segment: Segment, content: str, wishes: Wishes) -> Iterator[Edit]:
        """A new variant after the others, or instead of the old one."""
        variant = segment.source.parent
        assert variant is not None
        language = "xml:lang" if LANGUAGE in variant.attributes else "lang"
        prefix, inner = prefix_of(file, variant), blank_before(file, segment.source)
        outer = blank_before(file, variant)
        text = (
            f'<{prefix}tuv {language}="{attribute(self.spelled or wishes.target)}" creationtool="{NAME}" '
            f'creationtoolversion="{heedful.__version__}" creationid="{NAME}">'
            f'{inner}<{prefix}prop type="x-machine-translated">yes</{prefix}prop>'
            f"{inner}<{prefix}seg>{content}</{prefix}seg>{outer if inner else ''}</{prefix}tuv>"
        )
        if segment.old:
            yield Edit(segment.old.start, segment.old.end, text)
        else:
            last = [each for each in segment.unit.children if each.name == "tuv"][-1]
            yield Edit(last.end, last.end, outer + text)


def _of_language(variants: list[Element], language: str) -> Element | None:
    """The variant in a language: best with just this code."""
    exact = [each for each in variants if _language(each).lower() == language.lower()]
    alike = [each for each in variants if _language(each) and same_language(_language(each), language)]
    return next(iter([*exact, *alike]), None)


def _language(variant: Element) -> str:
    return variant.attributes.get(LANGUAGE, variant.attributes.get("lang", ""))


def _is_draft(variant: Element) -> bool:
    return variant.attributes.get("creationtool") == NAME
