"""``heedful distill``: the student learns from its teacher, is validated on real pairs, and can be resumed."""

import json
import signal
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings, merge_settings
from heedful.data.cleaning import read_cleaned_pairs
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.data.splits import split_hash
from heedful.errors import HeedfulError
from heedful.files import lock_folder
from heedful.generation.config import GenerationConfig
from heedful.progress import Reporter
from heedful.workflows.distill import DistillOptions, distill_model
from tests.conftest import REVERSE_SETTINGS, run_heedful
from tests.inference.signaled_command import run_signaled

QUIET = Reporter(quiet=True)
SHORT_SETTINGS: Settings = merge_settings(REVERSE_SETTINGS, {"training": {"max_updates": 20, "validate_every": 10}})


def run_distillation(*paths: Path, output: Path, **options: object) -> list[str]:
    distill_options = DistillOptions(paths, output, **{"settings": SHORT_SETTINGS, **options})  # type: ignore[arg-type]
    return list(distill_model(distill_options, QUIET))


@pytest.fixture(scope="module")
def few_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("few") / "few.tsv"
    write_tsv([(pair.target, pair.source) for pair in generate_pairs(400)], path)
    return path


@pytest.mark.long
def test_distill_student_learns_teacher_translations(reverse_model: Path, reverse_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    lines = run_distillation(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam_size=1)
    work_folder = student / "distillation"
    real, validation, synthetic = (
        list(read_cleaned_pairs(work_folder / f"{name}.tsv")) for name in ("train", "validation", "teacher")
    )
    assert len(validation) == 50
    assert set(validation) <= set(read_cleaned_pairs(reverse_pairs))
    assert not {split_hash(pair.source) for pair in validation} & {split_hash(pair.source) for pair in synthetic}
    teacher = heedful.load(reverse_model)
    sample = synthetic[::100]
    translations = teacher.translate([pair.source for pair in sample], GenerationConfig(beam_size=1))
    assert [translation.text for translation in translations] == [pair.target for pair in sample]
    assert {pair.source for pair in synthetic} <= {pair.source for pair in real}
    validated = list(read_cleaned_pairs(student / "training" / "data" / "validation.tsv"))
    assert validated == validation

    rows = json.loads((work_folder / "report.json").read_text())
    assert [row["name"] for row in rows] == ["teacher", "student"]
    assert rows[1]["bleu"] > rows[0]["bleu"] / 3 > 3
    assert lines[0] == "on 50 real validation pairs:"
    card = (student / "README.md").read_text(encoding="utf-8")
    assert card.count("## Distillation") == 1
    assert lines[1] in card
    assert (
        run_distillation(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam_size=1) == lines
    )
    assert (student / "README.md").read_text(encoding="utf-8") == card


def test_distill_ensemble_with_real_pairs_and_default_student(
    reverse_model: Path, few_pairs: Path, tmp_path: Path
) -> None:
    """The same teacher twice, all real pairs, and validation pairs that overlap the training pairs."""
    student, validation = tmp_path / "student", tmp_path / "validation.tsv"
    write_tsv(list(read_cleaned_pairs(few_pairs))[:30], validation)
    settings = {"training": {"max_updates": 4, "warmup_updates": 2, "threads": 1}, "tokenizer": {"vocab_size": 600}}
    lines = run_distillation(
        *[reverse_model] * 2, few_pairs, output=student, validation=(validation,), real_fraction=1.0, settings=settings
    )
    assert "ensemble of 2 models" in lines[1]
    work_folder = student / "distillation"
    training_pairs, real = (
        list(read_cleaned_pairs(work_folder / f"{name}.tsv")) for name in ("student_train", "train")
    )
    assert set(real) <= set(training_pairs)
    assert not {pair.source for pair in training_pairs} & {pair.source for pair in read_cleaned_pairs(validation)}
    model = heedful.load(student).model_folder.config.model
    assert (model.encoder_layers, model.decoder_layers) == (4, 1)


@pytest.mark.long
def test_distill_interrupted_is_resumed_by_same_command(
    reverse_model: Path, reverse_pairs: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'preset = "demo"\n[model]\nd_model = 32\nd_ff = 64\nencoder_layers = 1\n'
        "[training]\nmax_updates = 100\nvalidate_every = 10\nvalidation_size = 50\nbleu_sentences = 2\nthreads = 1\n"
    )
    args = ["distill", reverse_model, reverse_pairs, "-o", student, "--beam", "1", "--recipe", recipe]
    translating = run_signaled(signal.SIGINT, "lines", 100, args)
    assert translating.returncode == 130
    assert "Traceback" not in translating.stderr
    assert "run the same command to resume" in translating.stderr
    assert (student / "distillation" / "teacher.tsv.translated.partial").stat().st_size
    assert not (student / "training").exists()
    training = run_signaled(signal.SIGINT, "updates", 10, args)
    assert training.returncode == 130
    assert "Traceback" not in training.stderr
    assert "stopped by Ctrl-C" in training.stderr
    assert (student / "training" / "checkpoints" / f"{10:09}").exists()
    assert not (student / "config.json").exists()
    result = run_heedful(*args)
    assert result.status == 0, result.err
    assert "translating with the teacher" not in result.err
    assert result.out.startswith("on 50 real validation pairs:")


def test_distill_invalid_options_are_errors(
    reverse_model: Path, quick_model: Path, few_pairs: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"

    def problem(*paths: Path, **options: object) -> str:
        with pytest.raises(HeedfulError) as error:
            run_distillation(*paths, output=student, **options)
        assert not student.exists()
        return error.value.problem

    assert "is not a model folder" in problem(few_pairs)
    assert "no input files" in problem(reverse_model)
    assert "source vocabularies differ" in problem(reverse_model, quick_model, few_pairs)
    assert "--real-fraction 1.5 is out of range" in problem(reverse_model, few_pairs, real_fraction=1.5)
    assert "cannot be read twice" in problem(reverse_model, Path("-"))
    assert "no such file" in problem(reverse_model, tmp_path / "nothing.tsv")
    assert "there is no preset" in problem(reverse_model, few_pairs, settings={"preset": "huge"})
    assert "without dependency trees" in problem(
        reverse_model, few_pairs, settings={"model": {"positions": "dependency"}}
    )
    assert "unknown engine 'steam'" in problem(reverse_model, few_pairs, engine="steam")
    student.mkdir()
    (student / "notes.txt").write_text("mine")
    with pytest.raises(HeedfulError, match="already exists"):
        run_distillation(reverse_model, few_pairs, output=student)
    assert (student / "notes.txt").read_text() == "mine"


def test_distill_other_request_in_folder_is_an_error(reverse_model: Path, few_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    run_distillation(reverse_model, few_pairs, output=student, beam_size=1)
    before = (student / "weights.safetensors").read_bytes()
    with pytest.raises(HeedfulError, match="with different beam_size"):
        run_distillation(reverse_model, few_pairs, output=student, beam_size=2)
    with lock_folder(student / "distillation"), pytest.raises(HeedfulError, match="another process is using"):
        run_distillation(reverse_model, few_pairs, output=student, beam_size=1)
    assert (student / "weights.safetensors").read_bytes() == before
