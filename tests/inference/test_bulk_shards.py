"""Shards: the same lines as in one piece, whole or not at all; and what --ray refuses, without Ray."""

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

AWKWARD = {
    "empty": b"",
    "one line feed": b"\n",
    "no last line feed": b"one\ntwo\nthree",
    "empty lines": b"\n\n\none\n\n",
    "carriage returns": b"one\r\ntwo\r\n\r\nthree\r",
    "marks": b"\xef\xbb\xbfone\ntwo\n\xef\xbb\xbfthree\nfour\n",
    "bad": b"one\n\xff\xfe\ntwo\n\xc3\nthree\n",
    "scripts": "مرحبا بالعالم\n你好，世界\n👩‍🚀🎉\nline\u2028separator\x0c\n".encode(),
    "long": b"x" * 10_000 + b"\nshort\n" + b"y z " * 5_000,
    "longer than a line": b"a\n" + b"z" * ((1 << 22) + 5) + b"\nb\n",
}


def manifest_of(inputs: list[Path], shard_lines: int) -> BulkManifest:
    identities = tuple(map(file_fingerprint, inputs))
    return BulkManifest({}, identities, shard_lines, "text", tuple(split_into_shards(inputs, shard_lines)))


@pytest.mark.parametrize("every", [1, 2, 3, 100])
@pytest.mark.parametrize("name", AWKWARD)
def test_read_shard_all_shards_give_all_lines(tmp_path: Path, name: str, every: int) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(AWKWARD[name])
    manifest = manifest_of([path], every)
    found = [line for shard in manifest.shards for line in read_shard(manifest, shard)]
    assert found == list(read_lines(path))
    assert sum(shard.line_count for shard in manifest.shards) == count_lines(path)
    assert all(shard.line_count == every for shard in manifest.shards[:-1])


def test_split_into_shards_lines_longer_than_block(tmp_path: Path) -> None:
    """Lines of all lengths, some longer than what is read at once."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(bytes([97 + n % 26]) * (n * n % 7919) + b"\n" for n in range(1500)))
    manifest = manifest_of([path], 7)
    assert [line for shard in manifest.shards for line in read_shard(manifest, shard)] == [*read_lines(path)]


def test_split_into_shards_gzip_is_one_shard(tmp_path: Path) -> None:
    plain, packed, empty = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.gz"
    plain.write_text("a\n" * 5)
    packed.write_bytes(gzip.compress(b"b\n" * 5))
    empty.write_bytes(gzip.compress(b""))
    manifest = manifest_of([plain, packed, empty], 2)
    assert [(each.input_index, each.lines_before, each.line_count) for each in manifest.shards] == [
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
    manifest = manifest_of([path], 2)
    manifest.write(tmp_path)
    assert BulkManifest.read(tmp_path) == manifest
    text = (tmp_path / "manifest.json").read_text()
    for broken in (text[:100], "[]", "{}", text.replace('"shard_lines": 2', '"shard_lines": 3')):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(HeedfulError, match=r"manifest\.json"):
            BulkManifest.read(tmp_path)


def test_read_shard_changed_input_raises(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    manifest = manifest_of([path], 2)
    path.write_text("a\nb\nc\nd\n")
    with pytest.raises(HeedfulError, match="has changed since"):
        list(read_shard(manifest, manifest.shards[0]))


@pytest.fixture(scope="module")
def awkward_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two windows and a bit, with lines of all kinds."""
    path = tmp_path_factory.mktemp("shards") / "in.txt"
    sources = [pair.source for pair in generate_pairs(1000, seed=5)]
    ordinary = "\n".join(sources * 5).encode() + b"\n"
    path.write_bytes(b"".join(AWKWARD[name] + b"\n" for name in AWKWARD if "longer" not in name) + ordinary)
    return path


def new_task(model: Path, source: Path, folder: Path, wanted: LineOptions, engine: str = "ctranslate2") -> ShardTask:
    found = load(model, engine=engine, workers=1)  # type: ignore[arg-type]
    work = json.loads(json.dumps(wanted.fingerprint([model], found.name)))
    manifest = BulkManifest(
        work,
        (file_fingerprint(source),),
        BATCH_LINES,
        wanted.output_format,
        tuple(split_into_shards([source], BATCH_LINES)),
    )
    folder.mkdir()
    manifest.write(folder)
    return ShardTask(folder, manifest, (model,), wanted, "cpu", engine, found.name)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(("form", "n_best"), [("text", 1), ("tsv", 2), ("jsonl", 1)])
def test_shard_worker_output_matches_translate(
    quick_model: Path, awkward_lines: Path, tmp_path: Path, form: str, n_best: int
) -> None:
    told = {"beam_size": n_best, "n_best": n_best, "max_length_offset": 3}
    options = TranslateOptions(
        models=(quick_model,),
        inputs=(awkward_lines,),
        output=tmp_path / "plain",
        output_format=form,
        generation_overrides=told,
        workers=2,
    )
    translate_inputs(replace(options, engine="ctranslate2"), Reporter(quiet=True))
    search = load(quick_model, engine="ctranslate2").model_folder.config.generation.model_copy(update=told)
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", LineOptions(search, output_format=form))
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


