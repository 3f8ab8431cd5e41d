"""Figures of the lecture that need no trained model: positions, masks, learning rate, scaling."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heedful.errors import HeedfulError
from heedful.interpret.figures.attention_maps import MapSizes, build_masked_array, draw_map, label_columns, label_rows
from heedful.interpret.figures.style import LINE_COLORS, MASKED_PATCH, MUTED, SIGNED, apply_style
from heedful.models.attention import causal_mask
from heedful.models.embeddings import exact_sinusoids
from heedful.training.lr_schedule import noam

SCHEDULE_CURVES = ((512, 4000), (512, 8000), (256, 4000))
"""d_model and warm-up of the default schedules; the first is the paper's."""

ALLOWED_COLOR, SCALED_COLOR, UNSCALED_COLOR = "#9ecae1", "#2171b5", "#5f6570"
RANDOM_KEYS = 8
"""Keys per random query in the saturation figure."""


@apply_style
def positions_figure(length: int = 50, d_model: int = 64) -> Figure:
    """Section 3.5: the sinusoids and their dot products, which depend on the distance only."""
    if length < 2 or d_model < 2 or d_model % 2:
        raise HeedfulError(
            f"cannot draw {length} positions with d_model {d_model}", hint="2 positions or more, an even d_model"
        )
    encodings = exact_sinusoids(length, d_model)
    products = (encodings @ encodings.T).numpy()
    figure = Figure((15, 4.4), layout="constrained")
    matrix, square, curve = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    _draw_signed_map(figure, matrix, encodings.numpy(), 1.0, "PE(p, i)")
    matrix.set(title="Every position has its own pattern", xlabel="channel i", ylabel="position p")
    _draw_signed_map(figure, square, products, d_model / 2, "PE(p) · PE(q)")
    square.set(title="Nearby positions are similar", xlabel="position q", ylabel="position p")
    rows, columns = np.indices(products.shape)
    curve.axhline(0, color=MUTED, linewidth=0.8)
    curve.plot((columns - rows).ravel(), products.ravel(), "o", color=LINE_COLORS[0], markersize=3, alpha=0.35, mew=0)
    curve.set(title="Only the distance matters", xlabel="distance q − p", ylabel="PE(p) · PE(q), all pairs")
    curve.grid(True)
    return figure


def _draw_signed_map(figure: Figure, axes: Axes, values: np.ndarray, limit: float, label: str) -> None:
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


