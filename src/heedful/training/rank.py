"""A rank that launcher.py starts on this machine.

python -m heedful.training.rank fit FOLDER COMPUTE START_TIME QUIET
python -m heedful.training.rank measure FOLDER THREADS PRECISION...
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.devices import LAUNCH_FOLDER_VARIABLE, RESULT_FILES, configure_process, exit_with_launcher

if TYPE_CHECKING:
    from heedful.errors import HeedfulError
    from heedful.training.distributed import ProcessGroup
    from heedful.training.preparation import PreparedCorpus


def main(args: Sequence[str]) -> int:
    """Run ``fit`` or ``measure``; the status is 0 unless the group should be restarted."""
    exit_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported
    configure_process()
    import torch

    from heedful.errors import HeedfulError, StoppedError
    from heedful.files import write_json
    from heedful.training.distributed import LostProcessError, join_group
    from heedful.training.preparation import load_prepared

    tasks: dict[str, Callable[..., dict[str, Any]]] = {"fit": _fit, "measure": _measure}
    task, folder = tasks[args[0]], Path(args[1])
    result_name = RESULT_FILES.replace("*", os.environ["TORCHELASTIC_RESTART_COUNT"])
    result_path = Path(os.environ[LAUNCH_FOLDER_VARIABLE]) / result_name
    try:
        prepared = load_prepared(folder / "data")
        with join_group(torch.device("cpu"), prepared.config.training.timeout_seconds) as group:
            try:
                result = task(group, prepared, folder, *args[2:])
            except HeedfulError as error:
                if not isinstance(error, LostProcessError):
                    _write_error(error, result_path)  # before this rank leaves the group
                raise
            except StoppedError as stopped:
                write_json(result_path, {"signal": stopped.signal_number, "hint": stopped.hint})
                raise
            if group.rank == 0:
                write_json(result_path, result)
    except LostProcessError:
        return 0 if result_path.exists() else 1  # the other rank has failed with an error, or is really lost
    except HeedfulError as error:
        _write_error(error, result_path)
    except (StoppedError, SystemExit):  # SystemExit: rank 0 has failed
        pass
    return 0


def _write_error(error: "HeedfulError", path: Path) -> None:
    """Return the error to the launcher, unless another rank has."""
    from heedful.files import write_json

    if not path.exists():
        write_json(path, {"problem": error.problem, "hint": error.hint})


def _fit(
    group: "ProcessGroup", prepared: "PreparedCorpus", folder: Path, compute: str, start_time: str, quiet: str
) -> dict[str, Any]:
    from heedful.files import lock_folder
    from heedful.progress import Reporter
    from heedful.training.checkpoint import list_checkpoints
    from heedful.training.run import fit_rank
    from heedful.training.signals import raise_on_signal
    from heedful.training.trainer import ComputeConfig

    report = Reporter(quiet=group.rank > 0 or quiet == "quiet")
    restarts, clock_start = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), float(start_time)
    if restarts and group.rank == 0:
        update, limit = int(list_checkpoints(folder / "checkpoints")[-1].name), os.environ["TORCHELASTIC_MAX_RESTARTS"]
        report.warning(f"lost a training process; restarting all from update {update:,} ({restarts} of {limit})")
        clock_start = time.monotonic()
    config = ComputeConfig.model_validate_json(compute)
    if group.rank:
        fit_rank(group, prepared, folder, config, report, clock_start)
        return {}
    # A killed launcher's ranks exit soon, but not at once.
    with lock_folder(folder / "checkpoints", wait=True), raise_on_signal(""):
        fit_rank(group, prepared, folder, config, report, clock_start)
    return {"finished": True}


def _measure(
    group: "ProcessGroup", prepared: "PreparedCorpus", folder: Path, threads: str, *precisions: str
) -> dict[str, Any]:
    import torch

    from heedful.models.factory import new_model
    from heedful.progress import Reporter
    from heedful.training.autotune import measure_speeds
    from heedful.training.distributed import new_replica
    from heedful.training.step import BatchSchedule, new_optimizer

    torch.set_num_threads(int(threads))
    model = new_model(prepared.model_config)
    batch_schedule = BatchSchedule(prepared, folder, Reporter(quiet=True))
    replica = new_replica(batch_schedule, model, new_optimizer(model, batch_schedule.settings), group)
    return measure_speeds(replica, precisions)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # do not wait for threads of torch.distributed
