"""The learning rate at the steps one can check by hand."""

from itertools import pairwise

import pytest

from heedful.training.config import TrainingConfig
from heedful.training.schedule import learning_rate, noam

WARMUP, TOTAL = 7, 107


def rate_of(step: int, total: int, config: TrainingConfig, width: int) -> float:
    return learning_rate(step, (step - 1) / total, config, width, total)


def rates(**settings: object) -> list[float]:
    """The rates of updates 1 to TOTAL; the highest is 1."""
    config = TrainingConfig.checked({"rate": 1.0, "warmup": WARMUP, **settings})
    return [rate_of(step, TOTAL, config, 512) for step in range(1, TOTAL + 1)]


@pytest.mark.parametrize(("step", "expected"), [(1, 1.7469e-7), (4000, 6.98771e-4), (100_000, 1.39754e-4)])
def test_noam_as_printed(step: int, expected: float) -> None:
    assert noam(step, width=512, warmup=4000) == pytest.approx(expected, rel=5e-6, abs=5e-12)


def test_the_papers_schedule_is_the_default() -> None:
    config = TrainingConfig(warmup=13)
    for step in range(1, 1000):
        expected = noam(step, width=37, warmup=13)
        assert rate_of(step, 1000, config, 37) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", ["noam", "linear", "cosine", "constant"])
def test_all_climb_in_a_line_to_the_rate(schedule: str) -> None:
    climb = rates(schedule=schedule)[:WARMUP]
    assert climb == pytest.approx([step / WARMUP for step in range(1, WARMUP + 1)])


@pytest.mark.parametrize(
    ("schedule", "first", "middle", "last"),
    [
        ("noam", (7 / 8) ** 0.5, (7 / 58) ** 0.5, (7 / 107) ** 0.5),
        ("linear", 1.0, 0.5, 0.01),
        ("cosine", 1.0, 0.5, 0.000246720),  # (1 - cos(pi / 100)) / 2
        ("constant", 1.0, 1.0, 1.0),
    ],
)
def test_shapes_after_the_warm_up(schedule: str, first: float, middle: float, last: float) -> None:
    found = rates(schedule=schedule)
    assert found[WARMUP] == pytest.approx(first)
    assert found[57] == pytest.approx(middle)
    assert found[-1] == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("schedule", ["noam", "linear", "cosine", "constant"])
@pytest.mark.parametrize("cooldown", [0.0, 0.3, 1.0])
def test_no_rate_is_zero_and_none_rises_after_the_warm_up(schedule: str, cooldown: float) -> None:
    found = rates(schedule=schedule, cooldown=cooldown)
    assert all(0 < rate <= 1 for rate in found)
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(found[WARMUP - 1 :]))


def test_cooldown_multiplies_the_end() -> None:
    plain, cooled = rates(), rates(cooldown=0.5)  # the last 53.5 updates
    share = [cool / warm for cool, warm in zip(cooled, plain, strict=True)]
    assert share[:54] == pytest.approx([1.0] * 54)
    assert share[54] == pytest.approx(53 / 53.5)
    assert share[-1] == pytest.approx(1 / 53.5)
    assert all(later < earlier for earlier, later in pairwise(share[54:]))


def test_a_run_shorter_than_its_warm_up_only_climbs() -> None:
    config = TrainingConfig(rate=1.0, warmup=100, schedule="linear")
    assert [rate_of(step, 3, config, 512) for step in (1, 2, 3)] == pytest.approx([0.01, 0.02, 0.03])
