"""The entries of a PO file and the lines that each part of them stands on, so that all other lines can stay.

polib knows how strings are escaped, but not where they stood. The rule to remember: lines count from 0.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polib

from heedful.errors import HeedfulError

_STRING = r'"(?:[^"\\]|\\.)*"'
_STRINGS = re.compile(_STRING)
_KEYWORD = re.compile(rf"(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*((?:{_STRING}\s*)+)")
_MORE = re.compile(rf"(?:{_STRING}\s*)+")
_WIDTH = 78


@dataclass
class Block:
    """One entry: texts by keyword, and its lines."""

    first: int
    """The line of its first comment or keyword."""
    comments: list[int] = field(default_factory=list)
    """Lines of a translator's comments."""
    flags: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    """Lines of #|, the message that a fuzzy translation was made for."""
    keyword: int = -1
    """The line of its first keyword."""
    target: int = -1
    """The line of its first msgstr."""
    end: int = -1
    """The line after its last msgstr."""
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def is_header(self) -> bool:
        """Whether it is the entry of the empty message."""
        return self.texts.get("msgid") == "" and "msgctxt" not in self.texts

    @property
    def targets(self) -> list[str]:
        """Its translations, which may be empty."""
        return [text for keyword, text in self.texts.items() if keyword.startswith("msgstr")]


class Edits:
    """Changes of lines whose numbers stay what they were."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self._before: dict[int, str] = {}

    def insert(self, number: int, text: str) -> None:
        """Put text before a line, after what was put there before."""
        self._before[number] = self._before.get(number, "") + text

    def __str__(self) -> str:
        return "".join(self._before.get(number, "") + line for number, line in enumerate(self.lines))


def ending_of(line: str) -> str:
    """How lines end where this one stands."""
    return "\r\n" if line.endswith("\r\n") else "\n"


def flags_of(lines: Sequence[str], block: Block) -> list[str]:
    """The flags of an entry."""
    names = ",".join(lines[line].strip().removeprefix("#,") for line in block.flags)
    return [name.strip() for name in names.split(",") if name.strip()]


def set_flags(edits: Edits, block: Block, flags: Sequence[str]) -> None:
    """Write the flags of an entry in the line of the old ones, or in a new one."""
    text = f"#, {', '.join(flags)}{ending_of(edits.lines[block.keyword])}" if flags else ""
    if block.flags:
        for number in block.flags:
            edits.lines[number] = ""
        edits.lines[block.flags[0]] = text
    else:
        edits.insert(block.previous[0] if block.previous else block.keyword, text)


def blocks(lines: Sequence[str], name: str) -> Iterator[Block]:
    """The entries of a file that are not obsolete."""
    block: Block | None = None
    keyword = ""
    for number, raw in enumerate(lines):
        line = raw.removeprefix("\ufeff").strip()
        if line.startswith("#~"):
            yield from _ended(block, name)
            block, keyword = None, ""
            continue
        if not line:
            continue
        match = _KEYWORD.fullmatch(line)
        if block and block.targets and (line.startswith("#") or (match and match[1] in ("msgctxt", "msgid"))):
            yield block
            block = None
        block = block or Block(number)
        if line.startswith("#"):
            _take_comment(block, line, number)
        elif match:
            keyword = match[1]
            _take_keyword(block, keyword, number, name)
            _take_text(block, keyword, match[2], number)
        elif keyword and block.texts and _MORE.fullmatch(line):
            _take_text(block, keyword, line, number)
        else:
            raise _broken(name, number, f"cannot be read: {line[:60]}")
    yield from _ended(block, name)


def _ended(block: Block | None, name: str) -> Iterator[Block]:
    if block and block.texts and not block.targets:
        raise _broken(name, block.keyword, "begins an entry without msgstr")
    if block and block.texts:
        yield block


def _take_comment(block: Block, line: str, number: int) -> None:
    if line.startswith("#,"):
        block.flags.append(number)
    elif line.startswith("#|"):
        block.previous.append(number)
    elif not line.startswith(("#.", "#:", "#=")):
        block.comments.append(number)


def _take_keyword(block: Block, keyword: str, number: int, name: str) -> None:
    if keyword in block.texts or (keyword.startswith("msgstr") and "msgid" not in block.texts):
        raise _broken(name, number, f"{keyword} is not expected here")
    block.texts[keyword] = ""
    if block.keyword < 0:
        block.keyword = number
    if keyword.startswith("msgstr") and block.target < 0:
        block.target = number


def _take_text(block: Block, keyword: str, strings: str, number: int) -> None:
    block.texts[keyword] += "".join(polib.unescape(text[1:-1]) for text in _STRINGS.findall(strings))
    block.end = number + 1


def _broken(name: str, number: int, problem: str) -> HeedfulError:
    return HeedfulError(
        f"{name}, line {number + 1:,}: {problem}",
        hint=f"msgfmt --check {name} says more; nothing was written",
    )


def written_text(keyword: str, text: str, *, wrap: bool = True) -> list[str]:
    r"""A keyword and its text as lines.

    >>> written_text("msgstr", 'a "b"')
    ['msgstr "a \\"b\\""']
    >>> written_text("msgstr", "one\ntwo")
    ['msgstr ""', '"one\\n"', '"two"']
    """
    parts = re.findall(r"[^\n]*\n|[^\n]+", text)
    whole = f'{keyword} "{polib.escape(text)}"'
    if len(parts) <= 1 and (not wrap or len(whole) <= _WIDTH + 1):
        return [whole]
    pieces = [piece for part in parts for piece in (_wrapped(part) if wrap else [part])]
    return [f'{keyword} ""', *(f'"{polib.escape(piece)}"' for piece in pieces)]


def _wrapped(text: str) -> Iterator[str]:
    """A line in pieces that are cut after spaces."""
    piece = ""
    for word in re.findall(r"\S*\s*", text):
        if piece and len(polib.escape(piece + word.rstrip())) > _WIDTH - 1:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece
