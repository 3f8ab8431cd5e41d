"""``heedful corpus convert`` and ``heedful corpus gettext``: pairs from one kind of file to another."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from heedful.commands.corpus import CorpusInput, check_files
from heedful.corpora.filters import CleaningConfig, CleaningReport, clean
from heedful.corpora.formats import read_pairs, write_tsv
from heedful.corpora.locale_folders import Wanted, catalogues, system_folders
from heedful.corpora.reading import Record
from heedful.corpora.recognition import ENDINGS, ending
from heedful.corpora.writing import LANGUAGES_NEEDED, WRITERS, fitting, write_pairs
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.progress import counted

ALIKE = CleaningConfig(max_characters=0, max_ratio=0)
"""Of messages nothing falls out but what is empty or there already."""


def convert_corpus(given: CorpusInput, output: Path, form: str | None) -> list[str]:
    """Write the pairs in another format; returns a report."""
    check_files(given.paths, output)
    form = _form(output, form)
    given.check_settings()
    reading = given.reading()
    if reading.languages is None and form in LANGUAGES_NEEDED:
        raise HeedfulError(f"{output.name} has to say its languages", hint="name them: --languages en-de")
    report = CleaningReport()
    changed = 0

    def fitted() -> Iterator[tuple[str, str]]:
        nonlocal changed
        for source, target in _whole_pairs(read_pairs(given.paths, reading), report):
            pair = fitting(source, form), fitting(target, form)
            changed += pair != (source, target)
            yield pair

    count = write_pairs(fitted(), output, form, reading.languages)
    lines = [*report.lines(), f"{counted(count, 'pair')} to {output}"]
    if changed:
        lines.append(f"{counted(changed, 'pair')} without control characters, which {form} cannot hold")
    return lines


def collect_catalogues(wanted: Wanted, folders: Sequence[Path], output: Path) -> list[str]:
    """Write the pairs of all catalogues on a machine; returns how many each package has."""
    _check_wanted(wanted, folders, output)
    found: list[str] = []
    report = CleaningReport()

    def records() -> Iterator[Record]:
        for each in catalogues(wanted, folders or system_folders()):
            if each.fault:
                found.append(f"left out {each.path}: {each.fault}")
            elif each.pairs:
                found.append(f"{each.package}: {counted(len(each.pairs), 'pair')}")
            for number, (source, target) in enumerate(each.pairs, start=1):
                yield Record(each.package, number, source, target)

    pairs = clean(records(), ALIKE, report)
    first = next(pairs, None)
    if first is None:
        raise HeedfulError(
            f"no catalogue has messages in {wanted.source} and {wanted.target}", hint=_looked_in(folders)
        )
    write_tsv(chain([first], pairs), output)
    return [*found, *report.lines(), f"written to {output}"]


def _whole_pairs(records: Iterator[Record], report: CleaningReport) -> Iterator[tuple[str, str]]:
    """Pairs with two sides, as they are."""
    for record in records:
        report.took(record)
        if record.source is None or record.target is None:
            report.drop(record.fault, record)
        elif not record.source.strip() or not record.target.strip():
            report.drop("empty side", record)
        else:
            report.kept += 1
            yield record.source, record.target


def _form(output: Path, form: str | None) -> str:
    known = ("tsv", *WRITERS)
    chosen = form or ENDINGS.get(ending(output.name), "")
    if chosen not in known:
        raise HeedfulError(
            f"there is no format {form!r} to write" if form else f"which format is {output.name} to have?",
            hint=f"formats: {', '.join(known)}; name the file so, or say --format",
        )
    return chosen


def _check_wanted(wanted: Wanted, folders: Sequence[Path], output: Path) -> None:
    check_writable(output)
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(f"{output} is written as TSV", hint="name it .tsv or .tsv.gz; then corpus convert")
    if wanted.source == wanted.target:
        raise HeedfulError(f"{wanted.source} to {wanted.target} is no translation", hint="name two languages")
    for folder in folders:
        if not folder.is_dir():
            raise HeedfulError(f"there is no folder {folder}", hint="one such as /usr/share/locale is meant")


def _looked_in(folders: Sequence[Path]) -> str:
    places = ", ".join(map(str, folders or system_folders())) or "no locale folder at all"
    return f"looked into {places}; minimal systems leave translations out"
