"""A wall clock that jumps by hours, forwards and backwards, during a run has no effect."""

import os
import shutil
import time
from pathlib import Path

import pytest

from heedful.server.routes.trace import _is_training
from heedful.training.checkpoint import list_checkpoints, read_state
from heedful.training.metrics_log import metrics_path
from tests.conftest import quick_train_args
from tests.faults.training_process import Command, check_finished, weights
from tests.stop_points import StopPoint

LIBRARIES = ("/usr/lib/*/faketime/libfaketime*.so.1", "/usr/local/lib/faketime/libfaketime*.so.1")
JUMPS = ("+5h", "-30h", "+400d", "-2h")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A file with the offset of the clock; needs libfaketime (Debian: faketime)."""
    if not shutil.which("faketime"):
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail("faketime is not installed")
        pytest.skip("faketime is not installed (Debian: apt install faketime)")
    path = tmp_path / "clock"
    path.write_text("+0\n")
    return path


def fake_clock_environment(clock: Path) -> dict[str, str]:
    """The environment of a process whose wall clock has the offset in the file, also when the file changes."""
    library = next(path for pattern in LIBRARIES for path in sorted(Path("/").glob(pattern[1:])))
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def set_clock(clock: Path, jump: str) -> None:
    """Change the offset atomically: processes read it whenever they read the clock."""
    new = clock.with_suffix(".new")
    new.write_text(f"{jump}\n")
    new.replace(clock)


def test_fake_clock_jump_changes_wall_clock_only(clock: Path) -> None:
    """Checks the fixture: otherwise the tests below would prove nothing."""
    program = ("python3", "-c", "import time; print(time.time(), time.monotonic())")
    set_clock(clock, "+5h")
    with Command(environment=fake_clock_environment(clock), program=program) as command:
        wall, monotonic = map(float, command.wait().out.split())
    assert wall > time.time() + 4 * 3600
    assert monotonic < time.monotonic() + 60


def test_training_by_updates_with_jumping_clock_matches(
    clock: Path, grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    args, environment = quick_train_args(grammar_pairs, folder), fake_clock_environment(clock)
    point = StopPoint("heedful.training.distributed:Replica.update", [1, 7, 13, 19])
    with Command(*args, environment=environment, stop_point=point) as command:
        for jump in JUMPS:
            command.wait_until_stopped()
            set_clock(clock, jump)
            command.resume()
        assert command.wait().status == 0
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


@pytest.mark.slow
def test_training_by_time_with_jumping_clock_finishes(clock: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    """--time counts elapsed seconds, whatever the wall clock shows."""
    folder = tmp_path / "model"
    args = [*quick_train_args(grammar_pairs, folder), "--set", "training.max_updates=0", "--time", "30s"]
    args += ["--set", "training.max_epochs=10000000"]  # the time limit ends the run, even on a fast machine
    start_time, environment = time.monotonic(), fake_clock_environment(clock)
    point = StopPoint("heedful.training.distributed:Replica.update")
    with Command(*args, environment=environment, stop_point=point) as command:
        command.wait_until_stopped().resume()
        for jump in JUMPS:
            set_clock(clock, jump)
            time.sleep(0.5)
        assert command.wait().status == 0
    check_finished(folder)
    state = read_state(list_checkpoints(folder / "training" / "checkpoints")[-1])
    assert state.reached_end
    assert 0 < state.clock.total_seconds < time.monotonic() - start_time  # no jump was counted


@pytest.mark.parametrize(("hours", "running"), [(0, True), (5, False), (-5, False)])
def test_is_training_with_metrics_of_other_time_is_false(
    hours: int, running: bool, quick_model: Path, tmp_path: Path
) -> None:
    """Metrics from the future, written before the clock was set back, do not count as a running training."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    now = time.time() + 3600 * hours
    os.utime(folder / "weights.safetensors", (now - 100, now - 100))
    os.utime(metrics_path(folder), (now, now))
    assert _is_training(folder) == running
