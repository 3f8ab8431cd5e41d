"""``heedful translate --ray``: large files, translated in shards by many workers.

out.txt.shards/      or the output folder
  manifest.json      inputs and settings
  000003-big.txt     a shard's translation; beside it its record (bulk_shards.py)
  lock               held by the running command
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.data.formats.lines import STANDARD_INPUT
from heedful.data.reader import check_readable
from heedful.errors import HeedfulError, StoppedError, check_extras
from heedful.files import atomic_write, check_writable, is_gzip, lock_folder, read_json, write_json
from heedful.inference.bulk import LineStatistics, TranslateOptions, check_options, load_translator, resolve_output
from heedful.inference.bulk_shards import (
    INCOMPLETE_FOLDER,
    MANIFEST_FILE,
    BulkTask,
    Shard,
    ShardRecord,
    ShardWorker,
    build_manifest,
    read_shard_record,
    round_to_batches,
    split_into_shards,
)
from heedful.progress import Reporter, format_count

DEFAULT_SHARD_LINES = 16_384
"""Some minutes of work for one core."""

LARGE_GZIP_BYTES = 1 << 26
"""Size from which a gzip input is reported: it is one shard, for one worker."""

MAX_ATTEMPTS = 8
"""Workers that may die at one shard before the translation stops."""

LOCAL_ADDRESS = "local"

OBJECT_STORE_BYTES = 100 << 20
"""Memory for objects sent between processes: here only shard numbers."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # fail after a minute without an answer
}

