"""Heat maps of attention with words on both axes, and lines between words.

Rows attend to columns: a row is a query, a column a key, and each row sums to 1. Masked cells are hatched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import Colormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.interpret.figures.style import (
    ATTENTION,
    INK,
    KEY,
    MASKED_PATCH,
    MUTED,
    QUERY,
    apply_style,
    make_drawable,
    text_width,
)

QUERY_LABEL, KEY_LABEL = "query Q", "key K"
MIN_FONT_SIZE = 5.5
MAX_GRIDLINE_CELLS = 60
"""Cells in a row or column from which no grid lines are drawn."""


@dataclass(frozen=True, slots=True)
class MapSizes:
    """Sizes of cells (inches) and labels (points)."""

    cell: float
    font_size: float

    @classmethod
    def from_cells(cls, cells: int, side: float, min_cell: float, max_cell: float, max_side: float) -> "MapSizes":
        """A map about ``side`` inches wide, within the limits of the cell size."""
        cell = min(max(side / cells, min_cell), max_cell, max_side / cells)
        return cls(cell, min(13.0, max(MIN_FONT_SIZE, cell * 72 * 0.55)))

    @property
    def label_step(self) -> int:
        """Every how many words one is labeled: 1 unless there are hundreds."""
        return math.ceil(self.font_size * 1.05 / (self.cell * 72))


def build_masked_array(weights: Tensor, attention_mask: Tensor | None) -> np.ma.MaskedArray:
    """The values to draw, without masked cells."""
    masked = np.zeros(weights.shape, bool) if attention_mask is None else ~attention_mask.numpy()
    return np.ma.array(weights.double().numpy(), mask=masked)


def draw_map(axes: Axes, values: np.ma.MaskedArray, colors: Colormap, *, rasterized: bool = False) -> QuadMesh:
    """Cells from 0 to 1 with thin white lines between them, the first row on top; masked cells hatched."""
    is_crowded = max(values.shape) >= MAX_GRIDLINE_CELLS
    mesh = axes.pcolormesh(
        values,
        cmap=colors,
        vmin=0,
        vmax=1,
        edgecolors="none" if is_crowded else "white",
        linewidth=0 if is_crowded else 0.6,
        rasterized=rasterized,
    )
    outlines = []
    for row, mask_row in enumerate(np.ma.getmaskarray(values)):  # hatch the masked cells, as one shape
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask_row.astype(int), [0]])))
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            corners = [(left, row), (right, row), (right, row + 1), (left, row + 1), (left, row)]
            outlines.append(Outline(corners, closed=True))
    if outlines:
        axes.add_patch(PathPatch(Outline.make_compound_path(*outlines), **MASKED_PATCH))
    axes.set_xlim(0, values.shape[1])
    axes.set_ylim(values.shape[0], 0)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.8)
    return mesh


def label_rows(axes: Axes, rows: Sequence[str], sizes: MapSizes, axis_label: str = QUERY_LABEL) -> None:
    """Words left of the rows, and the axis label."""
    positions = range(0, len(rows), sizes.label_step)
    axes.set_yticks(
        [position + 0.5 for position in positions],
        [make_drawable(rows[position]) for position in positions],
        fontsize=sizes.font_size,
    )
    axes.tick_params(axis="y", length=0, pad=5)
    if rows and axis_label:
        axes.set_ylabel(axis_label, color=QUERY if axis_label.startswith(QUERY_LABEL) else INK, labelpad=8)


def label_columns(axes: Axes, columns: Sequence[str], sizes: MapSizes, axis_label: str = KEY_LABEL) -> None:
    """Words below the columns: horizontal if short, else slanted, or vertical in narrow cells."""
    labels = [make_drawable(columns[position]) for position in range(0, len(columns), sizes.label_step)]
    max_label_width = max((text_width(label, sizes.font_size) for label in labels), default=0.0)
    available_width = sizes.cell * sizes.label_step
    if max_label_width < 0.85 * available_width:
        rotation: dict[str, object] = {"rotation": 0, "ha": "center"}
    elif available_width * math.sin(math.radians(50)) > sizes.font_size * 1.2 / 72:
        rotation = {"rotation": 50, "ha": "right", "rotation_mode": "anchor", "va": "center"}
    else:
        rotation = {"rotation": 90, "ha": "right", "rotation_mode": "anchor", "va": "center"}
    tick_positions = [position + 0.5 for position in range(0, len(columns), sizes.label_step)]
    axes.set_xticks(tick_positions, labels, fontsize=sizes.font_size, **rotation)  # type: ignore[arg-type]
    axes.tick_params(axis="x", length=0, pad=5)
    if labels and axis_label:
        axes.set_xlabel(axis_label, color=KEY if axis_label == KEY_LABEL else INK, labelpad=6)


def check_labels(shape: Sequence[int], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Every row and every column needs a label."""
    if tuple(shape[-2:]) != (len(rows), len(columns)) or not rows or not columns:
        raise HeedfulError(
            f"{len(rows)} row labels and {len(columns)} column labels do not fit weights of shape "
            f"{' x '.join(map(str, shape))}",
            hint="rows are queries, columns are keys",
        )


