"""``heedful translate`` of a localisation file: PO, TMX, XLIFF."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast, get_args

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.documents.filling import Again, Document, Mark, Texts, Wishes, same_language
from heedful.engines.base import Engine
from heedful.errors import HeedfulError
from heedful.files import whole_file
from heedful.progress import Reporter
from heedful.text.glossary import Glossary
from heedful.text.languages import language_pair
from heedful.text.spans import Rules

Reader = Callable[[Path], Document]


@dataclass(frozen=True, slots=True)
class DocumentOptions:
    """What the command line says of documents."""

    again: str = ""
    mark: str = ""
    languages: str = ""

    def __bool__(self) -> bool:
        return bool(self.again or self.mark or self.languages)

    def check(self) -> None:
        """Raise if a choice is none."""
        for name, value, kinds in (("again", self.again, Again), ("mark", self.mark, Mark)):
            choices = [choice for choice in get_args(kinds) if choice]
            if value and value not in choices:
                raise HeedfulError(
                    f"--{name} cannot be {value!r}", hint=f"it is one of: {', '.join(choices)}"
                )
        if self.languages:
            language_pair(self.languages)


def translate_document(
    document: Document,
    engine: Engine,
    search: SearchConfig,
    output: Path | None,
    options: DocumentOptions,
    report: Reporter,
    glossary: Glossary | None = None,
) -> None:
    """Fill the document and write it, whole or not at all, to the output or to standard output."""
    rules = glossary.rules if glossary else Rules()
    bundle = engine.bundle.writing(search.language) if search.language else engine.bundle
    wishes = _wishes(document, bundle, options, rules)
    with report.task("translating", document.wanted(wishes), unit="units") as task:
        texts = Texts(engine, search, task, glossary)

        def fill(file: BinaryIO) -> str:
            return str(document.fill(wishes, texts, file))

        told = _to_file(fill, output) if output else _to_screen(fill)
    report.say(f"{document.kind}: {told}")
    if texts.incomplete:
        report.warn(
            f"{texts.incomplete:,} texts stopped at the longest length "
            "(source + search.extra_length tokens) before they ended"
        )


def _to_file(fill: Callable[[BinaryIO], str], output: Path) -> str:
    with whole_file(output) as file:
        return fill(file)


def _to_screen(fill: Callable[[BinaryIO], str]) -> str:
    """Only a whole document is printed."""
    with tempfile.TemporaryFile() as file:
        told = fill(file)
        file.seek(0)
        shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return told


def _wishes(document: Document, bundle: Bundle, options: DocumentOptions, rules: Rules) -> Wishes:
    """The languages of the model, or as told, which must be those of the file."""
    options.check()
    told = language_pair(options.languages) if options.languages else bundle.config.languages
    source, target = told or (document.source_language, document.target_language)
    pairs = (("from", source, document.source_language), ("into", target, document.target_language))
    for word, ours, theirs in pairs:
        if ours and theirs and not same_language(ours, theirs):
            raise HeedfulError(
                f"the file is to be translated {word} {theirs}, and the model translates {word} {ours}",
                hint="take another model; if it is the right one, say its languages as the file calls them: "
                f"--languages {document.source_language or source}:{document.target_language or target}",
            )
    if document.needs_target and not (source and target):
        raise HeedfulError(
            f"neither the model nor the file says {'the target' if source else 'a source'} language",
            hint="say both: --languages en-de",
        )
    again = cast(Again, options.again)
    mark = cast(Mark, options.mark or get_args(Mark)[0])
    if document.kind == "TMX":  # which says the source language unit by unit, best as the file calls it
        source = document.source_language or source
    return Wishes(source, document.target_language or target, again, mark, rules)
