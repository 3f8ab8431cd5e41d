"""Texts of documents: lines stay lines, columns columns, tags tags; what must be kept is kept or refused.

The rule to remember: the result of a message is fit to stand in for its source, or there is none.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from heedful.documents.accelerators import with_accelerator, without_accelerator
from heedful.documents.filling import Write
from heedful.documents.format_strings import FormatRules
from heedful.text.inline_tags import Item
from heedful.text.runs import Run, translate_runs
from heedful.text.spans import has_letters
from heedful.text.translated import Rounds

_TAG = re.compile(r"<(?P<close>/)?(?P<name>[A-Za-z][\w:.-]*)(?:\s[^<>]*?)?(?P<alone>/)?>")
_APART = re.compile(r"(\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*|[ \u00a0]*\t\s*|(?<=\S)[ \u00a0]{2,})")
"""Line breaks, tabs, and spaces that make columns."""
_VOID = {"br", "hr", "img", "input", "wbr"}


def has_tags(text: str) -> bool:
    """Whether a text has tags, which need links to be put back."""
    return _TAG.search(text) is not None


def translate_message(text: str, rules: FormatRules) -> Rounds[str | None]:
    """The translation of a message of a program; None if nothing fit came out.

    >>> from heedful.text.translated import Translated, drive
    >>> def shout(texts: list[str]) -> list[Translated]:
    ...     return [Translated(text.upper()) for text in texts]
    >>> drive(translate_message("_Open %s\\n  -a    all files\\n", FormatRules()), shout)
    '_OPEN %s\\n  -a    ALL FILES\\n'
    >>> drive(translate_message("_Open a file", FormatRules()), shout)
    '_OPEN A FILE'
    """
    plain, accelerator = without_accelerator(text)
    if not has_letters(plain):
        return text
    result = yield from translate_items(text_items(plain, str), rules, str)
    if result is None or not rules.is_faithful(plain, result) or not _same_edges(plain, result):
        return None
    return with_accelerator(result, accelerator) if accelerator else result


def translate_items(items: Iterable[Item], rules: FormatRules, write: Write) -> Rounds[str | None]:
    """The translation of text and tags, each line and column by itself; None if one of them has got none."""
    chunks = [
        chunk if isinstance(chunk, str) else Run.of(chunk, rules, write) for chunk in _chunks(items, write)
    ]
    runs = [chunk for chunk in chunks if isinstance(chunk, Run)]
    yield from translate_runs(runs, rules)
    if any(run.has_letters and not run.raw.strip() for run in runs):
        return None
    return "".join(chunk if isinstance(chunk, str) else chunk.raw for chunk in chunks)


def _same_edges(source: str, target: str) -> bool:
    """Whether both or none begin, and end, with a line break, as msgfmt demands."""
    return all(
        one.endswith("\n") == other.endswith("\n")
        for one, other in ((source, target), (source[:1], target[:1]))
    )


def text_items(text: str, write: Write, first_key: int = 0) -> list[Item]:
    """Text and the tags that are written in it; keys of pairs count from ``first_key``."""
    matches = list(_TAG.finditer(text))
    keys = _pairs(matches, first_key)
    items, end = list[Item](), 0
    for number, match in enumerate(matches):
        items += plain_items(text[end : match.start()], write)
        items.append(_tag(match, keys.get(number), write))
        end = match.end()
    return [*items, *plain_items(text[end:], write)]


def plain_items(text: str, write: Write) -> Iterator[Item]:
    """Text without tags; the white space around it stands apart."""
    core = text.strip()
    start = text.index(core)
    for part in (text[:start], core, text[start + len(core) :]):
        if part:
            yield Item("text", write(part), part)


def _tag(match: re.Match[str], key: int | None, write: Write) -> Item:
    raw = write(match.group())
    if key is not None:
        return Item("close" if match["close"] else "open", raw, key=key)
    if match["name"].lower() in _VOID:
        return Item("point", raw, separates=True)
    if match["alone"] or match["close"]:
        return Item("point", raw)
    return Item("kept", raw, match.group())  # such as <file> in a usage line


def _pairs(matches: Sequence[re.Match[str]], first_key: int) -> dict[int, int]:
    """Keys for the tags that open and close an element without crossing another."""
    keys: dict[int, int] = {}
    open_tags: list[tuple[str, int]] = []
    for number, match in enumerate(matches):
        if match["alone"] or match["name"].lower() in _VOID:
            continue
        if not match["close"]:
            open_tags.append((match["name"], number))
        elif any(name == match["name"] for name, _ in open_tags):
            while open_tags[-1][0] != match["name"]:
                open_tags.pop()  # never closed
            keys[number] = keys[open_tags.pop()[1]] = first_key + number
    return keys


def _chunks(items: Iterable[Item], write: Write) -> Iterator[str | list[Item]]:
    """What stands between lines and columns is copied; between it are the runs."""
    run: list[Item] = []
    for item in items:
        if item.kind != "text" or not _APART.search(item.text):
            run.append(item)
            continue
        for number, part in enumerate(_APART.split(item.text)):
            if number % 2:
                yield from (run, write(part))
                run = []
            elif part:
                run += plain_items(part, write)
    yield run
