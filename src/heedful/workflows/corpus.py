"""``heedful corpus``: statistics, cleaning, splitting, paragraph joining and conversion. Needs no torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from heedful.config import extract_section, parse_overrides
from heedful.data.cleaning import CleaningReport, Pair, clean_pairs, read_cleaned_pairs
from heedful.data.config import CleaningConfig, parse_reading_settings
from heedful.data.formats.base import FORMAT_BY_EXTENSION, PairRecord, ReadOptions, file_extension
from heedful.data.formats.gettext import CatalogSelection, read_package_catalogs, system_locale_folders
from heedful.data.formats.writers import FORMATS_WITH_LANGUAGES, WRITERS, remove_unsupported_characters, write_pairs
from heedful.data.reader import check_inputs, detect_languages, read_pairs, write_tsv
from heedful.data.splits import split_pairs
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.progress import format_count
from heedful.tokenization.languages import LanguagePair
from heedful.tokenization.normalization import clean_sentence


@dataclass(frozen=True, slots=True)
class ParagraphSize:
    """Limits of a paragraph."""

    max_lines: int
    max_characters: int = 0
    """Per side; 0: no limit. A single longer line stays a paragraph of its own."""

    def fits(self, lines: Sequence[Pair]) -> bool:
        """Whether these lines fit into one paragraph."""
        spaces = len(lines) - 1
        max_length = spaces + max(sum(len(line[side]) for line in lines) for side in (0, 1))
        return len(lines) <= self.max_lines and not 0 < self.max_characters < max_length


def join_paragraphs(records: Iterable[PairRecord], size: ParagraphSize, report: CleaningReport) -> Iterator[Pair]:
    """Join adjacent pairs into paragraphs; ``report`` counts accepted and dropped lines.

    A blank line, the end of a file and an unusable line end a paragraph.

    >>> lines = [PairRecord("a", n, f"one {n}", f"eins {n}") for n in (1, 2, 3)]
    >>> [pair.target for pair in join_paragraphs(lines, ParagraphSize(2), CleaningReport())]
    ['eins 1 eins 2', 'eins 3']
    """
    buffer: list[Pair] = []
    origin = ""
    for record in records:
        report.count_record(record)
        pair = None
        if record.source is None or record.target is None:
            report.drop(record.error or "unreadable", record)
        else:
            pair = Pair(clean_sentence(record.source), clean_sentence(record.target))
            if not (pair.source and pair.target):
                report.drop("empty side" if pair.source or pair.target else "blank line (ends a paragraph)", record)
                pair = None
        continues = pair is not None and record.origin == origin and size.fits([*buffer, pair])
        if buffer and not continues:
            yield _join_pairs(buffer)
            buffer = []
        if pair is not None:
            report.accepted += 1
            buffer.append(pair)
        origin = record.origin
    if buffer:
        yield _join_pairs(buffer)


def _join_pairs(lines: Sequence[Pair]) -> Pair:
    return Pair(" ".join(line.source for line in lines), " ".join(line.target for line in lines))


@dataclass(frozen=True, slots=True)
class CorpusInput:
    """Input files, their languages, and settings."""

    paths: Sequence[Path]
    languages: LanguagePair | None = None
    settings: Sequence[str] = ()

    def build_reading(self) -> ReadOptions:
        """How the files are read; default languages are detected from the files."""
        config, _ = parse_reading_settings(self.settings)
        return ReadOptions(self.languages or detect_languages(self.paths, config), config)

    def check_reading_settings_only(self) -> None:
        """Raise an error for settings of other sections, which would have no effect."""
        extract_section(parse_overrides(self.settings), "reading")

    def read_records(self) -> Iterator[PairRecord]:
        """The pairs of the files."""
        return read_pairs(self.paths, self.build_reading())

    def clean(self, report: CleaningReport) -> Iterator[Pair]:
        """The cleaned pairs."""
        _, other_settings = parse_reading_settings(self.settings)
        config = CleaningConfig.from_settings(extract_section(parse_overrides(other_settings), "cleaning"))
        return clean_pairs(self.read_records(), config, report)


def corpus_statistics(corpus: CorpusInput) -> list[str]:
    """The size of a corpus after cleaning, and what cleaning dropped."""
    check_inputs(corpus.paths)
    report = CleaningReport()
    sides: list[dict[str, int]] = [{"words": 0, "characters": 0, "max_length": 0} for _ in range(2)]
    for pair in corpus.clean(report):
        for side, text in zip(sides, (pair.source, pair.target), strict=True):
            side["words"] += len(text.split())
            side["characters"] += len(text)
            side["max_length"] = max(side["max_length"], len(text))
    pair_count = max(1, report.accepted)
    return report.summary_lines() + [
        f"{name}: {side['words']:,} words, {side['characters']:,} characters, "
        f"{side['characters'] / pair_count:.1f} per sentence, longest {side['max_length']:,}"
        for name, side in zip(("source", "target"), sides, strict=True)
    ]


def clean_corpus(corpus: CorpusInput, output: Path) -> list[str]:
    """Write the cleaned pairs; returns the report."""
    _check_tsv_output(corpus.paths, output)
    report = CleaningReport()
    write_tsv(corpus.clean(report), output)
    return [*report.summary_lines(), f"written to {output}"]


def split_corpus(corpus: CorpusInput, folder: Path, validation_size: int | None) -> list[str]:
    """Write ``train.tsv`` and ``validation.tsv``; returns a report."""
    check_inputs(corpus.paths)
    report = CleaningReport()
    pairs = corpus.clean(report)  # reports errors before the folder is created
    folder.mkdir(parents=True, exist_ok=True)
    pairs_path = folder / "pairs.tsv.partial"  # a file can be read twice, standard input cannot
    try:
        write_tsv(pairs, pairs_path)
        partition = split_pairs(lambda: read_cleaned_pairs(pairs_path), validation_size)
        training_pairs = (pair for pair in read_cleaned_pairs(pairs_path) if partition.is_training_pair(pair))
        write_tsv(training_pairs, folder / "train.tsv")
        write_tsv(partition.validation, folder / "validation.tsv")
    finally:
        pairs_path.unlink(missing_ok=True)
    lines = [
        f"{partition.num_training_pairs:,} pairs to {folder / 'train.tsv'}",
        f"{len(partition.validation):,} pairs to {folder / 'validation.tsv'}",
    ]
    if partition.leaks:
        lines.append(f"{partition.leaks:,} in neither, because their translation is in training")
    return report.summary_lines() + lines


def join_corpus(corpus: CorpusInput, output: Path, size: ParagraphSize) -> list[str]:
    """Write adjacent pairs as paragraphs; returns a report."""
    _check_tsv_output(corpus.paths, output)
    corpus.check_reading_settings_only()
    report, max_length = CleaningReport(), 0

    def measure_pairs() -> Iterator[Pair]:
        nonlocal max_length
        for pair in join_paragraphs(corpus.read_records(), size, report):
            max_length = max(max_length, len(pair.source), len(pair.target))
            yield pair
        if not max_length:  # before the output is overwritten
            raise HeedfulError(f"{report.read:,} lines hold no usable pair", hint="run heedful corpus stats to see why")

    count = write_tsv(measure_pairs(), output)
    lines = [*report.summary_lines(), f"{count:,} paragraphs to {output}, the longest of {max_length:,} characters"]
    max_characters = CleaningConfig().max_characters
    if max_length > max_characters:
        lines.append(
            f"to train on all of them: --set cleaning.max_characters={max_length} (default {max_characters:,})"
        )
    return lines


def _check_tsv_output(paths: Sequence[Path], output: Path) -> None:
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(f"{output} does not end in .tsv or .tsv.gz", hint="rename the output file")
    _check_files(paths, output)


def _check_files(paths: Sequence[Path], output: Path) -> None:
    check_inputs(paths)
    check_writable(output)
    if any(path.exists() and output.exists() and path.samefile(output) for path in paths):
        raise HeedfulError(f"{output} is also an input", hint="choose another output file")


MESSAGE_CLEANING = CleaningConfig(max_characters=0, max_length_ratio=0)
"""User-interface messages: only empty and duplicate pairs are dropped."""


def convert_corpus(corpus: CorpusInput, output: Path, output_format: str | None) -> list[str]:
    """Write the pairs in another format; returns a report."""
    _check_files(corpus.paths, output)
    formats, requested = ("tsv", *WRITERS), output_format
    output_format = requested or FORMAT_BY_EXTENSION.get(file_extension(output.name), "")
    if output_format not in formats:
        raise HeedfulError(
            f"unknown output format {requested!r}" if requested else f"cannot determine the format of {output.name}",
            hint=f"use a matching extension, or --format: {', '.join(formats)}",
        )
    corpus.check_reading_settings_only()
    reading = corpus.build_reading()
    if reading.languages is None and output_format in FORMATS_WITH_LANGUAGES:
        raise HeedfulError(f"{output.name} needs the languages", hint="add --languages en-de")
    report = CleaningReport()
    changed = 0

    def fit_pairs() -> Iterator[tuple[str, str]]:
        nonlocal changed
        for record in read_pairs(corpus.paths, reading):
            report.count_record(record)
            if record.source is None or record.target is None:
                report.drop(record.error, record)
                continue
            if not record.source.strip() or not record.target.strip():
                report.drop("empty side", record)
                continue
            report.accepted += 1
            source = remove_unsupported_characters(record.source, output_format)
            target = remove_unsupported_characters(record.target, output_format)
            changed += (source, target) != (record.source, record.target)
            yield source, target

    count = write_pairs(fit_pairs(), output, output_format, reading.languages)
    lines = [*report.summary_lines(), f"{format_count(count, 'pair')} to {output}"]
    if changed:
        lines.append(f"{format_count(changed, 'pair')} lost control characters, which {output_format} does not allow")
    return lines


def collect_catalogs(selection: CatalogSelection, folders: Sequence[Path], output: Path) -> list[str]:
    """Write the pairs of the installed gettext catalogs; returns the pairs per package."""
    check_writable(output)
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(
            f"{output} is written as TSV",
            hint="use a .tsv or .tsv.gz file; heedful corpus convert writes other formats",
        )
    if selection.source == selection.target:
        raise HeedfulError(f"source and target are both {selection.source}", hint="use two different languages")
    for folder in folders:
        if not folder.is_dir():
            raise HeedfulError(f"{folder} is not a folder", hint="use a locale folder such as /usr/share/locale")
    lines: list[str] = []
    report = CleaningReport()

    def read_records() -> Iterator[PairRecord]:
        for catalog in read_package_catalogs(selection, folders or system_locale_folders()):
            if catalog.error:
                lines.append(f"skipped {catalog.path}: {catalog.error}")
            elif catalog.pairs:
                lines.append(f"{catalog.package}: {format_count(len(catalog.pairs), 'pair')}")
            for number, (source, target) in enumerate(catalog.pairs, start=1):
                yield PairRecord(catalog.package, number, source, target)

    pairs = clean_pairs(read_records(), MESSAGE_CLEANING, report)
    first = next(pairs, None)
    if first is None:
        searched = ", ".join(map(str, folders or system_locale_folders())) or "no locale folder"
        raise HeedfulError(
            f"no catalog has messages in {selection.source} and {selection.target}",
            hint=f"searched {searched}; minimal systems do not install translations",
        )
    write_tsv(chain([first], pairs), output)
    return [*lines, *report.summary_lines(), f"written to {output}"]