# ---- Figures: one head, all heads of a layer, and lines between words.

MIN_NUMBER_CELL = 0.36
"""Minimum cell size in inches to print numbers."""

MIN_AXIS_LABEL_SIZE = 1.7
"""Minimum size in inches of a small map to have its own axis label."""

MAX_VECTOR_CELLS = 10_000
"""A figure with more cells embeds them as an image: an SVG of rectangles would be too large."""

MIN_LINE_WEIGHT = 0.01
ATTENTION_BAR_LABEL = "attention weight"
ATTRIBUTION_LABELS = ("target word", "source word", "share")


@apply_style
def head_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    attention_mask: Tensor | None = None,
    query_label: str = QUERY_LABEL,
) -> Figure:
    """One head's weights (queries, keys) as a heat map, with the values if there is room."""
    axis_labels = (query_label, KEY_LABEL, ATTENTION_BAR_LABEL)
    return _draw_heat_map(build_masked_array(weights, attention_mask), rows, columns, title, axis_labels)


@apply_style
def attribution_figure(attribution: Tensor, rows: Sequence[str], columns: Sequence[str], title: str = "") -> Figure:
    """How much each target word (rows) depends on each source word (columns), as shares that sum to 1."""
    return _draw_heat_map(build_masked_array(attribution, None), rows, columns, title, ATTRIBUTION_LABELS)


def _draw_heat_map(
    values: np.ma.MaskedArray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    axis_labels: tuple[str, str, str],
) -> Figure:
    """``axis_labels``: of rows, columns and color bar."""
    check_labels(values.shape, rows, columns)
    sizes = MapSizes.from_cells(max(values.shape), side=7.5, min_cell=0.14, max_cell=0.8, max_side=28)
    width, height = len(columns) * sizes.cell, len(rows) * sizes.cell
    figure = Figure((width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    mesh = draw_map(axes, values, ATTENTION, rasterized=values.size > MAX_VECTOR_CELLS)
    label_rows(axes, rows, sizes, axis_labels[0])
    label_columns(axes, columns, sizes, axis_labels[1])
    if sizes.cell >= MIN_NUMBER_CELL:
        for (row, column), value in np.ndenumerate(values.filled(np.nan)):
            if not np.isnan(value):
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    f"{value:.2f}",
                    ha="center",
                    va="center_baseline",
                    fontsize=min(12.0, sizes.cell * 20),
                    color="white" if value > 0.45 else INK if value >= 0.05 else MUTED,
                )
    _add_color_bar(figure, mesh, axis_labels[2], has_masked=bool(np.ma.getmaskarray(values).any()))
    _add_title(figure, title)
    return figure


@apply_style
def heads_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    attention_mask: Tensor | None = None,
    query_label: str = QUERY_LABEL,
) -> Figure:
    """All heads of a layer (heads, queries, keys) as small maps side by side, with shared labels."""
    check_labels(weights.shape, rows, columns)
    sizes = MapSizes.from_cells(max(weights.shape[1:]), side=3.6, min_cell=0.085, max_cell=0.45, max_side=7)
    width, height = max(len(columns) * sizes.cell, 0.8), len(rows) * sizes.cell
    map_columns = _count_columns(len(weights), width, height)
    map_rows = len(weights) // map_columns
    gap, title_height = 0.25, 0.4  # between maps; above each, for its name
    figure_size = (map_columns * (width + gap) - gap, map_rows * (height + title_height))
    figure = Figure(figure_size)
    rasterized = weights.numel() > MAX_VECTOR_CELLS
    for number, head in enumerate(weights):
        row, column = divmod(number, map_columns)
        left, bottom = column * (width + gap), (map_rows - 1 - row) * (height + title_height)
        axes = figure.add_axes(
            (left / figure_size[0], bottom / figure_size[1], width / figure_size[0], height / figure_size[1])
        )
        mesh = draw_map(axes, build_masked_array(head, attention_mask), ATTENTION, rasterized=rasterized)
        axes.set_title(f"head {number + 1}", fontsize=11, weight="bold", pad=5)
        is_last_row = row == map_rows - 1
        row_axis_label = query_label if height > MIN_AXIS_LABEL_SIZE or is_last_row else ""
        column_axis_label = KEY_LABEL if width > MIN_AXIS_LABEL_SIZE or column == 0 else ""
        label_rows(axes, rows if column == 0 else (), sizes, row_axis_label)
        label_columns(axes, columns if is_last_row else (), sizes, column_axis_label)
    has_masked = attention_mask is not None and not bool(attention_mask.all())
    _add_color_bar(figure, mesh, ATTENTION_BAR_LABEL, has_masked=has_masked, top_offset=title_height)
    _add_title(figure, title)
    return figure


