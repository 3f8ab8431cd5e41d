"""Accelerators: the letter of a menu entry that a key press reaches, marked by _ (GTK), & (Qt) or ~.

The rule to remember: the mark goes out before translation, and back before the same letter if there is one.
"""

import re
from typing import NamedTuple

from heedful.text.spans import is_spaceless

_MARKED = re.compile(r"(?<![^\W_])([_&~])(?=[^\W_])|(?<=[A-Z])_(?=[a-z])|(?<=[A-Z][a-z])[_&](?=[a-z])")
_ENTITY = re.compile(r"&(?:\w+|#\w+);")
_LONGEST = 60
_END = re.compile(r"[\s.…:：。]*$")


class Accelerator(NamedTuple):
    """A mark and the letter after it."""

    mark: str
    letter: str


def without_accelerator(text: str) -> tuple[str, Accelerator | None]:
    """A text without the mark of its accelerator, if it has one.

    >>> without_accelerator("Save _As...")
    ('Save As...', Accelerator(mark='_', letter='A'))
    >>> without_accelerator("the file_name of R&D")
    ('the file_name of R&D', None)
    """
    found = list(_MARKED.finditer(text))
    if len(found) != 1 or len(text) > _LONGEST or "\n" in text or _ENTITY.search(text):
        return text, None
    place = found[0].start()
    mark = text[place]
    if text.count(mark) != 1 or text[place + 1].isdigit():
        return text, None
    return text[:place] + text[place + 1 :], Accelerator(mark, text[place + 1])


def with_accelerator(text: str, accelerator: Accelerator) -> str:
    """A translation with the mark: at the same letter, else at the first; scripts without cases get (_F).

    >>> with_accelerator("Speichern als", Accelerator("_", "A"))
    'Speichern _als'
    >>> with_accelerator("另存为...", Accelerator("_", "A"))
    '另存为(_A)...'
    """
    mark, letter = accelerator
    if is_spaceless(text):
        end = _END.search(text)
        place = end.start() if end else len(text)
        return f"{text[:place]}({mark}{letter.upper()}){text[place:]}"
    wanted = re.escape(letter)
    for pattern in (rf"\b{wanted}", wanted, r"[^\W\d_]"):
        if found := re.search(pattern, text, re.IGNORECASE):
            return text[: found.start()] + mark + text[found.start() :]
    return text
