"""One shard translated by one worker: its translation is there whole, with its record, or not at all.

000003-big.txt         the translation
000003-big.txt.json    its checksum, and what there is to tell about its lines
unfinished/            attempts that are under way, or were killed
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from heedful.commands.lines import LineWork, Treeless, Wanted
from heedful.commands.shards import MANIFEST, Manifest, Shard, check_same, read_shard
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Engine, Translation
from heedful.engines.lines import LineEngine
from heedful.errors import HeedfulError
from heedful.files import read_json, sync_folder, write_json
from heedful.loading import EngineName, load
from heedful.progress import counted
from heedful.text.glossary import Glossary

UNFINISHED = "unfinished"
"""The folder of attempts that are under way, or were killed: apart, since the others may be many."""
ATTEMPTS = 8
"""At one shard; one that takes so many workers with it would take all."""
EMPTY = Alternative("", 0.0, 0.0, (), ())


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a finished shard."""

    work: str
    """The name of the work, of the manifest."""
    shard: int
    lines: int
    bytes: int
    checksum: str
    incomplete: int = 0
    missing: int = 0
    """Translations that lack a term."""
    unread: int = 0
    """Lines that are no UTF-8, or too long."""
    first_unread: str = ""
    failed: int = 0
    """Lines that the engine could not translate."""
    first_failed: str = ""
    treeless: int = 0
    first_treeless: str = ""


def record_path(output: Path) -> Path:
    """Where the record of a shard stands."""
    return output.with_name(output.name + ".json")


def partial_paths(output: Path) -> list[Path]:
    """What attempts at a shard have written that are under way, or were killed."""
    return sorted((output.parent / UNFINISHED).glob(f"{glob_safe(output.name)}.*"))


def glob_safe(name: str) -> str:
    """A name as a pattern that fits nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def finished(folder: Path, manifest: Manifest, shard: Shard) -> Record | None:
    """The record of a shard whose translation is there, of this very work, and undamaged."""
    output = manifest.output(folder, shard)
    try:
        found = read_json(record_path(output), "")
        record = Record(**found)
        if (record.work, record.shard, record.lines) != (manifest.name, shard.number, shard.lines):
            return None
        return record if checksum(output) == (record.bytes, record.checksum) else None
    except (HeedfulError, TypeError, OSError):  # none, or damaged: translated again
        return None


def checksum(path: Path) -> tuple[int, str]:
    """The size of a file, and a checksum of what is in it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
        return file.tell(), digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Task:
    """All that a worker must know, besides the shard."""

    folder: Path
    manifest: Manifest
    models: tuple[Path, ...]
    wanted: Wanted
    device: str
    engine: EngineName
    engine_name: str
    """The engine that was chosen when the work began: another might translate otherwise."""