@apply_style
def lines_figure(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    row: int | None = None,
    query_label: str = QUERY_LABEL,
) -> Figure:
    """Queries on the left, keys on the right; darker and wider lines are larger weights.

    ``row`` highlights the lines of one word and prints its weights.
    """
    check_labels(weights.shape, rows, columns)
    sizes = MapSizes.from_cells(max(weights.shape), side=6.5, min_cell=0.16, max_cell=0.4, max_side=60)
    figure = Figure((3.2, max(weights.shape) * sizes.cell))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(max(weights.shape), 0)
    values = weights.double().numpy()
    axes.add_collection(_build_lines(values, row))
    plain, muted, bold = {"color": INK}, {"color": MUTED}, {"color": INK, "weight": "bold"}
    for position in range(0, len(rows), sizes.label_step):
        style = plain if row is None else {"color": QUERY, "weight": "bold"} if position == row else muted
        _annotate_word(axes, 0, position, rows[position], sizes, -7, style)
    for position in range(0, len(columns), sizes.label_step):
        style, offset = plain, 7.0
        if row is not None:
            weight = values[row, position]
            style, offset = bold if weight >= 0.1 else muted, 7 + 3.1 * sizes.font_size
            _annotate_word(axes, 1, position, f"{weight:.2f}", sizes, 7, style)
        _annotate_word(axes, 1, position, columns[position], sizes, offset, style)
    _annotate_word(axes, 0, -1, query_label, sizes, -7, {"color": QUERY})
    _annotate_word(axes, 1, -1, KEY_LABEL, sizes, 7, {"color": KEY})
    _add_title(figure, title, offset=sizes.cell + 0.15, x=0.5)
    return figure


def _annotate_word(
    axes: Axes, x: int, position: int, text: str, sizes: MapSizes, offset: float, style: dict[str, str]
) -> None:
    """A word ``offset`` points left or right of the end of its lines."""
    axes.annotate(
        make_drawable(text),
        (x, position + 0.5),
        xytext=(offset, 0),
        textcoords="offset points",
        ha="right" if offset < 0 else "left",
        va="center",
        fontsize=sizes.font_size,
        annotation_clip=False,
        **style,  # type: ignore[arg-type]
    )


def _build_lines(values: np.ndarray, row: int | None) -> LineCollection:
    """A line for every visible weight, the largest on top."""
    ends, colors, widths = [], [], []
    gamma = 0.8 if row is None else 0.5  # few lines may be darker than many
    for query, key in sorted(np.ndindex(values.shape), key=lambda cell: (row in (None, cell[0]), values[cell])):
        weight = float(values[query, key])
        if weight < MIN_LINE_WEIGHT:
            continue
        is_selected = row in (None, query)
        ends.append([(0, query + 0.5), (1, key + 0.5)])
        colors.append(to_rgba(QUERY, weight**gamma) if is_selected else to_rgba(MUTED, 0.3 * weight))
        widths.append(0.6 if not is_selected else 0.6 + 4.4 * weight if row is None else 1 + 7 * weight)
    return LineCollection(ends, colors=colors, linewidths=widths, capstyle="round")


def _add_color_bar(figure: Figure, mesh: QuadMesh, label: str, *, has_masked: bool, top_offset: float = 0.0) -> None:
    """The color bar right of the maps, and a legend for the hatching."""
    width, height = figure.get_size_inches()
    legend_height = 0.4 if has_masked else 0.0
    length = min(max(height - top_offset - legend_height, 1.2), 5.0)
    bottom = height - top_offset - legend_height - length
    left = 1 + 0.25 / width
    bar_axes = figure.add_axes((left, bottom / height, 0.16 / width, length / height), label="scale")
    bar = figure.colorbar(mesh, cax=bar_axes, ticks=[0, 0.25, 0.5, 0.75, 1], label=label)
    bar.outline.set_visible(False)
    bar_axes.tick_params(length=0)
    if has_masked:
        figure.legend(
            handles=[Patch(**MASKED_PATCH)],
            loc="upper left",
            bbox_to_anchor=(left, 1 - top_offset / height),
            borderaxespad=0,
            borderpad=0,
            handlelength=1.3,
            handleheight=1.1,
        )


def _count_columns(heads: int, width: float, height: float) -> int:
    """The number of columns that fills all rows with a shape nearest to 16 to 9."""

    def distance(columns: int) -> float:
        return abs(math.log(columns * (width + 0.3) / (heads / columns * (height + 0.4)) * 9 / 16))

    return min((divisor for divisor in range(1, heads + 1) if heads % divisor == 0), key=distance)


def _add_title(figure: Figure, title: str, *, offset: float = 0.12, x: float = 0.0) -> None:
    """The title, ``offset`` inches above the figure: left, or centered if ``x`` is given."""
    if title:
        y = 1 + offset / figure.get_size_inches()[1]
        figure.text(x, y, make_drawable(title), fontsize=14, ha="center" if x else "left", va="bottom")