_LOCAL_ENVIRONMENT = {
    # Makes Ray bind to 127.0.0.1; given that address by name, it would bind to the external one.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Seconds that its processes wait for a lost one, which on one machine does not return.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


def translate_with_ray(options: TranslateOptions, inputs: Sequence[Path], report: Reporter) -> None:
    """Translate the files of ``list_input_files`` in shards, into one file or a folder of shards."""
    check_extras("--ray", "ray")
    output, folder = _resolve_bulk_output(options, inputs)
    task, gpus_per_worker = _make_task(options, inputs, folder, report)
    folder.mkdir(exist_ok=True)
    with lock_folder(folder):
        with _stop_on_signal(f"the translations so far are in {folder}; run the same command to resume"):
            _write_manifest(task, output != folder, report)
            shards = list(split_into_shards(inputs, task.options.shard_lines))
            _translate_remaining(task, shards, gpus_per_worker, report)
            records = [record for shard in shards if (record := read_shard_record(task, shard))]
            if len(records) < len(shards):
                raise HeedfulError(
                    f"{len(shards) - len(records):,} of {len(shards):,} shards are corrupt",
                    hint="run the same command to translate them again",
                )
            if output != folder:
                _join_shards([task.output_path(shard) for shard in shards], output)
        if output != folder:
            shutil.rmtree(folder)  # with its lock: the next holder starts over
    statistics = sum((record.statistics for record in records), LineStatistics())
    for count, problem, first in (
        (statistics.unreadable, "read", statistics.first_unreadable),
        (statistics.failed, "translated", statistics.first_failure),
    ):
        if count:
            lines = format_count(count, "line")
            report.warning(f"{lines} could not be {problem} ({first}); their translations are empty")
    statistics.warn(report)


def list_input_files(options: TranslateOptions) -> list[Path]:
    """The input files, and the visible files of input folders sorted by name; raises for wrong options.

    Files below the output were written by an earlier run and are left out.
    """
    if not options.inputs or STANDARD_INPUT in options.inputs or options.texts:
        raise HeedfulError("--ray translates files", hint="name them: -i big.txt, or -i folder")
    if not options.output:
        raise HeedfulError("--ray writes to a file or folder", hint="name it: -o out.txt, or -o folder/")
    if options.stream:
        raise HeedfulError("--stream does not work with --ray", hint="omit one of them")
    check_options(options)
    files: list[Path] = []
    output = options.output.absolute()
    output_paths = {output, output.with_name(f"{output.name}.shards")}
    for path in options.inputs:
        files_inside = sorted(
            candidate
            for candidate in path.rglob("*")
            if candidate.is_file()
            and not candidate.name.startswith(".")
            and not output_paths & {*candidate.absolute().parents}
        )
        if path.is_dir() and not files_inside:
            raise HeedfulError(f"{path} contains no files", hint="name files, or a folder of files")
        files += files_inside if path.is_dir() else [path]
    for path in files:
        check_readable(path)
        if not path.is_file():
            raise HeedfulError(f"{path} is not a regular file", hint="--ray reads its inputs more than once")
    return [path.absolute() for path in files]


def _resolve_bulk_output(options: TranslateOptions, inputs: Sequence[Path]) -> tuple[Path, Path]:
    """The output and the folder of the shards: another one if they are joined into one file at the end.

    An existing folder stays a folder; several inputs need one, which is created.
    """
    assert options.output is not None
    path = resolve_output(options.output)
    needs_folder = len(inputs) > 1 or any(argument.is_dir() for argument in options.inputs)
    if needs_folder and path.is_file():
        raise HeedfulError(f"{path} is a file, but several inputs need a folder", hint="name a folder")
    if not path.is_dir():
        check_writable(path)
    for input_path in (input_path.resolve() for input_path in inputs):
        if path == input_path or path in input_path.parents:
            raise HeedfulError("--output would overwrite --input", hint="name another output")
    is_single_file = not needs_folder and not path.is_dir()
    return path, path.with_name(path.name + ".shards") if is_single_file else path


def _make_task(
    options: TranslateOptions, inputs: Sequence[Path], folder: Path, report: Reporter
) -> tuple[BulkTask, int]:
    """The task of the workers, and the GPUs that each needs; loads the translator once to find out."""
    translator, line_options = load_translator(options, workers=1)
    report.info(f"engine: {translator.name}")
    options = replace(
        options,
        models=tuple(model.absolute() for model in options.models),
        glossary=options.glossary and options.glossary.absolute(),
        output_format=line_options.output_format,
        shard_lines=round_to_batches(options.shard_lines or DEFAULT_SHARD_LINES),
    )
    gpus_per_worker = int(str(getattr(translator.backend, "device", "cpu")).startswith("cuda"))
    return BulkTask(folder, options, build_manifest(options, translator, line_options, inputs)), gpus_per_worker


def _write_manifest(task: BulkTask, is_single_file: bool, report: Reporter) -> None:
    """Start with an empty folder, if nothing is lost, unless its manifest has the same inputs and settings."""
    folder = task.folder
    if (folder / MANIFEST_FILE).exists():
        with suppress(HeedfulError):
            if read_json(folder / MANIFEST_FILE, "") == task.manifest:
                return
        if not is_single_file:
            raise HeedfulError(f"{folder} has another input, model or settings", hint="name another folder")
        report.warning(f"{folder} has another input, model or settings; starting over")
    other_files = [path for path in folder.iterdir() if path.name not in ("lock", f"{MANIFEST_FILE}.partial")]
    if other_files and not is_single_file:
        raise HeedfulError(f"{folder} contains other files ({other_files[0].name})", hint="name an empty or new folder")
    for path in other_files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(folder / MANIFEST_FILE, task.manifest)


def _translate_remaining(task: BulkTask, shards: Sequence[Shard], gpus_per_worker: int, report: Reporter) -> None:
    """Translate the shards that are not finished."""
    remaining = [shard for shard in shards if not read_shard_record(task, shard)]
    if done_count := len(shards) - len(remaining):
        report.info(f"resuming: {done_count:,} of {format_count(len(shards), 'shard')} are done")
    shutil.rmtree(task.folder / INCOMPLETE_FOLDER, ignore_errors=True)
    if not remaining:
        return
    for path in {shard.input_path for shard in remaining}:
        if path.stat().st_size > LARGE_GZIP_BYTES and is_gzip(path):
            report.warning(f"{path} is a gzip file: one shard, for one worker; decompress it to use more workers")
    total, lines_left = (sum(shard.line_count for shard in group) for group in (shards, remaining))
    with (
        ray_session(task.options.ray_address, task.options.workers) as cores,
        report.task("translating", total, total - lines_left, "lines") as progress,
    ):
        workers = min(task.options.workers or cores, cores, len(remaining))
        report.info(f"{format_count(len(remaining), 'shard')} for {format_count(workers, 'worker')}")
        for record in translate_shards(task, remaining, workers, gpus_per_worker):
            progress.advance(shards[record.shard_number].line_count)
    lost_workers = len(list((task.folder / INCOMPLETE_FOLDER).glob("0*")))  # a killed worker leaves its file
    shutil.rmtree(task.folder / INCOMPLETE_FOLDER, ignore_errors=True)
    if lost_workers:
        report.warning(f"{format_count(lost_workers, 'worker')} died during a shard, which was translated again")


def translate_shards(task: BulkTask, shards: Sequence[Shard], workers: int, gpus: int) -> Iterator[ShardRecord]:
    """The records of the shards as they finish; Ray restarts a lost worker and repeats its shard."""
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError

    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=MAX_ATTEMPTS - 1)
    actors: list[Any] = [remote(ShardWorker).remote(task) for _ in range(workers)]
    # A shard goes to a worker that has started: on a busy cluster, some may never start.
    pending = {actor.__ray_ready__.remote(): actor for actor in actors}
    waiting, unfinished = iter(shards), len(shards)
    try:
        while unfinished:
            [reference], _ = ray.wait(list(pending))
            result = ray.get(reference)
            actor = pending.pop(reference)
            if result is not True:
                unfinished -= 1
                yield result
            if shard := next(waiting, None):
                pending[actor.translate_shard.remote(shard)] = actor
            else:
                ray.kill(actor)  # a worker whose host was lost may need its core
    except RayTaskError as error:
        if isinstance(error.cause, HeedfulError):
            raise error.cause from None
        raise RuntimeError(str(error)) from None  # a bug of ours keeps its traceback
    except RayActorError:
        raise HeedfulError(
            f"{format_count(MAX_ATTEMPTS, 'worker')} died at the same shard",
            hint="if memory is short, use fewer --workers; run the same command to resume",
        ) from None
    except RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise HeedfulError(f"Ray failed: {reason}", hint="run the same command to resume") from None


