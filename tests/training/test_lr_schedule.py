"""Learning-rate schedules, checked by hand."""

from itertools import pairwise

import pytest

from heedful.training.config import TrainingConfig
from heedful.training.lr_schedule import DECAY_SHAPES, compute_learning_rate, noam

WARMUP, TOTAL = 7, 107
SCHEDULES = ("noam", *DECAY_SHAPES)


def learning_rate(step: int, total: int, config: TrainingConfig, d_model: int) -> float:
    return compute_learning_rate(step, (step - 1) / total, config, d_model, total)


def all_rates(**settings: object) -> list[float]:
    """The learning rates of updates 1 to TOTAL; the highest is 1."""
    config = TrainingConfig.from_settings({"learning_rate": 1.0, "warmup_updates": WARMUP, **settings})
    return [learning_rate(step, TOTAL, config, 512) for step in range(1, TOTAL + 1)]


@pytest.mark.parametrize(("step", "expected"), [(1, 1.7469e-7), (4000, 6.98771e-4), (100_000, 1.39754e-4)])
def test_noam_matches_the_paper(step: int, expected: float) -> None:
    assert noam(step, d_model=512, warmup=4000) == pytest.approx(expected, rel=5e-6, abs=5e-12)


def test_default_schedule_is_noam() -> None:
    config = TrainingConfig(warmup_updates=13)
    for step in range(1, 1000):
        expected = noam(step, d_model=37, warmup=13)
        assert learning_rate(step, 1000, config, 37) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_warmup_is_linear(schedule: str) -> None:
    warmup = all_rates(lr_schedule=schedule)[:WARMUP]
    assert warmup == pytest.approx([step / WARMUP for step in range(1, WARMUP + 1)])


@pytest.mark.parametrize(
    ("schedule", "first", "middle", "last"),
    [
        ("noam", (7 / 8) ** 0.5, (7 / 58) ** 0.5, (7 / 107) ** 0.5),
        ("linear", 1.0, 0.5, 0.01),
        ("cosine", 1.0, 0.5, 0.000246720),  # (1 - cos(pi / 100)) / 2
        ("constant", 1.0, 1.0, 1.0),
    ],
)
def test_schedule_after_warmup_has_its_shape(schedule: str, first: float, middle: float, last: float) -> None:
    rates = all_rates(lr_schedule=schedule)
    assert rates[WARMUP] == pytest.approx(first)
    assert rates[57] == pytest.approx(middle)
    assert rates[-1] == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cooldown", [0.0, 0.3, 1.0])
def test_schedule_after_warmup_is_positive_and_never_rises(schedule: str, cooldown: float) -> None:
    rates = all_rates(lr_schedule=schedule, cooldown_fraction=cooldown)
    assert all(0 < rate <= 1 for rate in rates)
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(rates[WARMUP - 1 :]))


def test_cooldown_scales_the_end_linearly() -> None:
    plain_rates, cooled_rates = all_rates(), all_rates(cooldown_fraction=0.5)  # the last 53.5 updates
    factors = [cooled / plain for cooled, plain in zip(cooled_rates, plain_rates, strict=True)]
    assert factors[:54] == pytest.approx([1.0] * 54)
    assert factors[54] == pytest.approx(53 / 53.5)
    assert factors[-1] == pytest.approx(1 / 53.5)
    assert all(later < earlier for earlier, later in pairwise(factors[54:]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_timed_run_slower_than_its_warmup_stays_at_or_below_peak(schedule: str) -> None:
    """The warm-up ends at a tenth of the time, here long before update 4,000."""
    config = TrainingConfig.from_settings(
        {"learning_rate": 1.0, "warmup_updates": 4000, "lr_schedule": schedule, "max_minutes": 1}
    )
    rates = [learning_rate(step, 100, config, 512) for step in range(1, 101)]
    assert max(rates) == pytest.approx(1, rel=0.01)
    assert max(rates) <= 1


def test_run_shorter_than_its_warmup_only_warms_up() -> None:
    config = TrainingConfig(learning_rate=1.0, warmup_updates=100, lr_schedule="linear")
    assert [learning_rate(step, 3, config, 512) for step in (1, 2, 3)] == pytest.approx([0.01, 0.02, 0.03])
