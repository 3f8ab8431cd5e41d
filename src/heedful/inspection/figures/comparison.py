"""The curves of several trainings side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from heedful.inspection.figures.style import LINES, styled
from heedful.inspection.metrics import Metrics

COLOURS = (*LINES, "#88CCEE", "#DDCC77", "#999933", "#AA4499")
"""The rest of Tol's muted colours too: there may be many recipes."""
STYLES, MARKS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
"""For those after: a curve of a single point has no style."""
CURVES, AROUND_BARS, BAR = 4.8, 0.6, 0.26
"""Heights in inches."""

Bars = Mapping[str, Mapping[str, float]]
"""Title of a measure to its value for each training."""


@styled
def comparison_figure(runs: Mapping[str, Metrics], bars: Bars) -> Figure:
    """A curve for each training, by tokens and by minutes; under them their measures as bars."""
    below = AROUND_BARS + BAR * len(runs)
    figure = Figure((13, CURVES + below), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[CURVES, below])[:, 0]
    _draw_curves(upper, runs)
    _draw_bars(lower, list(runs), bars)
    return figure


def _draw_curves(figure: SubFigure, runs: Mapping[str, Metrics]) -> None:
    examined = {name: _examinations(metrics) for name, metrics in runs.items()}
    # Without examinations by translating there is no such curve.
    scored = any("BLEU" in point for points in examined.values() for point in points)
    by_tokens, by_time, *scores = figure.subplots(1, 3 if scored else 2)
    for number, (name, points) in enumerate(examined.items()):
        turn = number // len(COLOURS) % len(STYLES)
        look = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[turn], "marker": MARKS[turn]}
        _draw(by_tokens, points, "tokens", "validation_loss", name, look)
        _draw(by_time, points, "minutes", "validation_loss", name, look)
        for axes in scores:
            _draw(axes, points, "tokens", "BLEU", name, look)
    by_tokens.set(title="Validation loss by tokens", xlabel="target tokens", ylabel="nats a token")
    by_time.set(title="Validation loss by time", xlabel="minutes")
    by_time.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    for axes in scores:
        axes.set(title="BLEU by tokens (validation, greedy)", xlabel="target tokens")
    for axes in (by_tokens, *scores):
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1e6:g} M" if value >= 1e5 else f"{value:,.0f}"
        )
    handles, labels = by_tokens.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)


def _draw_bars(figure: SubFigure, names: Sequence[str], bars: Bars) -> None:
    every = figure.subplots(1, len(bars), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(every, bars.items(), strict=True):
        drawn = axes.barh(names, [values[name] for name in names], color=LINES[0], height=0.7)
        axes.bar_label(drawn, fmt=_short, padding=3)
        axes.set(title=title, xticks=[])
        axes.margins(x=0.25, y=0.02)
        axes.grid(False)
    every[0].invert_yaxis()  # the first recipe on top, as in the table


def _short(value: float) -> str:
    """
    >>> [_short(value) for value in (1566208, 3421.7, 28.44, 0.5)]
    ['1.57 M', '3,422', '28.4', '0.5']
    """
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
        axes.plot(*zip(*known, strict=True), label=name, linewidth=2, markersize=4, **look)
