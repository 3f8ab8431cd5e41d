"""Shards: the same lines as in one piece, whole or not at all; and what --ray refuses, without Ray."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heedful.commands.lines import Wanted
from heedful.commands.resuming import of_file
from heedful.commands.shard_worker import PatientEngine, ShardWorker, Task, finished, record_path
from heedful.commands.shards import Manifest, cut, read_shard
from heedful.commands.translate import TranslateOptions, translate_command
from heedful.corpora.grammar import generate
from heedful.corpora.lines import count_lines, read_lines
from heedful.engines.base import Alternative, Translation
from heedful.engines.lines import WINDOW
from heedful.errors import HeedfulError
from heedful.files import locked
from heedful.loading import load
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


def manifest_of(inputs: list[Path], shard_lines: int) -> Manifest:
    identities = tuple(map(of_file, inputs))
    return Manifest({}, identities, shard_lines, "text", tuple(cut(inputs, shard_lines)))


@pytest.mark.parametrize("every", [1, 2, 3, 100])
@pytest.mark.parametrize("name", AWKWARD)
def test_shards_are_the_lines_of_the_file(tmp_path: Path, name: str, every: int) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(AWKWARD[name])
    manifest = manifest_of([path], every)
    found = [line for shard in manifest.shards for line in read_shard(manifest, shard)]
    assert found == list(read_lines(path))
    assert sum(shard.lines for shard in manifest.shards) == count_lines(path)
    assert all(shard.lines == every for shard in manifest.shards[:-1])


def test_cuts_across_blocks(tmp_path: Path) -> None:
    """Lines of all lengths, some longer than what is read at once."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(bytes([97 + n % 26]) * (n * n % 7919) + b"\n" for n in range(1500)))
    manifest = manifest_of([path], 7)
    assert [line for shard in manifest.shards for line in read_shard(manifest, shard)] == [*read_lines(path)]


def test_a_packed_file_is_one_shard(tmp_path: Path) -> None:
    plain, packed, empty = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.gz"
    plain.write_text("a\n" * 5)
    packed.write_bytes(gzip.compress(b"b\n" * 5))
    empty.write_bytes(gzip.compress(b""))
    manifest = manifest_of([plain, packed, empty], 2)
    assert [(each.source, each.before, each.lines) for each in manifest.shards] == [
        (0, 0, 2),
        (0, 2, 2),
        (0, 4, 1),
        (1, 0, 5),
    ]
    assert [line.text for line in read_shard(manifest, manifest.shards[3])] == ["b"] * 5
    assert manifest.output(tmp_path, manifest.shards[3]).name == "000003-b.txt"


def test_manifest_comes_back_and_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    manifest = manifest_of([path], 2)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    text = (tmp_path / "manifest.json").read_text()
    for broken in (text[:100], "[]", "{}", text.replace('"shard_lines": 2', '"shard_lines": 3')):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(HeedfulError, match=r"manifest\.json"):
            Manifest.read(tmp_path)


def test_an_input_that_changes_is_an_error(tmp_path: Path) -> None:
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
    sources = [pair.source for pair in generate(1000, seed=5)]
    ordinary = "\n".join(sources * 5).encode() + b"\n"
    path.write_bytes(b"".join(AWKWARD[name] + b"\n" for name in AWKWARD if "longer" not in name) + ordinary)
    return path


def new_task(model: Path, source: Path, folder: Path, wanted: Wanted, engine: str = "ctranslate2") -> Task:
    found = load(model, engine=engine, workers=1)  # type: ignore[arg-type]
    work = json.loads(json.dumps(wanted.identity([model], found.name)))
    manifest = Manifest(work, (of_file(source),), WINDOW, wanted.form, tuple(cut([source], WINDOW)))
    folder.mkdir()
    manifest.write(folder)
    return Task(folder, manifest, (model,), wanted, "cpu", engine, found.name)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(("form", "n_best"), [("text", 1), ("tsv", 2), ("jsonl", 1)])
def test_shards_are_the_plain_translation(
    quick_model: Path, awkward_lines: Path, tmp_path: Path, form: str, n_best: int
) -> None:
    told = {"beam": n_best, "n_best": n_best, "extra_length": 3}
    options = TranslateOptions(
        quick_model, source=awkward_lines, output=tmp_path / "plain", form=form, search=told, workers=2
    )
    translate_command(replace(options, engine="ctranslate2"), Reporter(quiet=True))
    search = load(quick_model, engine="ctranslate2").bundle.config.search.model_copy(update=told)
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", Wanted(search, form=form))
    worker = ShardWorker(task)
    rows = [worker({"shard": number}) for number in (2, 0, 1)]
    assert [row["problem"] for row in rows] == ["", "", ""]
    outputs = [task.manifest.output(task.folder, shard) for shard in task.manifest.shards]
    assert len(outputs) == 3
    assert b"".join(path.read_bytes() for path in outputs) == (tmp_path / "plain").read_bytes()
    first = json.loads(record_path(outputs[0]).read_text())
    assert (first["unread"], first["first_unread"]) == (2, "in.txt, line 23: invalid UTF-8")
    assert not list((task.folder / "unfinished").iterdir())
    assert {path.name for path in task.folder.iterdir()} == {
        "manifest.json",
        "unfinished",
        *(path.name for path in outputs),
        *(record_path(path).name for path in outputs),
    }


