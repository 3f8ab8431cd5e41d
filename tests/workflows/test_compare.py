"""`heedful compare`: short trainings with the same budget, stored and reused."""

import json
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.interpret.figures.training_curves import comparison_figure
from heedful.workflows.compare import QUESTIONS, RecipeResult, collect_measures
from tests.conftest import QUICK_SETTINGS, run_heedful


def compare_args(pairs: Path, folder: Path, *options: str) -> list[str | Path]:
    settings = [arg for setting in QUICK_SETTINGS if "updates" not in setting for arg in ("--set", setting)]
    unseen = folder.parent / "unseen.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(700)][600:], unseen)
    return ["compare", pairs, "-o", folder, "-v", unseen, "--preset", "demo", *settings, *options]


@pytest.mark.long
def test_compare_writes_table_and_curves_once(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    (tmp_path / "wide.toml").write_text("[model]\nd_model = 32\n")
    args = compare_args(
        grammar_pairs,
        folder,
        "--updates",
        "6",
        "--question",
        "recurrence",
        "--recipe",
        f"wide={tmp_path / 'wide.toml'}",
    )
    result = run_heedful(*args)
    assert result.status == 0, result.err
    rows = [line for line in result.out.splitlines() if line.startswith("|")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == ["baseline", "gru", "lstm", "wide"]
    assert all(row.split(" | ")[2] == "6" for row in rows[2:])
    assert "Is attention all you need?" in result.out
    report_lines = (folder / "comparison.md").read_text().splitlines()
    assert report_lines[: len(rows)] == rows
    assert "Is attention all you need?" in report_lines[-2]
    assert "preset demo, preset=demo, tokenizer.vocab_size=900," in report_lines[-1]
    assert report_lines[-1].endswith("6 updates each.")
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    before = (folder / "gru" / "weights.safetensors").stat().st_mtime_ns
    second_result = run_heedful(*args)
    assert second_result.out == result.out
    assert (folder / "gru" / "weights.safetensors").stat().st_mtime_ns == before
    other = run_heedful(*args, "--set", "training.learning_rate=0.5")
    assert other.status == 1
    assert "with different settings" in other.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--question", "heads"], "a budget is required"),
        (["--question", "heads", "--updates", "5", "--time", "1m"], "only one budget is allowed, not updates and time"),
        (["--question", "color", "--updates", "5"], "unknown question 'color'"),
        (["--updates", "5"], "nothing to compare"),
        (["--updates", "5", "--recipe", "x"], "'x' is not a recipe"),
        (["--updates", "5", "--recipe", "x=none.toml"], "cannot read recipe none.toml"),
        (["--question", "recurrence", "--updates", "5", "--recipe", "gru=GOOD"], "two recipes are named gru"),
        (
            ["--updates", "5", "--recipe", "good=GOOD", "--recipe", "bad=BAD"],
            "recipe bad: unknown setting 'model.d_modle'",
        ),
    ],
)
def test_compare_invalid_options_are_errors(
    options: list[str], problem: str, grammar_pairs: Path, tmp_path: Path
) -> None:
    for name, setting in (("GOOD", "d_model"), ("BAD", "d_modle")):
        (tmp_path / name).write_text(f"[model]\n{setting} = 32\n")
    options = [option.replace("=GOOD", f"={tmp_path}/GOOD").replace("=BAD", f"={tmp_path}/BAD") for option in options]
    result = run_heedful(*compare_args(grammar_pairs, tmp_path / "c", *options))
    assert result.status == 1
    assert not (tmp_path / "c").exists()  # errors are found before any training
    assert problem in result.err
    assert "Traceback" not in result.err


def test_compare_equal_recipes_are_trained_once(grammar_pairs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("[training]\nlabel_smoothing = 0.1\n")
    recipes = [arg for name in ("one", "two") for arg in ("--recipe", f"{name}={tmp_path / name}")]
    result = run_heedful(*compare_args(grammar_pairs, tmp_path / "c", "--updates", "2", *recipes))
    assert result.status == 0, result.err
    assert "two is the same as one; trained once" in result.out
    assert not (tmp_path / "c" / "two").exists()


def test_questions_same_name_is_same_recipe() -> None:
    """A recipe that two questions share is trained once."""
    recipes: dict[str, str] = {}
    for question in QUESTIONS.values():
        for name, settings in question.recipes.items():
            recipe = json.dumps(settings, sort_keys=True)
            assert recipes.setdefault(name, recipe) == recipe


@pytest.mark.parametrize("bleu", [{"BLEU": 12.0}, {}])
def test_comparison_figure_shows_every_recipe_and_measure(bleu: dict[str, float]) -> None:
    metrics = [{"tokens": 500, "seconds": 60.0}, {"seconds": 60.0, "validation_loss": 3.5, **bleu}]
    results = [
        RecipeResult("one", 1_234_567, 10, 500, 1.0, 345.0, 3.5, 12.25, 8.5),
        RecipeResult("two", 1_000, 10, 500, 2.0, 4.5, 3.5, 1.5, 80.0),
    ]
    figure = comparison_figure({"one": metrics, "two": metrics}, collect_measures(results))
    figure.canvas.draw()
    upper, lower = figure.subfigs
    assert len(upper.axes) == (3 if bleu else 2)
    assert [text.get_text() for text in upper.legends[0].get_texts()] == ["one", "two"]
    labels = [[text.get_text() for text in axes.texts] for axes in lower.axes]
    assert labels == [["12.2", "1.5"], ["1.23 M", "1,000"], ["345", "4.5"], ["8.5", "80"]]
