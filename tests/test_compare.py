"""`heedful compare`: real trainings with the same budget, kept and taken up again."""

import json
from pathlib import Path

import pytest

from heedful.comparing import QUESTIONS
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from tests.conftest import QUICK_SETTINGS, run_heedful


def words(pairs: Path, folder: Path, *more: str) -> list[str | Path]:
    settings = [word for each in QUICK_SETTINGS if "updates" not in each for word in ("--set", each)]
    unseen = folder.parent / "unseen.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate(700)][600:], unseen)
    return ["compare", pairs, "-o", folder, "-v", unseen, "--preset", "demo", *settings, *more]


def test_a_table_and_curves_that_are_kept(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    (tmp_path / "wide.toml").write_text("[model]\nwidth = 32\n")
    call = words(
        grammar_pairs,
        folder,
        "--updates",
        "6",
        "--question",
        "recurrence",
        "--recipe",
        f"wide={tmp_path / 'wide.toml'}",
    )
    result = run_heedful(*call)
    assert result.status == 0, result.err
    rows = [line for line in result.out.splitlines() if line.startswith("|")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == ["baseline", "gru", "lstm", "wide"]
    assert all(row.split(" | ")[2] == "6" for row in rows[2:])
    assert "Is attention all you need?" in result.out
    assert (folder / "comparison.md").read_text().splitlines() == rows
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    before = (folder / "gru" / "weights.safetensors").stat().st_mtime_ns
    again = run_heedful(*call)
    assert again.out == result.out
    assert (folder / "gru" / "weights.safetensors").stat().st_mtime_ns == before
    other = run_heedful(*call, "--set", "training.rate=0.5")
    assert other.status == 1
    assert "trained with other settings" in other.err


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--question", "heads"], "one budget for all recipes is needed"),
        (["--question", "heads", "--updates", "5", "--time", "1m"], "updates and time are two budgets"),
        (["--question", "colour", "--updates", "5"], "there is no question 'colour'"),
        (["--updates", "5"], "nothing to compare"),
        (["--updates", "5", "--recipe", "x"], "'x' is not a recipe"),
    ],
)
def test_what_cannot_be_compared(more: list[str], problem: str, grammar_pairs: Path, tmp_path: Path) -> None:
    result = run_heedful(*words(grammar_pairs, tmp_path / "c", *more))
    assert result.status == 1
    assert problem in result.err
    assert "Traceback" not in result.err


def test_the_same_name_is_the_same_recipe() -> None:
    """A recipe that two questions share is trained once."""
    seen: dict[str, str] = {}
    for question in QUESTIONS.values():
        for name, settings in question.recipes.items():
            told = json.dumps(settings, sort_keys=True)
            assert seen.setdefault(name, told) == told
