"""``heedful translate``: texts, a file or a stream, line by line."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from heedful.api import load
from heedful.commands.options import one_line, search_settings
from heedful.corpora.formats import check_readable
from heedful.corpora.lines import STANDARD_INPUT, read_lines
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.engines.lines import translate_lines
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.progress import Reporter

FORMATS = ("text", "tsv", "jsonl")


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


def translate_command(options: TranslateOptions, report: Reporter) -> None:
    """Translate what is given; to standard output or a file."""
    _check(options)
    for text in options.texts:
        if len(text) < 200 and Path(text).is_file():
            report.warn(f"{text!r} is translated as a text; for the file of that name write -i {text}")
    engine = load(options.model, device=options.device)
    search = search_settings(engine.bundle.config.search, options.search or {}, options.settings)
    # Bytes of the command line that are no UTF-8 arrive as halves of surrogate pairs.
    texts = (text.encode("utf-8", "replace").decode() for text in options.texts)
    lines = texts if options.texts else _lines(options.source or STANDARD_INPUT, report)
    if options.stream:
        _stream(engine, lines, search, options.prefix)
        return
    form = options.form or ("tsv" if search.n_best > 1 else "text")
    if form == "text" and search.n_best > 1:
        raise HeedfulError("--format text has room for one translation a line", hint="use tsv or jsonl")
    found: Iterable[Translation] = translate_lines(engine, lines, search, options.prefix)
    incomplete = 0
    with _opened(options.output, report) as file:
        if options.output or not sys.stdout.isatty():  # a bar would mingle with the translations
            found = report.track(found, "translating", unit="lines")
        for number, translation in enumerate(found, start=1):
            file.write(_written(number, translation, form))
            file.flush()
            incomplete += not translation.complete
    if incomplete:
        report.warn(
            f"{incomplete:,} translations stopped at the longest length "
            "(source + search.extra_length tokens) before they ended"
        )


def _check(options: TranslateOptions) -> None:
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
    if options.source:
        check_readable(options.source)
    if options.output:
        check_writable(options.output)
        if options.source and options.output.resolve() == options.source.resolve():
            raise HeedfulError("--output would overwrite --input", hint="name another file")


def _lines(path: Path, report: Reporter) -> Iterator[str]:
    for line in read_lines(path):
        if line.fault:
            report.warn(f"line {line.number:,}: {line.fault}; its translation is left empty")
        yield line.text


def _stream(engine: NativeEngine, lines: Iterable[str], search: SearchConfig, prefix: str) -> None:
    for line in lines:
        for part in engine.stream(line, search, prefix):
            print(part, end="", flush=True)
        print(flush=True)


@contextmanager
def _opened(path: Path | None, report: Reporter) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name only when it is complete; what there is stays."""
    if path is None:
        yield sys.stdout
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except BaseException:
        report.warn(f"what was translated so far is in {partial}")
        raise
    partial.replace(path)


def _written(number: int, translation: Translation, form: str) -> str:
    if form == "text":
        return " ".join(translation.text.splitlines()) + "\n"
    if form == "jsonl":
        return json.dumps(_as_json(number, translation), ensure_ascii=False) + "\n"
    return "".join(
        f"{number}\t{rank}\t{alternative.score:.4f}\t{one_line(alternative.text)}\n"
        for rank, alternative in enumerate(translation.alternatives, start=1)
    )


def _as_json(number: int, translation: Translation) -> dict[str, Any]:
    return {
        "line": number,
        "source": translation.source,
        "complete": translation.complete,
        "segments": translation.segments,
        "translations": [
            {
                "text": alternative.text,
                "score": alternative.score,
                "log_probability": alternative.log_probability,
                "tokens": alternative.tokens,
                "token_log_probabilities": alternative.token_log_probabilities,
            }
            for alternative in translation.alternatives
        ],
    }
