"""Scores and signatures match the sacrebleu command."""

import subprocess
import sys
from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from heedful.evaluation.metrics import corpus_scores, exact_match

TRANSLATIONS = ["the cat sat on the mat", "a dog barked at night", "hello there my friend"]
REFERENCES = ["the cat sat on the mat", "the dog barked all night", "hello there , friend"]


def test_corpus_scores_match_sacrebleu_command(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("\n".join(TRANSLATIONS))
    (tmp_path / "references").write_text("\n".join(REFERENCES))
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "references", "-i", tmp_path / "ours", "-b", "-w", "6"]
    scores = corpus_scores(TRANSLATIONS, REFERENCES)
    for name, metric in (("BLEU", "bleu"), ("chrF", "chrf"), ("TER", "ter")):
        output = subprocess.run([*command, "-m", metric], capture_output=True, text=True, check=True).stdout
        assert scores[name].value == pytest.approx(float(output), abs=1e-5)
        assert scores[name].signature.startswith("nrefs:1|")


def test_corpus_scores_empty_or_unequal_raise() -> None:
    with pytest.raises(HeedfulError, match="nothing to score"):
        corpus_scores([], [])
    with pytest.raises(HeedfulError, match="1 translations but 2 references"):
        corpus_scores(["a"], ["a", "b"])


def test_exact_match_counts_equal_translations() -> None:
    assert exact_match(TRANSLATIONS, REFERENCES) == pytest.approx(1 / 3)
