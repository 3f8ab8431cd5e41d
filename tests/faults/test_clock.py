"""A clock that jumps by hours, forwards and backwards, in the middle of a run: nobody notices."""

import os
import shutil
import time
from pathlib import Path

import pytest

from heedful.server.routes.trace import _is_training
from heedful.training.metrics_log import metrics_path
from tests.conftest import quick_train_args
from tests.faults.training_process import Command, check_finished, saved, weights

LIBRARIES = ("/usr/lib/*/faketime/libfaketime*.so.1", "/usr/local/lib/faketime/libfaketime*.so.1")
JUMPS = ("+5h", "-30h", "+400d", "-2h")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A file that says by how much the clock is wrong; needs libfaketime (Debian: faketime)."""
    if not shutil.which("faketime"):
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail("faketime is not installed")
        pytest.skip("faketime is not installed (Debian: apt install faketime)")
    path = tmp_path / "clock"
    path.write_text("+0\n")
    return path


def wrong_clock(clock: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is as the file says, now and later."""
    library = next(path for pattern in LIBRARIES for path in sorted(Path("/").glob(pattern[1:])))
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def set_clock(clock: Path, jump: str) -> None:
    """Atomically: a process reads it at every call of the clock."""
    new = clock.with_suffix(".new")
    new.write_text(f"{jump}\n")
    new.replace(clock)


def test_fake_clock_jumps(clock: Path) -> None:
    """Else the tests below would say nothing."""
    program = ("python3", "-c", "import time; print(time.time(), time.monotonic())")
    set_clock(clock, "+5h")
    with Command(environment=wrong_clock(clock), program=program) as command:
        wall, monotonic = map(float, command.ended().out.split())
    assert wall > time.time() + 4 * 3600
    assert monotonic < time.monotonic() + 60


def test_training_by_updates_with_jumping_clock_matches(
    clock: Path, grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    words = quick_train_args(grammar_pairs, folder)
    with Command(*words, environment=wrong_clock(clock)) as command:
        for update, jump in zip((0, 6, 12, 18), JUMPS, strict=True):
            command.until(saved(folder, update))
            set_clock(clock, jump)
        assert command.ended().status == 0
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


@pytest.mark.slow
def test_training_by_time_with_jumping_clock_finishes(clock: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    """--time counts seconds that have passed, whatever the wall clock says."""
    folder = tmp_path / "model"
    words = [*quick_train_args(grammar_pairs, folder), "--set", "training.max_updates=0", "--time", "30s"]
    words += ["--set", "training.max_epochs=100000"]  # else a quick machine is through with them before
    started = time.monotonic()
    with Command(*words, environment=wrong_clock(clock)) as command:
        command.until(saved(folder, 0))
        for jump in JUMPS:
            set_clock(clock, jump)
            time.sleep(0.5)
        assert command.ended().status == 0
    assert 15 < time.monotonic() - started < 60
    check_finished(folder)


@pytest.mark.parametrize(("hours", "running"), [(0, True), (5, False), (-5, False)])
def test_serve_with_jumping_clock_answers(hours: int, running: bool, quick_model: Path, tmp_path: Path) -> None:
    """Lines written before the clock was put back lie in the future: that is no training that runs."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    now = time.time() + 3600 * hours
    os.utime(folder / "weights.safetensors", (now - 100, now - 100))
    os.utime(metrics_path(folder), (now, now))
    assert _is_training(folder) == running
