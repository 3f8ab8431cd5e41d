"""The demo, whole: what the README promises is what it prints."""

import re
from pathlib import Path

import pytest

from heedful.api import load
from heedful.corpora.grammar import generate
from heedful.decoding.config import SearchConfig
from tests.conftest import Result, run_heedful

TIRED = "-> L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
WIDE = "-> L'animal n'a pas traversé la rue parce qu'elle était trop large."


def test_demo_learns_what_it_means(demo: tuple[Path, Result]) -> None:
    folder, done = demo
    found = re.search(r"Exact match on 1,000 sentences .*: ([\d.]+)%", done.out)
    assert found is not None
    assert float(found[1]) >= 99
    assert TIRED in done.out
    assert WIDE in done.out
    again = run_heedful("demo", "-o", folder)
    assert again.out == done.out
    assert "is trained already" in again.err
    engines_agree(folder / "model")


def engines_agree(model: Path) -> None:
    """On a model that has learned: the exact engine gives what PyTorch gives, beam and alignment too."""
    pytorch, exact = (load(model, device="cpu", engine=name) for name in ("pytorch", "exact"))
    assert exact.name == "CTranslate2 float32"
    sources = ["a", *(pair.source for pair in generate(150, seed=21))]  # of "a" it may make nothing
    for search in (SearchConfig(beam=1), SearchConfig(beam=4, n_best=2)):
        ours = pytorch.translate(sources, search, details=True)
        theirs = exact.translate(sources, search, details=True)
        same = sum(mine.text == other.text for mine, other in zip(ours, theirs, strict=True))
        assert same >= 150  # a tie may fall either way
        for mine, other in zip(ours, theirs, strict=True):
            if mine.text == other.text:
                assert other.score == pytest.approx(mine.score, abs=1e-3)
                assert other.alternatives[0].alignment == mine.alternatives[0].alignment
