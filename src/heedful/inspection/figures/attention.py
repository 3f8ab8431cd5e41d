"""Attention as pictures: one head, all heads of a layer, and lines between the words.

Rows look at columns: a row is a query, a column is a key, and each row sums to 1.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from heedful.inspection.figures.maps import (
    LOOKS_AT,
    LOOKS_FROM,
    Sizes,
    check_labels,
    draw_map,
    masked_values,
    name_columns,
    name_rows,
)
from heedful.inspection.figures.style import ATTENTION, INK, KEY, MASKED, QUERY, SOFT, shown, styled

ROOM_FOR_NUMBERS = 0.36
"""Inches a cell must have to hold a number."""
ROOM_FOR_EXPLANATION = 1.7
"""Inches of a small map beside which "looks at: key K" fits; else one map says it for all."""
MOST_VECTOR_CELLS = 10_000
"""A figure with more cells holds them as an image: an SVG of rectangles would be too heavy."""
FAINTEST_LINE = 0.01
ATTENTION_SCALE = "attention weight"
SHARES_SAID = ("the word written", "depends on the source word", "share")


@styled
def head_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    visible: Tensor | None = None,
    looks_from: str = LOOKS_FROM,
) -> Figure:
    """One head's weights (queries, keys) as a heat map, with the numbers where there is room for them."""
    said = (looks_from, LOOKS_AT, ATTENTION_SCALE)
    return _one_map(masked_values(weights, visible), rows, columns, title, said)


@styled
def shares_figure(shares: Tensor, rows: Sequence[str], columns: Sequence[str], title: str = "") -> Figure:
    """What each written word (rows) owes to each source word (columns), as shares that sum to 1."""
    return _one_map(masked_values(shares, None), rows, columns, title, SHARES_SAID)


def _one_map(
    values: np.ma.MaskedArray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    said: tuple[str, str, str],
) -> Figure:
    """A heat map that names its rows, columns and scale by ``said``."""
    check_labels(values.shape, rows, columns)
    sizes = Sizes.of(max(values.shape), side=7.5, smallest=0.14, largest=0.8, longest_side=28)
    width, height = len(columns) * sizes.cell, len(rows) * sizes.cell
    figure = Figure((width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    mesh = draw_map(axes, values, ATTENTION, rasterized=values.size > MOST_VECTOR_CELLS)
    name_rows(axes, rows, sizes, said[0])
    name_columns(axes, columns, sizes, said[1])
    if sizes.cell >= ROOM_FOR_NUMBERS:
        _write_numbers(axes, values, sizes)
    _color_bar(figure, mesh, said[2], masked=bool(np.ma.getmaskarray(values).any()))
    _head_line(figure, title)
    return figure


@styled
def heads_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    visible: Tensor | None = None,
    looks_from: str = LOOKS_FROM,
) -> Figure:
    """All heads of a layer (heads, queries, keys) as small maps side by side, with shared labels."""
    check_labels(weights.shape, rows, columns)
    sizes = Sizes.of(max(weights.shape[1:]), side=3.6, smallest=0.085, largest=0.45, longest_side=7)
    width, height = max(len(columns) * sizes.cell, 0.8), len(rows) * sizes.cell
    across = _maps_across(len(weights), width, height)
    down = len(weights) // across
    gap, head_room = 0.25, 0.4  # between maps; above each, for its name
    whole = (across * (width + gap) - gap, down * (height + head_room))
    figure = Figure(whole)
    rasterized = weights.numel() > MOST_VECTOR_CELLS
    for number, head in enumerate(weights):
        row, column = divmod(number, across)
        left, bottom = column * (width + gap), (down - 1 - row) * (height + head_room)
        axes = figure.add_axes((left / whole[0], bottom / whole[1], width / whole[0], height / whole[1]))
        mesh = draw_map(axes, masked_values(head, visible), ATTENTION, rasterized=rasterized)
        axes.set_title(f"head {number + 1}", fontsize=11, weight="bold", pad=5)
        name_rows(
            axes,
            rows if column == 0 else (),
            sizes,
            looks_from if height > ROOM_FOR_EXPLANATION or row == down - 1 else "",
        )
        name_columns(
            axes,
            columns if row == down - 1 else (),
            sizes,
            LOOKS_AT if width > ROOM_FOR_EXPLANATION or column == 0 else "",
        )
    masked = visible is not None and not bool(visible.all())
    _color_bar(figure, mesh, ATTENTION_SCALE, masked=masked, below=head_room)
    _head_line(figure, title)
    return figure


@styled
def lines_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    row: int | None = None,
    looks_from: str = "looks: query Q",
) -> Figure:
    """Words that look on the left, what they look at on the right; the darker and wider the line, the more.

    With ``row`` the lines of this word stand out, and its weights are printed.
    """
    check_labels(weights.shape, rows, columns)
    sizes = Sizes.of(max(weights.shape), side=6.5, smallest=0.16, largest=0.4, longest_side=60)
    figure = Figure((3.2, max(weights.shape) * sizes.cell))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(max(weights.shape), 0)
    values = weights.double().numpy()
    axes.add_collection(_lines(values, row))
    number_room = 0.0
    if row is not None:
        number_room = 3.1 * sizes.type
        for place in range(0, len(columns), sizes.step):
            _beside(axes, 1, place, f"{values[row, place]:.2f}", sizes, 7, _importance(values[row, place]))
    for place in range(0, len(rows), sizes.step):
        mark = _CHOSEN if place == row else (_OTHER if row is not None else _PLAIN)
        _beside(axes, 0, place, rows[place], sizes, -7, mark)
    for place in range(0, len(columns), sizes.step):
        mark = _PLAIN if row is None else _importance(values[row, place])
        _beside(axes, 1, place, columns[place], sizes, 7 + number_room, mark)
    _beside(axes, 0, -1, looks_from, sizes, -7, {"color": QUERY})
    _beside(axes, 1, -1, "is looked at: key K", sizes, 7, {"color": KEY})
    _head_line(figure, title, above=sizes.cell + 0.15, x=0.5)
    return figure


