"""``heedful corpus back-translate``: pairs from text of the target language alone (Sennrich et al. 2016)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.commands.options import engine_name, search_settings
from heedful.commands.resuming import of_file
from heedful.commands.synthetic import Writer, check_writer, write_pairs
from heedful.corpora.formats import check_readable
from heedful.corpora.lines import count_lines, read_lines, title
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.loading import load
from heedful.progress import Reporter


@dataclass(frozen=True, slots=True)
class BackTranslateOptions:
    """The command line."""

    models: tuple[Path, ...]
    """One that translates from the target language into the source language, or several together."""
    text: Path
    output: Path
    search: Mapping[str, Any]
    settings: tuple[str, ...] = ()
    engine: str = "auto"
    workers: int = 0
    device: str = "auto"


def back_translate_command(options: BackTranslateOptions, report: Reporter) -> Iterator[str]:
    """Write the pairs; yields lines to print."""
    text, output = options.text, options.output
    _check(options)
    engine = load(
        options.models, device=options.device, engine=engine_name(options.engine), workers=options.workers
    )
    check_writer(engine)
    search = search_settings(engine.bundle.config.search, options.search, options.settings)
    if search.n_best != 1:
        raise HeedfulError("a line becomes one pair", hint="leave out search.n_best")
    report.say(f"engine: {engine.name}; {_direction(engine.bundle.config.languages)}")
    lasting = text.is_file()
    yield from write_pairs(
        Writer(engine, options.models, search, source_side=True),
        _lines(text, report),
        of_file(text) if lasting else uuid4().hex,
        output,
        report,
        count_lines(text) if lasting else None,
    )
    yield f"written to {output}; train with it: heedful train pairs.tsv --back-translated {output} -o model"


def _direction(languages: tuple[str, str] | None) -> str:
    """Said aloud, since a model of the wrong direction would waste the work."""
    if languages is None:
        return "the text must be in the language that this model reads"
    return f"it reads {languages[0]}, as the text must be, and writes {languages[1]}"


def _check(options: BackTranslateOptions) -> None:
    output = options.output
    if "method" not in options.search and options.search.keys() & {"temperature", "seed", "top_k"}:
        raise HeedfulError("--temperature, --top-k and --seed belong to sampling", hint="add --sample")
    if "method" in options.search and "beam" in options.search:
        raise HeedfulError("--beam searches, and --sample draws at random", hint="give one of them")
    check_readable(options.text)
    check_writable(output)
    if not output.name.lower().endswith((".tsv", ".tsv.gz")):
        raise HeedfulError(f"{output} is written as TSV", hint="name it .tsv or .tsv.gz")
    if options.text.exists() and output.exists() and options.text.samefile(output):
        raise HeedfulError(f"{output} is what is to be read", hint="name another file to write")


def _lines(path: Path, report: Reporter) -> Iterator[str]:
    for line in read_lines(path):
        if line.fault:
            report.warn(f"{title(path)}:{line.number}: {line.fault}; it becomes no pair")
        yield line.text
