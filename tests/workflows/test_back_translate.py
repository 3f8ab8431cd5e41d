"""``heedful corpus back-translate`` and training with its output: filtering, resuming, tags, invalid input."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import heedful
from heedful.cli.train import parse_back_translation
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import BATCH_LINES
from heedful.inference.translation import Alternative, Translation
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter
from heedful.workflows.back_translate import (
    BackTranslateOptions,
    SyntheticWriter,
    back_translate_text,
    write_synthetic_pairs,
)
from tests.conftest import quick_train_args, run_heedful

pytestmark = pytest.mark.long

SILENT = Reporter(quiet=True)
ODD = ["Le chien est fatigué.", "", "你好 👋", "x" * 10_000, "Le\tchat\u2028dort.", "e\u0301te\u0301"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that takes five windows, with odd lines and Windows' line endings."""
    path = tmp_path_factory.mktemp("mono") / "mono.fr"
    lines = [*ODD, *(pair.target for pair in generate_pairs(4 * BATCH_LINES))]
    path.write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:], "end \xff"]).encode("utf-8"))
    return path


def back_translated(model: Path, text: Path, output: Path, **search: object) -> list[str]:
    options = BackTranslateOptions((model,), text, output, {"beam_size": 1, **search})
    return list(back_translate_text(options, SILENT))


def translation(source: str, text: str, complete: bool = True) -> Translation:
    return Translation(source, (Alternative(text, complete=complete),))


def test_rejection_reason_by_kind_of_translation(reverse_model: Path) -> None:
    engine = heedful.load(reverse_model)
    back = SyntheticWriter(engine, (reverse_model,), GenerationConfig(), source_side=True)
    forth = SyntheticWriter(engine, (reverse_model,), GenerationConfig(), source_side=False)
    good = translation(" le  chat\u2028dort ", "the cat\tsleeps")
    assert back.format_line(good) == "the cat sleeps\tle chat dort\t\n"
    assert forth.format_line(good) == "le chat dort\tthe cat sleeps\t\n"
    faults = {
        "nothing to translate": translation(" ", ""),
        "empty translation": translation("le chat", "\n"),
        "incomplete translation": translation("le chat", "the the", complete=False),
        "copied": translation("le chat ", " le chat"),
        "repeated word": translation("le chat dort", "the cat that that that that that"),
        "length ratio": translation("le chat", "the cat " * 20),
    }
    for fault, found in faults.items():
        assert back.format_line(found).split("\t")[2] == fault + "\n"


def test_back_translate_writes_model_output_as_sources(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    report = back_translated(reverse_model, text, output)
    rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert report[0] == f"{len(rows):,} pairs from {4 * BATCH_LINES + 7:,} lines"
    assert "dropped 1: nothing to translate" in report
    engine = heedful.load(reverse_model)
    (first,) = engine.translate(["Le chien est fatigué."], GenerationConfig(beam_size=1))
    assert [first.text, "Le chien est fatigué."] == rows[0]
    assert any(target == "Le chat dort." for _, target in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bt.tsv"]


def test_back_translate_killed_resumes_after_last_window(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole.tsv", tmp_path / "stopped.tsv"
    words = ["corpus", "back-translate", reverse_model, text, "-o", stopped, "--beam", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, words)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    partial = tmp_path / "stopped.tsv.translated.partial"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (partial.exists() and partial.read_bytes().count(b"\n") > BATCH_LINES):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"run the same command to resume" in said
    assert b"Traceback" not in said
    assert not stopped.exists()
    done = run_heedful(*words)
    assert "resuming after line" in done.err
    back_translated(reverse_model, text, whole)
    assert stopped.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.tsv", "whole.tsv"]


def test_back_translate_without_usable_pair_is_an_error(reverse_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    output.write_text("kept\tgardé\n", encoding="utf-8")
    writer = SyntheticWriter(
        heedful.load(reverse_model), (reverse_model,), GenerationConfig(beam_size=1), source_side=True
    )
    with pytest.raises(HeedfulError, match="all 2 lines were rejected"):
        write_synthetic_pairs(writer, ["", " "], "blank", output, SILENT)
    assert output.read_text(encoding="utf-8") == "kept\tgardé\n"


def test_back_translate_invalid_options_are_errors(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    def problem(text: Path, output: Path, **search: object) -> str:
        with pytest.raises(HeedfulError) as caught:
            list(back_translate_text(BackTranslateOptions((reverse_model,), text, output, search), SILENT))
        return caught.value.problem

    output = tmp_path / "bt.tsv"
    assert "is written as TSV" in problem(text, tmp_path / "bt.txt")
    assert "no such file" in problem(tmp_path / "nothing.fr", output)
    assert "no such folder" in problem(text, tmp_path / "no" / "bt.tsv")
    assert "need sampling" in problem(text, output, top_k=5)
    assert "exclude each other" in problem(text, output, method="sample", beam_size=3)
    assert "one pair" in problem(text, output, n_best=2)
    assert list(tmp_path.iterdir()) == []


def test_back_translate_sampling_differs_from_beam_search(reverse_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "few.fr"
    text.write_text("\n".join(pair.target for pair in generate_pairs(40)), encoding="utf-8")
    outputs = [tmp_path / f"{name}.tsv" for name in ("searched", "first", "again", "other")]
    sampling = {"method": "sample", "top_k": 10}
    for output, search in zip(outputs, [{"beam_size": 1}, *[sampling] * 2, {**sampling, "seed": 9}], strict=True):
        options = BackTranslateOptions((reverse_model,), text, output, search)
        list(back_translate_text(options, SILENT))
    searched, first, again, other = (output.read_text(encoding="utf-8") for output in outputs)
    assert first == again
    assert len({searched, first, other}) == 3
    starts = Counter(line.split()[0] for line in first.splitlines())
    assert len(starts) > 4


def test_train_tags_back_translated_sources(grammar_pairs: Path, tmp_path: Path) -> None:
    part = parse_back_translation("bt.tsv:0.25")
    assert (part.tags, part.fraction, part.use_for_validation) == (("bt",), 0.25, False)
    with pytest.raises(HeedfulError, match=r"--back-translated bt\.tsv:1\.5"):
        parse_back_translation("bt.tsv:1.5")
    synthetic = tmp_path / "bt.tsv"
    write_tsv([(f"so {pair.source}", pair.target) for pair in generate_pairs(900)[600:]], synthetic)
    folder = tmp_path / "model"
    words = [*quick_train_args(grammar_pairs, folder), "--back-translated", f"{synthetic}:0.25"]
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert f"(25%) are of {synthetic} (bt)" in done.err
    bundle = ModelFolder.load(folder)
    assert bundle.tokenizer.source.vocabulary.languages.count("bt") == 1
    tagged = bundle.tokenizer.source.tag_id("bt")
    assert tagged not in bundle.source_ids("The dog is tired.")
    assert heedful.load(folder).translate(["The dog is tired."])[0].text
