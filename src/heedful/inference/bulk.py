"""Translate texts, a stream or a file line by line: one output line per input line, in order.

A slow stream (a person, a pipe) gets each line back at once, a file is translated in large batches. A file is
written under a temporary name and can be resumed after a crash: ``out.txt.partial`` holds the translations,
``out.txt.partial.json`` says of which input, model and settings.
"""

import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast
from uuid import uuid4

from heedful.data.formats.lines import STANDARD_INPUT, count_lines, read_lines
from heedful.data.glossary import Glossary, read_glossary
from heedful.data.word_alignment import format_pharaoh
from heedful.errors import HeedfulError
from heedful.files import check_writable, lock_file, write_json
from heedful.generation.config import GenerationConfig, build_generation_config
from heedful.inference.loading import load, parse_engine_name
from heedful.inference.translation import Alternative, Translation
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder, list_model_files
from heedful.progress import Reporter
from heedful.tokenization.dependency_trees import HEADS_FORMAT, find_heads_error
from heedful.tokenization.normalization import clean_sentence

OUTPUT_FORMATS = ("text", "tsv", "jsonl")

BATCH_LINES = 2048
"""Maximum lines sorted by length and translated together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateOptions:
    """The options of ``heedful translate``."""

    models: tuple[Path, ...]
    """Several form an ensemble."""
    texts: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    """Several only with Ray; standard input if there are neither texts nor inputs."""
    output: Path | None = None
    output_format: str = ""
    scores: bool = False
    alignments: bool = False
    prefix: str = ""
    stream: bool = False
    glossary: Path | None = None
    generation_overrides: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    engine: str = "auto"
    device: str = "auto"
    workers: int = 0
    ray_address: str = ""
    """Empty to translate in this process."""
    shard_lines: int = 0
    """Lines of a Ray shard; 0 for the default."""

    @property
    def input_path(self) -> Path | None:
        """The only input, if any."""
        return self.inputs[0] if self.inputs else None


@dataclass(frozen=True, slots=True)
class LineOptions:
    """How every line is translated and written."""

    generation_config: GenerationConfig
    prefix: str = ""
    output_format: str = "text"
    alignments: bool = False
    glossary: Glossary | None = None

    def translate(
        self, translator: Translator, lines: Iterable[str], *, interactive: bool, skip_failures: bool = False
    ) -> Iterator[Translation]:
        """The translation of each line, see ``translate_lines``."""
        return translate_lines(
            translator,
            lines,
            self.generation_config,
            self.prefix,
            details=self.alignments or self.output_format == "jsonl",
            interactive=interactive,
            glossary=self.glossary,
            skip_failures=skip_failures,
        )

    def fingerprint(self, models: Sequence[Path], engine: str) -> dict[str, Any]:
        """What must be equal to resume an output: model files, engine and settings."""
        return {
            "model": [file_fingerprint(path) for model in models for path in list_model_files(model)],
            "engine": engine,
            "generation": json.loads(self.generation_config.model_dump_json()),
            "prefix": self.prefix,
            "format": [self.output_format, self.alignments],
            "glossary": self.glossary.entries if self.glossary else (),
        }


@dataclass(slots=True)
class LineStatistics:
    """Problems found while lines are translated, with the first of each kind."""

    incomplete: int = 0
    missing_terms: int = 0
    unreadable: int = 0
    """Lines that are not UTF-8, or too long."""
    first_unreadable: str = ""
    failed: int = 0
    """Lines that the model could not translate."""
    first_failure: str = ""
    tree_lines: int = 0
    """Lines given to a model that reads dependency trees."""
    missing_trees: int = 0
    first_missing_tree: str = ""

    def __add__(self, other: "LineStatistics") -> "LineStatistics":
        pairs = zip(astuple(self), astuple(other), strict=True)
        values: list[Any] = [first or second if isinstance(first, str) else first + second for first, second in pairs]
        return LineStatistics(*values)

    def warn(self, report: Reporter) -> None:
        """Report the problems that the output does not show."""
        if self.missing_trees:
            report.warning(
                f"{self.missing_trees:,} of {self.tree_lines:,} lines were translated without a dependency "
                f"tree, which this model reads (first: {self.first_missing_tree}); a line is {HEADS_FORMAT}"
            )
        if self.missing_terms:
            report.warning(f"{self.missing_terms:,} translations lack a glossary term")
        if self.incomplete:
            report.warning(
                f"{self.incomplete:,} translations reached the maximum length "
                "(source + generation.max_length_offset tokens) before they ended"
            )


def translate_inputs(options: TranslateOptions, report: Reporter) -> None:
    """Translate texts, a file or standard input line by line, to standard output or a file."""
    check_options(options)
    if options.texts and options.inputs:
        raise HeedfulError("got both texts and --input", hint="use one of them")
    if len(options.inputs) > 1:
        raise HeedfulError("several inputs require workers", hint="add --ray local, or name one input")
    if options.shard_lines:
        raise HeedfulError("--shard-lines requires --ray", hint="add --ray local, or omit it")
    check_input_and_output(options)
    for text in options.texts:
        if len(text) < 200 and Path(text).is_file():
            report.warning(f"{text!r} is translated as text; to translate the file use -i {text}")
    translator, line_options = load_translator(options)
    statistics = LineStatistics()
    lines: Iterator[str]
    if options.texts:
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates.
        lines = (text.encode("utf-8", "replace").decode() for text in options.texts)
    else:
        lines = _read_input_lines(options.input_path or STANDARD_INPUT, report)
    lines = check_trees(lines, translator.model_folder, statistics)
    if not options.stream and (options.inputs or not sys.stdout.isatty()):
        report.info(f"engine: {translator.name}")
    if options.stream:
        for line in lines:
            for chunk in translator.stream(line, line_options.generation_config, line_options.prefix):
                print(chunk, end="", flush=True)
            print(flush=True)
    elif options.output:
        _translate_to_file(translator, lines, line_options, statistics, options, report)
    else:
        translations = line_options.translate(translator, lines, interactive=True)
        if not sys.stdout.isatty():  # a progress bar would mix with the translations
            translations = report.track(translations, "translating", unit="lines")
        write_translations(translations, sys.stdout, line_options, statistics)
    statistics.warn(report)


def load_translator(options: TranslateOptions, *, workers: int | None = None) -> tuple[Translator, LineOptions]:
    """The translator, and what applies to every line; errors in options come before the first line."""
    translator = load(
        options.models,
        device=options.device,
        engine=parse_engine_name(options.engine),
        workers=options.workers if workers is None else workers,
    )
    generation_config = build_generation_config(
        translator.model_folder.config.generation, options.generation_overrides, options.settings
    )
    translator.model_folder.language_tag(generation_config.target_language)
    needs_columns = options.scores or options.alignments or generation_config.n_best > 1
    if options.output_format == "text" and needs_columns:
        raise HeedfulError("--format text holds only one translation per line", hint="use --format tsv or jsonl")
    output_format = options.output_format or ("tsv" if needs_columns else "text")
    glossary = read_glossary(options.glossary) if options.glossary else None
    return translator, LineOptions(generation_config, options.prefix, output_format, options.alignments, glossary)


def check_options(options: TranslateOptions) -> None:
    """Raise for options that contradict each other, before the model is loaded."""
    overrides = options.generation_overrides
    if options.output_format and options.output_format not in OUTPUT_FORMATS:
        raise HeedfulError(f"unknown format {options.output_format!r}", hint=f"formats: {', '.join(OUTPUT_FORMATS)}")
    if "method" not in overrides and ("temperature" in overrides or "seed" in overrides):
        raise HeedfulError("--temperature and --seed require sampling", hint="add --sample")
    if options.stream and (
        options.output or options.output_format or "n_best" in overrides or overrides.get("beam_size", 1) != 1
    ):
        raise HeedfulError(
            "--stream prints one greedy or sampled translation word by word",
            hint="omit --output, --format, --n-best and --beam",
        )
    if options.stream and options.glossary:
        raise HeedfulError("--stream does not support --glossary", hint="omit one of them")
    if "glossary_mode" in overrides and not options.glossary:
        raise HeedfulError("--glossary-mode requires a glossary", hint="add --glossary FILE")


def check_input_and_output(options: TranslateOptions) -> None:
    """Raise unless the input can be read and the output written."""
    if options.input_path:
        from heedful.data.reader import check_readable

        check_readable(options.input_path)
    if options.output:
        check_writable(resolve_output(options.output))
        if options.input_path and resolve_output(options.output) == options.input_path.resolve():
            raise HeedfulError("--output would overwrite --input", hint="name another file")


def resolve_output(output: Path) -> Path:
    """The target of a link: renaming a file onto the link itself would replace the link."""
    try:
        path = output.resolve()
    except (OSError, RuntimeError):  # RuntimeError up to Python 3.12
        raise HeedfulError(f"{output} is a circular link") from None
    if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/null or a pipe
        raise HeedfulError(f"{output} is not a regular file", hint="omit --output to write to the terminal")
    return path


def _read_input_lines(path: Path, report: Reporter) -> Iterator[str]:
    for line in read_lines(path):
        if line.error:
            report.warning(f"line {line.number:,}: {line.error}; its translation is left empty")
        yield line.text


def check_trees(
    lines: Iterable[str], model_folder: ModelFolder, statistics: LineStatistics, lines_before: int = 0
) -> Iterator[str]:
    """The lines, for a model of dependency trees without heads that do not fit, which are counted."""
    if not model_folder.config.model.uses_dependency_trees:
        yield from lines
        return
    for number, line in enumerate(lines, start=lines_before + 1):
        sentence, heads = model_folder.source_parts(line)
        problem = find_heads_error(clean_sentence(sentence, model_folder.config.unicode_normalization), heads)
        statistics.tree_lines += 1
        if problem and sentence.strip():
            statistics.missing_trees += 1
            statistics.first_missing_tree = statistics.first_missing_tree or f"line {number:,}, {problem}"
        yield sentence if problem else line


def _translate_to_file(
    translator: Translator,
    lines: Iterator[str],
    line_options: LineOptions,
    statistics: LineStatistics,
    options: TranslateOptions,
    report: Reporter,
) -> None:
    """Write a file that gets its name when it is complete; with an input file, a crash can be resumed."""
    assert options.output is not None
    input_file = options.input_path if options.input_path and options.input_path.is_file() else None
    fingerprint = {
        "input": file_fingerprint(input_file) if input_file else uuid4().hex,
        **line_options.fingerprint(options.models, translator.name),
    }
    total = count_lines(input_file) if input_file else None
    output_path = resolve_output(options.output)
    with open_resumable(output_path, fingerprint, line_options.output_format, report) as (file, lines_done):
        translations = line_options.translate(
            translator, islice(lines, lines_done, None), interactive=input_file is None
        )
        tracked = report.track(translations, "translating", total, "lines", done=lines_done)
        write_translations(tracked, file, line_options, statistics, lines_done)


def translate_lines(
    translator: Translator,
    lines: Iterable[str],
    generation_config: GenerationConfig | None = None,
    prefix: str = "",
    *,
    details: bool = False,
    interactive: bool = True,
    glossary: Glossary | None = None,
    skip_failures: bool = False,
) -> Iterator[Translation]:
    """The translation of each line, in order; each must start with ``prefix``.

    ``interactive``: lines may come slowly, and each is translated as soon as it arrives. Otherwise batches
    are always full, so that the same lines are translated in the same batches every time. Equal lines of a
    batch are translated once. ``skip_failures``: a line that cannot be translated is left empty.
    """

    def translate(texts: list[str]) -> list[Translation]:
        return translator.translate(texts, generation_config, [prefix] * len(texts), details=details, glossary=glossary)

    def translate_batch(batch: list[str]) -> list[Translation]:
        unique_lines = list(dict.fromkeys(batch))
        try:
            translations = translate(unique_lines)
        except HeedfulError:
            raise
        except Exception:
            if not skip_failures:
                raise
            translations = [_translate_or_skip(translate, line) for line in unique_lines]
            if len(unique_lines) > 1 and all(translation.error for translation in translations):
                raise  # the cause is not a line
        translations_by_line = dict(zip(unique_lines, translations, strict=True))
        return [replace(translations_by_line[line], source=line) for line in batch]

    iterator = iter(lines)
    full_batches = iter(lambda: list(islice(iterator, BATCH_LINES)), [])
    batches = _read_available_batches(iterator) if interactive else full_batches
    if interactive or translator.concurrent_batches == 1:  # somebody waits for this line, not for the next
        for batch in batches:
            yield from translate_batch(batch)
    else:
        yield from _translate_concurrently(translate_batch, batches, translator.concurrent_batches)


def _translate_or_skip(translate: Callable[[list[str]], list[Translation]], text: str) -> Translation:
    try:
        return translate([text])[0]
    except HeedfulError:
        raise
    except Exception as error:
        empty = Alternative("", complete=False)
        return Translation(text, (empty,), segments=0, error=f"{type(error).__name__}: {error}")


def _translate_concurrently(
    translate_batch: Callable[[list[str]], list[Translation]], batches: Iterable[list[str]], concurrency: int
) -> Iterator[Translation]:
    """Several batches at a time: while one is translated, the next is split and encoded."""
    pool = ThreadPoolExecutor(max_workers=concurrency)
    pending: deque[Future[list[Translation]]] = deque()
    try:
        for batch in batches:
            pending.append(pool.submit(translate_batch, batch))
            if len(pending) >= concurrency:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for pending batches


def _read_available_batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in batches of all that have arrived, up to BATCH_LINES; a thread reads ahead."""
    line_queue: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=2 * BATCH_LINES)

    def read() -> None:
        try:
            for line in lines:
                line_queue.put(line)
            line_queue.put(None)
        except BaseException as error:  # to be raised in the thread that awaits the translations
            line_queue.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        batch = [item := line_queue.get()]
        while isinstance(item, str) and len(batch) < BATCH_LINES and not line_queue.empty():
            with suppress(queue.Empty):
                batch.append(item := line_queue.get_nowait())
        texts = [line for line in batch if isinstance(line, str)]
        if texts:
            yield texts
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


