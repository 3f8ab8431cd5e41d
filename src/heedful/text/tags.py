"""Words to the model inside a text: the language to write, where a pair comes from, which term to use.

A tag stands between two of Unicode's noncharacters, which no text for people has. The rule to remember:
cleaning takes them out of whatever a user gives, so only what is put in behind it is a tag.
"""

import re
from collections.abc import Iterator

OPEN, CLOSE = "\ufdd0", "\ufdd1"
NONCHARACTERS = "\ufdd0-\ufdef"
"""As a range in a pattern."""
_TAG = re.compile(f"{OPEN}([^{NONCHARACTERS}]*){CLOSE}")


def tag(name: str) -> str:
    """What stands for the tag in a text."""
    return f"{OPEN}{name}{CLOSE}"


def tagged(text: str, *names: str) -> str:
    """A cleaned text with tags before it, those without a name left out.

    >>> tagged("Hello", "fr") == tag("fr") + "Hello", tagged("Hello", "")
    (True, 'Hello')
    """
    return "".join(tag(name) for name in names if name) + text


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """Texts without the space around them, and names of tags, in their order; True for tags.

    >>> list(parts(tagged("Hello there", "fr")))
    [('fr', True), ('Hello there', False)]
    """
    for number, part in enumerate(_TAG.split(text)):
        is_tag = number % 2 == 1
        if is_tag or part.strip():
            yield (part, True) if is_tag else (part.strip(), False)


def without_tags(text: str) -> str:
    """The text alone, one space for each tag inside it.

    >>> without_tags(tagged("Hello", "fr"))
    'Hello'
    """
    return _TAG.sub(" ", text).strip() if OPEN in text else text
