"""Shards: together the same lines as the input, each complete or absent; and invalid options of --ray, without Ray."""

import gzip
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.formats.lines import count_lines, read_lines
from heedful.errors import DiskError, HeedfulError
from heedful.files import lock_folder, write_json
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import (
    BATCH_LINES,
    LineOptions,
    LineStatistics,
    TranslateOptions,
    file_fingerprint,
    load_translator,
    translate_inputs,
    translate_lines,
    write_translations,
)
from heedful.inference.bulk_shards import (
    BulkTask,
    Shard,
    ShardWorker,
    build_manifest,
    read_shard,
    read_shard_record,
    record_path,
    split_into_shards,
)
from heedful.inference.translation import Alternative, Translation
from heedful.progress import Reporter
from tests.conftest import run_heedful

UNUSUAL_INPUTS = {
    "empty": b"",
    "one line feed": b"\n",
    "no last line feed": b"one\ntwo\nthree",
    "empty lines": b"\n\n\none\n\n",
    "carriage returns": b"one\r\ntwo\r\n\r\nthree\r",
    "byte-order marks": b"\xef\xbb\xbfone\ntwo\n\xef\xbb\xbfthree\nfour\n",
    "invalid UTF-8": b"one\n\xff\xfe\ntwo\n\xc3\nthree\n",
    "scripts": "مرحبا بالعالم\n你好，世界\n👩‍🚀🎉\nline\u2028separator\x0c\n".encode(),
    "long": b"x" * 10_000 + b"\nshort\n" + b"y z " * 5_000,
    "longer than a line": b"a\n" + b"z" * ((1 << 22) + 5) + b"\nb\n",
}


def split_file(*inputs: Path, shard_lines: int) -> tuple[list[Shard], dict[str, Any]]:
    return list(split_into_shards(inputs, shard_lines)), {"inputs": [file_fingerprint(path) for path in inputs]}


@pytest.mark.parametrize("shard_lines", [1, 2, 3, 100])
@pytest.mark.parametrize("name", UNUSUAL_INPUTS)
def test_read_shard_all_shards_give_all_lines(tmp_path: Path, name: str, shard_lines: int) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(UNUSUAL_INPUTS[name])
    shards, manifest = split_file(path, shard_lines=shard_lines)
    assert [line for shard in shards for line in read_shard(shard, manifest)] == list(read_lines(path))
    assert sum(shard.line_count for shard in shards) == count_lines(path)
    assert all(shard.line_count == shard_lines for shard in shards[:-1])


def test_split_into_shards_lines_longer_than_block(tmp_path: Path) -> None:
    """Lines of all lengths, some longer than one block."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(bytes([97 + n % 26]) * (n * n % 7919) + b"\n" for n in range(1500)))
    shards, manifest = split_file(path, shard_lines=7)
    assert [line for shard in shards for line in read_shard(shard, manifest)] == [*read_lines(path)]


def test_split_into_shards_gzip_is_one_shard(tmp_path: Path) -> None:
    plain, packed, empty = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.gz"
    plain.write_text("a\n" * 5)
    packed.write_bytes(gzip.compress(b"b\n" * 5))
    empty.write_bytes(gzip.compress(b""))
    shards, manifest = split_file(plain, packed, empty, shard_lines=2)
    assert [(shard.input_path, shard.lines_before, shard.line_count) for shard in shards] == [
        (plain, 0, 2),
        (plain, 2, 2),
        (plain, 4, 1),
        (packed, 0, 5),
    ]
    assert [line.text for line in read_shard(shards[3], manifest)] == ["b"] * 5
    task = BulkTask(tmp_path, TranslateOptions(models=(), output_format="tsv"), manifest)
    assert task.output_path(shards[3]).name == "000003-b.txt.tsv"


def test_read_shard_changed_input_raises(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    shards, manifest = split_file(path, shard_lines=2)
    with pytest.raises(HeedfulError, match="has changed since"):  # at the end: fewer lines than expected
        list(read_shard(replace(shards[1], line_count=2), manifest))
    path.write_text("a\nb\nc\nd\n")
    with pytest.raises(HeedfulError, match="has changed since"):
        list(read_shard(shards[0], manifest))


@pytest.fixture(scope="module")
def unusual_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two full batches and part of a third, with unusual lines."""
    path = tmp_path_factory.mktemp("shards") / "in.txt"
    sources = [pair.source for pair in generate_pairs(1000, seed=5)]
    ordinary = "\n".join(sources * 5).encode() + b"\n"
    path.write_bytes(
        b"".join(UNUSUAL_INPUTS[name] + b"\n" for name in UNUSUAL_INPUTS if "longer" not in name) + ordinary
    )
    return path


