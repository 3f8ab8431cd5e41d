"""``heedful translate --ray``: files too large for one process, translated in shards by many workers.

out.txt.shards/      or the folder that is the output
  manifest.json      what is translated, by what, how, and in which shards
  000003-big.txt     a shard's translation, and beside it its record (shard_worker.py)
  lock               held while a command is at work here
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.commands import ray_cluster
from heedful.commands.lines import Wanted, chosen_form, tell_incomplete, tell_treeless
from heedful.commands.options import engine_name, search_settings
from heedful.commands.resuming import of_file
from heedful.commands.shard_worker import (
    UNFINISHED,
    Record,
    ShardWorker,
    Task,
    finished,
    partial_paths,
)
from heedful.commands.shards import MANIFEST, Manifest, Shard, cut, is_packed, whole_windows
from heedful.commands.translate import TranslateOptions, check_options, output_place, translate_command
from heedful.corpora.formats import check_readable
from heedful.corpora.lines import STANDARD_INPUT
from heedful.corpora.terms import read_glossary
from heedful.errors import HeedfulError
from heedful.files import check_writable, locked, whole_file
from heedful.loading import load
from heedful.progress import Reporter, counted
from heedful.progress import Task as Progress

SHARD_LINES = 16_384
"""Lines of a shard if nothing is told: some minutes of work for a core."""
LARGE_PACKED = 1 << 26
"""Bytes of a packed input from which on it is worth a word that it is one shard."""


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The command line of ``heedful translate --ray``."""

    inputs: tuple[Path, ...]
    output: Path | None
    address: str
    """Of Ray; empty to do without."""
    translate: TranslateOptions
    """How; without inputs and output."""
    shard_lines: int = 0

    @property
    def lines(self) -> int:
        """Lines of a shard."""
        return whole_windows(self.shard_lines or SHARD_LINES)


def translate_files(options: BulkOptions, report: Reporter) -> None:
    """By many workers, if an address of Ray is given; else here, texts and streams too."""
    if options.address:
        bulk_command(options, report)
        return
    if len(options.inputs) > 1:
        raise HeedfulError("several inputs are for many workers", hint="add --ray local, or give one")
    if options.shard_lines:
        raise HeedfulError("--shard-lines belongs to --ray", hint="add --ray local, or leave it out")
    source = options.inputs[0] if options.inputs else None
    translate_command(replace(options.translate, source=source, output=options.output), report)


def bulk_command(options: BulkOptions, report: Reporter) -> None:
    """Translate the inputs in shards, into one file or a folder of shards."""
    _check(options)
    ray_cluster.require()
    inputs = _files(options)
    output = _output(options, inputs)
    task, gpus = _task(options, inputs, output, report)
    task.folder.mkdir(exist_ok=True)
    with locked(task.folder):
        task = replace(task, manifest=_agreed(task, output, options, report))
        _translate_rest(task, options, gpus, report)
        records = _all_finished(task)
        if output.joined:
            _join(task, records, output.path)
            shutil.rmtree(task.folder)  # with the lock, whose next holder begins anew
    _tell(task, records, report)


# ---- what is given


def _check(options: BulkOptions) -> None:
    told = options.translate
    if not options.inputs or STANDARD_INPUT in options.inputs or told.texts:
        raise HeedfulError("--ray is for files", hint="name them: -i big.txt, or a folder")
    if not options.output:
        raise HeedfulError("--ray writes to a file or folder", hint="name it: -o out.txt, or -o folder/")
    if told.stream or told.document:
        raise HeedfulError(
            "--stream, --again, --mark and --languages do not go with --ray", hint="leave them out"
        )
    check_options(told)


def _files(options: BulkOptions) -> list[Path]:
    """The files that are given, and those of folders in the order of their names, but no hidden ones.

    What stands below the output is what an earlier command has written.
    """
    found: list[Path] = []
    output = options.output.absolute() if options.output else Path()
    written = {output, output.with_name(f"{output.name}.shards")}
    for path in options.inputs:
        inside = sorted(
            each
            for each in path.rglob("*")
            if each.is_file() and not each.name.startswith(".") and not written & {*each.absolute().parents}
        )
        if path.is_dir() and not inside:
            raise HeedfulError(f"there is no file in {path}", hint="name files, or a folder of files")
        found += inside if path.is_dir() else [path]
    for path in found:
        _check_lines(path, options.translate.form)
    return [path.absolute() for path in found]


