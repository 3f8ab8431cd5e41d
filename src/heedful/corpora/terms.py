"""Glossaries out of files: a term and its translation a line, TSV or CSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from heedful.corpora.formats import check_readable
from heedful.corpora.lines import read_lines
from heedful.errors import HeedfulError
from heedful.text.glossary import Glossary

SHAPE = "a line is: term TAB translation; in a .csv file: term,translation"
_HEADINGS = {"source", "target", "term", "translation", "source term", "target term", "src", "tgt", "trg"}


class _Row(NamedTuple):
    number: int
    cells: list[str]


def read_glossary(path: Path) -> Glossary:
    """The glossary in a file. Lines that begin with #, blank ones and a heading say nothing; columns after
    the second are notes."""
    check_readable(path)
    terms: dict[str, str] = {}
    places: dict[str, int] = {}
    for place, row in enumerate(_rows(path)):
        if place == 0 and {cell.strip().casefold() for cell in row.cells[:2]} <= _HEADINGS:
            continue
        [(source, target)] = Glossary.of(_entry(path, row)).entries
        if source in terms:
            raise HeedfulError(
                f"{path}:{row.number}: the term {source!r} stands in line {places[source]} already",
                hint="give each term one translation",
            )
        terms[source], places[source] = target, row.number
    if not terms:
        raise HeedfulError(f"{path} has no terms", hint=SHAPE)
    return Glossary.of(terms)


def _entry(path: Path, row: _Row) -> dict[str, str]:
    source, target = [cell.strip() for cell in [*row.cells, "", ""][:2]]
    if not source or not target:
        problem = "no term" if not source else f"no translation of {source!r}"
        raise HeedfulError(f"{path}:{row.number}: {problem}", hint=SHAPE)
    return {source: target}


def _rows(path: Path) -> Iterator[_Row]:
    lines = [line for line in read_lines(path) if line.fault or _says_something(line.text)]
    for line in lines:
        if line.fault:
            raise HeedfulError(f"{path}:{line.number}: {line.fault}", hint="save it as UTF-8 text")
    if path.name.casefold().removesuffix(".gz").endswith(".csv"):
        first = lines[0].text if lines else ""
        delimiter = ";" if first.count(";") > first.count(",") else ","
        for line in lines:
            try:
                yield _Row(line.number, next(csv.reader([line.text], delimiter=delimiter)))
            except csv.Error as error:
                raise HeedfulError(f"{path}:{line.number}: {error}", hint=SHAPE) from None
    else:
        for line in lines:
            yield _Row(line.number, line.text.split("\t"))


def _says_something(text: str) -> bool:
    return bool(text.strip()) and not text.startswith("#")