def new_task(model: Path, source: Path, folder: Path, **options: Any) -> tuple[BulkTask, list[Shard]]:
    task_options = TranslateOptions(
        models=(model,),
        inputs=(source,),
        engine="ctranslate2",
        shard_lines=BATCH_LINES,
        **{"output_format": "text", "generation_overrides": {"beam_size": 1, "max_length_offset": 3}, **options},
    )
    task = BulkTask(folder, task_options, build_manifest(task_options, *load_translator(task_options), [source]))
    folder.mkdir()
    write_json(folder / "manifest.json", task.manifest)
    return task, list(split_into_shards([source], BATCH_LINES))


@pytest.mark.long
@pytest.mark.parametrize(("output_format", "n_best"), [("text", 1), ("tsv", 2), ("jsonl", 1)])
def test_shard_worker_output_matches_translate(
    quick_model: Path, unusual_lines: Path, tmp_path: Path, output_format: str, n_best: int
) -> None:
    overrides = {"beam_size": n_best, "n_best": n_best, "max_length_offset": 3}
    task, shards = new_task(
        quick_model,
        unusual_lines,
        tmp_path / "shards",
        output_format=output_format,
        generation_overrides=overrides,
    )
    plain = replace(task.options, output=tmp_path / "plain", workers=2, shard_lines=0)
    translate_inputs(plain, Reporter(quiet=True))
    worker = ShardWorker(task)
    assert [worker.translate_shard(shards[number]).shard_number for number in (2, 0, 1)] == [2, 0, 1]
    outputs = [task.output_path(shard) for shard in shards]
    assert len(outputs) == 3
    assert b"".join(path.read_bytes() for path in outputs) == (tmp_path / "plain").read_bytes()
    statistics = json.loads(record_path(outputs[0]).read_text())["statistics"]
    assert (statistics["unreadable"], statistics["first_unreadable"]) == (2, "in.txt, line 23: invalid UTF-8")
    assert not list((task.folder / "incomplete").iterdir())
    assert {path.name for path in task.folder.iterdir()} == {
        "manifest.json",
        "incomplete",
        *(path.name for path in outputs),
        *(record_path(path).name for path in outputs),
    }


def test_read_shard_record_corrupt_shard_returns_none(quick_model: Path, unusual_lines: Path, tmp_path: Path) -> None:
    task, shards = new_task(quick_model, unusual_lines, tmp_path / "shards")
    shard = shards[2]
    output = task.output_path(shard)
    assert read_shard_record(task, shard) is None
    expected = ShardWorker(task).translate_shard(shard)
    translation, record = output.read_bytes(), record_path(output).read_bytes()
    assert read_shard_record(task, shard) == expected
    output.write_bytes(translation[:50] + bytes([translation[50] ^ 1]) + translation[51:])
    assert read_shard_record(task, shard) is None
    output.write_bytes(translation[:-1])
    assert read_shard_record(task, shard) is None
    output.unlink()
    assert read_shard_record(task, shard) is None
    output.write_bytes(translation)
    for corrupt in (record[:-9], b"[]", b"{}", record.replace(b'"shard_number": ', b'"shard_number": 1'), b"\xff"):
        record_path(output).write_bytes(corrupt)
        assert read_shard_record(task, shard) is None
    record_path(output).write_bytes(record)
    other = replace(task, manifest={**task.manifest, "shard_lines": 2 * BATCH_LINES})
    assert read_shard_record(other, shard) is None  # the record belongs to another manifest
    assert read_shard_record(task, shard) == expected


def test_shard_worker_other_engine_model_or_folder_raises(
    quick_model: Path, unusual_lines: Path, tmp_path: Path
) -> None:
    task, (shard, *_) = new_task(quick_model, unusual_lines, tmp_path / "shards")
    other_engine = replace(task, manifest={**task.manifest, "engine": "other engine"})
    with pytest.raises(HeedfulError, match="engine is CTranslate2 float32, expected other engine"):
        ShardWorker(other_engine).translate_shard(shard)
    missing_model = replace(task, options=replace(task.options, models=(tmp_path / "none",)))
    with pytest.raises(HeedfulError, match="none"):
        ShardWorker(missing_model).translate_shard(shard)
    (task.folder / "manifest.json").write_text("{}")
    with pytest.raises(HeedfulError, match="now belongs to another translation"):
        ShardWorker(task).translate_shard(shard)
    shutil.rmtree(task.folder)
    with pytest.raises(DiskError, match="cannot write"):
        ShardWorker(task).translate_shard(shard)


