"""The lecture's examples by name, each computed by the functions of the model and set right where it errs."""

from collections.abc import Callable

from heedful.inspection.lecture_attention import numerical, thinking_machines
from heedful.inspection.lecture_layers import layer, positions, schedule
from heedful.inspection.lecture_mask import mask
from heedful.inspection.lecture_words import glove, text
from heedful.inspection.tables import Explanation

__all__ = [
    "TOPICS",
    "glove",
    "layer",
    "mask",
    "numerical",
    "positions",
    "schedule",
    "text",
    "thinking_machines",
]

TOPICS: dict[str, Callable[[], Explanation]] = {
    "thinking-machines": thinking_machines,
    "numerical": numerical,
    "mask": mask,
    "positions": positions,
    "layer": layer,
    "schedule": schedule,
    "text": text,
}
"""What needs nothing but its name; ``glove`` needs a file of word vectors."""
