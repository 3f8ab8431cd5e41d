"""The demo, whole: what the README promises is what it prints."""

import re
from pathlib import Path

from tests.conftest import run_heedful

TIRED = "-> L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
WIDE = "-> L'animal n'a pas traversé la rue parce qu'elle était trop large."


def test_demo_learns_what_it_means(tmp_path: Path) -> None:
    done = run_heedful("demo", "-o", tmp_path / "demo", seconds=900)
    assert done.status == 0, done.err
    found = re.search(r"Exact match on 1,000 sentences .*: ([\d.]+)%", done.out)
    assert found is not None
    assert float(found[1]) >= 99
    assert TIRED in done.out
    assert WIDE in done.out
    again = run_heedful("demo", "-o", tmp_path / "demo")
    assert again.out == done.out
    assert "is trained already" in again.err
