"""Special tokens, and tags: instructions to the model inside a text (target language, data source, terms).

A tag is delimited by two Unicode noncharacters. Cleaning removes these from user text, so only tags added
after cleaning count.
"""

import re
from collections.abc import Iterator

PAD, END, UNK = 0, 1, 2
"""The decoder starts from ``<pad>``, whose embedding row is zero and stays zero."""

MASK = UNK
"""What a masked language model reads in place of a token: ``<unk>``, to which no text encodes."""

SPECIALS = ("<pad>", "</s>", "<unk>")

TAG_OPEN, TAG_CLOSE = "\ufdd0", "\ufdd1"

NONCHARACTERS = "\ufdd0-\ufdef"
"""Character range for a regular expression."""

_TAG = re.compile(f"{TAG_OPEN}([^{NONCHARACTERS}]*){TAG_CLOSE}")


def format_tag(name: str) -> str:
    """The tag as it is written in a text."""
    return f"{TAG_OPEN}{name}{TAG_CLOSE}"


def add_tags(text: str, *names: str) -> str:
    """A cleaned text with tags before it; empty names are left out.

    >>> add_tags("Hello", "fr") == format_tag("fr") + "Hello", add_tags("Hello", "")
    (True, 'Hello')
    """
    return "".join(format_tag(name) for name in names if name) + text


def split_tags(text: str) -> Iterator[tuple[str, bool]]:
    """Stripped texts and tag names, in order; the flag is True for tags.

    >>> list(split_tags(add_tags("Hello there", "fr")))
    [('fr', True), ('Hello there', False)]
    """
    for index, part in enumerate(_TAG.split(text)):
        is_tag = index % 2 == 1
        if is_tag or part.strip():
            yield (part, True) if is_tag else (part.strip(), False)


def strip_tags(text: str) -> str:
    """The text without its tags, each replaced by one space.

    >>> strip_tags(add_tags("Hello", "fr"))
    'Hello'
    """
    return _TAG.sub(" ", text).strip() if TAG_OPEN in text else text
