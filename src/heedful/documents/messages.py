"""Messages of programs: accelerators, format strings, tags, lines and columns.

An accelerator is the letter of a menu entry marked by _ (GTK), & (Qt) or ~. The mark is removed before translation
and reinserted before the same letter, if the translation has it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from heedful.documents.inline_tags import (
    Escape,
    InlineItem,
    MarkupToken,
    find_element_ends,
    pair_tags,
    split_whitespace,
    translate_runs,
)
from heedful.inference.projection import TranslationGenerator
from heedful.tokenization.normalization import has_letters, is_spaceless
from heedful.tokenization.protected_spans import ProtectionRules, Range, merge_ranges

_ACCELERATOR_PATTERN = re.compile(r"(?<![^\W_])([_&~])(?=[^\W_])|(?<=[A-Z])_(?=[a-z])|(?<=[A-Z][a-z])[_&](?=[a-z])")

_ENTITY = re.compile(r"&(?:\w+|#\w+);")

_MAX_ACCELERATOR_TEXT = 60

_TRAILING_PUNCTUATION = re.compile(r"[\s.…:：。]*$")


class Accelerator(NamedTuple):
    """The mark and the letter after it."""

    mark: str
    letter: str


def strip_accelerator(text: str) -> tuple[str, Accelerator | None]:
    """Remove the mark of the accelerator, if there is one.

    >>> strip_accelerator("Save _As...")
    ('Save As...', Accelerator(mark='_', letter='A'))
    >>> strip_accelerator("the file_name of R&D")
    ('the file_name of R&D', None)
    """
    matches = list(_ACCELERATOR_PATTERN.finditer(text))
    if len(matches) != 1 or len(text) > _MAX_ACCELERATOR_TEXT or "\n" in text or _ENTITY.search(text):
        return text, None
    index = matches[0].start()
    mark = text[index]
    if text.count(mark) != 1 or text[index + 1].isdigit():
        return text, None
    return text[:index] + text[index + 1 :], Accelerator(mark, text[index + 1])


def insert_accelerator(text: str, accelerator: Accelerator) -> str:
    """Mark the same letter, else the first one; in scripts without spaces, append the letter as in (_F).

    >>> insert_accelerator("Speichern als", Accelerator("_", "A"))
    'Speichern _als'
    >>> insert_accelerator("另存为...", Accelerator("_", "A"))
    '另存为(_A)...'
    """
    mark, letter = accelerator
    if is_spaceless(text):
        return _TRAILING_PUNCTUATION.sub(lambda end: f"({mark}{letter.upper()}){end[0]}", text, count=1)
    for pattern in (rf"\b{re.escape(letter)}", re.escape(letter), r"[^\W\d_]"):
        if match := re.search(pattern, text, re.IGNORECASE):
            return text[: match.start()] + mark + text[match.start() :]
    return text


# ---- Placeholders of format strings, by the flags of PO entries (c-format, python-brace-format and so on).
#
# A character that starts placeholders (% in c-format) counts as one too, so that a translation with a new
# placeholder is rejected.

_SIZE = r"(?:hh|h|ll|l|L|q|j|z|Z|t|I64|I32)?"
_WIDTH = r"(?:\d+|\*(?:\d+\$)?)?(?:\.(?:\d+|\*(?:\d+\$)?)?)?"
_PRINTF = rf"%(?:\d+\$)?[-+ #0'I]*{_WIDTH}(?:{_SIZE}[a-zA-Z@]|<\w+>|%)|%"
_BRACES = r"\{\{|\}\}|\{(?:[^{}]|\{[^{}]*\})*\}|[{}]"
_NUMBERED = r"%L?\d{1,2}|%n|%"

_FORMAT_PATTERNS = {
    **dict.fromkeys(("c++", "python-brace", "csharp", "perl-brace"), _BRACES),
    **dict.fromkeys(("qt", "qt-plural", "kde", "kde-kuit", "ycp"), _NUMBERED),
    **dict.fromkeys(("lisp", "scheme"), r"~(?:[-+]?\d+|'.|[v#,])*[:@]*\S|~"),
    "python": rf"%(?:\([^()]*\))?[-+ #0]*{_WIDTH}[hlL]?[a-zA-Z%]|%",
    "java": _BRACES + "|'[^']+'|'",
    "php": rf"%(?:\d+\$)?(?:[-+ 0]|'.)*{_WIDTH}[a-zA-Z%]|%",
    "ruby": rf"%\{{[^{{}}]*\}}|%<[^<>]*>{_WIDTH}[a-zA-Z]|{_PRINTF}",
    "gcc-internal": rf"%[-+#q ]*(?:\d+\$)?[-+#q]*{_WIDTH}{_SIZE}(?:[a-zA-Z]|[<>'{{}}%])|%",
    "boost": rf"%\|[^|]*\||%\d+%|{_PRINTF}",
    "sh": r"\$\{[^{}]*\}|\$\w+|\$",
}
"""Others (c, objc, perl, awk, lua, ...) use the syntax of printf."""

_FLAG_SUFFIX = "-format"

_TECHNICAL_NAME = re.compile(
    r"(?<![\w-])--?[A-Za-z][\w-]*+(?:\[?=\[?\+?\]?[\w.,|-]*+\]?|\[\w+\])?"
    r"|(?<!\w)\w+(?:_\w+)+(?:\(\))?|(?<![\w/])(?:\.{0,2}/[\w.-]+){2,}"
)
"""Command-line options, variable names, paths."""

_UNNUMBERED_PLACEHOLDER = re.compile(r"%(?!\d+\$|%|\(|\{|\d{1,2}%|n$|L?\d{1,2}$).+|\{(?::[^{}]*)?\}", re.DOTALL)


@dataclass(frozen=True)
class FormatRules(ProtectionRules):
    """Also protects format strings, options and variable names; unnumbered placeholders must keep their order.

    >>> rules = FormatRules(flags=("c-format",))
    >>> text = "100% of %-5.2lu files in %s, see --all-files"
    >>> [text[start:end] for start, end in rules.find_placeholders(text)]
    ['% o', '%-5.2lu', '%s', '--all-files']
    """

    flags: tuple[str, ...] = ()

    def find_placeholders(self, text: str) -> list[Range]:
        """Ranges of placeholders, URLs, email addresses and technical names."""
        ranges = [match.span() for match in (*_TECHNICAL_NAME.finditer(text), *_find_directives(text, self.flags))]
        return merge_ranges([*super().find_placeholders(text), *ranges])

    def accepts_reordering(self, source: Sequence[str], target: Sequence[str]) -> bool:
        """Whether unnumbered placeholders, which take the next argument, have the same order."""
        sides = [[text for text in side if _UNNUMBERED_PLACEHOLDER.fullmatch(text)] for side in (source, target)]
        return sides[0] == sides[1]

    def has_spurious_placeholder(self, translation: str) -> bool:
        """Whether there is any placeholder; one that the source does not have breaks the program."""
        return bool(self.find_placeholders(translation))

    def preserves_placeholders(self, source: str, target: str) -> bool:
        """Whether a translation has the same verbatim parts, in an accepted order."""
        verbatim = [[text[start:end] for start, end in self.find_verbatim_ranges(text)] for text in (source, target)]
        return sorted(verbatim[0]) == sorted(verbatim[1]) and self.accepts_reordering(*verbatim)


def make_format_rules(rules: ProtectionRules, flags: Iterable[str] = ()) -> FormatRules:
    """The user's rules, and those for the flags of an entry."""
    return FormatRules(rules.keep, rules.glossary, rules.placeholders, tuple(sorted(flags)))


