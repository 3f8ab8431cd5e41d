"""`heedful translate -i -o` in separate processes: killed and resumed, the output is identical."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.errors import HeedfulError
from heedful.inference import bulk
from heedful.inference.bulk import BATCH_LINES, TranslateOptions, open_resumable, translate_inputs
from heedful.progress import Reporter
from tests.conftest import run_heedful
from tests.inference.signaled_command import run_signaled


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bulk") / "in.txt"
    sources = [pair.source for pair in generate_pairs(3000, seed=9)]
    path.write_text("\n".join([*sources, "", *sources]) + "\n", encoding="utf-8")
    return path


KILLED_AFTER_LINE = 4200
"""Two batches are complete by then, the third is not."""


@pytest.mark.long
@pytest.mark.parametrize("options", [["--beam", "1"], ["--n-best", "2"]])
def test_translate_killed_run_resumes_identically(
    quick_model: Path, lines: Path, tmp_path: Path, options: list[str]
) -> None:
    args = ["translate", quick_model, "-i", lines, "--engine", "ctranslate2", "--workers", "1"]
    args += ["--set", "generation.max_length_offset=4", *options]
    uninterrupted = run_heedful(*args, "-o", tmp_path / "uninterrupted.txt")
    assert uninterrupted.status == 0, uninterrupted.err
    output = tmp_path / "killed.txt"
    killed = run_signaled(signal.SIGKILL, "lines", KILLED_AFTER_LINE, [*args, "-o", output])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists()
    resumed = run_heedful(*args, "-o", output)
    assert resumed.status == 0, resumed.err
    assert f"resuming after line {2 * BATCH_LINES:,}" in resumed.err
    assert output.read_bytes() == (tmp_path / "uninterrupted.txt").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"uninterrupted.txt", "killed.txt"}


def write_and_interrupt(path: Path, fingerprint: dict[str, int], output_format: str, text: str) -> None:
    """Write a text, then raise as Ctrl-C does."""
    with open_resumable(path, fingerprint, output_format, Reporter(quiet=True)) as (file, _):
        file.write(text)
        raise KeyboardInterrupt


def test_open_resumable_other_settings_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH_LINES", 2)
    path, quiet = tmp_path / "out", Reporter(quiet=True)
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path, {"a": 1}, "text", "1\n2\n3\n4\n5\ncut")
    with open_resumable(path, {"a": 1}, "text", quiet) as (file, lines_done):
        assert lines_done == 4
        file.write("five\n")
    assert path.read_text() == "1\n2\n3\n4\nfive\n"
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path, {"a": 1}, "text", "1\n2\n3\n")
    with open_resumable(path, {"a": 2}, "text", quiet) as (_, lines_done):
        assert lines_done == 0
    assert path.read_text() == ""


class InterruptingReporter(Reporter):
    """Records the messages, and raises at the first line that is not valid UTF-8, as Ctrl-C would."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = ""

    def info(self, text: str) -> None:
        self.messages += text + "\n"

    def warning(self, text: str) -> None:
        self.info(text)
        if "invalid UTF-8" in text:
            raise KeyboardInterrupt


@pytest.mark.parametrize("file_name", ["config.json", "tokenizer.json", "target_tokenizer.json", "weights.safetensors"])
def test_translate_changed_model_starts_over(quick_model: Path, tmp_path: Path, file_name: str) -> None:
    model, source = tmp_path / "model", tmp_path / "in.txt"
    shutil.copytree(quick_model, model, ignore=shutil.ignore_patterns("training"))
    source.write_bytes(b"I am.\n" * (2 * BATCH_LINES) + b"\xff\n")
    options = TranslateOptions(
        models=(model,),
        inputs=(source,),
        output=tmp_path / "out",
        engine="pytorch",
        device="cpu",
        generation_overrides={"beam_size": 1},
    )

    def run_and_interrupt() -> str:
        report = InterruptingReporter()
        with pytest.raises(KeyboardInterrupt):
            translate_inputs(options, report)
        return report.messages

    assert "resuming" not in run_and_interrupt()
    assert "resuming after line 2,048" in run_and_interrupt()
    os.utime(model / file_name, ns=(1, 1))
    assert "another input, model or settings" in run_and_interrupt()


