"""XLIFF 1.2 and 2.0, the exchange files of translators' tools: translated units, segment by segment."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from heedful.corpora.inline_tags import UndefinedEntityError, sentence
from heedful.corpora.language_codes import canonical, swapped
from heedful.corpora.reading import Input, Languages, Reading, Record
from heedful.corpora.safe_xml import xml_units

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

UNITS = ("trans-unit", "unit", "bin-unit")
HEADER = "x-gettext-domain-header"
"""The kind of unit that a PO header became."""
UNSURE = ("needs-", "new", "initial")
"""How states begin that say a translation is not done."""


class _Segment(NamedTuple):
    """A sentence and its translation, or why there is none."""

    source: str
    target: str
    fault: str = ""


def read_xliff(given: Input, reading: Reading) -> Iterator[Record]:
    """Every translated segment; languages that are wanted the other way round are turned."""
    languages = reading.languages
    for unit in xml_units(given, UNITS, reading):
        segments = [_Segment("", "", unit.fault)]
        turned = False
        if unit.element is not None:
            own = _unit_languages(unit.element)
            languages = languages or (own if all(own) else None)
            turned = swapped(languages, *own, given.name)
            segments = _segments(unit.element, reading)
        for source, target, fault in segments:
            if fault.startswith("entity") and not reading.skips:
                raise given.malformed(unit.line, fault)
            if fault:
                yield given.dropped(unit.line, fault)
            else:
                yield Record(given.title, unit.line, *((target, source) if turned else (source, target)))


def xliff_languages(given: Input, reading: Reading) -> Languages | None:
    """Source and target as the first unit has them."""
    for unit in xml_units(given, UNITS, reading):
        if unit.element is not None:
            source, target = map(canonical, _unit_languages(unit.element))
            return (source, target) if source and target else None
    return None


def _unit_languages(unit: "Element") -> Languages:
    """Of the file that the unit is in (1.2), or of the whole document (2.0)."""
    source = target = ""
    for element in unit.iterancestors():
        source = source or element.get("source-language") or element.get("srcLang") or ""
        target = target or element.get("target-language") or element.get("trgLang") or ""
    return source, target


def _segments(unit: "Element", reading: Reading) -> list[_Segment]:
    if _name(unit) == "bin-unit" or unit.get("restype") == HEADER or not _translatable(unit):
        return [_Segment("", "", "not to be translated")]
    try:
        if _name(unit) == "trans-unit":
            return _of_version_1(unit, reading)
        return [_pair(each, each, reading) for each in unit if _name(each) == "segment"]
    except UndefinedEntityError as error:
        return [_Segment("", "", str(error))]


def _translatable(unit: "Element") -> bool:
    for element in (unit, *unit.iterancestors()):
        if told := element.get("translate"):
            return told != "no"
    return True


def _of_version_1(unit: "Element", reading: Reading) -> list[_Segment]:
    """The marked segments of a unit, if both sides have the same, or else the unit as a whole."""
    marked = _child(unit, "seg-source")
    target = _child(unit, "target")
    if marked is None or target is None:
        return [_pair(unit, unit, reading)]
    sources, targets = _marks(marked), _marks(target)
    if not sources or sources.keys() != targets.keys():
        return [_pair(unit, unit, reading)]
    if fault := _unsure(unit, target, reading):
        return [_Segment("", "", fault) for _ in sources]
    return [_checked(_text(sources[number], reading), _text(targets[number], reading)) for number in sources]


def _marks(element: "Element") -> dict[str, "Element"]:
    return {each.get("mid", ""): each for each in element.iter("{*}mrk") if each.get("mtype") == "seg"}


def _pair(parent: "Element", stated: "Element", reading: Reading) -> _Segment:
    source, target = _child(parent, "source"), _child(parent, "target")
    if source is None:
        return _Segment("", "", "no source")
    if target is None:
        return _Segment("", "", "not translated")
    if fault := _unsure(stated, target, reading):
        return _Segment("", "", fault)
    return _checked(_text(source, reading), _text(target, reading))


def _checked(source: str, target: str) -> _Segment:
    return _Segment(source, target, "" if target.strip() else "not translated")


def _unsure(unit: "Element", target: "Element", reading: Reading) -> str:
    """Version 1.2 states a target, 2.0 a segment."""
    state = target.get("state") or unit.get("state") or ""
    if reading.config.fuzzy or not state.startswith(UNSURE) or not sentence(target, "strip").strip():
        return ""
    return f"state {state}"


def _text(element: "Element", reading: Reading) -> str:
    return sentence(element, reading.config.inline_tags)


def _child(parent: "Element", name: str) -> "Element | None":
    return next((child for child in parent if _name(child) == name), None)


def _name(element: "Element") -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
