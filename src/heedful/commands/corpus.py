"""``heedful corpus``: look at, clean, split and join files of pairs. Nothing here needs torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.commands.options import only_section, reading_settings
from heedful.config import parsed_overrides
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import check_inputs, languages_of, read_pairs, write_tsv
from heedful.corpora.paragraphs import ParagraphSize, paragraphs
from heedful.corpora.reading import Languages, Reading, Record
from heedful.corpora.split import split
from heedful.errors import HeedfulError
from heedful.files import check_writable


@dataclass(frozen=True, slots=True)
class CorpusInput:
    """The files of a command, the languages that it names, and its settings."""

    paths: Sequence[Path]
    languages: Languages | None = None
    settings: Sequence[str] = ()

    def reading(self) -> Reading:
        """How they are read; languages that nobody names are those that the files tell."""
        config, _ = reading_settings(self.settings)
        return Reading(self.languages or languages_of(self.paths, config), config)

    def cleaning(self) -> CleaningConfig:
        """How they are cleaned."""
        _, others = reading_settings(self.settings)
        return CleaningConfig.checked(only_section(parsed_overrides(others), "cleaning"))

    def check_settings(self) -> None:
        """Raise if there are others than those of reading, which would have no effect."""
        only_section(parsed_overrides(self.settings), "reading")

    def records(self) -> Iterator[Record]:
        """The pairs in them."""
        return read_pairs(self.paths, self.reading())


def corpus_statistics(given: CorpusInput) -> list[str]:
    """Size of a corpus after cleaning, and what cleaning dropped."""
    check_inputs(given.paths)
    report = CleaningReport()
    sides: list[dict[str, int]] = [{"words": 0, "characters": 0, "longest": 0} for _ in range(2)]
    for pair in clean(given.records(), given.cleaning(), report):
        for side, text in zip(sides, (pair.source, pair.target), strict=True):
            side["words"] += len(text.split())
            side["characters"] += len(text)
            side["longest"] = max(side["longest"], len(text))
    kept = max(1, report.kept)
    return report.lines() + [
        f"{name}: {side['words']:,} words, {side['characters']:,} characters, "
        f"{side['characters'] / kept:.1f} a sentence, longest {side['longest']:,}"
        for name, side in zip(("source", "target"), sides, strict=True)
    ]


def clean_corpus(given: CorpusInput, output: Path) -> list[str]:
    """Write the cleaned pairs; returns the report."""
    _check(given.paths, output)
    report = CleaningReport()
    write_tsv(clean(given.records(), given.cleaning(), report), output)
    return [*report.lines(), f"written to {output}"]


def split_corpus(given: CorpusInput, folder: Path, held_out: int | None) -> list[str]:
    """Write ``train.tsv`` and ``held-out.tsv``; returns a report."""
    check_inputs(given.paths)
    records, cleaning = (
        given.records(),
        given.cleaning(),
    )  # what is wrong with them, before the folder is made
    folder.mkdir(parents=True, exist_ok=True)
    pairs_path = folder / "pairs.tsv.partial"  # read several times, which standard input could not be
    report = CleaningReport()
    try:
        write_tsv(clean(records, cleaning, report), pairs_path)
        parts = split(lambda: cleaned_pairs(pairs_path), held_out)
        write_tsv(parts.training(), folder / "train.tsv")
        write_tsv(parts.held_out, folder / "held-out.tsv")
    finally:
        pairs_path.unlink(missing_ok=True)
    lines = [f"{parts.training_pairs:,} pairs to {folder / 'train.tsv'}"]
    lines.append(f"{len(parts.held_out):,} pairs to {folder / 'held-out.tsv'}")
    if parts.leaks:
        lines.append(f"{parts.leaks:,} in neither: training has their translation")
    return report.lines() + lines


def join_corpus(given: CorpusInput, output: Path, size: ParagraphSize) -> list[str]:
    """Write neighbouring pairs as paragraphs; returns a report, and what training on them takes."""
    _check(given.paths, output)
    given.check_settings()
    report, longest = CleaningReport(), 0

    def measured() -> Iterator[Pair]:
        nonlocal longest
        for pair in paragraphs(given.records(), size, report):
            longest = max(longest, len(pair.source), len(pair.target))
            yield pair
        if not longest:  # before anything is overwritten
            raise HeedfulError(
                f"{report.read:,} lines hold no pair to join", hint="heedful corpus stats says why"
            )

    count = write_tsv(measured(), output)
    found = [*report.lines(), f"{count:,} paragraphs to {output}, the longest of {longest:,} characters"]
    most = CleaningConfig().max_characters
    if longest > most:
        found.append(f"to train on all of them: --set cleaning.max_characters={longest}, not {most:,}")
    return found


def _check(paths: Sequence[Path], output: Path) -> None:
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(f"{output} is written as TSV", hint="name it .tsv or .tsv.gz")
    check_files(paths, output)


def check_files(paths: Sequence[Path], output: Path) -> None:
    """Raise what would stop a command late, or make it overwrite what it reads."""
    check_inputs(paths)
    check_writable(output)
    if any(path.exists() and output.exists() and path.samefile(output) for path in paths):
        raise HeedfulError(f"{output} is what is to be read", hint="name another file to write")
