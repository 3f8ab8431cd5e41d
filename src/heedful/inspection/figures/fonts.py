"""Which installed fonts draw which characters: DejaVu Sans first, others for what it lacks.

DejaVu Sans comes with matplotlib and has Latin, Greek, Cyrillic, Arabic and Hebrew. matplotlib shapes and
orders text itself, so only the glyphs must be found.
"""

import unicodedata
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from matplotlib import font_manager
from matplotlib.font_manager import FontEntry
from matplotlib.ft2font import FT2Font

BASE = "DejaVu Sans"
LAST = "Last Resort High-Efficiency"
"""A font of matplotlib with a box for every character: what nothing can draw is at least seen, unwarned."""
CJK, OTHERS = "fonts-noto-cjk", "fonts-noto-core"
"""Packages of fonts to recommend."""
_NO_REAL_LETTERS = ("Last Resort", "STIX", "cm")
_REGIONS = (("JP", 0x3040, 0x30FF), ("KR", 0xAC00, 0xD7A3), ("KR", 0x1100, 0x11FF))
"""Han characters look different by country; kana and hangul tell which one is meant."""


class Cover(NamedTuple):
    """Font families that together draw a text, and the characters that none of them has."""

    families: tuple[str, ...]
    undrawable: frozenset[str]


def cover(texts: Iterable[str]) -> Cover:
    """The fonts to draw these texts with, the most wanted first."""
    return _cover(frozenset(filter(has_shape, set().union(*texts))))


def is_basic(text: str) -> bool:
    """Whether DejaVu Sans alone draws it."""
    return all(_base().get_char_index(ord(character)) for character in filter(has_shape, text))


def describe_undrawable(characters: Collection[str]) -> str:
    """What to tell a user whose fonts lack these characters; empty when none is lacking."""
    if not characters:
        return ""
    codes = [f"U+{ord(character):04X}" for character in sorted(characters)]
    listed = " ".join(codes[:5]) + (" …" if len(codes) > 5 else "")
    wide = [unicodedata.east_asian_width(character) in "WF" for character in characters]
    packages = [name for name, wanted in ((CJK, any(wide)), (OTHERS, not all(wide))) if wanted]
    return (
        f"no installed font can draw {len(codes)} of the characters ({listed}): "
        f"install one, such as {' and '.join(packages)}, or write SVG"
    )


def has_shape(character: str) -> bool:
    """Spaces, controls, joiners and variation selectors need no glyph."""
    selector = 0xFE00 <= ord(character) <= 0xFE0F
    return unicodedata.category(character) not in {"Zs", "Zl", "Zp", "Cc", "Cf"} and not selector


@cache
def _base() -> FT2Font:
    return FT2Font(font_manager.findfont(BASE))


@lru_cache(maxsize=256)
def _cover(characters: frozenset[str]) -> Cover:
    rest = {character for character in characters if not _base().get_char_index(ord(character))}
    chosen = [BASE]
    if rest:
        having = {name: glyphs for name, glyphs in _glyphs(frozenset(rest)).items() if glyphs}
        region = _region(characters)
        while rest and having:
            best = max(sorted(having), key=lambda name: (len(having[name] & rest), *_liking(name, region)))
            if not having[best] & rest:
                break
            rest -= having.pop(best)
            chosen.append(best)
    # In an SVG the viewer goes on to its own sans-serif; here that is DejaVu again.
    return Cover((*chosen, "sans-serif", *([LAST] if rest else [])), frozenset(rest))


def _glyphs(wanted: frozenset[str]) -> dict[str, set[str]]:
    """What each upright regular font has of the wanted characters."""
    found: dict[str, set[str]] = {}
    for entry in _regular_fonts():
        try:
            font = FT2Font(entry.fname, face_index=entry.index)
        except (OSError, RuntimeError):  # removed or damaged since it was listed
            continue
        found[entry.name] = {character for character in wanted if font.get_char_index(ord(character))}
    return found


@cache
def _regular_fonts() -> list[FontEntry]:
    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:  # installed after matplotlib wrote its list of fonts
            try:
                manager.addfont(path)
            except (OSError, RuntimeError, NotImplementedError):  # bitmap fonts, such as colour emoji
                continue
    return [
        entry
        for entry in manager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular", "book")
        if not entry.name.startswith(_NO_REAL_LETTERS)
    ]


def _region(characters: frozenset[str]) -> str:
    codes = [ord(character) for character in characters]
    return next((name for name, low, high in _REGIONS if any(low <= code <= high for code in codes)), "SC")


def _liking(name: str, region: str) -> tuple[bool, ...]:
    return "Mono" not in name, "Sans" in name, name.endswith(f" {region}"), "Noto" in name
