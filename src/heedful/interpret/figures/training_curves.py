"""Training curves of one run, and of several runs side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heedful.interpret.figures.style import LINE_COLORS, MUTED, apply_style, make_drawable
from heedful.training.metrics_log import Metrics, metrics_path, read_metrics


@apply_style
def training_figure(folder: Path | str) -> Figure:
    """Loss, scores, learning rate and speed of the training run of a model folder."""
    metrics = read_metrics(metrics_path(folder))
    figure = Figure((12, 7), layout="constrained")
    (loss, scores), (learning_rate, speed) = figure.subplots(2, 2, sharex=True)
    validations = [entry for entry in metrics if "validation_loss" in entry]
    marker_size = 5 if len(validations) <= 40 else 0
    color, other_color = LINE_COLORS[:2]
    _draw_metric(loss, metrics, "update", "loss", "training", color=MUTED, linewidth=1.5)
    _draw_metric(
        loss, metrics, "update", "validation_loss", "validation", color=color, marker="o", markersize=marker_size
    )
    if validations:
        best, update = min((entry["validation_loss"], entry["update"]) for entry in validations)
        label = f"best: {best:.3f} after {update:,} updates"
        loss.plot(update, best, "o", color=color, markersize=11, fillstyle="none", label=label, linestyle="none")
    loss.set(title="Loss", ylabel="nats per token")
    _draw_metric(scores, metrics, "update", "BLEU", "BLEU", color=color, marker="o", markersize=marker_size)
    _draw_metric(scores, metrics, "update", "chrF", "chrF", color=other_color, marker="s", markersize=marker_size)
    scores.set(title="Validation scores", ylim=(0, 102))
    _draw_metric(learning_rate, metrics, "update", "learning_rate", "", color=color)
    learning_rate.set(title="Learning rate", xlabel="update")
    learning_rate.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _draw_metric(speed, metrics, "update", "tokens_per_second", "", color=color)
    speed.set(title="Speed", ylabel="tokens per second", xlabel="update")
    speed.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    figure.suptitle(f"Training of {make_drawable(Path(folder).resolve().name)}", x=0.01, ha="left", fontsize=14)
    for axes in (loss, scores, learning_rate, speed):
        axes.grid(True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.tick_params(labelbottom=True)
        if axes.get_ylim()[0] > 0 or not axes.get_lines():
            axes.set_ylim(bottom=0)
        if not axes.get_lines():
            axes.text(0.5, 0.5, "no validation yet", transform=axes.transAxes, ha="center", color=MUTED)
        elif any(not str(line.get_label()).startswith("_") for line in axes.get_lines()):
            axes.legend(loc="lower right" if axes is scores else "best")
    return figure


def _draw_metric(axes: Axes, entries: Sequence[Mapping[str, float]], x: str, y: str, name: str, **style: Any) -> None:
    points = [(entry[x], entry[y]) for entry in entries if y in entry]
    if points:
        axes.plot(*zip(*points, strict=True), label=name, **{"linewidth": 2, **style})


# ---- Several runs side by side.

COMPARISON_COLORS = (*LINE_COLORS, "#88CCEE", "#DDCC77", "#999933", "#AA4499")
"""All of Tol's muted colors: there may be many runs."""

LINE_STYLES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
"""For further runs; markers, because a curve of one point has no line."""

CURVES_HEIGHT, BAR_MARGIN, BAR_HEIGHT = 4.8, 0.6, 0.26
"""Heights in inches."""

MeasureBars = Mapping[str, Mapping[str, float]]
"""Title of a measure to its value for each run."""


@apply_style
def comparison_figure(runs: Mapping[str, Metrics], bars: MeasureBars) -> Figure:
    """A curve for each run, by tokens and by minutes; below them their measures as bars."""
    bars_height = BAR_MARGIN + BAR_HEIGHT * len(runs)
    figure = Figure((13, CURVES_HEIGHT + bars_height), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[CURVES_HEIGHT, bars_height])[:, 0]
    validations: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for name, metrics in runs.items():
        tokens = 0
        for entry in metrics:
            tokens = entry.get("tokens", tokens)
            if "validation_loss" in entry:
                validations[name].append({**entry, "tokens": tokens, "minutes": entry["seconds"] / 60})
    has_bleu = any("BLEU" in point for points in validations.values() for point in points)
    by_tokens, by_time, *scores = upper.subplots(1, 3 if has_bleu else 2)
    for number, (name, points) in enumerate(validations.items()):
        style_index = number // len(COMPARISON_COLORS) % len(LINE_STYLES)
        line_style: dict[str, Any] = {
            "color": COMPARISON_COLORS[number % len(COMPARISON_COLORS)],
            "linestyle": LINE_STYLES[style_index],
            "marker": MARKERS[style_index],
            "markersize": 4,
        }
        _draw_metric(by_tokens, points, "tokens", "validation_loss", name, **line_style)
        _draw_metric(by_time, points, "minutes", "validation_loss", name, **line_style)
        for axes in scores:
            _draw_metric(axes, points, "tokens", "BLEU", name, **line_style)
    by_tokens.set(title="Validation loss by tokens", xlabel="target tokens", ylabel="nats per token")
    by_time.set(title="Validation loss by time", xlabel="minutes")
    by_time.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    for axes in scores:
        axes.set(title="BLEU by tokens (validation, greedy)", xlabel="target tokens")
    for axes in (by_tokens, *scores):
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e5 else f"{value:,.0f}")
    handles, labels = by_tokens.get_legend_handles_labels()
    upper.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    all_axes = lower.subplots(1, len(bars), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(all_axes, bars.items(), strict=True):
        bar_container = axes.barh(list(runs), [values[name] for name in runs], color=LINE_COLORS[0], height=0.7)
        axes.bar_label(bar_container, fmt=_format_measure, padding=3)
        axes.set(title=title, xticks=[])
        axes.margins(x=0.25, y=0.02)
        axes.grid(False)
    all_axes[0].invert_yaxis()  # the first run on top, as in the table
    return figure


def _format_measure(value: float) -> str:
    """
    >>> [_format_measure(value) for value in (1566208, 3421.7, 28.44, 0.5)]
    ['1.57 M', '3,422', '28.4', '0.5']
    """
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