_PLAIN = {"color": INK}
_OTHER = {"color": SOFT}
_CHOSEN = {"color": QUERY, "weight": "bold"}


def _importance(weight: float) -> dict[str, str]:
    return {"color": INK, "weight": "bold"} if weight >= 0.1 else _OTHER


def _beside(
    axes: Axes, x: int, place: int, text: str, sizes: Sizes, offset: float, mark: dict[str, str]
) -> None:
    """A word at its place, ``offset`` points left or right of the lines' end."""
    axes.annotate(
        shown(text),
        (x, place + 0.5),
        xytext=(offset, 0),
        textcoords="offset points",
        ha="right" if offset < 0 else "left",
        va="center",
        fontsize=sizes.type,
        annotation_clip=False,
        **mark,  # type: ignore[arg-type]
    )


def _lines(values: np.ndarray, row: int | None) -> LineCollection:
    """A line for every weight that can be seen, the strongest on top."""
    ends, colors, widths = [], [], []
    fading = 0.8 if row is None else 0.5  # few lines may be darker than many
    for flat in np.argsort(values, axis=None, kind="stable"):
        query, key = np.unravel_index(flat, values.shape)
        weight = float(values[query, key])
        if weight < FAINTEST_LINE:
            continue
        chosen = row is None or query == row
        ends.append([(0, query + 0.5), (1, key + 0.5)])
        colors.append(to_rgba(QUERY, weight**fading) if chosen else to_rgba(SOFT, 0.3 * weight))
        widths.append(0.6 if not chosen else 0.6 + 4.4 * weight if row is None else 1 + 7 * weight)
    order = np.argsort([color[:3] == to_rgba(QUERY)[:3] for color in colors], kind="stable")
    return LineCollection(
        [ends[place] for place in order],
        colors=[colors[place] for place in order],
        linewidths=[widths[place] for place in order],
        capstyle="round",
    )


def _write_numbers(axes: Axes, values: np.ma.MaskedArray, sizes: Sizes) -> None:
    for (row, column), value in np.ndenumerate(values.filled(np.nan)):
        if not np.isnan(value):
            axes.text(
                column + 0.5,
                row + 0.5,
                f"{value:.2f}",
                ha="center",
                va="center_baseline",
                fontsize=min(12.0, sizes.cell * 20),
                color="white" if value > 0.45 else INK if value >= 0.05 else SOFT,
            )


def _color_bar(figure: Figure, mesh: QuadMesh, said: str, *, masked: bool, below: float = 0.0) -> None:
    """The scale right of the maps, ``below`` inches under the top, and what hatching means."""
    width, height = figure.get_size_inches()
    key_room = 0.4 if masked else 0.0
    length = min(max(height - below - key_room, 1.2), 5.0)
    bottom = height - below - key_room - length
    left = 1 + 0.25 / width
    bar_axes = figure.add_axes((left, bottom / height, 0.16 / width, length / height), label="scale")
    bar = figure.colorbar(mesh, cax=bar_axes, ticks=[0, 0.25, 0.5, 0.75, 1], label=said)
    bar.outline.set_visible(False)
    bar_axes.tick_params(length=0)
    if masked:
        figure.legend(
            handles=[Patch(**MASKED)],
            loc="upper left",
            bbox_to_anchor=(left, 1 - below / height),
            borderaxespad=0,
            borderpad=0,
            handlelength=1.3,
            handleheight=1.1,
        )


def _maps_across(heads: int, width: float, height: float) -> int:
    """Full rows of maps whose shape comes nearest to a slide's, 16 to 9."""
    counts = [count for count in range(1, heads + 1) if heads % count == 0]
    return min(counts, key=lambda n: abs(math.log(n * (width + 0.3) / (heads / n * (height + 0.4)) * 9 / 16)))


def _head_line(figure: Figure, title: str, *, above: float = 0.12, x: float = 0.0) -> None:
    """The title, ``above`` inches over everything: left over maps, in the middle over lines."""
    if title:
        y = 1 + above / figure.get_size_inches()[1]
        figure.text(x, y, shown(title), fontsize=14, ha="center" if x else "left", va="bottom")
