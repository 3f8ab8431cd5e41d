"""What `heedful train` is told, as settings."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heedful.config import merged, parsed_overrides, read_toml
from heedful.errors import HeedfulError

MINUTES = {"h": 60.0, "m": 1.0, "s": 1 / 60}
NUMBER = r"\d+(?:\.\d+)?"


def run_settings(
    recipe: Path | None, preset: str | None, time: str | None, assignments: Sequence[str]
) -> dict[str, Any]:
    """Recipe file, then --preset and --time, then --set: the later wins."""
    settings = read_toml(recipe) if recipe else {}
    if preset:
        settings = merged(settings, {"preset": preset})
    if time is not None:
        settings = merged(settings, {"training": {"minutes": minutes_of(time)}})
    return merged(settings, parsed_overrides(assignments))


def minutes_of(time: str) -> float:
    """A time as people write it; a bare number is minutes.

    >>> minutes_of("30m"), minutes_of("1h30m"), minutes_of("90s"), minutes_of("2.5 h"), minutes_of("10")
    (30.0, 90.0, 1.5, 150.0, 10.0)
    """
    text = time.replace(" ", "").lower()
    found = re.fullmatch("".join(rf"(?:({NUMBER}){unit})?" for unit in MINUTES), text)
    minutes = sum(
        float(number or 0) * each
        for number, each in zip(found.groups() if found else (), MINUTES.values(), strict=False)
    )
    if re.fullmatch(NUMBER, text):
        minutes = float(text)
    if minutes <= 0:
        raise HeedfulError(f"{time!r} is no time to train for", hint="write 30m, 2h, 1h30m or 90s")
    return minutes
