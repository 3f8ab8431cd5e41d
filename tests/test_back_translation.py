"""``heedful corpus back-translate`` and training with it: what is kept, resumption, the tag, wrong input."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import heedful
from heedful.bundle import Bundle
from heedful.commands.back_translation import BackTranslateOptions, back_translate_command
from heedful.commands.synthetic import Writer, write_pairs
from heedful.commands.training import back_translated_part
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Translation
from heedful.engines.lines import WINDOW
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from tests.conftest import quick_train_words, run_heedful

pytestmark = pytest.mark.long

SILENT = Reporter(quiet=True)
ODD = ["Le chien est fatigué.", "", "你好 👋", "x" * 10_000, "Le\tchat\u2028dort.", "e\u0301te\u0301"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that takes five windows, with odd lines and Windows' line endings."""
    path = tmp_path_factory.mktemp("mono") / "mono.fr"
    lines = [*ODD, *(pair.target for pair in generate(4 * WINDOW))]
    path.write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:], "end \xff"]).encode("utf-8"))
    return path


def back_translated(model: Path, text: Path, output: Path, **search: object) -> list[str]:
    options = BackTranslateOptions((model,), text, output, {"beam": 1, **search})
    return list(back_translate_command(options, SILENT))


def translation(source: str, text: str, complete: bool = True) -> Translation:
    return Translation(source, (Alternative(text, 0, 0, (), ()),), complete=complete)


def test_what_is_hopeless_is_told_apart(reverse_model: Path) -> None:
    engine = heedful.load(reverse_model)
    back = Writer(engine, (reverse_model,), SearchConfig(), source_side=True)
    forth = Writer(engine, (reverse_model,), SearchConfig(), source_side=False)
    good = translation(" le  chat\u2028dort ", "the cat\tsleeps")
    assert back.line(good) == "the cat sleeps\tle chat dort\t\n"
    assert forth.line(good) == "le chat dort\tthe cat sleeps\t\n"
    faults = {
        "nothing to translate": translation(" ", ""),
        "empty translation": translation("le chat", "\n"),
        "translation without an end": translation("le chat", "the the", complete=False),
        "copied": translation("le chat ", " le chat"),
        "the same word over and over": translation("le chat dort", "the cat that that that that that"),
        "length ratio": translation("le chat", "the cat " * 20),
    }
    for fault, found in faults.items():
        assert back.line(found).split("\t")[2] == fault + "\n"


def test_pairs_are_what_the_model_writes(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    report = back_translated(reverse_model, text, output)
    rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert report[0] == f"{len(rows):,} pairs from {4 * WINDOW + 7:,} lines"
    assert "dropped 1: nothing to translate" in report
    engine = heedful.load(reverse_model)
    (first,) = engine.translate(["Le chien est fatigué."], SearchConfig(beam=1))
    assert [first.text, "Le chien est fatigué."] == rows[0]
    assert any(target == "Le chat dort." for _, target in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bt.tsv"]


def test_a_kill_costs_no_more_than_a_window(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole.tsv", tmp_path / "stopped.tsv"
    words = ["corpus", "back-translate", reverse_model, text, "-o", stopped, "--beam", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, words)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    partial = tmp_path / "stopped.tsv.translated.partial"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        partial.exists() and partial.read_bytes().count(b"\n") > WINDOW
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"the same command goes on from there" in said
    assert b"Traceback" not in said
    assert not stopped.exists()
    done = run_heedful(*words)
    assert "going on after line" in done.err
    back_translated(reverse_model, text, whole)
    assert stopped.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.tsv", "whole.tsv"]


def test_nothing_fit_is_an_error_and_overwrites_nothing(reverse_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    output.write_text("kept\tgardé\n", encoding="utf-8")
    writer = Writer(heedful.load(reverse_model), (reverse_model,), SearchConfig(beam=1), source_side=True)
    with pytest.raises(HeedfulError, match="not one of 2 lines became a pair"):
        write_pairs(writer, ["", " "], "blank", output, SILENT)
    assert output.read_text(encoding="utf-8") == "kept\tgardé\n"


def test_wrong_input(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    def problem(text: Path, output: Path, **search: object) -> str:
        with pytest.raises(HeedfulError) as caught:
            list(back_translate_command(BackTranslateOptions((reverse_model,), text, output, search), SILENT))
        return caught.value.problem

    output = tmp_path / "bt.tsv"
    assert "is written as TSV" in problem(text, tmp_path / "bt.txt")
    assert "no such file" in problem(tmp_path / "nothing.fr", output)
    assert "there is no folder" in problem(text, tmp_path / "no" / "bt.tsv")
    assert "belong to sampling" in problem(text, output, top_k=5)
    assert "draws at random" in problem(text, output, method="sample", beam=3)
    assert "one pair" in problem(text, output, n_best=2)
    assert list(tmp_path.iterdir()) == []


def test_sampled_sources_differ_from_searched_ones(reverse_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "few.fr"
    text.write_text("\n".join(pair.target for pair in generate(40)), encoding="utf-8")
    outputs = [tmp_path / f"{name}.tsv" for name in ("searched", "first", "again", "other")]
    sampling = {"method": "sample", "top_k": 10}
    for output, search in zip(outputs, [{"beam": 1}, *[sampling] * 2, {**sampling, "seed": 9}], strict=True):
        options = BackTranslateOptions((reverse_model,), text, output, search)
        list(back_translate_command(options, SILENT))
    searched, first, again, other = (output.read_text(encoding="utf-8") for output in outputs)
    assert first == again
    assert len({searched, first, other}) == 3
    starts = Counter(line.split()[0] for line in first.splitlines())
    assert len(starts) > 4


def test_training_tags_what_a_model_has_written(grammar_pairs: Path, tmp_path: Path) -> None:
    part = back_translated_part("bt.tsv:0.25")
    assert (part.tags, part.share, part.held_out) == (("bt",), 0.25, False)
    with pytest.raises(HeedfulError, match=r"--back-translated bt\.tsv:1\.5"):
        back_translated_part("bt.tsv:1.5")
    synthetic = tmp_path / "bt.tsv"
    write_tsv([(f"so {pair.source}", pair.target) for pair in generate(900)[600:]], synthetic)
    folder = tmp_path / "model"
    words = [*quick_train_words(grammar_pairs, folder), "--back-translated", f"{synthetic}:0.25"]
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert f"(25%) are of {synthetic} (bt)" in done.err
    bundle = Bundle.load(folder)
    assert bundle.tokenizer.source.vocabulary.languages.count("bt") == 1
    tagged = bundle.tokenizer.source.tag("bt")
    assert tagged not in bundle.source_ids("The dog is tired.")
    assert heedful.load(folder).translate(["The dog is tired."])[0].text
