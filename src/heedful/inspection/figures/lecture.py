"""The parts of the lecture that no trained model is needed for: positions, masks, schedule, scaling."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.figures.maps import Sizes, draw_map, masked_values, name_columns, name_rows
from heedful.inspection.figures.style import LINES, MASKED, SIGNED, SOFT, styled
from heedful.model.attention import look_ahead_mask
from heedful.model.positions import exact_sinusoids
from heedful.training.schedule import noam

CURVES = ((512, 4000), (512, 8000), (256, 4000))
"""Width and warm-up of the schedules drawn by default; the first is the paper's."""
ALLOWED, DIVIDED, UNDIVIDED = "#9ecae1", "#2171b5", "#5f6570"
KEYS = 8
"""Keys that a random query looks at in the picture of saturation."""


@styled
def positions_figure(length: int = 50, width: int = 64) -> Figure:
    """Section 3.5: the sinusoids, their dot products, and that these depend on the distance only."""
    if length < 2 or width < 2 or width % 2:
        raise HeedfulError(
            f"cannot draw {length} positions of width {width}", hint="2 positions or more, an even width"
        )
    table = exact_sinusoids(length, width)
    products = (table @ table.T).numpy()
    figure = Figure((15, 4.4), layout="constrained")
    matrix, square, curve = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    _signed_map(figure, matrix, table.numpy(), 1.0, "PE(p, i)")
    matrix.set(title="Every position has its own pattern", xlabel="channel i", ylabel="position p")
    _signed_map(figure, square, products, width / 2, "PE(p) · PE(q)")
    square.set(title="Near positions are alike", xlabel="position q", ylabel="position p")
    rows, columns = np.indices(products.shape)
    curve.axhline(0, color=SOFT, linewidth=0.8)
    curve.plot(
        (columns - rows).ravel(), products.ravel(), "o", color=LINES[0], markersize=3, alpha=0.35, mew=0
    )
    curve.set(title="Only the distance counts", xlabel="distance q − p", ylabel="PE(p) · PE(q), all pairs")
    curve.grid(True)
    return figure


def _signed_map(figure: Figure, axes: Axes, values: np.ndarray, limit: float, label: str) -> None:
    mesh = axes.pcolormesh(
        np.arange(values.shape[1]),
        np.arange(values.shape[0]),
        values,
        cmap=SIGNED,
        vmin=-limit,
        vmax=limit,
        rasterized=values.size > 10_000,
        edgecolors="face",
    )
    mesh.set_linewidth(0.1)
    axes.invert_yaxis()
    bar = figure.colorbar(mesh, ax=axes, label=label, fraction=0.05, pad=0.03)
    bar.outline.set_visible(False)


@styled
def mask_figure(labels: Sequence[str] | int = 5, padding: int = 2) -> Figure:
    """Section 3.2.3: what a decoder may look at; ``padding`` fillers follow the labels (or positions)."""
    words = [str(n + 1) for n in range(labels)] if isinstance(labels, int) else list(labels)
    if not words or padding < 0:
        raise HeedfulError("nothing to mask", hint="give one word or more, and no negative padding")
    names = [*words, *["<pad>"] * padding]
    ahead = look_ahead_mask(len(names))
    real = (torch.arange(len(names)) < len(words)).expand_as(ahead)
    panels = {"Look-ahead mask": ahead, "Padding mask": real, "Both together": ahead & real}
    sizes = Sizes.of(len(names), side=3.4, smallest=0.085, largest=0.5, longest_side=8)
    side, gap = max(sizes.cell * len(names), 1.4), 0.4
    whole = 3 * side + 2 * gap
    figure = Figure((whole, side))
    for number, (title, visible) in enumerate(panels.items()):
        axes = figure.add_axes((number * (side + gap) / whole, 0, side / whole, 1))
        draw_map(axes, masked_values(torch.ones(visible.shape), visible), ListedColormap([ALLOWED]))
        name_rows(axes, names if number == 0 else (), sizes)
        name_columns(axes, names, sizes)
        axes.set_title(title)
    figure.legend(
        handles=[
            Patch(facecolor=ALLOWED, label="may look"),
            Patch(**{**MASKED, "label": "hidden: −∞ before the softmax, weight 0 after it"}),
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1 + 0.45 / side),
        ncols=2,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.3,
        handleheight=1.1,
    )
    return figure


