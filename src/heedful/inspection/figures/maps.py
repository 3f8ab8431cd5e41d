"""A matrix as a map with words on both sides: how large its cells are, how it is drawn and named.

Rows look at columns; hidden cells are hatched, never white.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.figures.style import INK, KEY, MASKED, QUERY, shown, text_width

LOOKS_FROM, LOOKS_AT = "looks from: query Q", "looks at: key K"
SMALLEST_TYPE = 5.5
CROWDED = 60
"""Cells in a row or column from which there are no lines between them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large cells and labels of a map are, in inches and points."""

    cell: float
    type: float

    @classmethod
    def of(cls, words: int, side: float, smallest: float, largest: float, longest_side: float) -> "Sizes":
        """A map about ``side`` inches wide, unless its cells would be too small or too large for type."""
        cell = min(max(side / words, smallest), largest, longest_side / words)
        return cls(cell, min(13.0, max(SMALLEST_TYPE, cell * 72 * 0.55)))

    @property
    def step(self) -> int:
        """Every how many words one is named: all of them, unless they are hundreds."""
        return math.ceil(self.type * 1.05 / (self.cell * 72))


def masked_values(weights: Tensor, visible: Tensor | None) -> np.ma.MaskedArray:
    """The numbers to draw; what may not be seen is masked out."""
    hidden = np.zeros(weights.shape, bool) if visible is None else ~visible.numpy()
    return np.ma.array(weights.double().numpy(), mask=hidden)


def draw_map(
    axes: Axes, values: np.ma.MaskedArray, colors: Colormap, *, rasterized: bool = False
) -> QuadMesh:
    """Cells from 0 to 1 with thin white lines between them, the first row on top; hidden ones hatched."""
    crowded = max(values.shape) >= CROWDED
    mesh = axes.pcolormesh(
        values,
        cmap=colors,
        vmin=0,
        vmax=1,
        edgecolors="none" if crowded else "white",
        linewidth=0 if crowded else 0.6,
        rasterized=rasterized,
    )
    _hatch(axes, np.ma.getmaskarray(values))
    axes.set_xlim(0, values.shape[1])
    axes.set_ylim(values.shape[0], 0)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.8)
    return mesh


def _hatch(axes: Axes, hidden: np.ndarray) -> None:
    """Cover the hidden cells (rows, columns) of a map with hatching; one shape for all of them."""
    outlines = []
    for row, line in enumerate(hidden):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            corners = [(left, row), (right, row), (right, row + 1), (left, row + 1), (left, row)]
            outlines.append(Outline(corners, closed=True))
    if outlines:
        axes.add_patch(PathPatch(Outline.make_compound_path(*outlines), **MASKED))


def name_rows(axes: Axes, rows: Sequence[str], sizes: Sizes, said: str = LOOKS_FROM) -> None:
    """Words left of the rows, all of them or every so many, and what rows are."""
    places = range(0, len(rows), sizes.step)
    axes.set_yticks(
        [place + 0.5 for place in places], [shown(rows[place]) for place in places], fontsize=sizes.type
    )
    axes.tick_params(axis="y", length=0, pad=5)
    if rows and said:
        axes.set_ylabel(said, color=QUERY if said.startswith(LOOKS_FROM) else INK, labelpad=8)


def name_columns(axes: Axes, columns: Sequence[str], sizes: Sizes, said: str = LOOKS_AT) -> None:
    """Words below the columns: level if short, else slanted, or upright in cells too narrow for that."""
    labels = [shown(columns[place]) for place in range(0, len(columns), sizes.step)]
    longest = max((text_width(label, sizes.type) for label in labels), default=0.0)
    room = sizes.cell * sizes.step
    if longest < 0.85 * room:
        turn: dict[str, object] = {"rotation": 0, "ha": "center"}
    elif room * math.sin(math.radians(50)) > sizes.type * 1.2 / 72:
        turn = {"rotation": 50, "ha": "right", "rotation_mode": "anchor", "va": "center"}
    else:
        turn = {"rotation": 90, "ha": "right", "rotation_mode": "anchor", "va": "center"}
    places = [place + 0.5 for place in range(0, len(columns), sizes.step)]
    axes.set_xticks(places, labels, fontsize=sizes.type, **turn)  # type: ignore[arg-type]
    axes.tick_params(axis="x", length=0, pad=5)
    if labels and said:
        axes.set_xlabel(said, color=KEY if said == LOOKS_AT else INK, labelpad=6)


def check_labels(shape: Sequence[int], rows: Sequence[str], columns: Sequence[str]) -> None:
    """A name for every row and every column, or the picture would lie."""
    if tuple(shape[-2:]) != (len(rows), len(columns)) or not rows or not columns:
        raise HeedfulError(
            f"{len(rows)} row labels and {len(columns)} column labels do not fit weights of shape "
            f"{' x '.join(map(str, shape))}",
            hint="rows are queries, columns are keys",
        )
