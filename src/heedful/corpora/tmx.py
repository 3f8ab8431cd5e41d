"""TMX, the translation memories of translators' tools: versions 1.1 to 1.4, any two of many languages."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from heedful.corpora.inline_tags import UndefinedEntityError, sentence
from heedful.corpora.language_codes import best_matches, canonical, matches, only_two
from heedful.corpora.reading import Input, Languages, Reading, Record
from heedful.corpora.safe_xml import Unit, xml_units
from heedful.errors import HeedfulError
from heedful.progress import counted

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

LOOKED_AT = 1000
"""Units that show which languages a file has; a language that comes up later is an error then."""
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


class _Choice(NamedTuple):
    """Places of source and target among a unit's variants, or why there are none."""

    source: int = 0
    target: int = 0
    fault: str = ""
    note: str = ""


class _Variants(NamedTuple):
    """What a unit says, by language, in order; or the source language that the header tells."""

    line: int
    codes: list[str]
    texts: list[str]
    fault: str = ""
    header: str = ""


def read_tmx(given: Input, reading: Reading) -> Iterator[Record]:
    """The pairs of the wanted languages, or of the only two there are."""
    units = _variants(given, reading)
    languages, told = reading.languages, reading.languages is not None
    if languages is None:
        first = list(islice(units, LOOKED_AT))
        units = chain(first, units)
        languages = _two_languages(given, first)
        if languages is None:  # not a single text: whatever there is to count
            languages = ("", "")
    found, pairs, read = dict[str, None](), 0, 0
    for unit in units:
        if unit.header:
            continue
        read += 1
        found.update(dict.fromkeys(unit.codes))
        if not told and _foreign(tuple(unit.codes), languages):
            raise _too_many(given, [*found, *(code for rest in units for code in rest.codes)])
        record = _record(given, unit, languages)
        pairs += not record.fault
        yield record
    if read and found and not pairs and told:
        raise _none(given, languages, list(found), read)


def tmx_languages(given: Input, reading: Reading) -> Languages | None:
    """The only two languages of a file, as far as its first units show; more of them are an error."""
    if reading.languages is not None:
        return reading.languages
    return _two_languages(given, list(islice(_variants(given, reading), LOOKED_AT)))


def _variants(given: Input, reading: Reading) -> Iterator[_Variants]:
    for unit in xml_units(given, ("tu", "header"), reading):
        if unit.element is not None and unit.element.tag.endswith("header"):
            yield _Variants(unit.line, [], [], header=unit.element.get("srclang", ""))
            continue
        variants = _read_unit(unit, reading)
        if variants.fault and not reading.skips:
            raise given.malformed(variants.line, variants.fault)
        yield variants


def _read_unit(unit: Unit, reading: Reading) -> _Variants:
    codes: list[str] = []
    texts: list[str] = []
    if unit.element is None:
        return _Variants(unit.line, codes, texts, unit.fault)
    try:
        for variant in unit.element:
            text = _segment(variant, reading)
            if text is not None:
                codes.append(variant.get(_LANG) or variant.get("lang") or "")
                texts.append(text)
    except UndefinedEntityError as error:
        return _Variants(unit.line, [], [], str(error))
    if not all(codes):
        return _Variants(unit.line, [], [], "a <tuv> does not say its language")
    return _Variants(unit.line, codes, texts)


def _segment(variant: "Element", reading: Reading) -> str | None:
    if not isinstance(variant.tag, str) or not variant.tag.endswith("tuv"):
        return None
    for child in variant:
        if isinstance(child.tag, str) and child.tag.endswith("seg"):
            return sentence(child, reading.config.inline_tags)
    return None


def _record(given: Input, unit: _Variants, languages: Languages) -> Record:
    if unit.fault:
        return given.dropped(unit.line, unit.fault)
    chosen = _chosen(tuple(unit.codes), languages)
    if chosen.fault:
        return given.dropped(unit.line, chosen.fault)
    return Record(
        given.title, unit.line, unit.texts[chosen.source], unit.texts[chosen.target], note=chosen.note
    )


@lru_cache(maxsize=1000)
def _chosen(codes: tuple[str, ...], languages: Languages) -> _Choice:
    """Which variants are the pair: exact ones before others, and the first of several."""
    sides: list[int] = []
    notes: list[str] = []
    for wanted, other in zip(languages, reversed(languages), strict=True):
        places = [  # en-US for English, but not where en-US itself is asked for on the other side
            place
            for place in best_matches(wanted, codes)
            if canonical(codes[place]) != canonical(other) and place not in sides
        ]
        if not places:
            return _Choice(fault=f"no text in {wanted}")
        sides.append(places[0])
        if len(places) > 1:
            names = [codes[place] for place in places]
            notes.append(
                f"of {' and '.join(names)}, {'the first' if len(set(names)) == 1 else names[0]} was taken"
            )
    return _Choice(sides[0], sides[1], note="; ".join(notes))


@lru_cache(maxsize=1000)
def _foreign(codes: tuple[str, ...], languages: Languages) -> bool:
    return any(not any(matches(each, code) for each in languages) for code in codes)


def _two_languages(given: Input, units: Sequence[_Variants]) -> Languages | None:
    codes = [code for unit in units for code in unit.codes]
    source = next((unit.header for unit in units if unit.header), "")
    languages = only_two(codes, source)
    if languages is None and codes:
        raise _too_many(given, codes)
    return languages


def _too_many(given: Input, codes: Sequence[str]) -> HeedfulError:
    names = list(dict.fromkeys(map(canonical, codes)))
    if len(names) == 1:
        return HeedfulError(f"{given.name} holds only one language: {names[0]}")
    return HeedfulError(
        f"{given.name} holds {counted(len(names), 'language')}: {', '.join(names)}",
        hint=f"choose source and target: --languages {_example(names[0], names[1])}",
    )


def _example(source: str, target: str) -> str:
    return f"{source}{':' if '-' in source + target else '-'}{target}"


def _none(given: Input, languages: Languages, codes: Sequence[str], units: int) -> HeedfulError:
    names = ", ".join(dict.fromkeys(map(canonical, codes)))
    return HeedfulError(
        f"none of the {counted(units, 'unit')} in {given.name} is both in {languages[0]} and {languages[1]}",
        hint=f"its languages are {names}",
    )