@styled
def schedule_figure(curves: Sequence[tuple[int, int]] = CURVES, updates: int = 20_000) -> Figure:
    """Section 5.3: the learning rate of each update, a curve for each (width, warm-up)."""
    if not curves or updates < 1 or any(width < 1 or warmup < 1 for width, warmup in curves):
        raise HeedfulError("nothing to draw", hint="give widths, warm-ups and updates from 1 on")
    figure = Figure((8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    steps = np.unique(np.linspace(1, updates, 1000).astype(int))
    for number, (width, warmup) in enumerate(curves):
        rates = [noam(int(step), width=width, warmup=warmup) for step in steps]
        color = LINES[number % len(LINES)]
        dashes = ("-", "--", ":", "-.")[number % 4]
        axes.plot(steps, rates, dashes, color=color, label=f"width {width:,}, warm-up {warmup:,}")
        if warmup <= updates:
            axes.plot(warmup, noam(warmup, width=width, warmup=warmup), "o", color=color, markersize=6)
    axes.set(xlabel="update", ylabel="learning rate", xlim=(0, updates))
    axes.set_title("Climb for the warm-up, then fall as 1 / √update", fontsize=14)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True)
    axes.legend(loc="upper right")
    return figure


@styled
def softmax_figure(scores: Sequence[float] = (112, 96), divisor: float = 8) -> Figure:
    """Section 3.2.1: softmax with and without the division by √dₖ, and why large dₖ need it."""
    if len(scores) < 2 or divisor <= 0:
        raise HeedfulError("nothing to compare", hint="give two scores or more, and a divisor above 0")
    figure = Figure((max(12.0, 5.5 + 1.1 * len(scores) + 5), 4.6), layout="constrained")
    bars, saturation = figure.subplots(1, 2, width_ratios=[max(1.0, 0.17 * len(scores)), 1])
    _draw_softmax(bars, torch.tensor(scores, dtype=torch.float64), divisor)
    _draw_saturation(saturation)
    return figure


def _draw_softmax(axes: Axes, scores: Tensor, divisor: float) -> None:
    """Two bars a score, each with its number on top."""
    places = np.arange(len(scores))
    for shift, values, color, label in (
        (-0.2, scores, UNDIVIDED, "softmax(scores)"),
        (0.2, scores / divisor, DIVIDED, f"softmax(scores / {divisor:g})"),
    ):
        bars = axes.bar(places + shift, values.softmax(0).numpy(), 0.36, color=color, label=label)
        axes.bar_label(bars, list(map(_rounded, values.softmax(0).tolist())), padding=2, fontsize=10)
    axes.set_xticks(
        places, [f"{score:g}\n{score:g} / {divisor:g} = {score / divisor:.4g}" for score in scores.tolist()]
    )
    axes.tick_params(axis="x", length=0)
    axes.set(title="Dividing softens the softmax", ylabel="attention weight", ylim=(0, 1.25))
    axes.set_xlabel("score q · k, and divided")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.grid(True, axis="y")
    axes.legend(loc="upper right", ncols=2)


def _rounded(weight: float) -> str:
    """Three digits, or as many as it takes to tell it from 0 and from 1.

    >>> [_rounded(weight) for weight in (0.25, 0.99999989, 1.1254e-7, 1.0)]
    ['0.250', '0.9999999', '1.13e-07', '1.000']
    """
    if 0.0005 <= weight < 0.9995 or weight in (0, 1):
        return f"{weight:.3f}"
    return f"{weight:.3g}" if weight < 0.5 else f"{weight:.7f}"


def _draw_saturation(axes: Axes) -> None:
    """The mean largest weight of random queries on random keys, as channels grow."""
    channels = [2**power for power in range(1, 11)]
    plain, divided = saturation(channels)
    axes.plot(channels, plain, "s--", color=UNDIVIDED, label="softmax(q · k)")
    axes.plot(channels, divided, "o-", color=DIVIDED, label="softmax(q · k / √dₖ)")
    axes.axhline(1 / KEYS, color=SOFT, linewidth=1, linestyle=":")
    axes.text(channels[0], 1 / KEYS - 0.02, f"equal weights: 1/{KEYS}", color=SOFT, va="top", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(channels, [str(each) for each in channels])
    axes.minorticks_off()
    axes.set(title=f"Random q and {KEYS} random keys", xlabel="channels dₖ", ylabel="mean largest weight")
    axes.set_ylim(0, 1.05)
    axes.grid(True)
    axes.legend(loc="center right")


def saturation(
    channels: Sequence[int], queries: int = 2000, seed: int = 0
) -> tuple[list[float], list[float]]:
    """Mean largest weight of random q on ``KEYS`` random k for each d_k: without and with 1/sqrt(d_k)."""
    plain, divided = [], []
    for count in channels:
        random = torch.Generator().manual_seed(seed + count)
        query = torch.randn(queries, 1, count, generator=random)
        key = torch.randn(queries, KEYS, count, generator=random)
        scores = (query * key).sum(-1)  # (queries, keys): variance d_k
        plain.append(scores.softmax(-1).amax(-1).mean().item())
        divided.append((scores / math.sqrt(count)).softmax(-1).amax(-1).mean().item())
    return plain, divided
