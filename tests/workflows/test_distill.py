"""``heedful distill``: the student learns from its teacher, is validated on real pairs, and can be resumed."""

import json
import os
import signal
import subprocess
import sys
import time
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

SILENT = Reporter(quiet=True)
BRIEF: Settings = merge_settings(REVERSE_SETTINGS, {"training": {"max_updates": 20, "validate_every": 10}})


def distilled(*paths: Path, output: Path, **options: object) -> list[str]:
    asked = DistillOptions(paths, output, **{"settings": BRIEF, **options})  # type: ignore[arg-type]
    return list(distill_model(asked, SILENT))


@pytest.fixture(scope="module")
def few_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("few") / "few.tsv"
    write_tsv([(pair.target, pair.source) for pair in generate_pairs(400)], path)
    return path


@pytest.mark.long
def test_distill_student_learns_teacher_translations(reverse_model: Path, reverse_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    lines = distilled(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam_size=1)
    work = student / "distillation"
    real, held_out, taught = (
        list(read_cleaned_pairs(work / f"{name}.tsv")) for name in ("train", "validation", "teacher")
    )
    assert len(held_out) == 50
    assert set(held_out) <= set(read_cleaned_pairs(reverse_pairs))
    assert not {split_hash(pair.source) for pair in held_out} & {split_hash(pair.source) for pair in taught}
    teacher = heedful.load(reverse_model)
    some = taught[::100]
    written = teacher.translate([pair.source for pair in some], GenerationConfig(beam_size=1))
    assert [each.text for each in written] == [pair.target for pair in some]
    assert {pair.source for pair in taught} <= {pair.source for pair in real}
    validated = list(read_cleaned_pairs(student / "training" / "data" / "validation.tsv"))
    assert validated == held_out

    rows = json.loads((work / "report.json").read_text())
    assert [row["name"] for row in rows] == ["teacher", "student"]
    assert rows[1]["bleu"] > rows[0]["bleu"] / 3 > 3
    assert lines[0] == "on 50 real validation pairs:"
    card = (student / "README.md").read_text(encoding="utf-8")
    assert card.count("## Distillation") == 1
    assert lines[1] in card
    assert distilled(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam_size=1) == lines
    assert (student / "README.md").read_text(encoding="utf-8") == card


def test_distill_ensemble_with_real_pairs_and_default_student(
    reverse_model: Path, few_pairs: Path, tmp_path: Path
) -> None:
    """The same teacher twice, all real pairs, and validation pairs of which training has some."""
    student, validation = tmp_path / "student", tmp_path / "validation.tsv"
    write_tsv(list(read_cleaned_pairs(few_pairs))[:30], validation)
    brief = {"training": {"max_updates": 4, "warmup_updates": 2, "threads": 1}, "tokenizer": {"vocab_size": 600}}
    lines = distilled(
        *[reverse_model] * 2, few_pairs, output=student, validation=(validation,), real_fraction=1.0, settings=brief
    )
    assert "ensemble of 2 models" in lines[1]
    work = student / "distillation"
    learned, real = (list(read_cleaned_pairs(work / f"{name}.tsv")) for name in ("student_train", "train"))
    assert set(real) <= set(learned)
    assert not {pair.source for pair in learned} & {pair.source for pair in read_cleaned_pairs(validation)}
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
    words = ["distill", reverse_model, reverse_pairs, "-o", student, "--beam", "1", "--recipe", recipe]

    def stopped_when(there: Path) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful", *map(str, words)],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (there.exists() and there.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].decode()
        assert process.returncode == 130
        assert "Traceback" not in said
        return said

    partial = student / "distillation" / "teacher.tsv.translated.partial"
    assert "run the same command to resume" in stopped_when(partial)
    assert not (student / "training").exists()
    assert "stopped by Ctrl-C" in stopped_when(student / "training" / "checkpoints" / "000000010")
    assert not (student / "config.json").exists()
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert "translating with the teacher" not in done.err
    assert done.out.startswith("on 50 real validation pairs:")


def test_distill_invalid_options_are_errors(
    reverse_model: Path, quick_model: Path, few_pairs: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"

    def problem(*paths: Path, **options: object) -> str:
        with pytest.raises(HeedfulError) as caught:
            distilled(*paths, output=student, **options)
        assert not student.exists()
        return caught.value.problem

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
    (student / "diary.txt").write_text("mine")
    with pytest.raises(HeedfulError, match="already exists"):
        distilled(reverse_model, few_pairs, output=student)
    assert (student / "diary.txt").read_text() == "mine"


def test_distill_other_request_in_folder_is_an_error(reverse_model: Path, few_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    distilled(reverse_model, few_pairs, output=student, beam_size=1)
    before = (student / "weights.safetensors").read_bytes()
    with pytest.raises(HeedfulError, match="with different beam_size"):
        distilled(reverse_model, few_pairs, output=student, beam_size=2)
    with lock_folder(student / "distillation"), pytest.raises(HeedfulError, match="another process is using"):
        distilled(reverse_model, few_pairs, output=student, beam_size=1)
    assert (student / "weights.safetensors").read_bytes() == before
