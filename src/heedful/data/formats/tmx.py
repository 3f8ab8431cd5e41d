"""TMX translation memories, versions 1.1 to 1.4: any two of their languages."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from heedful.data.formats.base import InputFile, PairRecord, ReadOptions
from heedful.data.formats.xml import UndefinedEntityError, XMLUnit, element_text, read_xml_units
from heedful.errors import HeedfulError
from heedful.progress import format_count
from heedful.tokenization.languages import (
    LanguagePair,
    find_matching_languages,
    format_language_pair,
    infer_language_pair,
    languages_match,
    normalize_language,
)

if TYPE_CHECKING:
    pass

LANGUAGE_SAMPLE_UNITS = 1000  # units from which the two languages are inferred; a third language after them is an error
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


class _VariantChoice(NamedTuple):
    """Indices of source and target among a unit's variants, or the error."""

    source: int = 0
    target: int = 0
    error: str = ""
    note: str = ""


class _Variants(NamedTuple):
    """Languages and texts of a unit, in order; or the source language of the header."""

    line: int
    codes: list[str]
    texts: list[str]
    error: str = ""
    header_language: str = ""


def read_tmx(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """The pairs of the given languages, or of the only two languages in the file."""
    units = _read_variants(input_file, options)
    languages, is_explicit = options.languages, options.languages is not None
    if languages is None:
        sample = list(islice(units, LANGUAGE_SAMPLE_UNITS))
        units = chain(sample, units)
        languages = _infer_languages(input_file, sample) or ("", "")  # without texts: only errors to count
    codes, pair_count, units_read = dict[str, None](), 0, 0
    for unit in units:
        if unit.header_language:
            continue
        units_read += 1
        codes.update(dict.fromkeys(unit.codes))
        if not is_explicit and _has_other_language(tuple(unit.codes), languages):
            raise _language_count_error(input_file, [*codes, *(code for rest in units for code in rest.codes)])
        choice = _VariantChoice(error=unit.error) if unit.error else _choose_variants(tuple(unit.codes), languages)
        if choice.error:
            yield input_file.error_record(unit.line, choice.error)
        else:
            pair_count += 1
            source, target = unit.texts[choice.source], unit.texts[choice.target]
            yield input_file.pair_record(unit.line, source, target, note=choice.note)
    if units_read and codes and not pair_count and is_explicit:
        units_text = format_count(units_read, "unit")
        raise HeedfulError(
            f"{input_file.name}: none of the {units_text} has both {languages[0]} and {languages[1]}",
            hint=f"its languages are {', '.join(dict.fromkeys(map(normalize_language, codes)))}",
        )


def tmx_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    """The two languages of the first units; more than two raise an error."""
    if options.languages is not None:
        return options.languages
    return _infer_languages(input_file, list(islice(_read_variants(input_file, options), LANGUAGE_SAMPLE_UNITS)))


def _read_variants(input_file: InputFile, options: ReadOptions) -> Iterator[_Variants]:
    for unit in read_xml_units(input_file, ("tu", "header"), options):
        if unit.element is not None and unit.element.tag.endswith("header"):
            yield _Variants(unit.line, [], [], header_language=unit.element.get("srclang", ""))
            continue
        variants = _read_unit(unit, options)
        if variants.error and not options.skip_malformed:
            raise input_file.format_error(variants.line, variants.error)
        yield variants


def _read_unit(unit: XMLUnit, options: ReadOptions) -> _Variants:
    variants = _Variants(unit.line, [], [], unit.error)
    try:
        for variant in () if unit.element is None else unit.element.iterchildren("{*}tuv"):
            segment = next(variant.iterchildren("{*}seg"), None)
            if segment is not None:
                variants.codes.append(variant.get(_LANG) or variant.get("lang") or "")
                variants.texts.append(element_text(segment, options.config.inline_tags))
    except UndefinedEntityError as error:
        return _Variants(unit.line, [], [], str(error))
    return variants if all(variants.codes) else _Variants(unit.line, [], [], "a <tuv> has no language")


@lru_cache(maxsize=1000)
def _choose_variants(codes: tuple[str, ...], languages: LanguagePair) -> _VariantChoice:
    """Which variants form the pair: exact language matches first, and the first of several."""
    chosen_indices: list[int] = []
    notes: list[str] = []
    for language, other_language in zip(languages, reversed(languages), strict=True):
        indices = [  # en-US matches en, unless en-US is the other language
            index
            for index in find_matching_languages(language, codes)
            if normalize_language(codes[index]) != normalize_language(other_language) and index not in chosen_indices
        ]
        if not indices:
            return _VariantChoice(error=f"no text in {language}")
        chosen_indices.append(indices[0])
        if len(indices) > 1:
            names = [codes[index] for index in indices]
            notes.append(f"of {' and '.join(names)}, {'the first' if len(set(names)) == 1 else names[0]} was used")
    return _VariantChoice(chosen_indices[0], chosen_indices[1], note="; ".join(notes))


@lru_cache(maxsize=1000)
def _has_other_language(codes: tuple[str, ...], languages: LanguagePair) -> bool:
    return any(not any(languages_match(language, code) for language in languages) for code in codes)


def _infer_languages(input_file: InputFile, units: Sequence[_Variants]) -> LanguagePair | None:
    codes = [code for unit in units for code in unit.codes]
    source = next((unit.header_language for unit in units if unit.header_language), "")
    languages = infer_language_pair(codes, source)
    if languages is None and codes:
        raise _language_count_error(input_file, codes)
    return languages


def _language_count_error(input_file: InputFile, codes: Sequence[str]) -> HeedfulError:
    names = list(dict.fromkeys(map(normalize_language, codes)))
    if len(names) == 1:
        return HeedfulError(f"{input_file.name} has only one language: {names[0]}")
    return HeedfulError(
        f"{input_file.name} has {format_count(len(names), 'language')}: {', '.join(names)}",
        hint=f"choose source and target: --languages {format_language_pair(names[0], names[1])}",
    )