def _check_lines(path: Path, form: str) -> None:
    from heedful.documents.recognition import recognised

    check_readable(path)
    if not path.is_file():
        raise HeedfulError(f"{path} can be read only once", hint="--ray is for files")
    if not form and recognised(path):
        raise HeedfulError(
            f"{path} is a localisation file, which is not cut into lines",
            hint="leave out --ray; or take it as lines of text: --format text",
        )


@dataclass(frozen=True, slots=True)
class _Output:
    path: Path
    joined: bool
    """Whether the shards become one file, instead of staying in their folder."""

    @property
    def folder(self) -> Path:
        return self.path.with_name(self.path.name + ".shards") if self.joined else self.path


def _output(options: BulkOptions, inputs: Sequence[Path]) -> _Output:
    """A folder that is there stays one; several inputs need one, which is made."""
    assert options.output is not None
    path = output_place(options.output)
    several = len(inputs) > 1 or any(given.is_dir() for given in options.inputs)
    if several and path.is_file():
        raise HeedfulError(f"{path} is a file, and several inputs need a folder", hint="name another")
    if not path.is_dir():
        check_writable(path)
    for each in (each.resolve() for each in inputs):
        if path == each or path in each.parents:
            raise HeedfulError("--output would overwrite --input", hint="name another place")
    return _Output(path, joined=not several and not path.is_dir())


def _task(
    options: BulkOptions, inputs: Sequence[Path], output: _Output, report: Reporter
) -> tuple[Task, int]:
    """What workers must know, and how many GPUs each needs. The engine is loaded here once, to find out."""
    told = options.translate
    models = tuple(model.absolute() for model in told.models)
    name = engine_name(told.engine)
    engine = load(models, device=told.device, engine=name, workers=1)
    search = search_settings(engine.bundle.config.search, told.search or {}, told.settings)
    engine.bundle.language_tag(search.language)
    report.say(f"engine: {engine.name}")
    form = chosen_form(told.form, search, columns=told.scores or told.alignments)
    glossary = read_glossary(told.glossary) if told.glossary else None
    wanted = Wanted(search, told.prefix, form, told.alignments, glossary)
    work = json.loads(json.dumps(wanted.identity(models, engine.name)))
    identities = tuple(map(of_file, inputs))
    manifest = Manifest(work, identities, options.lines, form, shards=())
    gpus = int(str(getattr(engine, "device", "cpu")).startswith("cuda"))
    return Task(output.folder, manifest, models, wanted, told.device, name, engine.name), gpus


# ---- what is there already


def _agreed(task: Task, output: _Output, options: BulkOptions, report: Reporter) -> Manifest:
    """The manifest in the folder if it is of the same work; else a new one, where that spoils nothing."""
    found = _found(task.folder, output)
    if found and found.name == task.manifest.name:
        return found
    if found and not output.joined:
        raise HeedfulError(
            f"{task.folder} is of other work (input, model or settings differ)", hint="name another folder"
        )
    if found:
        report.warn(f"{task.folder} is of other work (input, model or settings differ); beginning anew")
    for path in task.folder.iterdir() if output.joined else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
    manifest = replace(task.manifest, shards=tuple(_cut(task.manifest, report)))
    manifest.write(task.folder)
    return manifest


def _found(folder: Path, output: _Output) -> Manifest | None:
    if (folder / MANIFEST).exists():
        return Manifest.read(folder)
    strange = [path.name for path in folder.iterdir() if path.name not in ("lock", f"{MANIFEST}.partial")]
    if strange and not output.joined:
        raise HeedfulError(
            f"{folder} holds other files ({strange[0]})", hint="give an empty folder, or a new one"
        )
    return None