def _join_shards(paths: Sequence[Path], output: Path) -> None:
    with atomic_write(output) as output_file:
        for path in paths:
            with path.open("rb") as file:
                shutil.copyfileobj(file, output_file)


@contextmanager
def ray_session(address: str, cores: int) -> Iterator[int]:
    """Start Ray on this machine (``local``) or connect to a cluster; yields the number of cores.

    A local Ray listens on the loopback address only, sends no telemetry and ends with the command.
    """
    # What Ray and its processes read at startup; the user's own settings win. Ray would keep its token in the
    # home folder; this one is for this run only.
    environment = dict(_ENVIRONMENT)
    if address == LOCAL_ADDRESS:
        environment |= {**_LOCAL_ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    import ray

    init_options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    temporary_folder = None
    if address == LOCAL_ADDRESS:
        temporary_folder = tempfile.mkdtemp(prefix="heedful-ray-")
        init_options |= {"num_cpus": cores or None, "include_dashboard": False, "_temp_dir": temporary_folder}
        init_options |= {"object_store_memory": OBJECT_STORE_BYTES}
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it at its start, and resets it at its end
    try:
        cores = _connect(ray, address, init_options)
        _handle_sigterm(handler)
        with Path(os.devnull).open("w") as devnull, redirect_stdout(devnull):  # Ray prints about lost workers
            yield cores
    finally:
        ray.shutdown()
        _handle_sigterm(handler)
        if temporary_folder:
            shutil.rmtree(temporary_folder, ignore_errors=True)


def _connect(ray: Any, address: str, init_options: Mapping[str, Any]) -> int:
    """Connect, and return the number of cores."""
    try:
        if ":" in address:  # fail at once if nothing listens there; Ray would retry for a minute
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not port.isdigit():
                raise ValueError("an address is HOST:PORT, auto or local")
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with _suppress_stderr():
            ray.init(address=address, **init_options)
        return int(ray.cluster_resources().get("CPU", 1))
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        needs_token = "Authentication" in f"{error} {error.__cause__}"
        reason = "authentication failed" if needs_token else str(error).strip().splitlines()[0]
        raise HeedfulError(
            f"cannot start or reach Ray ({address}): {reason}",
            hint="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of the cluster"
            if needs_token
            else "`ray start --head` starts a cluster; `--ray local` needs none",
        ) from None


@contextmanager
def _stop_on_signal(hint: str) -> Iterator[None]:
    """Raise StoppedError for Ctrl-C or SIGTERM in this block; a second SIGTERM is ignored."""
    received: list[int] = []

    def stop(signal_number: int, _: object) -> None:
        received.append(signal_number)
        if len(received) == 1:
            raise KeyboardInterrupt  # the only exception that passes through Ray

    previous_handler = signal.getsignal(signal.SIGTERM)
    _handle_sigterm(stop)
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(received[0] if received else signal.SIGINT, hint) from None
    finally:
        _handle_sigterm(previous_handler)


def _handle_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # only it receives signals
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _suppress_stderr() -> Iterator[None]:
    """Redirect standard error: Ray's core ignores its log level."""
    original_stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(original_stderr, 2)
        os.close(original_stderr)
        os.close(devnull)
