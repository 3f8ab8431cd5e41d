"""``heedful corpus back-translate`` and training with its output: filtering, resuming, tags, invalid input."""

import signal
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
from tests.inference.signaled_command import run_signaled

pytestmark = pytest.mark.long

QUIET = Reporter(quiet=True)
UNUSUAL_LINES = ["Le chien est fatigué.", "", "你好 👋", "x" * 10_000, "Le\tchat\u2028dort.", "e\u0301te\u0301"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of five batches, with unusual lines and Windows line endings."""
    path = tmp_path_factory.mktemp("mono") / "mono.fr"
    lines = [*UNUSUAL_LINES, *(pair.target for pair in generate_pairs(4 * BATCH_LINES))]
    path.write_bytes("\r\n".join(["\ufeff" + lines[0], *lines[1:], "end \xff"]).encode("utf-8"))
    return path


def run_back_translation(model: Path, text: Path, output: Path, **search: object) -> list[str]:
    options = BackTranslateOptions((model,), text, output, {"beam_size": 1, **search})
    return list(back_translate_text(options, QUIET))


def new_translation(source: str, text: str, complete: bool = True) -> Translation:
    return Translation(source, (Alternative(text, complete=complete),))


def test_rejection_reason_by_kind_of_translation(reverse_model: Path) -> None:
    engine = heedful.load(reverse_model)
    backward = SyntheticWriter(engine, (reverse_model,), GenerationConfig(), source_side=True)
    forward = SyntheticWriter(engine, (reverse_model,), GenerationConfig(), source_side=False)
    good = new_translation(" le  chat\u2028dort ", "the cat\tsleeps")
    assert backward.format_line(good) == "the cat sleeps\tle chat dort\t\n"
    assert forward.format_line(good) == "le chat dort\tthe cat sleeps\t\n"
    rejected = {
        "nothing to translate": new_translation(" ", ""),
        "empty translation": new_translation("le chat", "\n"),
        "incomplete translation": new_translation("le chat", "the the", complete=False),
        "copied": new_translation("le chat ", " le chat"),
        "repeated word": new_translation("le chat dort", "the cat that that that that that"),
        "length ratio": new_translation("le chat", "the cat " * 20),
    }
    for reason, translation in rejected.items():
        assert backward.format_line(translation).split("\t")[2] == reason + "\n"


def test_back_translate_writes_model_output_as_sources(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    report = run_back_translation(reverse_model, text, output)
    rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert report[0] == f"{len(rows):,} pairs from {4 * BATCH_LINES + 7:,} lines"
    assert "dropped 1: nothing to translate" in report
    engine = heedful.load(reverse_model)
    first, unusual = engine.translate(["Le chien est fatigué.", "Le\tchat\u2028dort."], GenerationConfig(beam_size=1))
    assert [first.text, "Le chien est fatigué."] == rows[0]
    writer = SyntheticWriter(engine, (reverse_model,), GenerationConfig(beam_size=1), source_side=True)
    source, target, reason = writer.format_line(unusual).rstrip("\n").split("\t")
    assert target == "Le chat dort."
    assert ([source, target] in rows) == (not reason)  # a barely trained model may translate it to repeated words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bt.tsv"]


def test_back_translate_interrupted_resumes_after_last_batch(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    uninterrupted, stopped = tmp_path / "uninterrupted.tsv", tmp_path / "stopped.tsv"
    args = ["corpus", "back-translate", reverse_model, text, "-o", stopped, "--beam", "1"]
    interrupted = run_signaled(signal.SIGINT, "lines", BATCH_LINES + 100, args)
    assert interrupted.returncode == 130
    assert "run the same command to resume" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    assert not stopped.exists()
    result = run_heedful(*args)
    assert f"resuming after line {BATCH_LINES:,}" in result.err
    run_back_translation(reverse_model, text, uninterrupted)
    assert stopped.read_bytes() == uninterrupted.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.tsv", "uninterrupted.tsv"]


def test_back_translate_without_usable_pair_is_an_error(reverse_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "bt.tsv"
    output.write_text("old\tvieux\n", encoding="utf-8")
    writer = SyntheticWriter(
        heedful.load(reverse_model), (reverse_model,), GenerationConfig(beam_size=1), source_side=True
    )
    with pytest.raises(HeedfulError, match="all 2 lines were rejected"):
        write_synthetic_pairs(writer, ["", " "], "blank", output, QUIET)
    assert output.read_text(encoding="utf-8") == "old\tvieux\n"


def test_back_translate_invalid_options_are_errors(reverse_model: Path, text: Path, tmp_path: Path) -> None:
    def problem(text: Path, output: Path, **search: object) -> str:
        with pytest.raises(HeedfulError) as error:
            list(back_translate_text(BackTranslateOptions((reverse_model,), text, output, search), QUIET))
        return error.value.problem

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
    outputs = [tmp_path / f"{name}.tsv" for name in ("searched", "first", "repeated", "other")]
    sampling = {"method": "sample", "top_k": 10}
    for output, search in zip(outputs, [{"beam_size": 1}, *[sampling] * 2, {**sampling, "seed": 9}], strict=True):
        options = BackTranslateOptions((reverse_model,), text, output, search)
        list(back_translate_text(options, QUIET))
    searched, first, repeated, other = (output.read_text(encoding="utf-8") for output in outputs)
    assert first == repeated
    assert len({searched, first, other}) == 3
    starts = Counter(line.split()[0] for line in first.splitlines())
    assert len(starts) > 4


def test_train_tags_back_translated_sources(grammar_pairs: Path, tmp_path: Path) -> None:
    source = parse_back_translation("bt.tsv:0.25")
    assert (source.tags, source.fraction, source.use_for_validation) == (("bt",), 0.25, False)
    with pytest.raises(HeedfulError, match=r"--back-translated bt\.tsv:1\.5"):
        parse_back_translation("bt.tsv:1.5")
    synthetic = tmp_path / "bt.tsv"
    write_tsv([(f"so {pair.source}", pair.target) for pair in generate_pairs(900)[600:]], synthetic)
    folder = tmp_path / "model"
    args = [*quick_train_args(grammar_pairs, folder), "--back-translated", f"{synthetic}:0.25"]
    result = run_heedful(*args)
    assert result.status == 0, result.err
    assert f"(25%) are of {synthetic} (bt)" in result.err
    model_folder = ModelFolder.load(folder)
    assert model_folder.tokenizer.source.vocabulary.languages.count("bt") == 1
    tag_id = model_folder.tokenizer.source.tag_id("bt")
    assert tag_id not in model_folder.source_ids("The dog is tired.")
    assert heedful.load(folder).translate(["The dog is tired."])[0].text
