"""The complete demo: its output is the one in the README."""

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
    folder, result = demo
    match = re.search(r"Exact match on 1,000 sentences .*: ([\d.]+)%", result.out)
    assert match is not None
    assert float(match[1]) >= 99
    assert TIRED in result.out
    assert WIDE in result.out
    second_result = run_heedful("demo", "-o", folder)
    assert second_result.out == result.out
    assert "is already trained" in second_result.err
    check_engines_agree(folder / "model")


def check_engines_agree(model: Path) -> None:
    """On a trained model, the exact engine gives the results of PyTorch, including beams and alignments."""
    pytorch, exact = (load(model, device="cpu", engine=name) for name in ("pytorch", "exact"))
    assert exact.name == "CTranslate2 float32"
    sources = ["a", *(pair.source for pair in generate_pairs(150, seed=21))]  # the translation of "a" may be empty
    for search in (GenerationConfig(beam_size=1), GenerationConfig(beam_size=4, n_best=2)):
        pytorch_translations = pytorch.translate(sources, search, details=True)
        exact_translations = exact.translate(sources, search, details=True)
        equal = sum(
            expected.text == actual.text
            for expected, actual in zip(pytorch_translations, exact_translations, strict=True)
        )
        assert equal >= 150  # ties may be broken differently
        for expected, actual in zip(pytorch_translations, exact_translations, strict=True):
            if expected.text == actual.text:
                assert actual.score == pytest.approx(expected.score, abs=1e-3)
                assert actual.alternatives[0].alignment == expected.alternatives[0].alignment
