"""Shards: together the same lines as the input, each complete or absent; and invalid options of --ray, without Ray."""

import gzip
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.formats.lines import count_lines, read_lines
from heedful.errors import HeedfulError
from heedful.files import lock_folder
from heedful.generation.config import GenerationConfig
from heedful.inference.bulk import (
    BATCH_LINES,
    LineOptions,
    LineStatistics,
    TranslateOptions,
    file_fingerprint,
    translate_inputs,
    translate_lines,
    write_translations,
)
from heedful.inference.bulk_shards import (
    BulkManifest,
    ShardTask,
    ShardWorker,
    read_shard,
    read_shard_record,
    record_path,
    split_into_shards,
)
from heedful.inference.loading import load
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


def build_manifest(inputs: list[Path], shard_lines: int) -> BulkManifest:
    fingerprints = tuple(map(file_fingerprint, inputs))
    return BulkManifest({}, fingerprints, shard_lines, "text", tuple(split_into_shards(inputs, shard_lines)))


@pytest.mark.parametrize("shard_lines", [1, 2, 3, 100])
@pytest.mark.parametrize("name", UNUSUAL_INPUTS)
def test_read_shard_all_shards_give_all_lines(tmp_path: Path, name: str, shard_lines: int) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(UNUSUAL_INPUTS[name])
    manifest = build_manifest([path], shard_lines)
    lines = [line for shard in manifest.shards for line in read_shard(manifest, shard)]
    assert lines == list(read_lines(path))
    assert sum(shard.line_count for shard in manifest.shards) == count_lines(path)
    assert all(shard.line_count == shard_lines for shard in manifest.shards[:-1])


def test_split_into_shards_lines_longer_than_block(tmp_path: Path) -> None:
    """Lines of all lengths, some longer than one block."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(bytes([97 + n % 26]) * (n * n % 7919) + b"\n" for n in range(1500)))
    manifest = build_manifest([path], 7)
    assert [line for shard in manifest.shards for line in read_shard(manifest, shard)] == [*read_lines(path)]


def test_split_into_shards_gzip_is_one_shard(tmp_path: Path) -> None:
    plain, packed, empty = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.gz"
    plain.write_text("a\n" * 5)
    packed.write_bytes(gzip.compress(b"b\n" * 5))
    empty.write_bytes(gzip.compress(b""))
    manifest = build_manifest([plain, packed, empty], 2)
    assert [(shard.input_index, shard.lines_before, shard.line_count) for shard in manifest.shards] == [
        (0, 0, 2),
        (0, 2, 2),
        (0, 4, 1),
        (1, 0, 5),
    ]
    assert [line.text for line in read_shard(manifest, manifest.shards[3])] == ["b"] * 5
    assert manifest.output_path(tmp_path, manifest.shards[3]).name == "000003-b.txt"


def test_manifest_round_trip_and_corruption_raises(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    manifest = build_manifest([path], 2)
    manifest.write(tmp_path)
    assert BulkManifest.read(tmp_path) == manifest
    text = (tmp_path / "manifest.json").read_text()
    for corrupt in (text[:100], "[]", "{}", text.replace('"shard_lines": 2', '"shard_lines": 3')):
        (tmp_path / "manifest.json").write_text(corrupt)
        with pytest.raises(HeedfulError, match=r"manifest\.json"):
            BulkManifest.read(tmp_path)


def test_read_shard_changed_input_raises(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    manifest = build_manifest([path], 2)
    path.write_text("a\nb\nc\nd\n")
    with pytest.raises(HeedfulError, match="has changed since"):
        list(read_shard(manifest, manifest.shards[0]))


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


def new_task(model: Path, source: Path, folder: Path, options: LineOptions, engine: str = "ctranslate2") -> ShardTask:
    translator = load(model, engine=engine, workers=1)  # type: ignore[arg-type]
    settings = json.loads(json.dumps(options.fingerprint([model], translator.name)))
    manifest = BulkManifest(
        settings,
        (file_fingerprint(source),),
        BATCH_LINES,
        options.output_format,
        tuple(split_into_shards([source], BATCH_LINES)),
    )
    folder.mkdir()
    manifest.write(folder)
    return ShardTask(folder, manifest, (model,), options, "cpu", engine, translator.name)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(("output_format", "n_best"), [("text", 1), ("tsv", 2), ("jsonl", 1)])
def test_shard_worker_output_matches_translate(
    quick_model: Path, unusual_lines: Path, tmp_path: Path, output_format: str, n_best: int
) -> None:
    overrides = {"beam_size": n_best, "n_best": n_best, "max_length_offset": 3}
    options = TranslateOptions(
        models=(quick_model,),
        inputs=(unusual_lines,),
        output=tmp_path / "plain",
        output_format=output_format,
        generation_overrides=overrides,
        workers=2,
    )
    translate_inputs(replace(options, engine="ctranslate2"), Reporter(quiet=True))
    search = load(quick_model, engine="ctranslate2").model_folder.config.generation.model_copy(update=overrides)
    task = new_task(quick_model, unusual_lines, tmp_path / "shards", LineOptions(search, output_format=output_format))
    worker = ShardWorker(task)
    rows = [worker({"shard": number}) for number in (2, 0, 1)]
    assert [row["problem"] for row in rows] == ["", "", ""]
    outputs = [task.manifest.output_path(task.folder, shard) for shard in task.manifest.shards]
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
    search = load(quick_model).model_folder.config.generation.model_copy(
        update={"beam_size": 1, "max_length_offset": 3}
    )
    task = new_task(quick_model, unusual_lines, tmp_path / "shards", LineOptions(search))
    shard = task.manifest.shards[2]
    output = task.manifest.output_path(task.folder, shard)
    assert read_shard_record(task.folder, task.manifest, shard) is None
    expected = ShardWorker(task).translate_shard(shard)
    translation, record = output.read_bytes(), record_path(output).read_bytes()
    assert read_shard_record(task.folder, task.manifest, shard) == expected
    output.write_bytes(translation[:50] + bytes([translation[50] ^ 1]) + translation[51:])
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.write_bytes(translation[:-1])
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.unlink()
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.write_bytes(translation)
    for corrupt in (record[:-9], b"[]", b"{}", record.replace(b'"line_count": ', b'"line_count": 1'), b"\xff"):
        record_path(output).write_bytes(corrupt)
        assert read_shard_record(task.folder, task.manifest, shard) is None
    record_path(output).write_bytes(record)
    other = replace(task.manifest, shard_lines=2 * BATCH_LINES)  # the record belongs to another manifest
    assert read_shard_record(task.folder, other, shard) is None
    assert read_shard_record(task.folder, task.manifest, shard) == expected


def test_shard_worker_returns_problems(quick_model: Path, unusual_lines: Path, tmp_path: Path) -> None:
    options = LineOptions(load(quick_model).model_folder.config.generation)
    task = new_task(quick_model, unusual_lines, tmp_path / "shards", options)
    other_engine = ShardWorker(replace(task, engine_name="other engine"))({"shard": 0})
    assert "is CTranslate2 float32, expected other engine" in str(other_engine["problem"])
    missing_model = replace(
        task, manifest=replace(task.manifest, settings={"model": [{"path": str(tmp_path / "none")}]})
    )
    assert "no such file" in str(ShardWorker(missing_model)({"shard": 0})["problem"])
    for number in range(8):
        (task.folder / "incomplete" / f"000000-in.txt.{number}").touch()
    assert "8 workers died at the same shard" in str(ShardWorker(task)({"shard": 0})["problem"])


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