def test_translate_output_link_is_followed(quick_model: Path, tmp_path: Path) -> None:
    """The translation goes to the target of the link, whether it exists or not; the link stays."""
    source, folder = tmp_path / "in.txt", tmp_path / "elsewhere"
    source.write_text("The dog is tired.\n", encoding="utf-8")
    folder.mkdir()
    (folder / "old.txt").write_text("old\n", encoding="utf-8")
    for name in ("old.txt", "new.txt"):
        link = tmp_path / f"link-to-{name}"
        link.symlink_to(Path("elsewhere") / name)
        result = run_heedful("translate", quick_model, "-i", source, "-o", link)
        assert result.status == 0, result.err
        assert link.is_symlink()
        assert (folder / name).read_text(encoding="utf-8") not in ("", "old\n")
    assert {path.name for path in folder.iterdir()} == {"old.txt", "new.txt"}


def test_translate_output_not_a_regular_file_raises(quick_model: Path, tmp_path: Path) -> None:
    """A pipe (or /dev/null) would be replaced by a file; circular and dangling links have no target."""
    pipe, circular, dangling = tmp_path / "pipe", tmp_path / "circle", tmp_path / "lost"
    os.mkfifo(pipe)
    circular.symlink_to(circular)
    dangling.symlink_to(tmp_path / "no folder" / "out.txt")
    for output, reason in ((pipe, "not a regular file"), (circular, "a circular link"), (dangling, "no such folder")):
        result = run_heedful("translate", quick_model, "A dog.", "-o", output)
        assert result.status != 0
        assert reason in result.err
    assert pipe.is_fifo()
    input_file = tmp_path / "own.txt"
    input_file.write_text("A dog.\n", encoding="utf-8")
    (tmp_path / "link").symlink_to(input_file)
    result = run_heedful("translate", quick_model, "-i", input_file, "-o", tmp_path / "link")
    assert "would overwrite" in result.err


def test_open_resumable_second_process_raises(tmp_path: Path) -> None:
    path, quiet = tmp_path / "out", Reporter(quiet=True)
    with open_resumable(path, {}, "text", quiet) as (file, _):
        file.write("mine\n")
        file.flush()
        with pytest.raises(HeedfulError, match="another process"), open_resumable(path, {}, "text", quiet):
            pass
    assert path.read_text() == "mine\n"


def test_open_resumable_n_best_output_resumes_after_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH_LINES", 2)
    path, quiet = tmp_path / "out", Reporter(quiet=True)
    with pytest.raises(KeyboardInterrupt):  # line 4 is incomplete
        write_and_interrupt(path, {}, "tsv", "1\ta\n1\tb\n2\ta\n2\tb\n3\ta\n3\tb\n4\ta\n")
    with open_resumable(path, {}, "tsv", quiet) as (_, lines_done):
        assert lines_done == 2
    assert path.read_text() == "1\ta\n1\tb\n2\ta\n2\tb\n"
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path, {}, "jsonl", "".join(json.dumps({"line": n}) + "\n" for n in range(1, 6)))
    with open_resumable(path, {}, "jsonl", quiet) as (_, lines_done):
        assert lines_done == 4


def test_translate_output_options_choose_format(quick_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("The dog is tired.\n\nI am a student.\n", encoding="utf-8")
    scores = run_heedful("translate", quick_model, "-i", source, "--scores")
    assert [row.split("\t")[:2] for row in scores.out.splitlines()] == [["1", "1"], ["2", "1"], ["3", "1"]]
    alignments = run_heedful("translate", quick_model, "-i", source, "--alignments")
    rows = [row.split("\t") for row in alignments.out.splitlines()]
    assert [len(row) for row in rows] == [5, 5, 5]
    assert rows[1][4] == ""
    assert all(link.count("-") == 1 for link in rows[0][4].split())
    data = run_heedful("translate", quick_model, "-i", source, "--format", "jsonl")
    first = json.loads(data.out.splitlines()[0])["translations"][0]
    assert len(first["token_log_probabilities"]) in (len(first["tokens"]), len(first["tokens"]) + 1)
    assert first["alignment"]
    text_format = run_heedful("translate", quick_model, "-i", source, "--alignments", "--format", "text")
    assert "only one translation per line" in text_format.err
    assert "unknown engine 'x'" in run_heedful("translate", quick_model, "a", "--engine", "x").err