def list_directives(text: str, flags: Iterable[str]) -> list[str]:
    """The placeholders of format strings, sorted.

    >>> list_directives("%2$s of %1$d", ["c-format"])
    ['%1$d', '%2$s']
    """
    return sorted(match.group() for match in _find_directives(text, flags))


def _find_directives(text: str, flags: Iterable[str]) -> Iterator[re.Match[str]]:
    for flag in flags:
        if flag.endswith(_FLAG_SUFFIX) and not flag.startswith("no-"):
            yield from _compile_pattern(flag).finditer(text)


@cache
def _compile_pattern(flag: str) -> re.Pattern[str]:
    return re.compile(_FORMAT_PATTERNS.get(flag.removesuffix(_FLAG_SUFFIX), _PRINTF))


# ---- Messages: texts of programs and documents with tags, lines and columns.
#
# The result can replace the source in a program; if the model's output cannot, there is none.

_TAG_PATTERN = re.compile(r"<(?P<close>/)?(?P<name>[A-Za-z][\w:.-]*)(?:\s[^<>]*?)?(?P<self_closing>/)?>")

_LAYOUT_BREAK = re.compile(r"(\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*|[ \u00a0]*\t\s*|(?<=\S)[ \u00a0]{2,})")
"""Line breaks, tabs, and spaces between columns."""

