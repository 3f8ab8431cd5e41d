"""One look for all pictures: colours, type, hatching; and how a picture becomes a file.

Q blue, K vermilion, V green, output purple (Okabe-Ito, safe for the colour-blind); attention is one hue from
0 to 1; signed numbers diverge from blue to orange.
"""

import io
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.typing import RcKeyType

from heedful.errors import HeedfulError
from heedful.files import write_bytes
from heedful.inspection.figures.fonts import BASE, cover, has_shape, is_basic

QUERY, KEY, VALUE, OUTPUT = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
LINES = ("#332288", "#CC6677", "#117733", "#882255", "#44AA99")
"""For curves, which are none of these four: Tol's muted colours, safe for the colour-blind too."""
INK, SOFT, FAINT = "#1a1a1a", "#5f6570", "#d9dce1"
ATTENTION = LinearSegmentedColormap.from_list(
    "attention", ["#f2f7fc", "#c6dbef", "#6baed6", "#2171b5", "#08306b"]
)
SIGNED = LinearSegmentedColormap.from_list("signed", ["#05426b", "#3f97c9", "#f5f5f5", "#ee9a4d", "#9c4500"])
MASKED: dict[str, Any] = {
    "facecolor": "#e9eaec",
    "edgecolor": "#8b9099",
    "linewidth": 0,
    "hatch": "////",
    "label": "masked",
}
DOTS_PER_INCH = 200
FORMATS = ("png", "svg")

_LOOK: dict[RcKeyType, Any] = {
    "font.family": [BASE],
    "font.sans-serif": [BASE],
    "font.size": 11,
    "text.parse_math": False,  # "$" is a character like any other
    "text.color": INK,
    "axes.edgecolor": SOFT,
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
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",  # words stay words: the viewer picks fonts, and search finds them
    "svg.hashsalt": "heedful",
}
Given = ParamSpec("Given")


@contextmanager
def _our_look() -> Iterator[None]:
    """Our settings for as long as it lasts, whatever the user's matplotlibrc says."""
    with rc_context():
        rcdefaults()
        rcParams.update(_LOOK)
        yield


def styled(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
    """Draw in our look, and with fonts that have the characters."""

    @wraps(draw)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Figure:
        with _our_look():
            figure = draw(*args, **kwargs)
            _choose_fonts(figure)
            return figure

    return drawn


def save_figure(figure: Figure, path: Path | str) -> frozenset[str]:
    """Write a .png or .svg file, the same figure to the same bytes; return what no font could draw in it."""
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise HeedfulError(
            f"cannot write {path.name}: pictures are {' or '.join(FORMATS)}",
            hint=f"name it {path.stem or 'picture'}.svg",
        )
    data = io.BytesIO()
    canvas = FigureCanvasAgg(figure) if form == "png" else FigureCanvasSVG(figure)
    with _our_look():
        canvas.print_figure(
            data,
            format=form,
            dpi=DOTS_PER_INCH,
            bbox_inches="tight",
            pad_inches=0.15,
            metadata={"Software": "Heedful"} if form == "png" else {"Date": None, "Creator": "Heedful"},
        )
    write_bytes(path, data.getvalue())
    drawn = cover(text.get_text() for text in _texts(figure))
    return drawn.undrawable if form == "png" else frozenset()


def _choose_fonts(figure: Figure) -> None:
    texts = _texts(figure)
    families = cover(text.get_text() for text in texts).families
    for text in texts:
        if is_basic(text.get_text()):
            text.set_fontfamily((BASE, "sans-serif"))
        else:
            text.set_fontfamily(families)
            text.set_fontweight("normal")  # few fonts of other scripts have a bold face here


def _texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text)]


def shown(label: str) -> str:
    """A label as it can be drawn: controls as a mark, and nothing as a mark too.

    >>> shown("bell" + chr(7)), shown(" ")
    ('bell�', '∅')
    """
    marked = "".join("�" if unicodedata.category(each) in ("Cc", "Cs", "Cn") else each for each in label)
    return marked if any(map(has_shape, marked)) else "∅"


def text_width(label: str, size: float) -> float:
    """About how many inches a label takes: wide characters are as wide as high, others two thirds."""
    ems = sum(1.0 if unicodedata.east_asian_width(each) in "WF" else 0.64 for each in label)
    return ems * size / 72
