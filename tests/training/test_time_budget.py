"""Training with a time limit: end, validations, forecast."""

import json
import math
from pathlib import Path

import pytest

from heedful.training.checkpoint import Clock, list_checkpoints, read_state
from heedful.training.config import TrainingConfig
from heedful.training.lr_schedule import TIMED_VALIDATIONS, TrainingBudget, compute_learning_rate, forecast
from tests.conftest import QUICK_SETTINGS, run_heedful


class FakeTime:
    """A fake clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("heedful.training.lr_schedule.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime(monkeypatch)


def test_budget_without_time_limit_counts_updates(clock: FakeTime) -> None:
    budget = TrainingBudget(200, TrainingConfig(), Clock(), clock.now)
    clock.now += 1e6  # time does not matter
    assert [budget.progress(update) for update in (0, 50, 200)] == [0, 0.25, 1]
    validated = [n for n in range(1, 201) if budget.should_validate(n, (n - 1) / 200, n / 200, 30)]
    assert validated == [*range(30, 200, 30), 200]


def test_budget_with_time_limit_reserves_validation_time(clock: FakeTime) -> None:
    """At first 1% of ten minutes is reserved, then a multiple of the validation time."""
    budget = TrainingBudget(10**6, TrainingConfig(max_minutes=10), Clock(), clock.now - 27)
    assert budget.prepared_fraction == 27 / 600
    budget.start_training()
    assert budget.clock.preparation_seconds == 27
    assert budget.progress(0) == 0
    clock.now += 270
    assert budget.progress(500) == pytest.approx(270 / (600 - 6 - 27))
    budget.record_validation(10.0)
    assert budget.progress(500) == pytest.approx(270 / (600 - 40 - 27))
    budget.record_validation(0.1)
    assert budget.progress(500) == pytest.approx(270 / (600 - 6 - 27))  # at least 1%
    budget.record_validation(1000.0)
    assert budget.progress(500) == 1  # more than the remaining time
    assert budget.should_validate(501, 0.99, 1.0, 10**6)


def test_budget_updates_may_end_before_the_time(clock: FakeTime) -> None:
    budget = TrainingBudget(100, TrainingConfig(max_minutes=10), Clock(), clock.now)
    assert budget.progress(100) == 1


def test_budget_counts_earlier_sessions(clock: FakeTime) -> None:
    state = Clock(total_seconds=400.0, preparation_seconds=100.0, reserved_seconds=20.0)
    budget = TrainingBudget(10**6, TrainingConfig(max_minutes=10), state, clock.now)
    assert budget.progress(50) == pytest.approx(300 / (600 - 20 - 100))


def list_validations(
    budget: TrainingBudget, clock: FakeTime, *, validation_seconds: float, update_seconds: float
) -> list[float]:
    """Times of validations in seconds."""
    times, update, progress = [], 0, 0.0
    while progress < 1:
        clock.now, update = clock.now + update_seconds, update + 1
        before, progress = progress, budget.progress(update)
        if budget.should_validate(update, before, progress, 10**6):
            times.append(budget.total_seconds)
            clock.now += validation_seconds
            budget.record_validation(validation_seconds)
    return times


def test_budget_validations_are_evenly_spaced(clock: FakeTime) -> None:
    budget = TrainingBudget(10**6, TrainingConfig(max_minutes=10), Clock(), clock.now)
    times = list_validations(budget, clock, validation_seconds=0.0, update_seconds=1.7)
    assert times == pytest.approx([59.4 * number for number in range(1, 11)], abs=1.8)
    assert len(times) == TIMED_VALIDATIONS
    with_interval = TrainingBudget(10**6, TrainingConfig(max_minutes=10, validate_every=7), Clock(), clock.now)
    assert [n for n in range(1, 30) if with_interval.should_validate(n, 0.0, 0.5, 10**6)] == [7, 14, 21, 28]
    assert with_interval.should_validate(8, 0.9, 1.0, 10**6)  # the end


def test_budget_slow_validations_are_fewer(clock: FakeTime) -> None:
    """Each takes a minute of ten: after the first the next is eight minutes away, or the end."""
    budget = TrainingBudget(10**6, TrainingConfig(max_minutes=10), Clock(), clock.now)
    times = list_validations(budget, clock, validation_seconds=60.0, update_seconds=1.0)
    assert times == [60.0, 360.0]  # four minutes of ten are reserved


def test_learning_rate_warmup_is_short_with_time_limit() -> None:
    config = TrainingConfig(max_minutes=1, learning_rate=1.0, warmup_updates=400, lr_schedule="linear")
    rates = [
        compute_learning_rate(step, progress, config, 64, 10**9) for step, progress in ((1, 0), (100, 0), (3, 0.05))
    ]
    assert rates == [1 / 400, 1 / 4, 0.5]
    assert compute_learning_rate(20, 0.2, config, 64, 10**9) == pytest.approx(0.8)
    assert compute_learning_rate(20, 1.0, config, 64, 10**9) == 0


def test_forecast_extrapolates_the_logarithm() -> None:
    line = [(progress, 30 + 9 * math.log(progress)) for progress in (0.2, 0.3, 0.5, 0.6, 0.8)]

    def forecast_high(history: list[tuple[float, float]]) -> float:
        expected = forecast(history)
        assert expected is not None
        low, high = (end / factor for end, factor in zip(expected, (0.9, 1.1), strict=True))
        last = history[-1][1]
        assert low == pytest.approx(last + 0.25 * (high - last))  # if the curve levels off
        return high

    assert forecast_high(line) == pytest.approx(30)
    assert forecast_high([(0.01, 70.0), *line]) == pytest.approx(30)  # early points are ignored
    assert forecast_high([(0.1, 70.0), *line]) == pytest.approx(30)
    assert forecast_high([(0.15, 90.0), *line[1:]]) == pytest.approx(30)  # only the last four
    assert forecast_high([(0.2, 20.0), *line[2:]]) != pytest.approx(30)  # now it is among the last four
    assert forecast_high([(0.3, 20.0), (0.4, 20.0), (0.5, 19.0)]) == pytest.approx(
        19
    )  # falling: no improvement is expected
    assert forecast([(0.5, 3.0), (0.5, 4.0), (0.5, 4.0)]) is None
    assert forecast(line[:2]) is None
    assert forecast([]) is None


def test_forecast_stays_within_possible_scores() -> None:
    assert forecast([(0.2, 90.0), (0.4, 96.0), (0.8, 99.0)]) == (pytest.approx(89.7, abs=0.5), 100.0)
    nothing = forecast([(0.2, 0.0), (0.4, 0.0), (0.8, 0.0)])
    assert nothing == (0.0, pytest.approx(1 - math.log(0.8)))
    early, late = (forecast([(0.15, 5.0), (0.2, 5.0), (progress, 5.0)]) for progress in (0.3, 0.99))
    assert early is not None
    assert late is not None
    assert early[1] - 5 > 2 > late[1] - 5 >= 1  # the earlier, the wider the range


@pytest.mark.long
def test_train_with_time_limit_finishes(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    settings = [setting for setting in QUICK_SETTINGS if "updates" not in setting and "validate" not in setting]
    args = [arg for setting in settings for arg in ("--set", setting)]
    result = run_heedful("train", grammar_pairs, "-o", folder, "--languages", "en-fr", "--time", "30s", *args)
    assert result.status == 0, result.err
    metrics = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in metrics if "learning_rate" in line]
    assert rates[-1] < 0.2 * max(rates)  # it decays to zero at the end of the time
    state = read_state(list_checkpoints(folder / "training" / "checkpoints")[-1])
    assert state.validations[-1].progress == 1
    assert 2 <= len(state.validations) <= TIMED_VALIDATIONS
    assert state.clock.total_seconds > 4
    assert "expected final BLEU" in result.err
    assert "parameters on cpu, 1 thread\n" in result.err
    assert run_heedful("translate", folder, "The dog was tired.").status == 0


def test_train_without_time_left_leaves_nothing(grammar_pairs: Path, tmp_path: Path) -> None:
    """The same command with more time then works."""
    args = ["train", grammar_pairs, "-o", tmp_path / "model", "--preset", "demo"]
    args += ["--set", "training.validation_size=20"]
    result = run_heedful(*args, "--time", "0.01s")
    assert result.status == 1
    assert "preparation took" in result.err
    assert "--time 30m" in result.err
    assert not (tmp_path / "model").exists()  # --resume would always fail
    second_result = run_heedful(*args, "--set", "training.max_updates=2", "--set", "training.bleu_sentences=0")
    assert second_result.status == 0, second_result.err


@pytest.mark.parametrize("time", ["soon", "-5m", "0", "5 m 3", "m", "1d", ""])
def test_train_with_invalid_time_is_an_error(grammar_pairs: Path, tmp_path: Path, time: str) -> None:
    result = run_heedful("train", grammar_pairs, "-o", tmp_path / "model", f"--time={time}")
    assert result.status != 0
    assert "is not a valid duration" in result.err
    assert "30m, 2h, 1h30m or 90s" in result.err
    assert not (tmp_path / "model").exists()