def test_damage_of_a_finished_shard_is_noticed(
    quick_model: Path, awkward_lines: Path, tmp_path: Path
) -> None:
    search = load(quick_model).bundle.config.search.model_copy(update={"beam": 1, "extra_length": 3})
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", Wanted(search))
    shard = task.manifest.shards[2]
    output = task.manifest.output(task.folder, shard)
    assert finished(task.folder, task.manifest, shard) is None
    good = ShardWorker(task).translated(shard)
    whole, record = output.read_bytes(), record_path(output).read_bytes()
    assert finished(task.folder, task.manifest, shard) == good
    output.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert finished(task.folder, task.manifest, shard) is None
    output.write_bytes(whole[:-1])
    assert finished(task.folder, task.manifest, shard) is None
    output.unlink()
    assert finished(task.folder, task.manifest, shard) is None
    output.write_bytes(whole)
    for broken in (record[:-9], b"[]", b"{}", record.replace(b'"lines": ', b'"lines": 1'), b"\xff"):
        record_path(output).write_bytes(broken)
        assert finished(task.folder, task.manifest, shard) is None
    record_path(output).write_bytes(record)
    other = replace(task.manifest, shard_lines=2 * WINDOW)  # the record is of other work
    assert finished(task.folder, other, shard) is None
    assert finished(task.folder, task.manifest, shard) == good


def test_what_a_worker_finds_wrong_is_told(quick_model: Path, awkward_lines: Path, tmp_path: Path) -> None:
    wanted = Wanted(load(quick_model).bundle.config.search)
    task = new_task(quick_model, awkward_lines, tmp_path / "shards", wanted)
    another = ShardWorker(replace(task, engine_name="another engine"))({"shard": 0})
    assert "the engine would be CTranslate2" in str(another["problem"])
    gone = replace(task, manifest=replace(task.manifest, work={"model": [{"path": str(tmp_path / "none")}]}))
    assert "no such file" in str(ShardWorker(gone)({"shard": 0})["problem"])
    for number in range(8):
        (task.folder / "unfinished" / f"000000-in.txt.{number}").touch()
    assert "8 workers died at the same shard" in str(ShardWorker(task)({"shard": 0})["problem"])


class Fussy:
    """An engine that stumbles over some lines."""

    name, windows_at_once = "fussy", 1

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def translate(self, texts, search=None, prefixes=None, *, details=False, glossary=None):  # type: ignore[no-untyped-def]
        if any(self.refused in text for text in texts):
            raise RuntimeError("too much")
        return [Translation(text, (Alternative(text.upper(), 0.0, 0.0, (), ()),)) for text in texts]


def test_a_line_that_cannot_be_translated_is_left_empty() -> None:
    engine = PatientEngine(Fussy("b"))
    found = list(engine.noted(engine.translate(["a", "b", "c"]), 10))
    assert [each.text for each in found] == ["A", "", "C"]
    assert (engine.failed, engine.first) == (1, "line 12: RuntimeError: too much")
    with pytest.raises(RuntimeError):  # then it is not the line
        PatientEngine(Fussy("")).translate(["a", "b", "c"])


def test_what_is_refused(quick_model: Path, tmp_path: Path) -> None:
    source, folder, full, odd = (tmp_path / name for name in ("in.txt", "folder", "full", "in.po"))
    source.write_text("The dog is tired.\n")
    odd.write_text('msgid "a"\nmsgstr ""\n')
    (tmp_path / "empty").mkdir()
    folder.mkdir()
    full.mkdir()
    (full / "letter.txt").write_text("mine\n")
    cases = [
        (["A dog."], "--ray is for files"),
        (["-i", source], "--ray writes to a file or folder"),
        (["-i", source, "-o", tmp_path / "no" / "out"], "there is no folder"),
        (["-i", source, "-o", source], "would overwrite"),
        (["-i", tmp_path, "-o", folder / "x"], "is a localisation file"),
        (["-i", source, "-i", source, "-o", source], "several inputs need a folder"),
        (["-i", source, "-o", full], "holds other files (letter.txt)"),
        (["-i", tmp_path / "none", "-o", folder], "no such file"),
        (["-i", tmp_path / "empty", "-o", folder], "there is no file in"),
        (["-i", source, "-o", folder, "--stream"], "do not go with --ray"),
        (["-i", source, "-o", folder, "--n-best", "2", "--format", "text"], "room for a translation a line"),
    ]
    for words, reason in cases:
        done = run_heedful("translate", quick_model, *words, "--ray", "local")
        assert done.status == 1, words
        assert reason in done.err, words
    assert "add --ray local" in run_heedful("translate", quick_model, "-i", source, "-i", source).err
    assert "belongs to --ray" in run_heedful("translate", quick_model, "A dog.", "--shard-lines", "9").err
    assert {path.name for path in full.iterdir()} <= {"letter.txt", "lock"}


def test_one_at_a_time(quick_model: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "in.txt", tmp_path / "folder"
    source.write_text("The dog is tired.\n")
    folder.mkdir()
    with locked(folder):
        done = run_heedful("translate", quick_model, "-i", source, "-o", folder, "--ray", "local")
    assert done.status == 1
    assert f"another process is at work in {folder}" in done.err


def test_an_empty_file_needs_no_workers(quick_model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("")
    done = run_heedful("translate", quick_model, "-i", source, "-o", output, "--ray", "local")
    assert done.status == 0, done.err
    assert output.read_bytes() == b""
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt"}


def test_without_ray_the_error_says_what_to_install(quick_model: Path, awkward_lines: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from heedful.cli import main; main()"
    words = [
        "translate",
        quick_model,
        "-i",
        awkward_lines,
        "-o",
        awkward_lines.parent / "x",
        "--ray",
        "local",
    ]
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("error: --ray needs ray, not installed\n  hint: pip install 'heedful[ray]'\n")