_VOID_TAGS = {"br", "hr", "img", "input", "wbr"}


def has_tags(text: str) -> bool:
    """Whether a text has tags, which need word alignment to be reinserted."""
    return _TAG_PATTERN.search(text) is not None


def translate_message(text: str, rules: FormatRules) -> TranslationGenerator[str | None]:
    """Translate a message of a program; None if there is no valid translation.

    >>> from heedful.inference.projection import run_generator
    >>> from heedful.inference.translation import Alternative
    >>> def shout(texts: list[str]) -> list[Alternative]:
    ...     return [Alternative(text.upper()) for text in texts]
    >>> run_generator(translate_message("_Open %s\\n  -a    all files\\n", FormatRules()), shout)
    '_OPEN %s\\n  -a    ALL FILES\\n'
    >>> run_generator(translate_message("_Open a file", FormatRules()), shout)
    '_OPEN A FILE'
    """
    plain, accelerator = strip_accelerator(text)
    if not has_letters(plain):
        return text
    result = yield from translate_items(parse_message_items(plain, str), rules, str)
    if result is None or not rules.preserves_placeholders(plain, result):
        return None
    if plain.startswith("\n") != result.startswith("\n") or plain.endswith("\n") != result.endswith("\n"):
        return None  # msgfmt requires the same line breaks at both ends
    return insert_accelerator(result, accelerator) if accelerator else result


def translate_items(
    items: Iterable[InlineItem], rules: FormatRules, escape_text: Escape
) -> TranslationGenerator[str | None]:
    """Translate text and tags, each line and column separately; None if one of them has no translation."""
    runs = yield from translate_runs(_split_layout(items, escape_text), rules, escape_text)
    if any(run.has_letters and not run.raw.strip() for run in runs):
        return None
    return "".join(run.raw for run in runs)


def parse_message_items(text: str, escape_text: Escape, first_key: int = 0) -> list[InlineItem]:
    """Text and the tags written in it; keys of paired tags start at ``first_key``."""
    matches = list(_TAG_PATTERN.finditer(text))
    tags: list[MarkupToken] = []
    for match in matches:
        is_empty = match["self_closing"] or match["name"].lower() in _VOID_TAGS
        tags.append(
            MarkupToken(
                "self_closing" if is_empty else "close" if match["close"] else "open",
                escape_text(match.group()),
                match["name"],
            )
        )
    keys = pair_tags(tags, find_element_ends(tags))
    items, end = list[InlineItem](), 0
    for index, (match, tag) in enumerate(zip(matches, tags, strict=True)):
        items += _make_text_items(text[end : match.start()], escape_text)
        end = match.end()
        if index in keys:
            items.append(InlineItem("open" if keys[index] == index else "close", tag.raw, key=first_key + keys[index]))
        elif tag.kind == "open":
            items.append(InlineItem("verbatim", tag.raw, match.group()))  # such as <file> in a usage line
        else:
            items.append(InlineItem("standalone", tag.raw, separates=tag.name.lower() in _VOID_TAGS))
    return [*items, *_make_text_items(text[end:], escape_text)]


def _make_text_items(text: str, escape_text: Escape) -> list[InlineItem]:
    return [InlineItem("text", escape_text(part), part) for part in split_whitespace(text) if part]


def _split_layout(items: Iterable[InlineItem], escape_text: Escape) -> Iterator[list[InlineItem]]:
    """The runs of lines and columns, and the whitespace between them."""
    run: list[InlineItem] = []
    for item in items:
        if item.kind != "text" or not _LAYOUT_BREAK.search(item.text):
            run.append(item)
            continue
        for number, part in enumerate(_LAYOUT_BREAK.split(item.text)):
            if number % 2:
                yield from (run, [InlineItem("standalone", escape_text(part))])
                run = []
            else:
                run += _make_text_items(part, escape_text)
    yield run
