"""``heedful translate``: texts, a file or a stream, line by line."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.commands.documents import DocumentOptions, translate_document
from heedful.commands.lines import (
    FORMATS,
    LineWork,
    Treeless,
    Wanted,
    chosen_form,
    tell_incomplete,
    tell_treeless,
)
from heedful.commands.options import engine_name, search_settings
from heedful.commands.resuming import by_column, by_field, by_order, of_file, resumed
from heedful.corpora.formats import check_readable
from heedful.corpora.lines import STANDARD_INPUT, count_lines, read_lines
from heedful.corpora.terms import read_glossary
from heedful.decoding.config import SearchConfig
from heedful.documents.filling import Document
from heedful.engines.base import Engine, Translation
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.loading import load
from heedful.progress import Reporter, Task


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """The command line of ``heedful translate``."""

    model: Path
    texts: tuple[str, ...] = ()
    source: Path | None = None
    output: Path | None = None
    form: str = ""
    prefix: str = ""
    stream: bool = False
    device: str = "auto"
    search: Mapping[str, Any] | None = None
    settings: tuple[str, ...] = ()
    engine: str = "auto"
    workers: int = 0
    scores: bool = False
    alignments: bool = False
    document: DocumentOptions | None = None
    glossary: Path | None = None
    others: tuple[Path, ...] = ()
    """Models that translate together with ``model``."""

    @property
    def models(self) -> tuple[Path, ...]:
        """All that translate together."""
        return (self.model, *self.others)


def translate_command(options: TranslateOptions, report: Reporter) -> None:
    """Translate what is given; to standard output or a file."""
    check_options(options)
    document = _document(options)
    for text in options.texts:
        if len(text) < 200 and Path(text).is_file():
            report.warn(f"{text!r} is translated as a text; for the file of that name write -i {text}")
    engine = load(
        options.models, device=options.device, engine=engine_name(options.engine), workers=options.workers
    )
    search = search_settings(engine.bundle.config.search, options.search or {}, options.settings)
    glossary = read_glossary(options.glossary) if options.glossary else None
    engine.bundle.language_tag(search.language)  # an error now, not after the first lines
    if document:
        report.say(f"engine: {engine.name}")
        output = options.output and output_place(options.output)
        told = options.document or DocumentOptions()
        translate_document(document, engine, search, output, told, report, glossary)
        return
    treeless = Treeless(engine.bundle)
    lines = treeless.noted(_given(options, report))
    if options.stream:
        _stream(engine, lines, search, options.prefix)
        tell_treeless(report, treeless.found, treeless.lines, treeless.first)
        return
    form = chosen_form(options.form, search, columns=options.scores or options.alignments)
    if options.source or not sys.stdout.isatty():
        report.say(f"engine: {engine.name}")
    work = LineWork(engine, Wanted(search, options.prefix, form, options.alignments, glossary))
    write = _to_file if options.output else _to_screen
    incomplete, missing = write(work, lines, options, report)
    tell_treeless(report, treeless.found, treeless.lines, treeless.first)
    tell_incomplete(report, incomplete, missing)


def _to_screen(
    work: LineWork, lines: Iterator[str], options: TranslateOptions, report: Reporter
) -> tuple[int, int]:
    found: Iterable[Translation] = work.translated(lines, waiting=True)
    if not sys.stdout.isatty():  # a bar would mingle with the translations
        found = report.track(found, "translating", unit="lines")
    return work.written(found, sys.stdout)


def _to_file(
    work: LineWork, lines: Iterator[str], options: TranslateOptions, report: Reporter
) -> tuple[int, int]:
    """Into a file that gets its name when it is whole; of an input file the work can go on after a kill."""
    assert options.output is not None
    source = options.source
    lasting = source is not None and source.is_file()
    identity = {
        "input": of_file(source) if lasting and source else uuid4().hex,
        **work.wanted.identity(options.models, work.engine.name),
    }
    number = {"text": by_order, "tsv": by_column, "jsonl": by_field}[work.wanted.form]
    total = count_lines(source) if lasting and source else None
    with (
        resumed(output_place(options.output), identity, number, report) as (file, done),
        report.task("translating", total, done, "lines") as task,
    ):
        found = work.translated(islice(lines, done, None), waiting=not lasting)
        return work.written(_advancing(found, task), file, done)


def _advancing(found: Iterable[Translation], task: Task) -> Iterator[Translation]:
    for translation in found:
        yield translation
        task.advance()


def _given(options: TranslateOptions, report: Reporter) -> Iterator[str]:
    """The texts of the command line, or the lines of the file or of standard input."""
    if options.texts:
        # Bytes of the command line that are no UTF-8 arrive as halves of surrogate pairs.
        return (text.encode("utf-8", "replace").decode() for text in options.texts)
    return _lines(options.source or STANDARD_INPUT, report)


def check_options(options: TranslateOptions) -> None:
    """What can be known to be wrong before the model is loaded."""
    told = options.search or {}
    if options.form and options.form not in FORMATS:
        raise HeedfulError(f"there is no format {options.form!r}", hint=f"formats: {', '.join(FORMATS)}")
    if options.texts and options.source:
        raise HeedfulError("both texts and --input were given", hint="give one of them")
    if "method" not in told and ("temperature" in told or "seed" in told):
        raise HeedfulError("--temperature and --seed belong to sampling", hint="add --sample")
    if options.stream and (options.output or options.form or "n_best" in told or told.get("beam", 1) != 1):
        raise HeedfulError(
            "--stream prints one greedy or sampled translation word by word",
            hint="leave out --output, --format, --n-best and --beam",
        )
    if options.stream and options.glossary:
        raise HeedfulError("--glossary is for whole translations", hint="leave out --stream")
    if "glossary_mode" in told and not options.glossary:
        raise HeedfulError("--glossary-mode says how a glossary is used", hint="add --glossary FILE")
    if options.source:
        check_readable(options.source)
    if options.output:
        check_writable(output_place(options.output))
        if options.source and output_place(options.output) == options.source.resolve():
            raise HeedfulError("--output would overwrite --input", hint="name another file")


def _document(options: TranslateOptions) -> Document | None:
    """The input as a localisation file, if it is one; --format says that it is lines of text."""
    read = None
    if options.source and options.source != STANDARD_INPUT and not options.form:
        from heedful.documents.recognition import recognised

        read = recognised(options.source)
    if read is None:
        if options.document:
            raise HeedfulError(
                "--again, --mark and --languages belong to PO, TMX and XLIFF files",
                hint="give one with --input, or leave them out",
            )
        return None
    told = options.search or {}
    if options.prefix or options.stream or options.scores or options.alignments or "n_best" in told:
        raise HeedfulError(
            "--prefix, --stream, --n-best, --scores and --alignments do not go with a localisation file",
            hint="leave them out; or take the file as lines of text: --format text",
        )
    (options.document or DocumentOptions()).check()
    assert options.source is not None
    return read(options.source)


def output_place(output: Path) -> Path:
    """Where a link leads: renaming a file onto the link itself would leave a file instead of it."""
    try:
        place = output.resolve()
    except (OSError, RuntimeError):  # RuntimeError up to Python 3.12
        raise HeedfulError(f"{output} is a link that leads round in a circle") from None
    if place.exists() and not place.is_file() and not place.is_dir():  # such as /dev/null or a pipe
        raise HeedfulError(f"{output} is no plain file", hint="leave out --output to write to the terminal")
    return place


def _lines(path: Path, report: Reporter) -> Iterator[str]:
    for line in read_lines(path):
        if line.fault:
            report.warn(f"line {line.number:,}: {line.fault}; its translation is left empty")
        yield line.text


def _stream(engine: Engine, lines: Iterable[str], search: SearchConfig, prefix: str) -> None:
    for line in lines:
        for part in engine.stream(line, search, prefix):
            print(part, end="", flush=True)
        print(flush=True)
