"""Several ranks on this machine: torchrun's launcher, run from this process.

It restarts the group if a rank is lost, and sends signals on to the ranks. Ranks exit with it, however it ends.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from heedful.devices import LAUNCH_FOLDER_VARIABLE, LAUNCHER_VARIABLE, RESULT_FILES
from heedful.errors import HeedfulError, StoppedError
from heedful.files import read_json
from heedful.training.distributed import LOOPBACK_ADDRESS, LostProcessError
from heedful.training.signals import install_handler

RANK_PROGRAM = ("-P", "-m", "heedful.training.rank")
"""Arguments of Python; -P: no modules of the current folder."""

MAX_RESTARTS = 3

SHUTDOWN_SECONDS = 120
"""Time for the current update and a checkpoint after a signal."""


def launch(size: int, *args: str | int | Path) -> dict[str, Any]:
    """Run ``python -m heedful.training.rank ARGS`` in ``size`` ranks; returns the result of rank 0."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SignalException("", sigval=signal.Signals(number))

    with tempfile.TemporaryDirectory(prefix="heedful-") as folder, install_handler(stop), _quiet_elastic():
        environment = {
            LAUNCH_FOLDER_VARIABLE: folder,
            LAUNCHER_VARIABLE: str(os.getpid()),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see distributed.py
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        try:
            with _set_environment(environment):
                config = LaunchConfig(
                    min_nodes=1,
                    max_nodes=1,
                    nproc_per_node=size,
                    run_id=uuid4().hex,
                    rdzv_backend="c10d",
                    rdzv_endpoint=f"{LOOPBACK_ADDRESS}:0",
                    rdzv_configs={"is_host": True},
                    local_addr=LOOPBACK_ADDRESS,
                    logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / "logs")),
                    max_restarts=MAX_RESTARTS,
                )
                elastic_launch(config, sys.executable)(*RANK_PROGRAM, *map(str, args))
        except SignalException as stopped:
            raise StoppedError(stopped.sigval, _read_result(Path(folder)).get("hint", "")) from None
        except ChildFailedError as error:
            status = next(iter(error.failures.values())).exitcode
            raise LostProcessError(
                f"training processes failed {MAX_RESTARTS + 1} times, the last time with status {status}",
                hint="resume with --resume; --processes 1 needs less memory",
            ) from None
        result = _read_result(Path(folder))
    if "signal" in result:
        raise StoppedError(result["signal"], result["hint"])
    if "problem" in result:
        raise HeedfulError(result["problem"], hint=result["hint"])
    if not result:
        raise LostProcessError("the training processes ended without a result", hint="resume with --resume")
    return result


def _read_result(folder: Path) -> dict[str, Any]:
    """The result of the last group of ranks; empty if it has none."""
    paths = sorted(folder.glob(RESULT_FILES), key=lambda path: int(path.stem.partition("-")[2]))
    return read_json(paths[-1], "train again") if paths else {}


@contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet_elastic() -> Iterator[None]:
    """Ranks report errors themselves."""
    loggers = [logging.getLogger(name) for name in sys.modules if name.startswith("torch.distributed.")]
    enabled = [logger for logger in loggers if not logger.disabled]
    for logger in enabled:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in enabled:
            logger.disabled = False
