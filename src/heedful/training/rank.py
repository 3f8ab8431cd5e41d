"""A rank that launcher.py starts on this machine.

python -m heedful.training.rank fit FOLDER COMPUTE START_TIME QUIET
python -m heedful.training.rank measure FOLDER THREADS PRECISION...
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.devices import LAUNCH_FOLDER_VARIABLE, LAUNCHER_VARIABLE, RESULT_FILE, configure_process

if TYPE_CHECKING:
    from heedful.training.distributed import ProcessGroup
    from heedful.training.preparation import PreparedCorpus

POLL_SECONDS = 0.2


def main(args: Sequence[str]) -> int:
    """Run ``fit`` or ``measure``; the status is 0 unless the group should be restarted."""
    threading.Thread(target=_exit_with_launcher, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported
    configure_process()
    import torch

    from heedful.errors import HeedfulError, StoppedError
    from heedful.training.distributed import LostProcessError, join_group
    from heedful.training.preparation import load_prepared

    tasks: dict[str, Callable[..., dict[str, Any]]] = {"fit": _fit, "measure": _measure}
    task, folder = tasks[args[0]], Path(args[1])
    rank, result_path = int(os.environ["RANK"]), Path(os.environ[LAUNCH_FOLDER_VARIABLE]) / RESULT_FILE
    if rank == 0:
        result_path.unlink(missing_ok=True)  # of a group that was lost
    try:
        prepared = load_prepared(folder / "data")
        with join_group(torch.device("cpu"), prepared.config.training.timeout_seconds) as group:
            try:
                result = task(group, prepared, folder, *args[2:])
            except StoppedError as stopped:
                _write_result({"signal": stopped.signal_number, "hint": stopped.hint})
                raise
            except HeedfulError as error:
                if not isinstance(error, LostProcessError):  # else the group is restarted
                    _write_result({"problem": error.problem, "hint": error.hint})
                raise
            _write_result(result)
    except LostProcessError:
        return 0 if rank and result_path.exists() else 1
    except (HeedfulError, StoppedError, SystemExit):  # SystemExit: rank 0 has failed
        return 0
    return 0


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
    with lock_folder(folder / "checkpoints", wait=True), raise_on_signal("nothing is lost"):
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


def _write_result(result: dict[str, Any]) -> None:
    """Rank 0 returns a result to the launcher; it does so before it leaves the group."""
    from heedful.files import write_json

    if os.environ["RANK"] == "0":
        write_json(Path(os.environ[LAUNCH_FOLDER_VARIABLE]) / RESULT_FILE, result)


def _exit_with_launcher() -> None:
    """Exit when the launcher has ended, or only its ``launch``."""
    launcher, folder = int(os.environ[LAUNCHER_VARIABLE]), Path(os.environ[LAUNCH_FOLDER_VARIABLE])
    while folder.is_dir() and (os.name != "posix" or os.getppid() == launcher):
        time.sleep(POLL_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # do not wait for threads of torch.distributed