def _cut(manifest: Manifest, report: Reporter) -> Iterator[Shard]:
    paths = [Path(each["path"]) for each in manifest.inputs]
    for path in paths:
        if path.stat().st_size > LARGE_PACKED and is_packed(path):
            report.warn(f"{path} is packed and so one shard, for one worker; unpacked it is many")
    return cut(paths, manifest.shard_lines)


# ---- the work


def _translate_rest(task: Task, options: BulkOptions, gpus: int, report: Reporter) -> None:
    """Translate the shards that are not finished."""
    shards = task.manifest.shards
    done: list[Shard] = []
    rest: list[Shard] = []
    for shard in shards:
        (done if finished(task.folder, task.manifest, shard) else rest).append(shard)
    if done:
        report.say(f"going on: {len(done):,} of {counted(len(shards), 'shard')} are translated")
    shutil.rmtree(task.folder / UNFINISHED, ignore_errors=True)
    if not rest:
        return
    total, before = (sum(shard.lines for shard in some) for some in (shards, done))
    try:
        with (
            ray_cluster.started(options.address, options.translate.workers) as cores,
            report.task("translating", total, before, "lines") as progress,
        ):
            workers = min(options.translate.workers or cores, len(rest))
            report.say(f"{counted(len(rest), 'shard')} for {counted(workers, 'worker')}")
            lost = _mapped(task, rest, workers, gpus, progress)
    except KeyboardInterrupt:
        report.warn(f"what was translated so far is in {task.folder}; the same command goes on from there")
        raise
    shutil.rmtree(task.folder / UNFINISHED, ignore_errors=True)
    if lost:
        report.warn(f"{counted(lost, 'worker')} died in the middle of a shard, which was begun anew")


def _mapped(task: Task, rest: Sequence[Shard], workers: int, gpus: int, progress: Progress) -> int:
    """Let workers translate the rest; returns how many of them died."""
    lost = 0
    numbers = [shard.number for shard in rest]
    for row in ray_cluster.mapped(ShardWorker, task, numbers, workers, gpus):
        if row["problem"]:
            raise HeedfulError(row["problem"], hint=row["hint"])
        progress.advance(row["lines"])
        lost += _forget_attempts(task, task.manifest.shards[row["shard"]])
    return lost


def _forget_attempts(task: Task, shard: Shard) -> int:
    """Remove what killed workers left of a shard; returns how many there were."""
    left = partial_paths(task.manifest.output(task.folder, shard))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def _all_finished(task: Task) -> list[Record]:
    """The records of all shards, read again with what they are of."""
    found = [finished(task.folder, task.manifest, shard) for shard in task.manifest.shards]
    records = [record for record in found if record]
    if len(records) < len(found):
        raise HeedfulError(
            f"{len(found) - len(records):,} of {len(found):,} shards were damaged after they were written",
            hint="the same command translates them again",
        )
    return records


def _join(task: Task, records: Sequence[Record], path: Path) -> None:
    """One file of all shards, in order; compared once more on the way."""
    with whole_file(path) as joined:
        for shard, record in zip(task.manifest.shards, records, strict=True):
            digest = hashlib.blake2b()
            with task.manifest.output(task.folder, shard).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    joined.write(block)
            if digest.hexdigest() != record.checksum:
                raise HeedfulError(f"shard {shard.number} changed while it was read", hint="try again")


def _tell(task: Task, records: Sequence[Record], report: Reporter) -> None:
    """What the plain command says while it works, for all shards together."""
    unread, failed, treeless = (
        sum(getattr(record, name) for record in records) for name in ("unread", "failed", "treeless")
    )
    lines = sum(record.lines for record in records)
    tell_treeless(report, treeless, lines, _first(record.first_treeless for record in records))
    if unread:
        first = _first(record.first_unread for record in records)
        report.warn(f"{counted(unread, 'line')} cannot be read ({first}), and left empty")
    if failed:
        first = _first(record.first_failed for record in records)
        report.warn(f"{counted(failed, 'line')} could not be translated ({first}), and left empty")
    incomplete, missing = (sum(getattr(r, name) for r in records) for name in ("incomplete", "missing"))
    tell_incomplete(report, incomplete, missing)


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
