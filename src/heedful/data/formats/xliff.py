"""XLIFF 1.2 and 2.0, the exchange format of translation tools: translated units, segment by segment."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from heedful.data.formats.base import InputFile, PairRecord, ReadOptions
from heedful.data.formats.xml import UndefinedEntityError, element_text, read_xml_units
from heedful.tokenization.languages import LanguagePair, is_reverse_direction, normalize_language

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

UNITS = ("trans-unit", "unit", "bin-unit")
PO_HEADER_TYPE = "x-gettext-domain-header"  # type of the unit that holds a converted PO header
UNFINISHED_STATES = ("needs-", "new", "initial")  # prefixes of states that mark a translation as unfinished


class _Segment(NamedTuple):
    """A sentence and its translation, or the error."""

    source: str
    target: str
    error: str = ""


def read_xliff(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """Every translated segment, its sides swapped if the languages are wanted in the other direction."""
    languages = options.languages
    for unit in read_xml_units(input_file, UNITS, options):
        segments = [_Segment("", "", unit.error)]
        reverse = False
        if unit.element is not None:
            unit_languages = _unit_languages(unit.element)
            languages = languages or (unit_languages if all(unit_languages) else None)
            reverse = is_reverse_direction(languages, *unit_languages, input_file.name)
            try:
                segments = _read_segments(unit.element, options)
            except UndefinedEntityError as error:
                if not options.skip_malformed:
                    raise input_file.format_error(unit.line, str(error)) from None
                segments = [_Segment("", "", str(error))]
        for source, target, problem in segments:
            if problem:
                yield input_file.error_record(unit.line, problem)
            else:
                yield input_file.pair_record(unit.line, source, target, reverse=reverse)


def xliff_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    """The languages of the first unit."""
    for unit in read_xml_units(input_file, UNITS, options):
        if unit.element is not None:
            source, target = map(normalize_language, _unit_languages(unit.element))
            return (source, target) if source and target else None
    return None


def _unit_languages(unit: "Element") -> LanguagePair:
    """The languages of the unit's file element (1.2) or of the document (2.0)."""
    source = target = ""
    for element in unit.iterancestors():
        source = source or element.get("source-language") or element.get("srcLang") or ""
        target = target or element.get("target-language") or element.get("trgLang") or ""
    return source, target


def _read_segments(unit: "Element", options: ReadOptions) -> list[_Segment]:
    translate = [element.get("translate") for element in (unit, *unit.iterancestors()) if element.get("translate")]
    if _local_name(unit) == "bin-unit" or unit.get("restype") == PO_HEADER_TYPE or translate[:1] == ["no"]:
        return [_Segment("", "", "not translatable")]
    if _local_name(unit) == "unit":
        return [_read_segment(segment, options) for segment in unit if _local_name(segment) == "segment"]
    # Version 1.2: the marked segments of a unit if both sides have the same ones, else the full unit.
    segmented_source, target = _find_child(unit, "seg-source"), _find_child(unit, "target")
    if segmented_source is None or target is None:
        return [_read_segment(unit, options)]
    sources, targets = _segment_marks(segmented_source), _segment_marks(target)
    if not sources or sources.keys() != targets.keys():
        return [_read_segment(unit, options)]
    if error := _state_error(unit, target, options):
        return [_Segment("", "", error) for _ in sources]
    return [_make_segment(sources[number], targets[number], options) for number in sources]


def _segment_marks(element: "Element") -> dict[str, "Element"]:
    return {mark.get("mid", ""): mark for mark in element.iter("{*}mrk") if mark.get("mtype") == "seg"}


def _read_segment(parent: "Element", options: ReadOptions) -> _Segment:
    source, target = _find_child(parent, "source"), _find_child(parent, "target")
    if source is None:
        return _Segment("", "", "no source")
    if target is None:
        return _Segment("", "", "not translated")
    if error := _state_error(parent, target, options):
        return _Segment("", "", error)
    return _make_segment(source, target, options)


def _make_segment(source: "Element", target: "Element", options: ReadOptions) -> _Segment:
    source_text, target_text = (element_text(side, options.config.inline_tags) for side in (source, target))
    return _Segment(source_text, target_text, "" if target_text.strip() else "not translated")


def _state_error(parent: "Element", target: "Element", options: ReadOptions) -> str:
    """In version 1.2 the target has a state, in 2.0 the segment."""
    state = target.get("state") or parent.get("state") or ""
    if (
        options.config.include_fuzzy
        or not state.startswith(UNFINISHED_STATES)
        or not element_text(target, "strip").strip()
    ):
        return ""
    return f"state {state}"


def _find_child(parent: "Element", name: str) -> "Element | None":
    return next((child for child in parent if _local_name(child) == name), None)


def _local_name(element: "Element") -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
