"""Text before tokenization: cleaning, pre-tokenization patterns, and ▁ for spaces.

Marking spaces and escaping are reversible, so decode(encode(text)) == text. Patterns and escapes are part of
tokenizer.json (vocabulary.py): after a change, stored models cannot be read, so increase the format number in
model_folder.py.
"""

import re
import unicodedata
from typing import Literal

from heedful.tokenization.special_tokens import NONCHARACTERS

METASPACE = "\u2581"
"""Stands for a space inside tokens (▁), so that a token shows whether it starts a word."""

_ESCAPE = "\U0010fffd"  # private use, so absent from ordinary text
ESCAPE_SEQUENCES = ((_ESCAPE, f"{_ESCAPE}0"), (METASPACE, f"{_ESCAPE}1"))
"""Characters with a meaning of their own in tokens, and what stands for them; to be replaced in this order."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_NEEDS_ESCAPE = re.compile(f"[{METASPACE}{_ESCAPE}\ud800-\udfff]")
_ESCAPED = dict(ESCAPE_SEQUENCES)
_ESCAPE_SEQUENCE = re.compile(f"{_ESCAPE}([01])")
_CHARACTER = re.compile(f"{_ESCAPE}[01]|.", re.DOTALL)  # one character of the original text

# Runs are bounded (very long words are slow to merge) and atomic: Oniguruma panics on patterns that
# backtrack too often.
_RUN = "{1,200}"
_LETTER = "[\\p{L}\\p{M}\u200c\u200d]"  # the joiners are part of Persian and Indic words
_WORD_LETTER = f"(?:(?!\\p{{Han}}){_LETTER})"
_SYMBOL = f"[^\\p{{L}}\\p{{N}}\\s{METASPACE}]"
_FLAG = "[\U0001f1e6-\U0001f1ff]{2}"
_EMOJI_MODIFIER = "[\\p{M}\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"  # skin tones; the tags of England's flag
_KEYCAP = "[0-9#*]\ufe0f?\u20e3"

# didn't is one word; l'animal is split after the apostrophe.
_APOSTROPHE = f"['’](?:(?i:t|s|re|ve|ll|d|m)(?!{_LETTER})|(?={_LETTER}))"
_NUMBERS = f"{METASPACE}?(?>\\p{{N}}{_RUN})"
_BLANKS = f"(?>\\s{_RUN})|{METASPACE}{_RUN}(?={METASPACE})"
_LETTERS = f"{METASPACE}?(?>{_LETTER}{_RUN})(?:{_APOSTROPHE})?"
_SYMBOLS = f"{METASPACE}?(?>{_SYMBOL}{_RUN})"

SUBWORD_PATTERN = "|".join([_LETTERS, _NUMBERS, _BLANKS, _SYMBOLS])
"""Letters, numbers and symbols, each with an optional ▁ before it."""

WORD_PATTERN = "|".join(
    [
        f"{METASPACE}?\\p{{Han}}",  # no spaces between words: each character counts as one
        f"{METASPACE}?(?>{_WORD_LETTER}{_RUN})(?:{_APOSTROPHE})?",
        f"{METASPACE}?{_KEYCAP}",
        _NUMBERS,
        _BLANKS,
        # Single symbols, but runs of dots, and an emoji with everything joined to it.
        f"{METASPACE}?(?>\\.{{2,200}}|{_FLAG}|{_SYMBOL}(?:{_EMOJI_MODIFIER}|\u200d{_SYMBOL}){{0,50}})",
    ]
)
"""Like SUBWORD_PATTERN, but every symbol and every ideograph is a word."""


def replace_surrogates(text: str) -> str:
    """Text in which unpaired surrogates, which UTF-8 cannot encode, are U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def escape(text: str) -> str:
    """Text in which ▁ can only come from a space; unpaired surrogates become U+FFFD."""
    return _NEEDS_ESCAPE.sub(lambda match: _ESCAPED.get(match[0], "\ufffd"), text)


def unescape(text: str) -> str:
    """The inverse of ``escape``.

    >>> unescape(escape("a ▁ b"))
    'a ▁ b'
    """
    if _ESCAPE not in text:
        return text
    return _ESCAPE_SEQUENCE.sub(lambda match: _ESCAPE if match[1] == "0" else METASPACE, text)


def mark_spaces(text: str) -> str:
    """Escaped text with ▁ before it and for every space, as in tokens.

    >>> mark_spaces("the world")
    '▁the▁world'
    """
    return METASPACE + text.replace(" ", METASPACE) if text else ""


def unmark_spaces(text: str) -> str:
    """The inverse of ``mark_spaces``."""
    return text.replace(METASPACE, " ").removeprefix(" ")


def char_offsets(marked_text: str) -> list[tuple[int, int]]:
    """For each character of marked text its span in the original text; that of the first ▁ is empty.

    >>> char_offsets(mark_spaces("a b"))
    [(0, 0), (0, 1), (1, 2), (2, 3)]
    """
    spans: list[tuple[int, int]] = []
    offset = 0
    for match in _CHARACTER.finditer(marked_text):
        size = 0 if match.start() == 0 and match[0] in (METASPACE, " ") else 1
        spans += [(offset, offset + size)] * len(match[0])
        offset += size
    return spans


_LINE_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]+")

# Byte-order marks come from concatenated files; noncharacters delimit tags and are not text.
_REMOVED_CHARACTERS = re.compile(f"[\0\ufeff{NONCHARACTERS}]")
_REPEATED_SPACES = re.compile(" {2,}")


def clean_sentence(text: str, unicode_normalization: Literal["none", "nfc"] = "nfc") -> str:
    r"""Text on one line, without leading, trailing or repeated spaces.

    >>> clean_sentence(" cafe\u0301\r\nau\tlait ")
    'café au lait'
    """
    text = _LINE_BREAKS.sub(" ", _REMOVED_CHARACTERS.sub("", text))
    if unicode_normalization == "nfc":
        text = unicodedata.normalize("NFC", text)
    return _REPEATED_SPACES.sub(" ", text).strip()


def split_on_spaces(text: str, unicode_normalization: Literal["none", "nfc"] = "nfc") -> list[str]:
    r"""The space-separated words of a cleaned sentence; no-break spaces do not separate.

    >>> split_on_spaces(" Est-ce vrai\u00a0?  oui ")
    ['Est-ce', 'vrai\xa0?', 'oui']
    """
    return [word for word in clean_sentence(text, unicode_normalization).split(" ") if word]


def has_letters(text: str) -> bool:
    """Whether the text has anything to translate."""
    return any(map(str.isalpha, text))


_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_SPACELESS_CHARACTER = re.compile(f"[{_SPACELESS}\U00020000-\U0003ffff]")


def is_spaceless(text: str) -> bool:
    """Whether a text has characters of a script without spaces between words."""
    return _SPACELESS_CHARACTER.search(text) is not None


def is_word_character(character: str) -> bool:
    """Whether a character is part of words: letters, digits, marks, joiners, underscore."""
    return character.isalnum() or character in "_\u200c\u200d" or unicodedata.category(character)[0] == "M"
