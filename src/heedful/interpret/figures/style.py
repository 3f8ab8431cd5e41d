"""The style of all figures: fonts that have the characters, colors, and saving.

DejaVu Sans comes with matplotlib and has Latin, Greek, Cyrillic, Arabic and Hebrew; installed fonts are used for
other characters. matplotlib shapes and orders text itself.
"""

import io
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

from matplotlib import font_manager, rc_context, rcdefaults, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.typing import RcKeyType

from heedful.errors import HeedfulError
from heedful.files import write_bytes

BASE_FONT = "DejaVu Sans"
LAST_RESORT_FONT = "Last Resort High-Efficiency"
"""A font of matplotlib with a box for every character, so that undrawable ones cause no warning."""

CJK_PACKAGE, OTHER_SCRIPTS_PACKAGE = "fonts-noto-cjk", "fonts-noto-core"
"""Font packages to recommend."""

_EXCLUDED_FONTS = ("Last Resort", "STIX", "cm")
_REGIONS = (("JP", 0x3040, 0x30FF), ("KR", 0xAC00, 0xD7A3), ("KR", 0x1100, 0x11FF))
"""Han characters differ by country; kana and hangul identify it."""


class FontCoverage(NamedTuple):
    """Font families that together draw a text, and the characters that none of them has."""

    families: tuple[str, ...]
    undrawable: frozenset[str]


def choose_fonts(texts: Iterable[str]) -> FontCoverage:
    """The fonts to draw these texts with, in order of preference."""
    return _choose_fonts_for(frozenset(filter(needs_glyph, set().union(*texts))))


def describe_undrawable(characters: Collection[str]) -> str:
    """A warning that no font has these characters; empty if there are none."""
    if not characters:
        return ""
    codes = [f"U+{ord(character):04X}" for character in sorted(characters)]
    code_list = " ".join(codes[:5]) + (" …" if len(codes) > 5 else "")
    is_wide = [unicodedata.east_asian_width(character) in "WF" for character in characters]
    packages = [CJK_PACKAGE] * any(is_wide) + [OTHER_SCRIPTS_PACKAGE] * (not all(is_wide))
    return (
        f"no installed font can draw {len(codes)} of the characters ({code_list}): "
        f"install one, such as {' and '.join(packages)}, or write SVG"
    )


def needs_glyph(character: str) -> bool:
    """Spaces, controls, joiners and variation selectors need no glyph."""
    selector = 0xFE00 <= ord(character) <= 0xFE0F
    return unicodedata.category(character) not in {"Zs", "Zl", "Zp", "Cc", "Cf"} and not selector


@cache
def _load_base_font() -> FT2Font:
    return FT2Font(font_manager.findfont(BASE_FONT))


def _find_missing(characters: Iterable[str]) -> set[str]:
    """Characters that DejaVu Sans does not have."""
    return {character for character in characters if not _load_base_font().get_char_index(ord(character))}


@lru_cache(maxsize=256)
def _choose_fonts_for(characters: frozenset[str]) -> FontCoverage:
    remaining = _find_missing(characters)
    families = [BASE_FONT]
    if remaining:
        font_glyphs: dict[str, set[str]] = {}
        for entry in _list_regular_fonts():
            try:
                font = FT2Font(entry.fname, face_index=entry.index)
            except (OSError, RuntimeError):  # removed or damaged since it was listed
                continue
            font_glyphs[entry.name] = {character for character in remaining if font.get_char_index(ord(character))}
        codes = list(map(ord, characters))
        region = next((name for name, low, high in _REGIONS if any(low <= code <= high for code in codes)), "SC")
        while remaining and font_glyphs:
            best = max(
                sorted(font_glyphs),
                key=lambda name: (
                    len(font_glyphs[name] & remaining),
                    "Mono" not in name,
                    "Sans" in name,
                    name.endswith(f" {region}"),
                    "Noto" in name,
                ),
            )
            if not font_glyphs[best] & remaining:
                break
            remaining -= font_glyphs.pop(best)
            families.append(best)
    # In an SVG the viewer goes on to its own sans-serif; here that is DejaVu again.
    return FontCoverage((*families, "sans-serif", *([LAST_RESORT_FONT] if remaining else [])), frozenset(remaining))


