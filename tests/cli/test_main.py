"""The command line end to end: processes, files, invalid input."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MODEL_FILES, quick_train_args, run_heedful

UNICODE_LINES = ["مرحبا بالعالم", "你好，世界。", "👩‍👩‍👧‍👦 emoji", "e\u0301 combining", "", "   ", "a" * 10_000]


def test_help_lists_verbs() -> None:
    result = run_heedful("--help")
    assert result.status == 0
    for verb in ("demo", "train", "translate", "evaluate", "corpus"):
        assert verb in result.out


def test_help_of_train_shows_defaults() -> None:
    text = " ".join(run_heedful("train", "--help").out.replace("│", " ").split())
    assert "The model folder to write; default: model." in text
    assert "10 (minutes)" in text


def test_train_writes_complete_folder(quick_model: Path) -> None:
    names = {path.name for path in quick_model.iterdir()}
    assert names == {*MODEL_FILES, "README.md", "training"}
    card = (quick_model / "README.md").read_text()
    assert "en to fr" in card
    assert "validation" in card
    assert "| source | reference | translation |" in card
    metrics = [json.loads(line) for line in (quick_model / "training/metrics.jsonl").read_text().splitlines()]
    validations = [line for line in metrics if "validation_loss" in line]
    assert [line["update"] for line in validations] == [6, 12, 18, 24]
    assert {"BLEU", "chrF"} <= validations[0].keys()


class TestTranslate:
    def test_arguments_are_translated(self, quick_model: Path) -> None:
        result = run_heedful("translate", quick_model, "The dog is tired.", "I am a student.")
        assert result.status == 0
        assert result.out.count("\n") == 2

    def test_lines_keep_order_and_number(self, quick_model: Path, tmp_path: Path) -> None:
        source, target = tmp_path / "in.txt", tmp_path / "out.txt"
        lines = [*UNICODE_LINES, "The dog is tired.", *UNICODE_LINES]
        source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())  # BOM, CRLF, no final newline
        result = run_heedful("translate", quick_model, "-i", source, "-o", target)
        assert result.status == 0, result.err
        translations = target.read_text(encoding="utf-8").split("\n")
        assert len(translations) == len(lines) + 1
        assert translations[-1] == ""
        assert translations[4] == translations[5].strip() == ""
        alone = run_heedful("translate", quick_model, "The dog is tired.")
        assert translations[len(UNICODE_LINES)] == alone.out.rstrip("\n")
        piped = run_heedful("translate", quick_model, stdin=source.read_bytes())
        assert piped.out == target.read_text(encoding="utf-8")

    def test_empty_file_gives_empty_output(self, quick_model: Path, tmp_path: Path) -> None:
        (tmp_path / "in.txt").write_bytes(b"")
        result = run_heedful("translate", quick_model, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
        assert result.status == 0
        assert (tmp_path / "out.txt").read_bytes() == b""

    def test_invalid_utf8_keeps_its_line(self, quick_model: Path) -> None:
        result = run_heedful("translate", quick_model, stdin=b"good\n\xff\xfe bad\ngood\n")
        assert result.out.count("\n") == 3
        assert result.out.split("\n")[1] == ""
        assert "line 2: invalid UTF-8" in result.err

    def test_n_best_in_table_and_json_agree(self, quick_model: Path) -> None:
        table = run_heedful("translate", quick_model, "--n-best", "3", "The dog is tired.").out
        rows = [line.split("\t") for line in table.splitlines()]
        assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"], ["1", "3"]]
        scores = [float(row[2]) for row in rows]
        assert scores == sorted(scores, reverse=True)
        record = json.loads(
            run_heedful("translate", quick_model, "--format", "jsonl", "--n-best", "3", "The dog is tired.").out
        )
        assert [translation["text"] for translation in record["translations"]] == [row[3] for row in rows]
        best = record["translations"][0]
        assert sum(best["token_log_probabilities"]) == pytest.approx(best["log_probability"])

    def test_prefix_sample_and_stream_options_apply(self, quick_model: Path) -> None:
        sentence = "The dog is tired."
        assert run_heedful("translate", quick_model, "--prefix", "Le chat", sentence).out.startswith("Le chat")
        samples = [run_heedful("translate", quick_model, "--sample", "--seed", seed, sentence).out for seed in "112"]
        assert samples[0] == samples[1] != samples[2]
        output = run_heedful("translate", quick_model, "--stream", sentence).out
        assert output == run_heedful("translate", quick_model, "--beam", "1", sentence).out

    def test_open_pipe_gets_each_translation_at_once(self, quick_model: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful", "translate", str(quick_model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(b"The dog is tired.\n")
            process.stdin.flush()
            assert process.stdout.readline()  # although standard input is still open
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(timeout=300) == 0
        process.stdout.close()

    def test_ctrl_c_while_waiting_for_input_exits(self, quick_model: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "heedful", "translate", str(quick_model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"The dog is tired.\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
        _, stderr = process.communicate()
        assert b"Fatal" not in stderr

    def test_ascii_console_and_invalid_bytes_are_handled(self, quick_model: Path) -> None:
        command = [sys.executable, "-m", "heedful", "translate", str(quick_model), "--format", "jsonl"]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        process = subprocess.run([*command, b"caf\xff \xc3\xa9"], capture_output=True, env=environment, check=True)
        assert json.loads(process.stdout)["source"] == "caf? é"
        process_without_stdin = subprocess.run(
            ["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, env=environment, text=True
        )
        assert "standard input is closed" in process_without_stdin.stderr

    def test_closed_pipe_ends_quietly(self, quick_model: Path) -> None:
        """As in `heedful translate ... | head -1`."""
        command = [sys.executable, "-m", "heedful", "translate", "-q", str(quick_model)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.close()
        _, stderr = process.communicate(b"The dog is tired.\n" * 50)
        assert process.returncode == 1
        assert stderr == b""


def test_evaluate_prints_scores_and_writes_files(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.tsv.gz"
    test.write_bytes(gzip.compress(b"".join(grammar_pairs.read_bytes().splitlines(keepends=True)[:20])))
    result = run_heedful(
        "evaluate", quick_model, test, "--sentence-scores", tmp_path / "scores.tsv", "-o", tmp_path / "out.txt"
    )
    assert result.status == 0, result.err
    for name in ("BLEU", "chrF", "TER"):
        assert re.search(rf"^{name} +\d+\.\d+ +nrefs:1", result.out, re.MULTILINE)
    assert "perplexity" in result.out
    assert (tmp_path / "out.txt").read_text().count("\n") == 20
    rows = [line.split("\t") for line in (tmp_path / "scores.tsv").read_text().splitlines()]
    assert len(rows) == 21
    assert all(float(row[3]) < 0 and float(row[4]) < 0 for row in rows[1:])


class TestCorpus:
    def test_clean_reports_reasons(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_bytes("one\tun\n\tdeux\none\tun\nx\xff\ty\n".encode("latin-1"))
        result = run_heedful("corpus", "clean", tmp_path / "a.tsv", "-o", tmp_path / "b.tsv")
        assert (tmp_path / "b.tsv").read_text() == "one\tun\n"
        for reason in ("empty side (first: a.tsv:2)", "duplicate (first: a.tsv:3)", "invalid UTF-8 (first: a.tsv:4)"):
            assert reason in result.out

    def test_split_has_no_overlap(self, grammar_pairs: Path, tmp_path: Path) -> None:
        result = run_heedful("corpus", "split", grammar_pairs, "-o", tmp_path, "--validation-size", "30")
        train, validation = ((tmp_path / name).read_text().splitlines() for name in ("train.tsv", "validation.tsv"))
        assert result.status == 0
        assert not {line.split("\t")[0] for line in train} & {line.split("\t")[0] for line in validation}
        assert not {line.split("\t")[1] for line in train} & {line.split("\t")[1] for line in validation}
        assert f"read {len(train):,} pairs" in run_heedful("corpus", "stats", tmp_path / "train.tsv").out

    def test_join_reports_setting_for_training(self, grammar_pairs: Path, tmp_path: Path) -> None:
        result = run_heedful("corpus", "join", grammar_pairs, "-o", tmp_path / "b.tsv", "--lines", "40")
        lines = (tmp_path / "b.tsv").read_text().splitlines()
        longest = max(len(side) for line in lines for side in line.split("\t"))
        assert f"{len(lines):,} paragraphs" in result.out
        assert f"--set cleaning.max_characters={longest}" in result.out

    @pytest.mark.parametrize("verb", ["join", "clean"])
    def test_output_equal_to_input_is_an_error(self, verb: str, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_text("one\tun\none\tun\n")
        (tmp_path / "link.tsv").symlink_to(tmp_path / "a.tsv")
        result = run_heedful("corpus", verb, tmp_path / "a.tsv", "-o", tmp_path / "link.tsv")
        assert result.status == 1
        assert "is also an input" in result.err
        assert (tmp_path / "a.tsv").read_text() == "one\tun\none\tun\n"

    def test_join_without_pairs_keeps_output_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_text("no tab\n\n")
        (tmp_path / "b.tsv").write_text("mine")
        result = run_heedful("corpus", "join", tmp_path / "a.tsv", "-o", tmp_path / "b.tsv")
        assert result.status == 1
        assert "2 lines hold no usable pair" in result.err
        assert (tmp_path / "b.tsv").read_text() == "mine"


class TestInvalidInput:
    """Every user error gets a message that says what to do, and no traceback (which `Result` asserts)."""

    def run_and_get_error(self, *args: str | Path, stdin: bytes = b"") -> str:
        result = run_heedful(*args, stdin=stdin)
        assert result.status == 1, result.err
        assert "error: " in result.err
        return result.err

    def test_missing_file_is_an_error(self, tmp_path: Path) -> None:
        assert "no such file: nowhere.tsv" in self.run_and_get_error("train", "nowhere.tsv", "-o", tmp_path / "m")
        assert not (tmp_path / "m").exists()

    def test_unequal_parallel_files_are_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a.en").write_text("one\ntwo\n")
        (tmp_path / "a.de").write_text("eins\n")
        error = self.run_and_get_error("train", tmp_path / "a.en", tmp_path / "a.de", "-o", tmp_path / "m")
        assert "a.en has 2 lines" in error
        assert "a.de has 1" in error

    @pytest.mark.parametrize("content", [b"", b"\n\n", b"\t\n", b"\xff\tx\n"])
    def test_empty_corpus_is_an_error(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_bytes(content)
        assert "a.tsv: 0 of" in self.run_and_get_error("train", tmp_path / "a.tsv", "-o", tmp_path / "m")

    def test_very_long_line_is_dropped(self, grammar_pairs: Path, tmp_path: Path) -> None:
        path = tmp_path / "a.tsv"
        path.write_bytes(grammar_pairs.read_bytes() + b"x" * 100_000 + b"\ty\n")
        args = quick_train_args(path, tmp_path / "m")
        result = run_heedful(*args, "--set", "training.max_updates=1")
        assert result.status == 0
        assert "dropped 1: too long (first: a.tsv:601)" in result.err

    def test_unknown_settings_get_suggestions(self, grammar_pairs: Path, tmp_path: Path) -> None:
        start = ("train", grammar_pairs, "-o", tmp_path / "m", "--set")
        assert "did you mean 'training.max_epochs'?" in self.run_and_get_error(*start, "training.max_epoch=3")
        assert "did you mean 'model.d_model'?" in self.run_and_get_error(*start, "d_model=64")
        assert "'many' should be a valid integer" in self.run_and_get_error(*start, "training.max_epochs=many")
        error = self.run_and_get_error(*start, "model.heads=7")
        assert "is not divisible by 7 heads" in error
        assert "use 1, 2, 4, 8" in error
        assert "write section.name=value" in self.run_and_get_error(*start, "d_model")
        assert "did you mean 'tiny'?" in self.run_and_get_error(*start, "preset=tinny")
        assert not (tmp_path / "m").exists()

    def test_vocab_size_too_small_is_an_error(self, tmp_path: Path) -> None:
        pairs = [f"line {i}\t{chr(0x4E00 + 2 * i)}{chr(0x4E01 + 2 * i)}" for i in range(400)]
        (tmp_path / "a.tsv").write_text("\n".join(pairs))
        error = self.run_and_get_error(
            *quick_train_args(tmp_path / "a.tsv", tmp_path / "m"), "--set", "tokenizer.vocab_size=400"
        )
        assert "target side" in error
        assert "vocabulary" in error

    def test_existing_folder_is_an_error(self, quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
        error = self.run_and_get_error("train", grammar_pairs, "-o", quick_model)
        assert "already exists" in error
        assert "finished" in error
        assert "--resume" not in error  # nothing to resume
        interrupted = tmp_path / "interrupted"
        shutil.copytree(quick_model / "training", interrupted / "training")
        error = self.run_and_get_error("train", grammar_pairs, "-o", interrupted)
        assert f"heedful train --resume {interrupted}" in error
        assert "no training run to resume" in self.run_and_get_error("train", "--resume", tmp_path)

    def test_failed_start_leaves_no_folder(self, grammar_pairs: Path, tmp_path: Path) -> None:
        """A failed start does not block the next one."""
        bad, folder = tmp_path / "bad.tsv", tmp_path / "m"
        bad.write_text("one line only\n")
        self.run_and_get_error("train", bad, "-o", folder)
        assert not folder.exists()
        self.run_and_get_error("train", grammar_pairs, "-o", folder, "--set", "training.device=cuda:77")
        assert not folder.exists()
        (folder / "training").mkdir(parents=True)  # as after a kill before the first file
        args = quick_train_args(grammar_pairs, folder)
        assert run_heedful(*args, "--set", "training.max_updates=1").status == 0

    @pytest.mark.long
    def test_corrupt_run_is_an_error(self, grammar_pairs: Path, tmp_path: Path) -> None:
        folder = tmp_path / "m"
        args = quick_train_args(grammar_pairs, folder)
        assert run_heedful(*args, "--set", "training.max_updates=2").status == 0
        damages = {
            "run.json": ["{", "[]", "{}"],
            "data/preprocessed.json": ["{", "{}"],
            "data/validation.tsv": ["", "no tab\n"],
        }
        for name, contents in damages.items():
            path = folder / "training" / name
            good = path.read_bytes()
            for content in contents:
                path.write_text(content)
                assert "train again" in self.run_and_get_error("train", "--resume", folder), (name, content)
            path.write_bytes(good)
        (folder / "training" / "metrics.jsonl").write_bytes(b"5\n{}\n\xff")
        assert run_heedful("train", "--resume", folder).status == 0

    @pytest.mark.long
    def test_settings_out_of_range_are_errors(self, grammar_pairs: Path, tmp_path: Path) -> None:
        for setting in (
            "training.learning_rate=Infinity",
            "training.threads=99999999999999",
            "generation.length_penalty=10000",
            "generation.max_length_offset=1e20",
            "tokenizer.vocab_size=100000000000000000000",
            "model.d_model=2000000",
            "training.seed=-1",
            "training.validation_size=100000",
        ):
            error = self.run_and_get_error("train", grammar_pairs, "-o", tmp_path / "m", "--set", setting)
            assert "should be" in error or "too few to train on" in error, setting
        assert "pt-BR:en" in self.run_and_get_error("train", grammar_pairs, "--languages", "zh-Hans-en")

    def test_corrupt_model_is_an_error(self, quick_model: Path, tmp_path: Path) -> None:
        def corrupt(name: str, change: dict[str, bytes]) -> str:
            folder = tmp_path / name
            folder.mkdir()
            for file in MODEL_FILES:
                (folder / file).write_bytes((quick_model / file).read_bytes())
            for file, content in change.items():
                (folder / file).write_bytes(content)
            return self.run_and_get_error("translate", folder, "The dog is tired.")

        config = json.loads((quick_model / "config.json").read_text())
        newer = json.dumps({**config, "format": 99, "unheard-of": 1}).encode()
        assert "format 99" in (error := corrupt("newer", {"config.json": newer}))
        assert "install a newer Heedful" in error
        cut = (quick_model / "weights.safetensors").read_bytes()[:-1000]
        assert "corrupt or truncated" in corrupt("cut", {"weights.safetensors": cut})
        assert "corrupt" in corrupt("scrambled", {"config.json": b"{"})
        assert "tokenizer" in corrupt("tokenizer", {"tokenizer.json": b"{}"})
        assert "not a model folder" in self.run_and_get_error("translate", tmp_path, "x")

    def test_invalid_translate_options_are_errors(self, quick_model: Path, tmp_path: Path) -> None:
        assert "no such file" in self.run_and_get_error("translate", quick_model, "-i", tmp_path / "no.txt")
        assert "formats: text, tsv, jsonl" in self.run_and_get_error("translate", quick_model, "--format", "xml", "x")
        assert "has no effect here" in self.run_and_get_error("translate", quick_model, "--set", "model.d_model=3", "x")
        for device in ("warp", "meta", "cuda:77"):
            assert "cannot use device" in self.run_and_get_error("translate", quick_model, "--device", device, "x")
        assert "is a section" in self.run_and_get_error("translate", quick_model, "--set", "generation=3", "x")
        assert "valid integer" in self.run_and_get_error(
            "translate", quick_model, "--set", "generation.n_best=many", "x"
        )
        assert "add --sample" in self.run_and_get_error("translate", quick_model, "--seed", "3", "x")
        assert "omit --output" in self.run_and_get_error("translate", quick_model, "--stream", "--format", "tsv", "x")
        assert "use --format tsv or jsonl" in self.run_and_get_error(
            "translate", quick_model, "--format", "text", "--n-best", "2", "x"
        )
        (tmp_path / "in.txt").write_text("The dog is tired.")
        same = ("-i", tmp_path / "in.txt", "-o", tmp_path / "in.txt")
        assert "would overwrite" in self.run_and_get_error("translate", quick_model, *same)
        assert "no such folder" in self.run_and_get_error("translate", tmp_path / "typo", "x")
        assert "is translated as text" in run_heedful("translate", quick_model, str(tmp_path / "in.txt")).err
        assert "is a folder" in self.run_and_get_error("translate", quick_model, "-o", tmp_path, "x")
        assert "is a folder" in self.run_and_get_error("translate", quick_model, "-i", tmp_path)
        assert "no such folder" in self.run_and_get_error("translate", quick_model, "-o", tmp_path / "no" / "f", "x")
        error = self.run_and_get_error("translate", quick_model, "--beam", "2", "--n-best", "3", "x")
        assert "n_best 3 is larger than beam_size 2" in error