class ShardWorker:
    """A process with one engine, loaded when the first shard comes."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.engine: Engine | None = None

    def __call__(self, row: Mapping[str, int]) -> dict[str, object]:
        """What became of a shard: its record, or a problem with a hint; errors of ours are raised."""
        shard = self.task.manifest.shards[row["shard"]]
        try:
            return {"shard": shard.number, "lines": self.translated(shard).lines, "problem": "", "hint": ""}
        except HeedfulError as error:
            problem, hint = error.problem, error.hint
        except OSError as error:
            problem = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            full = error.errno == errno.ENOSPC
            hint = "free some space; nothing that was complete is lost" if full else ""
        return {"shard": shard.number, "lines": 0, "problem": problem, "hint": hint}

    def translated(self, shard: Shard) -> Record:
        """Translate a shard, and give it its name."""
        output = self.task.manifest.output(self.task.folder, shard)
        if len(partial_paths(output)) >= ATTEMPTS:
            raise HeedfulError(
                f"{counted(ATTEMPTS, 'worker')} died at the same shard, {output.name}",
                hint="there may be too little memory: fewer --workers need less",
            )
        # An attempt has a name of its own: where a host was thought lost, two may be under way.
        aside = output.parent / UNFINISHED / f"{output.name}.{uuid4().hex}"
        try:
            aside.parent.mkdir(exist_ok=True)
            aside.touch()  # whoever dies from here on has been seen to try
            self.engine = self.engine or self._loaded()
            record = self._written(shard, self.engine, aside)
            if read_json(self.task.folder / MANIFEST, "")["name"] != self.task.manifest.name:
                raise HeedfulError(f"{self.task.folder} is of other work by now")
            aside.replace(output)
            sync_folder(self.task.folder)
            write_json(record_path(output), asdict(record))
            return record
        finally:
            aside.unlink(missing_ok=True)

    def _loaded(self) -> Engine:
        task = self.task
        for part in task.manifest.work["model"]:
            check_same(part)
        engine = load(task.models, device=task.device, engine=task.engine, workers=1)
        if engine.name != task.engine_name:
            raise HeedfulError(
                f"on {os.uname().nodename} the engine would be {engine.name}, not {task.engine_name}",
                hint="install the same on all hosts, or choose one that all have: --engine pytorch",
            )
        return engine

    def _written(self, shard: Shard, engine: Engine, aside: Path) -> Record:
        notes, patient, treeless = _Notes(), PatientEngine(engine), Treeless(engine.bundle)
        work = LineWork(patient, self.task.wanted)
        lines = treeless.noted(notes.read(self.task.manifest, shard), shard.before)
        with (
            aside.open("wb") as file,
            io.TextIOWrapper(file, encoding="utf-8", newline="\n", write_through=True) as text,
        ):
            found = patient.noted(work.translated(lines, waiting=False), shard.before)
            incomplete, missing = work.written(found, text, shard.before)
            text.flush()
            os.fsync(file.fileno())
        size, digest = checksum(aside)
        return Record(
            self.task.manifest.name,
            shard.number,
            shard.lines,
            size,
            digest,
            incomplete - patient.failed,
            missing,
            notes.unread,
            notes.first,
            patient.failed,
            patient.first,
            treeless.found,
            treeless.first,
        )


class _Notes:
    """The lines that cannot be read."""

    def __init__(self) -> None:
        self.unread, self.first = 0, ""

    def read(self, manifest: Manifest, shard: Shard) -> Iterator[str]:
        for line in read_shard(manifest, shard):
            if line.fault:
                self.unread += 1
                name = manifest.path(shard).name
                self.first = self.first or f"{name}, line {line.number:,}: {line.fault}"
            yield line.text


class PatientEngine:
    """An engine that leaves a line empty which it cannot translate, instead of ending the work of days."""

    def __init__(self, engine: LineEngine) -> None:
        self.engine, self.name, self.windows_at_once = engine, engine.name, engine.windows_at_once
        self.failed, self.first, self.reason = 0, "", ""

    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        """Translate all together or, where that fails, each alone. If each fails too, no line is to blame."""

        def translated(chosen: Sequence[str]) -> list[Translation]:
            beginnings = prefixes and prefixes[: len(chosen)]  # of lines, all are the same
            return self.engine.translate(chosen, search, beginnings, details=details, glossary=glossary)

        try:
            return translated(texts)
        except HeedfulError:
            raise
        except Exception as error:
            self.reason = self.reason or f"{type(error).__name__}: {error}"
            found = [self._alone(text, translated) for text in texts]
            if len(texts) > 1 and all(each.segments == 0 for each in found):
                raise
            return found

    def _alone(self, text: str, translated: Callable[[Sequence[str]], list[Translation]]) -> Translation:
        try:
            return translated([text])[0]
        except HeedfulError:
            raise
        except Exception:
            return Translation(text, (EMPTY,), segments=0, complete=False)

    def noted(self, found: Iterable[Translation], before: int) -> Iterator[Translation]:
        """The translations; those that failed are counted."""
        for number, translation in enumerate(found, start=before + 1):
            if translation.segments == 0:
                self.failed += 1
                self.first = self.first or f"line {number:,}: {self.reason}"
            yield translation