@apply_style
def mask_figure(labels: Sequence[str] | int = 5, padding: int = 2) -> Figure:
    """Section 3.2.3: the masks of a decoder; ``padding`` tokens follow the labels (or positions)."""
    words = [str(n + 1) for n in range(labels)] if isinstance(labels, int) else list(labels)
    if not words or padding < 0:
        raise HeedfulError("nothing to mask", hint="give one word or more, and no negative padding")
    names = [*words, *["<pad>"] * padding]
    mask = causal_mask(len(names))
    padding_mask = (torch.arange(len(names)) < len(words)).expand_as(mask)
    panels = {"Causal mask": mask, "Padding mask": padding_mask, "Both together": mask & padding_mask}
    sizes = MapSizes.from_cells(len(names), side=3.4, min_cell=0.085, max_cell=0.5, max_side=8)
    side, gap = max(sizes.cell * len(names), 1.4), 0.4
    figure_width = 3 * side + 2 * gap
    figure = Figure((figure_width, side))
    for number, (title, attention_mask) in enumerate(panels.items()):
        axes = figure.add_axes((number * (side + gap) / figure_width, 0, side / figure_width, 1))
        draw_map(
            axes, build_masked_array(torch.ones(attention_mask.shape), attention_mask), ListedColormap([ALLOWED_COLOR])
        )
        label_rows(axes, names if number == 0 else (), sizes)
        label_columns(axes, names, sizes)
        axes.set_title(title)
    figure.legend(
        handles=[
            Patch(facecolor=ALLOWED_COLOR, label="may attend"),
            Patch(**{**MASKED_PATCH, "label": "masked: −∞ before the softmax, weight 0 after it"}),
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


@apply_style
def schedule_figure(curves: Sequence[tuple[int, int]] = SCHEDULE_CURVES, updates: int = 20_000) -> Figure:
    """Section 5.3: the learning rate of each update, a curve for each (d_model, warm-up)."""
    if not curves or updates < 1 or any(d_model < 1 or warmup < 1 for d_model, warmup in curves):
        raise HeedfulError("nothing to draw", hint="d_model, warm-up and updates must be at least 1")
    figure = Figure((8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    steps = np.unique(np.linspace(1, updates, 1000).astype(int))
    for number, (d_model, warmup) in enumerate(curves):
        learning_rates = [noam(int(step), d_model=d_model, warmup=warmup) for step in steps]
        color = LINE_COLORS[number % len(LINE_COLORS)]
        dashes = ("-", "--", ":", "-.")[number % 4]
        axes.plot(steps, learning_rates, dashes, color=color, label=f"d_model {d_model:,}, warm-up {warmup:,}")
        if warmup <= updates:
            axes.plot(warmup, noam(warmup, d_model=d_model, warmup=warmup), "o", color=color, markersize=6)
    axes.set(xlabel="update", ylabel="learning rate", xlim=(0, updates))
    axes.set_title("Linear warm-up, then decay as 1 / √update", fontsize=14)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True)
    axes.legend(loc="upper right")
    return figure


@apply_style
def softmax_figure(scores: Sequence[float] = (112, 96), divisor: float = 8) -> Figure:
    """Section 3.2.1: softmax with and without the division by √dₖ, and its saturation for large dₖ."""
    if len(scores) < 2 or divisor <= 0:
        raise HeedfulError("nothing to compare", hint="give two scores or more, and a divisor above 0")
    figure = Figure((max(12.0, 5.5 + 1.1 * len(scores) + 5), 4.6), layout="constrained")
    bar_axes, saturation_axes = figure.subplots(1, 2, width_ratios=[max(1.0, 0.17 * len(scores)), 1])
    positions = np.arange(len(scores))
    score_tensor = torch.tensor(scores, dtype=torch.float64)
    for shift, values, color, label in (
        (-0.2, score_tensor, UNSCALED_COLOR, "softmax(scores)"),
        (0.2, score_tensor / divisor, SCALED_COLOR, f"softmax(scores / {divisor:g})"),
    ):
        bars = bar_axes.bar(positions + shift, values.softmax(0).numpy(), 0.36, color=color, label=label)
        bar_axes.bar_label(bars, list(map(_format_weight, values.softmax(0).tolist())), padding=2, fontsize=10)
    bar_axes.set_xticks(positions, [f"{score:g}\n{score:g} / {divisor:g} = {score / divisor:.4g}" for score in scores])
    bar_axes.tick_params(axis="x", length=0)
    bar_axes.set(title="Dividing makes the softmax smoother", ylabel="attention weight", ylim=(0, 1.25))
    bar_axes.set_xlabel(f"score q · k, and divided by {divisor:g}")
    bar_axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    bar_axes.grid(True, axis="y")
    bar_axes.legend(loc="upper right", ncols=2)
    channels = [2**power for power in range(1, 11)]
    unscaled, scaled = measure_saturation(channels)
    saturation_axes.plot(channels, unscaled, "s--", color=UNSCALED_COLOR, label="softmax(q · k)")
    saturation_axes.plot(channels, scaled, "o-", color=SCALED_COLOR, label="softmax(q · k / √dₖ)")
    saturation_axes.axhline(1 / RANDOM_KEYS, color=MUTED, linewidth=1, linestyle=":")
    saturation_axes.text(
        channels[0], 1 / RANDOM_KEYS - 0.02, f"equal weights: 1/{RANDOM_KEYS}", color=MUTED, va="top", fontsize=9
    )
    saturation_axes.set_xscale("log", base=2)
    saturation_axes.set_xticks(channels, [str(channel_count) for channel_count in channels])
    saturation_axes.minorticks_off()
    saturation_axes.set(
        title=f"Random q and {RANDOM_KEYS} random keys", xlabel="channels dₖ", ylabel="mean largest weight"
    )
    saturation_axes.set_ylim(0, 1.05)
    saturation_axes.grid(True)
    saturation_axes.legend(loc="center right")
    return figure


def _format_weight(weight: float) -> str:
    """Three digits, or more near 0 and 1.

    >>> [_format_weight(weight) for weight in (0.25, 0.99999989, 1.1254e-7, 1.0)]
    ['0.250', '0.9999999', '1.13e-07', '1.000']
    """
    if 0.0005 <= weight < 0.9995 or weight in (0, 1):
        return f"{weight:.3f}"
    return f"{weight:.3g}" if weight < 0.5 else f"{weight:.7f}"


def measure_saturation(channels: Sequence[int], queries: int = 2000, seed: int = 0) -> tuple[list[float], list[float]]:
    """Mean largest weight of random q on random k for each d_k, without and with division by sqrt(d_k)."""
    unscaled, scaled = [], []
    for d_k in channels:
        generator = torch.Generator().manual_seed(seed + d_k)
        query = torch.randn(queries, 1, d_k, generator=generator)
        key = torch.randn(queries, RANDOM_KEYS, d_k, generator=generator)
        scores = (query * key).sum(-1)  # (queries, keys): variance d_k
        unscaled.append(scores.softmax(-1).amax(-1).mean().item())
        scaled.append((scores / math.sqrt(d_k)).softmax(-1).amax(-1).mean().item())
    return unscaled, scaled
