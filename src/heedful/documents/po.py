"""PO files: entries without a translation get one; every other line stays as it was.

The rule to remember: lines are replaced, not written anew, so that a diff shows the translations alone.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import polib

from heedful.documents.filling import NAME, Tally, Texts, Wishes
from heedful.documents.format_strings import directives, format_rules
from heedful.documents.messages import has_tags, translate_message
from heedful.documents.plurals import Plurals, plurals_of, read_plurals
from heedful.documents.po_blocks import (
    Block,
    Edits,
    blocks,
    ending_of,
    flags_of,
    set_flags,
    written_text,
)
from heedful.documents.po_header import Header
from heedful.errors import HeedfulError
from heedful.files import readable
from heedful.text.translated import Rounds

LABEL = f"machine-translated by {NAME}"
_BREAK = re.compile(r"(?<=\n)")
_UNWRAPPED = 100
"""Characters of a line that no program writes which wraps lines."""
_CREDITS = {"translator-credits", "translator_credits", "Your names", "Your emails"}
_CREDIT_CONTEXTS = {"NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS"}
"""Where translators name themselves."""


class PoDocument:
    """A PO or POT file."""

    kind = "PO"
    source_language = ""
    needs_target = False

    def __init__(self, path: Path) -> None:
        with readable(path):
            data = path.read_bytes()
        self.encoding = _encoding(path, data)
        # A line ends at a line feed only; another break may be part of a text.
        self.lines = _BREAK.split(_decoded(path, data, self.encoding))
        self.blocks = list(blocks(self.lines, path.name))
        self.header = Header(self.lines, next((each for each in self.blocks if each.is_header), None))
        self.target_language = self.header.field("Language")
        self.wrap = all(len(line) <= _UNWRAPPED for line in self.lines if not line.startswith("#"))

    def wanted(self, wishes: Wishes) -> int:
        """How many entries will be translated."""
        return sum(self._is_wanted(block, wishes) for block in self.blocks)

    def fill(self, wishes: Wishes, texts: Texts, file: BinaryIO) -> Tally:
        """Write the file with its entries filled."""
        chosen = [block for block in self.blocks if self._is_wanted(block, wishes)]
        plurals = self._plurals(wishes) if any("msgid_plural" in block.texts for block in chosen) else None
        links = bool(wishes.rules.glossary) or any(
            has_tags(text) for block in chosen for text in block.texts.values()
        )
        found = texts.translate([self._translated(block, wishes, plurals) for block in chosen], links=links)
        filled = [(block, answer) for block, answer in zip(chosen, found, strict=True) if answer]
        edits = Edits(self.lines)
        for block, answer in filled:
            self._replace(edits, block, answer, wishes)
        self.header.complete(edits, wishes.target, plurals)
        file.write(self._encoded(str(edits)))
        entries = sum(not block.is_header for block in self.blocks)
        skipped = len(chosen) - len(filled) + sum(map(_is_for_credits, self.blocks))
        return Tally(len(filled), entries - len(filled) - skipped, skipped)

    def _is_wanted(self, block: Block, wishes: Wishes) -> bool:
        if block.is_header or _is_for_credits(block):
            return False
        return not all(block.targets) or wishes.redoes(self._is_draft(block))

    def _is_draft(self, block: Block) -> bool:
        return "fuzzy" in flags_of(self.lines, block) or any(
            LABEL in self.lines[line] for line in block.comments
        )

    def _plurals(self, wishes: Wishes) -> Plurals:
        """As the header says; else those of the language, or of English, which most programs take."""
        told = self.header.field("Plural-Forms")
        if told and "INTEGER" not in told:
            return read_plurals(told)
        language = wishes.target or self.target_language
        return plurals_of(language) or read_plurals("nplurals=2; plural=(n != 1);")

    def _translated(
        self, block: Block, wishes: Wishes, plurals: Plurals | None
    ) -> Rounds[dict[str, str] | None]:
        """The texts of each msgstr; None if nothing fit came out for one of them."""
        rules = format_rules(wishes.rules, flags_of(self.lines, block))
        redone = all(block.targets)
        results: dict[str, str] = {}
        for keyword, source in self._sources(block, plurals):
            old = block.texts.get(keyword, "")
            result = old if old and not redone else (yield from translate_message(source, rules))
            if not result:
                return None
            results[keyword] = result
        return results

    def _sources(self, block: Block, plurals: Plurals | None) -> Iterator[tuple[str, str]]:
        """Each msgstr and the text that it translates."""
        one, many = block.texts["msgid"], block.texts.get("msgid_plural")
        if many is None or plurals is None:
            yield "msgstr", one
            return
        flags = flags_of(self.lines, block)
        same = directives(one, flags) == directives(many, flags)
        for form in range(plurals.count):
            # "One file" can be said of one file alone, but "%d file" in Russian of 21 too.
            fits = plurals.is_singular(form) and (same or plurals.is_only_one(form))
            yield f"msgstr[{form}]", one if fits else many

    def _replace(self, edits: Edits, block: Block, texts: dict[str, str], wishes: Wishes) -> None:
        """Write an entry's texts and mark it."""
        ending, last = ending_of(self.lines[block.keyword]), self.lines[block.end - 1]
        new = [part for item in texts.items() for part in written_text(*item, wrap=self.wrap)]
        edits.lines[block.target : block.end] = [""] * (block.end - block.target)
        edits.lines[block.target] = ending.join(new) + (ending if last.endswith("\n") else "")
        if not any(LABEL in self.lines[line] for line in block.comments):
            place = block.comments[-1] + 1 if block.comments else block.first
            edits.insert(place, f"# {LABEL}{ending}")
        for number in block.previous:  # the message that the old translation was made for
            edits.lines[number] = ""
        flags = [flag for flag in flags_of(self.lines, block) if flag != "fuzzy"]
        set_flags(edits, block, ["fuzzy", *flags] if wishes.mark == "fuzzy" else flags)

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError:  # such as Cyrillic in a file in Latin-1
            return Header.in_unicode(text).encode()


def _is_for_credits(block: Block) -> bool:
    return block.texts["msgid"] in _CREDITS or block.texts.get("msgctxt") in _CREDIT_CONTEXTS


def _encoding(path: Path, data: bytes) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        return "utf-8"
    return polib.detect_encoding(str(path))


def _decoded(path: Path, data: bytes, encoding: str) -> str:
    hint = "correct the charset of its Content-Type; nothing was written"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{path.name}, line {line:,}: the text is not in {encoding}, as the header says"
        raise HeedfulError(problem, hint=hint) from None
    except (UnicodeError, LookupError):  # of what is no character set, such as base64 or idna
        raise HeedfulError(f"{path.name}: its text cannot be in {encoding}", hint=hint) from None
