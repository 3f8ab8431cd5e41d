"""Detect localization files (PO, TMX, XLIFF) by their content, and translate them.

A document is written completely or not at all.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from heedful.data.formats.base import detect_format, read_root_element
from heedful.documents.base import (
    CachingTranslator,
    Document,
    FillOptions,
    RetranslateMode,
    ReviewMark,
)
from heedful.documents.po import PoDocument
from heedful.documents.tmx import TmxDocument
from heedful.documents.xliff import XLIFF_NAMESPACE, Xliff1Document, Xliff2Document
from heedful.errors import HeedfulError
from heedful.files import atomic_write, decompress_gzip, wrap_read_errors
from heedful.inference.bulk import (
    LineOptions,
    TranslateOptions,
    check_input_and_output,
    check_options,
    load_translator,
    resolve_output,
)
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.tokenization.languages import languages_match, parse_language_pair
from heedful.tokenization.protected_spans import ProtectionRules

_HEAD_BYTES = 1 << 16

DocumentReader = Callable[[Path], Document]

DOCUMENT_READERS: dict[str, DocumentReader] = {
    "po": PoDocument,
    "tmx": TmxDocument,
    "xliff": Xliff1Document,
    "xliff2": Xliff2Document,
}
"""Readers by the name that ``detect_format`` returns; XLIFF 2 is another format than XLIFF 1."""


def open_document(path: Path) -> Document:
    """Read a localization file; raises if it is not one, or is malformed."""
    reader = detect_document(path)
    if reader is None:
        raise HeedfulError(f"{path} is not a PO, TMX or XLIFF file")
    return reader(path)


def detect_document(path: Path) -> DocumentReader | None:
    """The reader of a localization file; None for plain text, pipes and standard input."""
    if not path.is_file():
        return None
    with wrap_read_errors(path), path.open("rb") as plain, decompress_gzip(plain) as stream:
        head, is_gzip = stream.read(_HEAD_BYTES), stream is not plain
    format_name = detect_format(head)
    if format_name == "xliff" and read_root_element(head).namespace.startswith(f"{XLIFF_NAMESPACE}2"):
        format_name = "xliff2"
    reader = DOCUMENT_READERS.get(format_name)
    if reader and is_gzip:
        raise HeedfulError(f"{path} is a gzip file", hint="decompress it: documents are written uncompressed")
    return reader


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """The options of ``heedful translate`` that apply to documents only."""

    retranslate: str = ""
    mark: str = ""
    languages: str = ""

    def check(self) -> None:
        """Raise for an invalid choice."""
        choices_by_name = {"retranslate": get_args(RetranslateMode), "mark": get_args(ReviewMark)}
        for name, choices in choices_by_name.items():
            value = getattr(self, name)
            if value and value not in choices:
                hint = f"choices: {', '.join(filter(None, choices))}"
                raise HeedfulError(f"--{name} cannot be {value!r}", hint=hint)
        if self.languages:
            parse_language_pair(self.languages)


def translate_document(options: TranslateOptions, document_options: DocumentOptions, report: Reporter) -> None:
    """Fill in the input document and write it to the output, or to standard output."""
    has_n_best = "n_best" in options.generation_overrides
    if options.prefix or options.stream or options.scores or options.alignments or has_n_best:
        raise HeedfulError(
            "--prefix, --stream, --n-best, --scores and --alignments do not work with a localization file",
            hint="omit them, or translate the file as lines: --format text",
        )
    check_options(options)
    check_input_and_output(options)
    document_options.check()
    document = open_document(options.inputs[0])
    translator, line_options = load_translator(options)
    report.info(f"engine: {translator.name}")
    output = options.output and resolve_output(options.output)
    fill_document(document, translator, line_options, output, document_options, report)


def fill_document(
    document: Document,
    translator: Translator,
    line_options: LineOptions,
    output: Path | None,
    document_options: DocumentOptions,
    report: Reporter,
) -> None:
    """Translate the units of a document and write it to a file or to standard output."""
    config, glossary = line_options.generation_config, line_options.glossary
    fill_options = _make_fill_options(
        document,
        translator.model_folder.for_language(config.target_language),
        document_options,
        glossary.rules if glossary else ProtectionRules(),
    )
    with report.task("translating", document.count_units(fill_options), unit="units") as task:
        caching_translator = CachingTranslator(translator, config, task, glossary)
        with atomic_write(output) if output else tempfile.TemporaryFile() as file:
            counts = document.write_translation(fill_options, caching_translator, file)
            if output is None:
                file.seek(0)
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
    report.info(f"{document.format_name}: {counts}")
    if caching_translator.incomplete_count:
        report.warning(
            f"{caching_translator.incomplete_count:,} texts reached the maximum length "
            "(source + generation.max_length_offset tokens) before they ended"
        )


def _make_fill_options(
    document: Document, model_folder: ModelFolder, options: DocumentOptions, rules: ProtectionRules
) -> FillOptions:
    """Languages from --languages or the model; they must match those of the file."""
    languages = parse_language_pair(options.languages) if options.languages else model_folder.config.languages
    source, target = languages or (document.source_language, document.target_language)
    pairs = (("from", source, document.source_language), ("into", target, document.target_language))
    for preposition, model_language, file_language in pairs:
        if model_language and file_language and not languages_match(model_language, file_language):
            raise HeedfulError(
                f"the file needs a translation {preposition} {file_language}, "
                f"but the model translates {preposition} {model_language}",
                hint="use another model; if the languages are the same, name them as the file does: "
                f"--languages {document.source_language or source}:{document.target_language or target}",
            )
    if document.needs_target and not (source and target):
        raise HeedfulError(
            f"neither the model nor the file names {'the target' if source else 'a source'} language",
            hint="name both: --languages en-de",
        )
    if document.format_name == "TMX":  # every unit names its languages, as the file spells them
        source = document.source_language or source
    return FillOptions(
        source,
        document.target_language or target,
        cast(RetranslateMode, options.retranslate),
        cast(ReviewMark, options.mark or "fuzzy"),
        rules,
    )
