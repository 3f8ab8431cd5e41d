"""The header of a PO file: what a program needs to use the translations, and nothing else, is filled in."""

import re
from collections.abc import Sequence

import polib

from heedful.documents.plurals import Plurals, plurals_of
from heedful.documents.po_blocks import Block, Edits, ending_of, flags_of, set_flags

_CHARSET = re.compile(r"(?i)(charset=)[\w.:-]+")


class Header:
    """The entry of the empty message, if there is one."""

    def __init__(self, lines: Sequence[str], block: Block | None) -> None:
        self.block = block
        self.fields: dict[str, str] = {}
        for line in block.targets[0].splitlines() if block else ():
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()
        self.flags = flags_of(lines, block) if block else []

    def field(self, name: str) -> str:
        """The value of a field; empty if it is not there."""
        return self.fields.get(name.lower(), "")

    def complete(self, edits: Edits, language: str, plurals: Plurals | None) -> None:
        """Fill in the charset, the language and the plural forms where a template has none."""
        missing = self._missing(language, plurals)
        if self.block is None:
            edits.insert(0, _new_header(missing))
            return
        for name, value in missing.items():
            self._set(edits.lines, name, value)
        if "fuzzy" in self.flags:  # programs overlook a fuzzy header, and with it the charset
            set_flags(edits, self.block, [flag for flag in self.flags if flag != "fuzzy"])

    def _missing(self, language: str, plurals: Plurals | None) -> dict[str, str]:
        missing = {}
        if not self.field("Content-Type") or "charset=CHARSET" in self.field("Content-Type"):
            missing["Content-Type"] = "text/plain; charset=UTF-8"
            missing["Content-Transfer-Encoding"] = "8bit"
        if language and not self.field("Language"):
            missing["Language"] = language.replace("-", "_")
        told = self.field("Plural-Forms")
        known = plurals or ("INTEGER" in told and plurals_of(language)) or None
        if known and (not told or "INTEGER" in told):
            missing["Plural-Forms"] = known.text
        return missing

    def _set(self, lines: list[str], name: str, value: str) -> None:
        """Write a field in the line that it stands on, or in a new last one."""
        assert self.block is not None
        start, end = self.block.target, self.block.end
        wanted = re.compile(rf'"{re.escape(name)}:(?:[^"\\]|\\.)*"', re.IGNORECASE)
        new = f'"{name}: {polib.escape(value)}\\n"'
        for number in range(start, end):
            if wanted.search(lines[number]):
                lines[number] = wanted.sub(lambda _: new, lines[number], count=1)
                return
        last = lines[end - 1]
        ending = ending_of(last)
        lines[end - 1] = f"{last.rstrip()}{ending}{new}{ending}"

    @staticmethod
    def in_unicode(text: str) -> str:
        """A file whose header says that it is in UTF-8."""
        return _CHARSET.sub(r"\1UTF-8", text, count=1)


def _new_header(fields: dict[str, str]) -> str:
    lines = ['msgid ""', 'msgstr ""', *(f'"{name}: {value}\\n"' for name, value in fields.items())]
    return "\n".join([*lines, "", ""])
