"""The complete demo: it prints what the README promises."""

import re
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from tests.conftest import Result, run_heedful

TIRED = "-> L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
WIDE = "-> L'animal n'a pas traversé la rue parce qu'elle était trop large."


@pytest.mark.long
def test_demo_resolves_it_on_unseen_nouns(demo: tuple[Path, Result]) -> None:
    folder, done = demo
    found = re.search(r"Exact match on 1,000 sentences .*: ([\d.]+)%", done.out)
    assert found is not None
    assert float(found[1]) >= 99
    assert TIRED in done.out
    assert WIDE in done.out
    again = run_heedful("demo", "-o", folder)
    assert again.out == done.out
    assert "is already trained" in again.err
    engines_agree(folder / "model")


def engines_agree(model: Path) -> None:
    """On a model that has learned: the exact engine gives what PyTorch gives, beam and alignment too."""
    pytorch, exact = (load(model, device="cpu", engine=name) for name in ("pytorch", "exact"))
    assert exact.name == "CTranslate2 float32"
    sources = ["a", *(pair.source for pair in generate_pairs(150, seed=21))]  # of "a" it may make nothing
    for search in (GenerationConfig(beam_size=1), GenerationConfig(beam_size=4, n_best=2)):
        ours = pytorch.translate(sources, search, details=True)
        theirs = exact.translate(sources, search, details=True)
        same = sum(mine.text == other.text for mine, other in zip(ours, theirs, strict=True))
        assert same >= 150  # a tie may fall either way
        for mine, other in zip(ours, theirs, strict=True):
            if mine.text == other.text:
                assert other.score == pytest.approx(mine.score, abs=1e-3)
                assert other.alternatives[0].alignment == mine.alternatives[0].alignment
