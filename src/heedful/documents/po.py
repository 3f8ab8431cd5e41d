"""PO files: entries without a translation get one; all other lines stay as they are.

polib unescapes strings but does not keep their positions, so this module finds the lines of each entry and replaces
only those that change. Line numbers start at 0.
"""

import gettext
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import polib

from heedful.documents.base import TOOL_NAME, CachingTranslator, FillOptions, UnitCounts
from heedful.documents.messages import has_tags, list_directives, make_format_rules, translate_message
from heedful.errors import HeedfulError
from heedful.files import wrap_read_errors
from heedful.inference.projection import TranslationGenerator

_STRING = r'"(?:[^"\\]|\\.)*"'
_STRING_PATTERN = re.compile(_STRING)
_KEYWORD = re.compile(rf"(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*((?:{_STRING}\s*)+)")
_CONTINUATION = re.compile(rf"(?:{_STRING}\s*)+")
_LINE_BREAK = re.compile(r"(?<=\n)")
_CHARSET = re.compile(r"(?i)(charset=)[\w.:-]+")

_LINE_WIDTH = 78

_MAX_WRAPPED_LENGTH = 100
"""A file with longer lines is not wrapped."""

MACHINE_TRANSLATION_COMMENT = f"machine-translated by {TOOL_NAME}"

_CREDIT_MESSAGES = {"translator-credits", "translator_credits", "Your names", "Your emails"}

_CREDIT_CONTEXTS = {"NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS"}


# Plural forms: which form each number takes.

_PLURAL_FORMS = re.compile(r"\s*nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;]+);?\s*")

_SAMPLE_SIZE, _MAX_FORMS = 1001, 20


@dataclass(frozen=True)
class PluralForms:
    """The Plural-Forms of a header."""

    text: str
    count: int
    formula: Callable[[int], int]

    @cached_property
    def numbers(self) -> list[list[int]]:
        """The numbers up to 1,000 that use each form."""
        numbers: list[list[int]] = [[] for _ in range(self.count)]
        for number in range(_SAMPLE_SIZE):
            numbers[self.formula(number)].append(number)
        return numbers

    def is_singular(self, form: int) -> bool:
        """Whether the form is used for 1, among other numbers."""
        return 1 in self.numbers[form]

    def is_exactly_one(self, form: int) -> bool:
        """Whether the form is used for 1 only."""
        return self.numbers[form] == [1]


def parse_plural_forms(text: str) -> PluralForms:
    """Parse the Plural-Forms of a header.

    >>> plurals = parse_plural_forms("nplurals=2; plural=(n > 1);")
    >>> plurals.is_singular(0), plurals.is_exactly_one(0), plurals.numbers[0]
    (True, False, [0, 1])
    """
    match = _PLURAL_FORMS.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        plural_forms = PluralForms(text, int(match[1]), gettext.c2py(match[2].strip()))
        if not 0 < plural_forms.count <= _MAX_FORMS or not plural_forms.numbers:
            raise ValueError(text)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        raise HeedfulError(
            f"cannot read the header's Plural-Forms: {text!r}", hint="example: nplurals=2; plural=(n != 1);"
        ) from None
    return plural_forms


def plural_forms_for(language: str) -> PluralForms | None:
    """The plural forms of a language; None if it is not in the table.

    >>> plural_forms_for("pt_BR").text, plural_forms_for("tlh")
    ('nplurals=2; plural=(n > 1);', None)
    """
    locale = language.replace("-", "_").lower()
    for code in (locale, locale.split("_")[0]):
        for languages, text in _FORMULAS:
            if code in languages.split():
                return parse_plural_forms(text)
    return None


_FORMULAS = (
    ("ja ko zh vi th id ms lo my km jv su bo dz yo wo", "nplurals=1; plural=0;"),
    ("pt_br fr oc fa hi bn gu kn am ti ln mg wa fil tl hy br", "nplurals=2; plural=(n > 1);"),
    (
        "en de nl sv da no nb nn fo es pt it bg el fi et he iw eo hu tr ca gl eu af sq az ka kk ky uz tk "
        "mn ne mr ml ta te pa or ur sw zu xh st tn so ha fy lb rm fur sc an ast gsw nds ia as si ps ku ckb "
        "tt ug yi",
        "nplurals=2; plural=(n != 1);",
    ),
    ("is", "nplurals=2; plural=(n%10!=1 || n%100==11);"),
    ("mk", "nplurals=2; plural=(n%10==1 && n%100!=11 ? 0 : 1);"),
    ("lv", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);"),
    ("ga", "nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;"),
    ("ro mo", "nplurals=3; plural=n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2;"),
    ("lt", "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);"),
    (
        "ru uk be sr hr bs sh",
        "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
    ),
    ("cs sk", "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;"),
    ("pl", "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"),
    ("sl hsb dsb", "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);"),
    ("ar", "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"),
    ("cy", "nplurals=4; plural=(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3;"),
    ("mt", "nplurals=4; plural=(n==1 ? 0 : n==0 || (n%100>1 && n%100<11) ? 1 : n%100>10 && n%100<20 ? 2 : 3);"),
    ("gd", "nplurals=4; plural=(n==1 || n==11) ? 0 : (n==2 || n==12) ? 1 : (n > 2 && n < 20) ? 2 : 3;"),
)
"""The same formulas as msginit of GNU gettext, for the languages it knows."""


