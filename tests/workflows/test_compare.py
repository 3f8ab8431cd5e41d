"""`heedful compare`: real trainings with the same budget, stored and resumed."""

import json
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.interpret.figures.training_curves import comparison_figure
from heedful.workflows.compare import QUESTIONS, RecipeResult, collect_measures
from tests.conftest import QUICK_SETTINGS, run_heedful


def words(pairs: Path, folder: Path, *more: str) -> list[str | Path]:
    settings = [word for each in QUICK_SETTINGS if "updates" not in each for word in ("--set", each)]
    unseen = folder.parent / "unseen.tsv"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(700)][600:], unseen)
    return ["compare", pairs, "-o", folder, "-v", unseen, "--preset", "demo", *settings, *more]


@pytest.mark.long
def test_compare_writes_table_and_curves_once(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    (tmp_path / "wide.toml").write_text("[model]\nd_model = 32\n")
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
    told = (folder / "comparison.md").read_text().splitlines()
    assert told[: len(rows)] == rows
    assert "Is attention all you need?" in told[-2]
    assert "preset demo, preset=demo, tokenizer.vocab_size=900," in told[-1]
    assert told[-1].endswith("6 updates each.")
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    before = (folder / "gru" / "weights.safetensors").stat().st_mtime_ns
    again = run_heedful(*call)
    assert again.out == result.out
    assert (folder / "gru" / "weights.safetensors").stat().st_mtime_ns == before
    other = run_heedful(*call, "--set", "training.learning_rate=0.5")
    assert other.status == 1
    assert "with different settings" in other.err


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--question", "heads"], "a budget is required"),
        (["--question", "heads", "--updates", "5", "--time", "1m"], "only one budget is allowed, not updates and time"),
        (["--question", "colour", "--updates", "5"], "unknown question 'colour'"),
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
def test_compare_invalid_options_are_errors(more: list[str], problem: str, grammar_pairs: Path, tmp_path: Path) -> None:
    for name, setting in (("GOOD", "d_model"), ("BAD", "d_modle")):
        (tmp_path / name).write_text(f"[model]\n{setting} = 32\n")
    more = [word.replace("=GOOD", f"={tmp_path}/GOOD").replace("=BAD", f"={tmp_path}/BAD") for word in more]
    result = run_heedful(*words(grammar_pairs, tmp_path / "c", *more))
    assert result.status == 1
    assert not (tmp_path / "c").exists()  # a mistake is found before anything is trained
    assert problem in result.err
    assert "Traceback" not in result.err


def test_compare_equal_recipes_are_trained_once(grammar_pairs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("[training]\nlabel_smoothing = 0.1\n")
    recipes = [word for name in ("one", "two") for word in ("--recipe", f"{name}={tmp_path / name}")]
    result = run_heedful(*words(grammar_pairs, tmp_path / "c", "--updates", "2", *recipes))
    assert result.status == 0, result.err
    assert "two is the same as one; trained once" in result.out
    assert not (tmp_path / "c" / "two").exists()


def test_questions_same_name_is_same_recipe() -> None:
    """A recipe that two questions share is trained once."""
    seen: dict[str, str] = {}
    for question in QUESTIONS.values():
        for name, settings in question.recipes.items():
            told = json.dumps(settings, sort_keys=True)
            assert seen.setdefault(name, told) == told


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
    shown = [[text.get_text() for text in axes.texts] for axes in lower.axes]
    assert shown == [["12.2", "1.5"], ["1.23 M", "1,000"], ["345", "4.5"], ["8.5", "80"]]
