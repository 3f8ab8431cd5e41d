"""How a model was trained, or is being trained right now: its curves, and the checkpoints to look at."""

import asyncio
import math
import time
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from heedful.errors import HeedfulError
from heedful.inspection.metrics import Metrics, metrics_path, read_metrics
from heedful.inspection.snapshots import snapshots
from heedful.server.documentation import answer, errors
from heedful.server.state import Server
from heedful.server.trace import NAME_CHARACTERS, model_named
from heedful.server.trace_schemas import TRAINING

MOST_LINES = 1000
"""Of training, and as many of validation: more than a screen has points."""
TRAINING_ERRORS = errors(400, 403, 408, 413, 429, 503)
QUIET_SECONDS = 60
"""Without a new line for so long, nobody is training."""


def training_routes(server: Server) -> APIRouter:
    """The route of the training curves."""
    routes = APIRouter(prefix="/api", tags=["Seeing inside"], responses=TRAINING_ERRORS)

    @routes.get("/training", responses=answer(TRAINING))
    async def training(
        request: Request, model: Annotated[str, Query(max_length=NAME_CHARACTERS)] = ""
    ) -> JSONResponse:
        """The numbers of a model's training as they are now, and the checkpoints that are kept."""
        server.check_key(request)
        folder = model_named(server, model).folder
        return JSONResponse(await asyncio.to_thread(_told, folder))

    return routes


def _told(folder: Path) -> dict[str, Any]:
    try:
        state = metrics_path(folder).stat()
        metrics = _lines(metrics_path(folder), state.st_size, state.st_mtime_ns)
    except (OSError, HeedfulError):  # a model from elsewhere, or one whose training/ was not copied
        metrics = []
    return {
        "metrics": metrics,
        "running": bool(metrics) and _running(folder),
        "checkpoints": list(snapshots(folder)),
    }


@lru_cache(maxsize=8)
def _lines(path: Path, size: int, modified: int) -> Metrics:
    """What is drawn of a file in this state: all viewers ask every two seconds, and it may be long."""
    del size, modified  # they only tell one state from another
    metrics = [_numbers(values) for values in read_metrics(path)]
    return thinned([values for values in metrics if "update" in values])


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """What can be drawn: a training that diverged has written NaN, which JSON does not know."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and abs(value) < math.inf and not isinstance(value, bool)
    }


def thinned(metrics: Metrics) -> Metrics:
    """At most so many lines of training and of validation, evenly chosen, the last always."""
    places: list[int] = []
    for validating in (False, True):
        chosen = [n for n, values in enumerate(metrics) if ("validation_loss" in values) == validating]
        places += chosen[:: -max(1, math.ceil(len(chosen) / MOST_LINES))]
    return [metrics[place] for place in sorted(places)]


def _running(folder: Path) -> bool:
    """Whether lines were added lately, and no model has been written since."""
    try:
        written = metrics_path(folder).stat().st_mtime
        finished = (folder / "weights.safetensors").stat().st_mtime
    except OSError:
        return False
    # Either way: a clock that was put back leaves file times of the future.
    return written > finished and abs(time.time() - written) < QUIET_SECONDS