def test_read_shard_record_corrupt_shard_returns_none(quick_model: Path, awkward_lines: Path, tmp_path: Path) -> None:
    search = load(quick_model).model_folder.config.generation.model_copy(
        update={"beam_size": 1, "max_length_offset": 3}
    )
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", LineOptions(search))
    shard = task.manifest.shards[2]
    output = task.manifest.output_path(task.folder, shard)
    assert read_shard_record(task.folder, task.manifest, shard) is None
    good = ShardWorker(task).translate_shard(shard)
    whole, record = output.read_bytes(), record_path(output).read_bytes()
    assert read_shard_record(task.folder, task.manifest, shard) == good
    output.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.write_bytes(whole[:-1])
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.unlink()
    assert read_shard_record(task.folder, task.manifest, shard) is None
    output.write_bytes(whole)
    for broken in (record[:-9], b"[]", b"{}", record.replace(b'"line_count": ', b'"line_count": 1'), b"\xff"):
        record_path(output).write_bytes(broken)
        assert read_shard_record(task.folder, task.manifest, shard) is None
    record_path(output).write_bytes(record)
    other = replace(task.manifest, shard_lines=2 * BATCH_LINES)  # the record is of other work
    assert read_shard_record(task.folder, other, shard) is None
    assert read_shard_record(task.folder, task.manifest, shard) == good


def test_shard_worker_returns_problems(quick_model: Path, awkward_lines: Path, tmp_path: Path) -> None:
    wanted = LineOptions(load(quick_model).model_folder.config.generation)
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", wanted)
    another = ShardWorker(replace(task, engine_name="another engine"))({"shard": 0})
    assert "is CTranslate2 float32, expected another engine" in str(another["problem"])
    gone = replace(task, manifest=replace(task.manifest, settings={"model": [{"path": str(tmp_path / "none")}]}))
    assert "no such file" in str(ShardWorker(gone)({"shard": 0})["problem"])
    for number in range(8):
        (task.folder / "incomplete" / f"000000-in.txt.{number}").touch()
    assert "8 workers died at the same shard" in str(ShardWorker(task)({"shard": 0})["problem"])


class Fussy:
    """An engine that stumbles over some lines."""

    name, concurrent_batches = "fussy", 1

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def translate(self, texts, generation_config=None, prefixes=None, *, details=False, glossary=None):  # type: ignore[no-untyped-def]
        if any(self.refused in text for text in texts):
            raise RuntimeError("too much")
        return [Translation(text, (Alternative(text.upper()),)) for text in texts]


def translate_skipping(translator: Fussy) -> list[Translation]:
    lines = translate_lines(translator, ["a", "b", "c"], interactive=False, skip_failures=True)  # type: ignore[arg-type]
    return list(lines)


def test_translate_lines_skip_failures_leaves_line_empty() -> None:
    translations = translate_skipping(Fussy("b"))
    assert [translation.text for translation in translations] == ["A", "", "C"]
    statistics = LineStatistics()
    write_translations(translations, io.StringIO(), LineOptions(GenerationConfig()), statistics, 10)
    assert (statistics.failed, statistics.first_failure) == (1, "line 12: RuntimeError: too much")
    assert statistics.incomplete == 0
    with pytest.raises(RuntimeError):  # then it is not the line
        translate_skipping(Fussy(""))


def test_ray_invalid_options_raise(quick_model: Path, tmp_path: Path) -> None:
    source, folder, full, odd = (tmp_path / name for name in ("in.txt", "folder", "full", "in.po"))
    source.write_text("The dog is tired.\n")
    odd.write_text('msgid "a"\nmsgstr ""\n')
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
    for words, reason in cases:
        done = run_heedful("translate", quick_model, *words, "--ray", "local")
        assert done.status == 1, words
        assert reason in done.err, words
    assert "add --ray local" in run_heedful("translate", quick_model, "-i", source, "-i", source).err
    assert "requires --ray" in run_heedful("translate", quick_model, "A dog.", "--shard-lines", "9").err
    assert {path.name for path in full.iterdir()} <= {"letter.txt", "lock"}


def test_ray_second_process_raises(quick_model: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "in.txt", tmp_path / "folder"
    source.write_text("The dog is tired.\n")
    folder.mkdir()
    with lock_folder(folder):
        done = run_heedful("translate", quick_model, "-i", source, "-o", folder, "--ray", "local")
    assert done.status == 1
    assert f"another process is using {folder}" in done.err


def test_ray_empty_file_starts_no_workers(quick_model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("")
    done = run_heedful("translate", quick_model, "-i", source, "-o", output, "--ray", "local")
    assert done.status == 0, done.err
    assert output.read_bytes() == b""
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_ray_missing_package_raises_with_pip_command(quick_model: Path, awkward_lines: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from heedful.cli.main import main; main()"
    words = ["translate", quick_model, "-i", awkward_lines, "-o", awkward_lines.parent / "x", "--ray", "local"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("error: --ray needs ray\n  hint: pip install 'heedful[ray]'\n")