@dataclass
class PoEntry:
    """One entry: texts by keyword, and its lines."""

    first_line: int
    """The line of its first comment or keyword."""
    comment_lines: list[int] = field(default_factory=list)
    """Lines of translators' comments."""
    flag_lines: list[int] = field(default_factory=list)
    previous_lines: list[int] = field(default_factory=list)
    """Lines of #|, the message that a fuzzy translation was made for."""
    keyword_line: int = -1
    """The line of its first keyword."""
    msgstr_line: int = -1
    """The line of its first msgstr."""
    end_line: int = -1
    """The line after its last msgstr."""
    texts: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    @property
    def is_header(self) -> bool:
        """Whether it is the entry of the empty message."""
        return self.texts.get("msgid") == "" and "msgctxt" not in self.texts

    @property
    def is_credit(self) -> bool:
        """Whether translators enter their names here."""
        return self.texts["msgid"] in _CREDIT_MESSAGES or self.texts.get("msgctxt") in _CREDIT_CONTEXTS

    @property
    def translations(self) -> list[str]:
        """Its translations, which may be empty."""
        return [text for keyword, text in self.texts.items() if keyword.startswith("msgstr")]


class LineEdits:
    """Changes of lines whose numbers stay the same."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self._insertions: dict[int, str] = {}

    def insert(self, line_number: int, text: str) -> None:
        """Insert text before a line, after earlier insertions."""
        self._insertions[line_number] = self._insertions.get(line_number, "") + text

    def set_flags(self, entry: PoEntry, flags: Sequence[str]) -> None:
        """Write the flags of an entry to the line of the old ones, or to a new one."""
        text = f"#, {', '.join(flags)}{_line_ending(self.lines[entry.keyword_line])}" if flags else ""
        for line_number in entry.flag_lines:
            self.lines[line_number] = ""
        if entry.flag_lines:
            self.lines[entry.flag_lines[0]] = text
        else:
            self.insert(entry.previous_lines[0] if entry.previous_lines else entry.keyword_line, text)

    def __str__(self) -> str:
        return "".join(self._insertions.get(line_number, "") + line for line_number, line in enumerate(self.lines))


def _line_ending(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def parse_entries(lines: Sequence[str], file_name: str) -> Iterator[PoEntry]:
    """The entries of a file that are not obsolete."""
    entry, keyword = PoEntry(-1), ""
    for line_number, raw in enumerate([*lines, "#~"]):  # the last ends the last entry
        line = raw.removeprefix("\ufeff").strip()
        if not line:
            continue
        is_obsolete = line.startswith("#~")
        match = _KEYWORD.fullmatch(line)
        starts_entry = line.startswith("#") or (match and match[1] in ("msgctxt", "msgid"))
        if is_obsolete and entry.texts and not entry.translations:
            raise _po_syntax_error(file_name, entry.keyword_line, "begins an entry without msgstr")
        if starts_entry and entry.translations:
            yield entry
        if is_obsolete or (starts_entry and entry.translations):
            entry, keyword = PoEntry(-1), ""
        if is_obsolete:
            continue
        if entry.first_line < 0:
            entry.first_line = line_number
        if line.startswith("#,"):
            entry.flag_lines.append(line_number)
            entry.flags += [flag.strip() for flag in line[2:].split(",") if flag.strip()]
        elif line.startswith("#|"):
            entry.previous_lines.append(line_number)
        elif line.startswith("#"):
            if not line.startswith(("#.", "#:", "#=")):
                entry.comment_lines.append(line_number)
        elif match or (keyword and _CONTINUATION.fullmatch(line)):
            if match:
                keyword = match[1]
                if keyword in entry.texts or (keyword.startswith("msgstr") and "msgid" not in entry.texts):
                    raise _po_syntax_error(file_name, line_number, f"{keyword} is not expected here")
                entry.texts[keyword] = ""
                if entry.keyword_line < 0:
                    entry.keyword_line = line_number
                if keyword.startswith("msgstr") and entry.msgstr_line < 0:
                    entry.msgstr_line = line_number
            strings = _STRING_PATTERN.findall(match[2] if match else line)
            entry.texts[keyword] += "".join(polib.unescape(text[1:-1]) for text in strings)
            entry.end_line = line_number + 1
        else:
            raise _po_syntax_error(file_name, line_number, f"cannot be read: {line[:60]}")


def _po_syntax_error(file_name: str, line_number: int, problem: str) -> HeedfulError:
    return HeedfulError(
        f"{file_name}, line {line_number + 1:,}: {problem}",
        hint=f"run msgfmt --check {file_name} for details; nothing was written",
    )


def format_text(keyword: str, text: str, *, wrap: bool = True) -> list[str]:
    r"""A keyword and its text as lines.

    >>> format_text("msgstr", 'a "b"')
    ['msgstr "a \\"b\\""']
    >>> format_text("msgstr", "one\ntwo")
    ['msgstr ""', '"one\\n"', '"two"']
    """
    parts = re.findall(r"[^\n]*\n|[^\n]+", text)
    single_line = f'{keyword} "{polib.escape(text)}"'
    if len(parts) <= 1 and (not wrap or len(single_line) <= _LINE_WIDTH + 1):
        return [single_line]
    lines: list[str] = []
    for part in parts:
        line = ""
        for word in re.findall(r"\S*\s*", part) if wrap else [part]:  # lines break after spaces
            if line and len(polib.escape(line + word.rstrip())) > _LINE_WIDTH - 1:
                lines.append(line)
                line = ""
            line += word
        lines.append(line)
    return [f'{keyword} ""', *(f'"{polib.escape(line)}"' for line in lines)]


class PoHeader:
    """The entry of the empty message, if there is one."""

    def __init__(self, entry: PoEntry | None) -> None:
        self.entry = entry
        self.fields: dict[str, str] = {}
        for line in entry.translations[0].splitlines() if entry else ():
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()

    def get_field(self, name: str) -> str:
        """The value of a field; empty if it is missing."""
        return self.fields.get(name.lower(), "")

    def add_missing_fields(self, edits: LineEdits, language: str, plural_forms: PluralForms | None) -> None:
        """Fill in the charset, the language and the plural forms where a template has none."""
        new_fields = {}
        if not self.get_field("Content-Type") or "charset=CHARSET" in self.get_field("Content-Type"):
            new_fields["Content-Type"] = "text/plain; charset=UTF-8"
            new_fields["Content-Transfer-Encoding"] = "8bit"
        if language and not self.get_field("Language"):
            new_fields["Language"] = language.replace("-", "_")
        header_value = self.get_field("Plural-Forms")
        new_forms = plural_forms or ("INTEGER" in header_value and plural_forms_for(language)) or None
        if new_forms and (not header_value or "INTEGER" in header_value):
            new_fields["Plural-Forms"] = new_forms.text
        if self.entry is None:
            header_lines = ['msgid ""', 'msgstr ""', *(f'"{name}: {value}\\n"' for name, value in new_fields.items())]
            edits.insert(0, "\n".join([*header_lines, "", ""]))
            return
        for name, value in new_fields.items():
            self._set_field(edits.lines, self.entry, name, value)
        if "fuzzy" in self.entry.flags:  # programs ignore a fuzzy header, and with it the charset
            edits.set_flags(self.entry, [flag for flag in self.entry.flags if flag != "fuzzy"])

    def _set_field(self, lines: list[str], entry: PoEntry, name: str, value: str) -> None:
        """Replace the line of a field, or add one at the end."""
        field_pattern = re.compile(rf'"{re.escape(name)}:(?:[^"\\]|\\.)*"', re.IGNORECASE)
        new_line = f'"{name}: {polib.escape(value)}\\n"'
        for line_number in range(entry.msgstr_line, entry.end_line):
            if field_pattern.search(lines[line_number]):
                lines[line_number] = field_pattern.sub(lambda _: new_line, lines[line_number], count=1)
                return
        last = lines[entry.end_line - 1]
        lines[entry.end_line - 1] = f"{last.rstrip()}{_line_ending(last)}{new_line}{_line_ending(last)}"


class PoDocument:
    """A PO or POT file."""

    format_name = "PO"
    source_language = ""
    needs_target = False

    def __init__(self, path: Path) -> None:
        with wrap_read_errors(path):
            data = path.read_bytes()
        self.encoding = "utf-8" if data.startswith(b"\xef\xbb\xbf") else polib.detect_encoding(str(path))
        hint = "correct the charset of its Content-Type; nothing was written"
        try:
            text = data.decode(self.encoding)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            problem = f"{path.name}, line {line:,}: the text is not in {self.encoding}, as the header says"
            raise HeedfulError(problem, hint=hint) from None
        except (UnicodeError, LookupError):  # not a character set, such as base64 or idna
            raise HeedfulError(f"{path.name}: its text cannot be in {self.encoding}", hint=hint) from None
        self.lines = _LINE_BREAK.split(text)  # at line feeds only: other breaks may be part of a text
        self.entries = list(parse_entries(self.lines, path.name))
        self.header = PoHeader(next((entry for entry in self.entries if entry.is_header), None))
        self.target_language = self.header.get_field("Language")
        self.wrap = all(len(line) <= _MAX_WRAPPED_LENGTH for line in self.lines if not line.startswith("#"))

    def count_units(self, options: FillOptions) -> int:
        """How many entries will be translated."""
        return len(self._select_entries(options))

    def write_translation(self, options: FillOptions, translator: CachingTranslator, file: BinaryIO) -> UnitCounts:
        """Write the file with its entries filled."""
        selected = self._select_entries(options)
        plural_forms = None
        if any("msgid_plural" in entry.texts for entry in selected):
            header_value = self.header.get_field("Plural-Forms")
            if header_value and "INTEGER" not in header_value:
                plural_forms = parse_plural_forms(header_value)
            else:  # most programs use the forms of English by default
                plural_forms = plural_forms_for(options.target or self.target_language) or plural_forms_for("en")
        results = translator.translate(
            [self._translate_entry(entry, options, plural_forms) for entry in selected],
            with_alignment=bool(options.rules.glossary)
            or any(has_tags(text) for entry in selected for text in entry.texts.values()),
        )
        translated = [(entry, msgstrs) for entry, msgstrs in zip(selected, results, strict=True) if msgstrs]
        edits = LineEdits(self.lines)
        for entry, msgstrs in translated:
            self._replace_entry(edits, entry, msgstrs, options)
        self.header.add_missing_fields(edits, options.target, plural_forms)
        try:
            file.write(str(edits).encode(self.encoding))
        except UnicodeEncodeError:  # such as Cyrillic in a file in Latin-1
            file.write(_CHARSET.sub(r"\1UTF-8", str(edits), count=1).encode())
        entry_count = sum(not entry.is_header for entry in self.entries)
        skipped = len(selected) - len(translated) + sum(entry.is_credit for entry in self.entries)
        return UnitCounts(len(translated), entry_count - len(translated) - skipped, skipped)

    def _select_entries(self, options: FillOptions) -> list[PoEntry]:
        return [
            entry
            for entry in self.entries
            if not entry.is_header and not entry.is_credit
            if not all(entry.translations)
            or options.should_retranslate("fuzzy" in entry.flags or self._is_machine_translated(entry))
        ]

    def _is_machine_translated(self, entry: PoEntry) -> bool:
        return any(MACHINE_TRANSLATION_COMMENT in self.lines[line] for line in entry.comment_lines)

    def _translate_entry(
        self, entry: PoEntry, options: FillOptions, plural_forms: PluralForms | None
    ) -> TranslationGenerator[dict[str, str] | None]:
        """The texts of each msgstr; None if one of them has no valid translation."""
        singular, plural = entry.texts["msgid"], entry.texts.get("msgid_plural")
        sources = {"msgstr": singular}
        if plural is not None and plural_forms is not None:
            has_same_directives = list_directives(singular, entry.flags) == list_directives(plural, entry.flags)
            sources = {}
            for form in range(plural_forms.count):
                # "One file" is right for one file only, but "%d file" in Russian also for 21.
                is_singular = plural_forms.is_exactly_one(form) or (
                    plural_forms.is_singular(form) and has_same_directives
                )
                sources[f"msgstr[{form}]"] = singular if is_singular else plural
        rules = make_format_rules(options.rules, entry.flags)
        retranslate = all(entry.translations)
        results: dict[str, str] = {}
        for keyword, source in sources.items():
            existing = entry.texts.get(keyword, "")
            result = existing if existing and not retranslate else (yield from translate_message(source, rules))
            if not result:
                return None
            results[keyword] = result
        return results

    def _replace_entry(self, edits: LineEdits, entry: PoEntry, texts: dict[str, str], options: FillOptions) -> None:
        """Write the texts of an entry, and mark it as machine-translated."""
        ending, last = _line_ending(self.lines[entry.keyword_line]), self.lines[entry.end_line - 1]
        new_lines = [part for item in texts.items() for part in format_text(*item, wrap=self.wrap)]
        edits.lines[entry.msgstr_line : entry.end_line] = [""] * (entry.end_line - entry.msgstr_line)
        edits.lines[entry.msgstr_line] = ending.join(new_lines) + (ending if last.endswith("\n") else "")
        if not self._is_machine_translated(entry):
            line_number = entry.comment_lines[-1] + 1 if entry.comment_lines else entry.first_line
            edits.insert(line_number, f"# {MACHINE_TRANSLATION_COMMENT}{ending}")
        for previous_line in entry.previous_lines:  # the message of the old translation
            edits.lines[previous_line] = ""
        flags = [flag for flag in entry.flags if flag != "fuzzy"]
        edits.set_flags(entry, ["fuzzy", *flags] if options.mark == "fuzzy" else flags)
