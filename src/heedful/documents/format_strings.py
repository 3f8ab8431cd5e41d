"""Placeholders of format strings, by the flags of PO entries (c-format, python-brace-format and so on).

The rule to remember: a character that would begin a placeholder (% in c-format) is kept too, so that a
translation which brings one of its own is refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from heedful.text.spans import Rules, united
from heedful.text.translated import Range

_SIZE = r"(?:hh|h|ll|l|L|q|j|z|Z|t|I64|I32)?"
_WIDTH = r"(?:\d+|\*(?:\d+\$)?)?(?:\.(?:\d+|\*(?:\d+\$)?)?)?"
_PRINTF = rf"%(?:\d+\$)?[-+ #0'I]*{_WIDTH}(?:{_SIZE}[a-zA-Z@]|<\w+>|%)|%"
_PYTHON = rf"%(?:\([^()]*\))?[-+ #0]*{_WIDTH}[hlL]?[a-zA-Z%]|%"
_BRACES = r"\{\{|\}\}|\{(?:[^{}]|\{[^{}]*\})*\}|[{}]"
_NUMBERED = r"%L?\d{1,2}|%n|%"
_DOLLARS = r"\$\{[^{}]*\}|\$\w+|\$"
_TILDES = r"~(?:[-+]?\d+|'.|[v#,])*[:@]*\S|~"

_PATTERNS = {
    "c": _PRINTF,
    "objc": _PRINTF,
    "c++": _BRACES,
    "python": _PYTHON,
    "python-brace": _BRACES,
    "java": _BRACES + "|'[^']+'|'",
    "java-printf": _PRINTF,
    "csharp": _BRACES,
    "javascript": _PRINTF,
    "perl": _PRINTF,
    "perl-brace": _BRACES,
    "php": rf"%(?:\d+\$)?(?:[-+ 0]|'.)*{_WIDTH}[a-zA-Z%]|%",
    "ruby": rf"%\{{[^{{}}]*\}}|%<[^<>]*>{_WIDTH}[a-zA-Z]|{_PRINTF}",
    "gcc-internal": rf"%[-+#q ]*(?:\d+\$)?[-+#q]*{_WIDTH}{_SIZE}(?:[a-zA-Z]|[<>'{{}}%])|%",
    "gfc-internal": _PRINTF,
    "qt": _NUMBERED,
    "qt-plural": _NUMBERED,
    "kde": _NUMBERED,
    "kde-kuit": _NUMBERED,
    "ycp": _NUMBERED,
    "boost": rf"%\|[^|]*\||%\d+%|{_PRINTF}",
    "sh": _DOLLARS,
    "lisp": _TILDES,
    "scheme": _TILDES,
}
"""Others (awk, elisp, lua, pascal, tcl, ...) are written as printf's."""
_SUFFIX = "-format"
_TECHNICAL = re.compile(
    r"(?<![\w-])--?[A-Za-z][\w-]*+(?:\[?=\[?\+?\]?[\w.,|-]*+\]?|\[\w+\])?"
    r"|(?<!\w)\w+(?:_\w+)+(?:\(\))?|(?<![\w/])(?:\.{0,2}/[\w.-]+){2,}"
)
"""Options of commands, names of variables, paths."""
_UNNUMBERED = re.compile(r"%(?!\d+\$|%|\(|\{|\d{1,2}%|n$|L?\d{1,2}$).+|\{(?::[^{}]*)?\}", re.DOTALL)


@dataclass(frozen=True)
class FormatRules(Rules):
    """Rules that know format strings, options and names; what takes its argument by order keeps the order.

    >>> rules = FormatRules(flags=("c-format",))
    >>> text = "100% of %-5.2lu files in %s, see --all-files"
    >>> [text[start:end] for start, end in rules.placeholder_ranges(text)]
    ['% o', '%-5.2lu', '%s', '--all-files']
    """

    flags: tuple[str, ...] = ()

    def placeholder_ranges(self, text: str) -> list[Range]:
        """Where placeholders, addresses and technical names stand."""
        patterns = [_TECHNICAL, *map(_pattern, self.flags)]
        found = (match.span() for pattern in patterns for match in pattern.finditer(text))
        return united([*super().placeholder_ranges(text), *found])

    def accepts_order(self, source: Sequence[str], target: Sequence[str]) -> bool:
        """Whether placeholders that take the next argument follow one another as in the source."""
        return _unnumbered(source) == _unnumbered(target)

    def is_invention(self, answer: str) -> bool:
        """A placeholder that the source has not would be an error of the program."""
        return bool(self.placeholder_ranges(answer))

    def is_faithful(self, source: str, target: str) -> bool:
        """Whether a translation has just what must be kept, and in an order that programs accept."""
        kept = [[text[start:end] for start, end in self.kept_ranges(text)] for text in (source, target)]
        return sorted(kept[0]) == sorted(kept[1]) and self.accepts_order(*kept)


def format_rules(rules: Rules, flags: Iterable[str] = ()) -> FormatRules:
    """A user's rules and those of the flags of an entry."""
    formats = tuple(sorted(flag for flag in flags if flag.endswith(_SUFFIX) and not flag.startswith("no-")))
    return FormatRules(rules.keep, rules.glossary, rules.placeholders, formats)


def directives(text: str, flags: Iterable[str]) -> list[str]:
    """The placeholders that the flags know, in a fixed order.

    >>> directives("%2$s of %1$d", ["c-format"])
    ['%1$d', '%2$s']
    """
    formats = [flag for flag in flags if flag.endswith(_SUFFIX) and not flag.startswith("no-")]
    return sorted(match.group() for flag in formats for match in _pattern(flag).finditer(text))


@cache
def _pattern(flag: str) -> re.Pattern[str]:
    return re.compile(_PATTERNS.get(flag.removesuffix(_SUFFIX), _PRINTF))


def _unnumbered(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if _UNNUMBERED.fullmatch(text)]
