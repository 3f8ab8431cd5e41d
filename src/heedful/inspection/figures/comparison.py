"""The curves of several trainings side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heedful.inspection.figures.style import LINES, styled
from heedful.inspection.metrics import Metrics

STYLES = ("-", "--", ":", "-.")


@styled
def comparison_figure(runs: Mapping[str, Metrics]) -> Figure:
    """Validation loss by tokens and by minutes, and BLEU by tokens, a curve for each training."""
    figure = Figure((13, 4.6), layout="constrained")
    by_tokens, by_time, scores = figure.subplots(1, 3)
    for number, (name, metrics) in enumerate(runs.items()):
        look = {"color": LINES[number % len(LINES)], "linestyle": STYLES[number // len(LINES) % len(STYLES)]}
        points = _examinations(metrics)
        _draw(by_tokens, points, "tokens", "validation_loss", name, look)
        _draw(by_time, points, "minutes", "validation_loss", name, look)
        _draw(scores, points, "tokens", "BLEU", name, look)
    by_tokens.set(title="Validation loss by tokens", xlabel="target tokens", ylabel="nats a token")
    by_time.set(title="Validation loss by time", xlabel="minutes")
    scores.set(title="BLEU by tokens", xlabel="target tokens")
    for axes in (by_tokens, by_time, scores):
        axes.grid(True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    for axes in (by_tokens, scores):
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1e6:g} M" if value >= 1e5 else f"{value:,.0f}"
        )
    handles, labels = by_tokens.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _examinations(metrics: Metrics) -> list[dict[str, float]]:
    """Each validation with the tokens that had been learned from by then."""
    found, tokens = [], 0
    for each in metrics:
        tokens = each.get("tokens", tokens)
        if "validation_loss" in each:
            found.append({**each, "tokens": tokens, "minutes": each["seconds"] / 60})
    return found


def _draw(
    axes: Axes, points: Sequence[Mapping[str, float]], x: str, y: str, name: str, look: Mapping[str, Any]
) -> None:
    known = [(point[x], point[y]) for point in points if y in point]
    if known:
        axes.plot(*zip(*known, strict=True), label=name, linewidth=2, marker="o", markersize=3, **look)
