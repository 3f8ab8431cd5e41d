"""Pictures for slides and pages: attention, the parts of the lecture, the curves of a training.

Every function returns a matplotlib Figure and touches no global state; ``save_figure`` writes it.
"""

from heedful.inspection.figures.attention import head_figure, heads_figure, lines_figure, shares_figure
from heedful.inspection.figures.fonts import describe_undrawable
from heedful.inspection.figures.lecture import (
    mask_figure,
    positions_figure,
    schedule_figure,
    softmax_figure,
)
from heedful.inspection.figures.style import save_figure
from heedful.inspection.figures.training import training_figure

__all__ = [
    "describe_undrawable",
    "head_figure",
    "heads_figure",
    "lines_figure",
    "mask_figure",
    "positions_figure",
    "save_figure",
    "schedule_figure",
    "shares_figure",
    "softmax_figure",
    "training_figure",
]
