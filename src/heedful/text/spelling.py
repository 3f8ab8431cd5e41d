"""How text is written before it is cut into pieces: spaces become ▁, and words part from symbols.

The rule to remember: every step can be undone, so decode(encode(text)) is the text. Changing a pattern
changes what stored models read: then the format number in tokenizer.py must grow.
"""

import re

SPACE = "\u2581"
"""Stands for a space inside pieces (▁), so that a piece shows whether it begins a word."""

_ESCAPE = "\U0010fffd"  # private use, so absent from ordinary text
_NEEDS_ESCAPE = re.compile(f"[{SPACE}{_ESCAPE}\ud800-\udfff]")
_ESCAPED = re.compile(f"{_ESCAPE}([01])")
_WRITTEN = re.compile(f"{_ESCAPE}[01]|.", re.DOTALL)  # what stands for one character of the text

# Runs are bounded (an endless word would be slow to merge) and atomic: Oniguruma gives up, by a panic,
# on patterns that try the same run again and again.
_RUN = "{1,200}"
_LETTER = "[\\p{L}\\p{M}\u200c\u200d]"  # the joiners are part of Persian and Indic words
_WORD_LETTER = f"(?:(?!\\p{{Han}}){_LETTER})"
_SYMBOL = f"[^\\p{{L}}\\p{{N}}\\s{SPACE}]"
# didn't stays whole; l'animal parts after the apostrophe.
_APOSTROPHE = f"['’](?:(?i:t|s|re|ve|ll|d|m)(?!{_LETTER})|(?={_LETTER}))"
_NUMBERS = f"{SPACE}?(?>\\p{{N}}{_RUN})"
_BLANKS = f"(?>\\s{_RUN})|{SPACE}{_RUN}(?={SPACE})"
_LETTERS = f"{SPACE}?(?>{_LETTER}{_RUN})(?:{_APOSTROPHE})?"
_SYMBOLS = f"{SPACE}?(?>{_SYMBOL}{_RUN})"

SUBWORD_PATTERN = "|".join([_LETTERS, _NUMBERS, _BLANKS, _SYMBOLS])
"""Letters, numbers and symbols part; each may carry the ▁ before it."""

WORD_PATTERN = "|".join(
    [
        f"{SPACE}?\\p{{Han}}",  # written without spaces: a character is the nearest thing to a word
        f"{SPACE}?(?>{_WORD_LETTER}{_RUN})(?:{_APOSTROPHE})?",
        _NUMBERS,
        _BLANKS,
        # Symbols one by one, but dots together, and an emoji with all it is joined to.
        f"{SPACE}?(?>\\.{{2,200}}|{_SYMBOL}(?:\\p{{M}}|\u200d{_SYMBOL}){{0,50}})",
    ]
)
"""As SUBWORD_PATTERN, but every symbol and every ideograph is a word of its own."""


def escaped(text: str) -> str:
    """Text in which ▁ can only come from a space; half a surrogate pair, no character, becomes U+FFFD."""
    return _NEEDS_ESCAPE.sub(_escape_of, text)


def _escape_of(match: re.Match[str]) -> str:
    return {_ESCAPE: f"{_ESCAPE}0", SPACE: f"{_ESCAPE}1"}.get(match[0], "\ufffd")


def unescaped(text: str) -> str:
    """The inverse of ``escaped``.

    >>> unescaped(escaped("a ▁ b"))
    'a ▁ b'
    """
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda match: _ESCAPE if match[1] == "0" else SPACE, text)


def spaced(text: str) -> str:
    """Escaped text as the pieces spell it: ▁ before it and for every space.

    >>> spaced("the world")
    '▁the▁world'
    """
    return SPACE + text.replace(" ", SPACE) if text else ""


def unspaced(text: str) -> str:
    """The inverse of ``spaced``."""
    return text.replace(SPACE, " ").removeprefix(" ")


def letter_spans(spelled: str) -> list[tuple[int, int]]:
    """For each character of spelled text from where to where it goes in the text: the first ▁ goes nowhere.

    >>> letter_spans(spaced("a b"))
    [(0, 0), (0, 1), (1, 2), (2, 3)]
    """
    spans: list[tuple[int, int]] = []
    place = 0
    for written in _WRITTEN.finditer(spelled):
        size = 0 if written.start() == 0 and written[0] in (SPACE, " ") else 1
        spans += [(place, place + size)] * len(written[0])
        place += size
    return spans