@cache
def _list_regular_fonts() -> list[FontEntry]:
    manager = font_manager.fontManager
    listed_paths = {entry.fname for entry in manager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in listed_paths:  # installed after matplotlib wrote its list of fonts
            try:
                manager.addfont(path)
            except (OSError, RuntimeError, NotImplementedError):  # bitmap fonts, such as color emoji
                continue
    return [
        entry
        for entry in manager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular", "book")
        if not entry.name.startswith(_EXCLUDED_FONTS)
    ]


# ---- Colors, hatching, saving.
#
# Q blue, K vermilion, V green, output purple (Okabe-Ito, color-blind safe); attention is one hue from 0 to 1;
# signed numbers diverge from blue to orange.

QUERY, KEY, VALUE, OUTPUT = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
LINE_COLORS = ("#332288", "#CC6677", "#117733", "#882255", "#44AA99")
"""For curves: Tol's muted colors, color-blind safe and distinct from these four."""

INK, MUTED, FAINT = "#1a1a1a", "#5f6570", "#d9dce1"
ATTENTION = LinearSegmentedColormap.from_list("attention", ["#f2f7fc", "#c6dbef", "#6baed6", "#2171b5", "#08306b"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#05426b", "#3f97c9", "#f5f5f5", "#ee9a4d", "#9c4500"])

MASKED_PATCH: dict[str, Any] = {
    "facecolor": "#e9eaec",
    "edgecolor": "#8b9099",
    "linewidth": 0,
    "hatch": "////",
    "label": "masked",
}

DPI = 200
FIGURE_FORMATS = ("png", "svg")

_RC_PARAMS: dict[RcKeyType, Any] = {
    "font.family": [BASE_FONT],
    "font.sans-serif": [BASE_FONT],
    "font.size": 11,
    "text.parse_math": False,  # "$" is a character like any other
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",  # text stays text: searchable, in the fonts of the viewer
    "svg.hashsalt": "heedful",
}

DrawParameters = ParamSpec("DrawParameters")


@contextmanager
def _figure_style() -> Iterator[None]:
    """Our settings, independent of the user's matplotlibrc."""
    with rc_context():
        rcdefaults()
        rcParams.update(_RC_PARAMS)
        yield


def apply_style(draw: Callable[DrawParameters, Figure]) -> Callable[DrawParameters, Figure]:
    """Draw in our style, with fonts that have the characters."""

    @wraps(draw)
    def draw_with_style(*args: DrawParameters.args, **kwargs: DrawParameters.kwargs) -> Figure:
        with _figure_style():
            figure = draw(*args, **kwargs)
            texts = _list_texts(figure)
            families = choose_fonts(text.get_text() for text in texts).families
            for text in texts:
                if _find_missing(filter(needs_glyph, text.get_text())):
                    text.set_fontfamily(families)
                    text.set_fontweight("normal")  # few fonts of other scripts have a bold face
                else:
                    text.set_fontfamily((BASE_FONT, "sans-serif"))
            return figure

    return draw_with_style


def save_figure(figure: Figure, path: Path | str) -> frozenset[str]:
    """Write a .png or .svg file, reproducibly; returns the characters that no font could draw."""
    path = Path(path)
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in FIGURE_FORMATS:
        raise HeedfulError(
            f"cannot write {path.name}: figures are {' or '.join(FIGURE_FORMATS)}",
            hint=f"name it {path.stem or 'figure'}.svg",
        )
    data = io.BytesIO()
    canvas = FigureCanvasAgg(figure) if file_format == "png" else FigureCanvasSVG(figure)
    with _figure_style():
        canvas.print_figure(
            data,
            format=file_format,
            dpi=DPI,
            bbox_inches="tight",
            pad_inches=0.15,
            metadata={"Software": "Heedful"} if file_format == "png" else {"Date": None, "Creator": "Heedful"},
        )
    write_bytes(path, data.getvalue())
    coverage = choose_fonts(text.get_text() for text in _list_texts(figure))
    return coverage.undrawable if file_format == "png" else frozenset()


def _list_texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text)]


def make_drawable(label: str) -> str:
    """A label that can be drawn: control characters become �, an empty label ∅.

    >>> make_drawable("bell" + chr(7)), make_drawable(" ")
    ('bell�', '∅')
    """
    marked_label = "".join(
        "�" if unicodedata.category(character) in ("Cc", "Cs", "Cn") else character for character in label
    )
    return marked_label if any(map(needs_glyph, marked_label)) else "∅"


def text_width(label: str, size: float) -> float:
    """The approximate width of a label in inches."""
    ems = sum(1.0 if unicodedata.east_asian_width(character) in "WF" else 0.64 for character in label)
    return ems * size / 72
