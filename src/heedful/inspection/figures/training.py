"""The curves of a training."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heedful.inspection.figures.style import LINES, SOFT, shown, styled
from heedful.inspection.metrics import Metrics, metrics_path, read_metrics

SCORES = "Validation scores"


@styled
def training_figure(folder: Path | str) -> Figure:
    """Loss, scores, learning rate and speed of the training that made (or is making) a model folder."""
    metrics = read_metrics(metrics_path(folder))
    figure = Figure((12, 7), layout="constrained")
    (loss, scores), (rate, speed) = figure.subplots(2, 2, sharex=True)
    _draw(loss, metrics, "loss", SOFT, "training", linewidth=1.5)
    _draw(loss, metrics, "validation_loss", LINES[0], "validation", marker="o")
    _mark_best(loss, metrics)
    loss.set(title="Loss", ylabel="nats a token")
    _draw(scores, metrics, "BLEU", LINES[0], "BLEU", marker="o")
    _draw(scores, metrics, "chrF", LINES[1], "chrF", marker="s")
    scores.set(title=SCORES, ylim=(0, 102))
    _draw(rate, metrics, "rate", LINES[0], "")
    rate.set(title="Learning rate", xlabel="update")
    _draw(speed, metrics, "tokens_per_second", LINES[0], "")
    speed.set(title="Speed", ylabel="tokens a second", xlabel="update")
    speed.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(f"Training of {shown(Path(folder).resolve().name)}", x=0.01, ha="left", fontsize=14)
    for axes in (loss, scores, rate, speed):
        _finish(axes)
    return figure


def _draw(
    axes: Axes, metrics: Metrics, name: str, color: str, label: str, marker: str = "", linewidth: float = 2
) -> None:
    points = [(each["update"], each[name]) for each in metrics if name in each]
    if points:
        size = 5 if len(points) <= 40 else 0
        axes.plot(
            *zip(*points, strict=True),
            color=color,
            label=label,
            marker=marker,
            markersize=size,
            linewidth=linewidth,
        )


def _mark_best(axes: Axes, metrics: Metrics) -> None:
    losses = [(each["validation_loss"], each["update"]) for each in metrics if "validation_loss" in each]
    if losses:
        best, update = min(losses)
        label = f"best: {best:.3f} after {update:,} updates"
        axes.plot(
            update, best, "o", color=LINES[0], markersize=11, fillstyle="none", label=label, linestyle="none"
        )


def _finish(axes: Axes) -> None:
    axes.grid(True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelbottom=True)
    if axes.get_ylim()[0] > 0 or not axes.get_lines():
        axes.set_ylim(bottom=0)
    if not axes.get_lines():
        axes.text(0.5, 0.5, "no validation yet", transform=axes.transAxes, ha="center", color=SOFT)
    elif any(not str(line.get_label()).startswith("_") for line in axes.get_lines()):
        axes.legend(loc="lower right" if axes.get_title(loc="left") == SCORES else "best")
