"""Progress lines and the progress bar."""

import pytest

from heedful import progress
from heedful.progress import SECONDS, Reporter


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A fake clock that tests can advance."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def test_progress_lines_show_remaining_time(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().task("training", 100, unit="updates") as task:
        now[0] += 20
        task.advance(10, note="loss 3")
        now[0] += 2
        task.advance(1)  # too soon for another line
    assert capsys.readouterr().err == "training: 10 of 100 updates, 3:00 left  loss 3\n"


def test_timed_progress_shows_time_left(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Two of ten minutes have passed before the task starts."""
    with Reporter().task("training", 600, done=120, unit=SECONDS) as task:
        now[0] += 15
        task.advance(15)
        now[0] += 600
        task.advance(600)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "training: 2:15 of 10:00, 7:45 left"
    assert last == "training: 12:15 of 10:00, 0:00 left"


@pytest.mark.parametrize(("unit", "expected"), [(SECONDS, "7:45 left"), ("updates", "135/600 updates")])
def test_progress_bar_on_a_terminal_shows_remaining_work(
    unit: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with progress._bar_task("training", 600, 120, unit) as task:
        task.advance(15, note="loss 3")
    output = capsys.readouterr().err
    assert expected.split()[0] in output
    assert "loss 3" in output
