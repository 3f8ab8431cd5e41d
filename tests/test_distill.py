"""``heedful distill``: a student learns from its teacher, is examined on real pairs, and survives stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heedful
from heedful.commands.distill import DistillOptions, distill_command
from heedful.config import Settings, merged
from heedful.corpora.filters import cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.corpora.split import split_hash
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.files import locked
from heedful.progress import Reporter
from tests.conftest import REVERSE_SETTINGS, run_heedful

SILENT = Reporter(quiet=True)
BRIEF: Settings = merged(REVERSE_SETTINGS, {"training": {"updates": 20, "validate_every": 10}})


def distilled(*paths: Path, output: Path, **options: object) -> list[str]:
    asked = DistillOptions(paths, output, **{"settings": BRIEF, **options})  # type: ignore[arg-type]
    return list(distill_command(asked, SILENT))


@pytest.fixture(scope="module")
def few_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("few") / "few.tsv"
    write_tsv([(pair.target, pair.source) for pair in generate(400)], path)
    return path


def test_a_student_learns_what_its_teacher_writes(
    reverse_model: Path, reverse_pairs: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"
    lines = distilled(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam=1)
    work = student / "distillation"
    real, held_out, taught = (
        list(cleaned_pairs(work / f"{name}.tsv")) for name in ("train", "held-out", "taught")
    )
    assert len(held_out) == 50
    assert set(held_out) <= set(cleaned_pairs(reverse_pairs))
    assert not {split_hash(pair.source) for pair in held_out} & {split_hash(pair.source) for pair in taught}
    teacher = heedful.load(reverse_model)
    some = taught[::100]
    written = teacher.translate([pair.source for pair in some], SearchConfig(beam=1))
    assert [each.text for each in written] == [pair.target for pair in some]
    assert {pair.source for pair in taught} <= {pair.source for pair in real}
    validated = list(cleaned_pairs(student / "training" / "data" / "validation.tsv"))
    assert validated == held_out

    rows = json.loads((work / "report.json").read_text())
    assert [row["name"] for row in rows] == ["teacher", "student"]
    assert rows[1]["bleu"] > rows[0]["bleu"] / 3 > 3
    assert lines[0] == "on 50 held-out real pairs:"
    card = (student / "README.md").read_text(encoding="utf-8")
    assert card.count("## Distilled") == 1
    assert lines[1] in card
    assert distilled(reverse_model, reverse_pairs, output=student, settings=REVERSE_SETTINGS, beam=1) == lines
    assert (student / "README.md").read_text(encoding="utf-8") == card


def test_teachers_together_real_pairs_and_a_default_student(
    reverse_model: Path, few_pairs: Path, tmp_path: Path
) -> None:
    """The same teacher twice, all real pairs, and validation pairs of which training has some."""
    student, validation = tmp_path / "student", tmp_path / "validation.tsv"
    write_tsv(list(cleaned_pairs(few_pairs))[:30], validation)
    brief = {"training": {"updates": 4, "warmup": 2, "threads": 1}, "tokenizer": {"vocabulary": 600}}
    lines = distilled(
        *[reverse_model] * 2,
        few_pairs,
        output=student,
        validation=(validation,),
        keep_real=1.0,
        settings=brief,
    )
    assert "2 models together" in lines[1]
    work = student / "distillation"
    learned, real = (list(cleaned_pairs(work / f"{name}.tsv")) for name in ("learned", "train"))
    assert set(real) <= set(learned)
    assert not {pair.source for pair in learned} & {pair.source for pair in cleaned_pairs(validation)}
    model = heedful.load(student).bundle.config.model
    assert (model.encoder_layers, model.decoder_layers) == (4, 1)


@pytest.mark.long
def test_stopped_anywhere_the_same_command_goes_on(
    reverse_model: Path, reverse_pairs: Path, tmp_path: Path
) -> None:
    student = tmp_path / "student"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'preset = "demo"\n[model]\nwidth = 32\nfeed_forward_width = 64\nencoder_layers = 1\n'
        "[training]\nupdates = 100\nvalidate_every = 10\nheld_out = 50\nbleu_sentences = 2\nthreads = 1\n"
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

    partial = student / "distillation" / "taught.tsv.translated.partial"
    assert "the same command goes on" in stopped_when(partial)
    assert not (student / "training").exists()
    assert "stopped by Ctrl-C" in stopped_when(student / "training" / "checkpoints" / "000000010")
    assert not (student / "config.json").exists()
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert "the teacher translates" not in done.err
    assert done.out.startswith("on 50 held-out real pairs:")


def test_wrong_input(reverse_model: Path, quick_model: Path, few_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"

    def problem(*paths: Path, **options: object) -> str:
        with pytest.raises(HeedfulError) as caught:
            distilled(*paths, output=student, **options)
        assert not student.exists()
        return caught.value.problem

    assert "is no model folder" in problem(few_pairs)
    assert "no input files" in problem(reverse_model)
    assert "source vocabularies differ" in problem(reverse_model, quick_model, few_pairs)
    assert "no share of the real pairs" in problem(reverse_model, few_pairs, keep_real=1.5)
    assert "cannot be read again" in problem(reverse_model, Path("-"))
    assert "no such file" in problem(reverse_model, tmp_path / "nothing.tsv")
    assert "there is no preset" in problem(reverse_model, few_pairs, settings={"preset": "huge"})
    assert "without trees" in problem(reverse_model, few_pairs, settings={"model": {"positions": "tree"}})
    assert "there is no engine" in problem(reverse_model, few_pairs, engine="steam")
    student.mkdir()
    (student / "diary.txt").write_text("mine")
    with pytest.raises(HeedfulError, match="exists already"):
        distilled(reverse_model, few_pairs, output=student)
    assert (student / "diary.txt").read_text() == "mine"


def test_other_work_is_not_mixed_up(reverse_model: Path, few_pairs: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    distilled(reverse_model, few_pairs, output=student, beam=1)
    before = (student / "weights.safetensors").read_bytes()
    with pytest.raises(HeedfulError, match="what differs: beam"):
        distilled(reverse_model, few_pairs, output=student, beam=2)
    with locked(student / "distillation"), pytest.raises(HeedfulError, match="another process is at work"):
        distilled(reverse_model, few_pairs, output=student, beam=1)
    assert (student / "weights.safetensors").read_bytes() == before