class FailingTranslator:
    """A translator that fails on lines that contain a text."""

    name, concurrent_batches = "failing", 1

    def __init__(self, failing_text: str) -> None:
        self.failing_text = failing_text

    def translate(self, texts, generation_config=None, prefixes=None, *, details=False, glossary=None):  # type: ignore[no-untyped-def]
        if any(self.failing_text in text for text in texts):
            raise RuntimeError("too much")
        return [Translation(text, (Alternative(text.upper()),)) for text in texts]


def translate_skipping(translator: FailingTranslator) -> list[Translation]:
    lines = translate_lines(translator, ["a", "b", "c"], interactive=False, skip_failures=True)  # type: ignore[arg-type]
    return list(lines)


def test_translate_lines_skip_failures_leaves_line_empty() -> None:
    translations = translate_skipping(FailingTranslator("b"))
    assert [translation.text for translation in translations] == ["A", "", "C"]
    statistics = LineStatistics()
    write_translations(translations, io.StringIO(), LineOptions(GenerationConfig()), statistics, 10)
    assert (statistics.failed, statistics.first_failure) == (1, "line 12: RuntimeError: too much")
    assert statistics.incomplete == 0
    with pytest.raises(RuntimeError):  # all lines fail: the cause is not a line
        translate_skipping(FailingTranslator(""))


def test_ray_invalid_options_raise(quick_model: Path, tmp_path: Path) -> None:
    source, folder, full, catalog = (tmp_path / name for name in ("in.txt", "folder", "full", "in.po"))
    source.write_text("The dog is tired.\n")
    catalog.write_text('msgid "a"\nmsgstr ""\n')
    (tmp_path / "empty").mkdir()
    folder.mkdir()
    full.mkdir()
    (full / "letter.txt").write_text("mine\n")
    cases = [
        (["A dog."], "--ray translates files"),
        (["-i", source], "--ray writes to a file or folder"),
        (["-i", source, "-o", tmp_path / "no" / "out"], "no such folder"),
        (["-i", source, "-o", source], "would overwrite"),
        (["-i", tmp_path, "-o", folder / "x"], "is a localization file"),
        (["-i", source, "-i", source, "-o", source], "several inputs need a folder"),
        (["-i", source, "-o", full], "contains other files (letter.txt)"),
        (["-i", tmp_path / "none", "-o", folder], "no such file"),
        (["-i", tmp_path / "empty", "-o", folder], "contains no files"),
        (["-i", source, "-o", folder, "--stream"], "does not work with --ray"),
        (["-i", source, "-o", folder, "--n-best", "2", "--format", "text"], "only one translation per line"),
    ]
    for args, reason in cases:
        result = run_heedful("translate", quick_model, *args, "--ray", "local")
        assert result.status == 1, args
        assert reason in result.err, args
    assert "add --ray local" in run_heedful("translate", quick_model, "-i", source, "-i", source).err
    assert "requires --ray" in run_heedful("translate", quick_model, "A dog.", "--shard-lines", "9").err
    assert {path.name for path in full.iterdir()} <= {"letter.txt", "lock"}


def test_ray_second_process_raises(quick_model: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "in.txt", tmp_path / "folder"
    source.write_text("The dog is tired.\n")
    folder.mkdir()
    with lock_folder(folder):
        result = run_heedful("translate", quick_model, "-i", source, "-o", folder, "--ray", "local")
    assert result.status == 1
    assert f"another process is using {folder}" in result.err


def test_ray_empty_file_starts_no_workers(quick_model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("")
    result = run_heedful("translate", quick_model, "-i", source, "-o", output, "--ray", "local")
    assert result.status == 0, result.err
    assert output.read_bytes() == b""
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_ray_missing_package_raises_with_pip_command(quick_model: Path, unusual_lines: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from heedful.cli.main import main; main()"
    args = ["translate", quick_model, "-i", unusual_lines, "-o", unusual_lines.parent / "x", "--ray", "local"]
    result = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == ("error: --ray needs ray\n  hint: pip install 'heedful[ray]'\n")