def write_translations(
    translations: Iterable[Translation],
    file: TextIO,
    options: LineOptions,
    statistics: LineStatistics,
    lines_before: int = 0,
) -> None:
    """Write every translation in the output format, and count its problems."""
    format_line = _LINE_FORMATTERS[options.output_format]
    for number, translation in enumerate(translations, start=lines_before + 1):
        file.write(format_line(number, translation, options.alignments))
        file.flush()
        if translation.error:
            statistics.failed += 1
            statistics.first_failure = statistics.first_failure or f"line {number:,}: {translation.error}"
        else:
            statistics.incomplete += not translation.alternatives[0].complete
            statistics.missing_terms += bool(translation.missing_terms)


def _format_tsv(number: int, translation: Translation, alignments: bool) -> str:
    return "".join(
        f"{number}\t{rank}\t{alternative.score:.4f}\t{to_single_line(alternative.text)}"
        + (f"\t{format_pharaoh(alternative.alignment)}" if alignments else "")
        + "\n"
        for rank, alternative in enumerate(translation.alternatives, start=1)
    )


def to_single_line(text: str) -> str:
    """A text without the line breaks and tabs that a model may write."""
    return " ".join(text.split("\n")).replace("\r", " ").replace("\t", " ")


def _format_jsonl(number: int, translation: Translation, alignments: bool) -> str:
    fields = ("text", "score", "log_probability", "tokens", "token_log_probabilities", "alignment")
    record = {
        "line": number,
        "source": translation.source,
        "complete": translation.complete,
        "segments": translation.segments,
        "missing_terms": translation.missing_terms,
        "translations": [
            {name: getattr(alternative, name) for name in fields} for alternative in translation.alternatives
        ],
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


_LINE_FORMATTERS: Mapping[str, Callable[[int, Translation, bool], str]] = {
    "text": lambda number, translation, alignments: " ".join(translation.alternatives[0].text.splitlines()) + "\n",
    "tsv": _format_tsv,
    "jsonl": _format_jsonl,
}


_LINE_NUMBERS: Mapping[str, Callable[[int, str], int]] = {
    "text": lambda number, line: number,
    "tsv": lambda number, line: int(line.split("\t", 1)[0]),
    "jsonl": lambda number, line: int(json.loads(line)["line"]),
}
"""The input line of an output line, from 1, given the number of the output line, from 1, and its text."""


@contextmanager
def open_resumable(
    path: Path, fingerprint: dict[str, Any], output_format: str, report: Reporter
) -> Iterator[tuple[TextIO, int]]:
    """The file to write to, and how many input lines are done; on success it is renamed to ``path``."""
    partial = path.with_name(path.name + ".partial")
    fingerprint_path = path.with_name(path.name + ".partial.json")
    try:
        with partial.open("a+", encoding="utf-8", newline="\n") as file:
            lock_file(file, f"another process is writing {partial}")
            try:
                stored = json.loads(fingerprint_path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                stored = None
            can_resume = stored == json.loads(json.dumps(fingerprint))
            lines_done = _truncate_to_batch(cast(BinaryIO, file.buffer), output_format) if can_resume else 0
            if lines_done:
                report.info(f"resuming after line {lines_done:,} of {partial}")
            elif not can_resume and partial.stat().st_size:
                report.warning(f"{partial} has another input, model or settings; starting over")
            if not can_resume:
                file.truncate(0)
            write_json(fingerprint_path, fingerprint)
            yield file, lines_done
    except HeedfulError:
        raise
    except BaseException:
        report.warning(f"the translations so far are in {partial}; run the same command to resume")
        raise
    partial.replace(path)
    fingerprint_path.unlink(missing_ok=True)


def file_fingerprint(path: Path) -> dict[str, Any]:
    """Path, size and modification time: enough to notice a change without reading the file."""
    stat = path.stat()
    return {"path": str(path.absolute()), "bytes": stat.st_size, "modified": stat.st_mtime_ns}


def _truncate_to_batch(file: BinaryIO, output_format: str) -> int:
    """Truncate the locked file after the last complete batch of input lines, and count these lines.

    Only full batches keep every line in the same batch as without the interruption. The last input line may
    have more output lines to come, so it does not count.
    """
    lines_done = end = offset = last_line = 0
    file.seek(0)
    for count, raw in enumerate(file, start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = _LINE_NUMBERS[output_format](count, raw.decode("utf-8"))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            break
        if line != last_line and last_line % BATCH_LINES == 0 and last_line:
            lines_done, end = last_line, offset
        last_line, offset = line, offset + len(raw)
    file.truncate(end)
    file.seek(end)
    return lines_done
