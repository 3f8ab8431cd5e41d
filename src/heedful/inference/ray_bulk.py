"""``heedful translate --ray``: large files, translated in shards by many workers.

out.txt.shards/      or the output folder
  manifest.json      inputs, settings and shards
  000003-big.txt     a shard's translation; beside it its record (bulk_shards.py)
  lock               held by the running command
"""

import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.data.formats.lines import STANDARD_INPUT
from heedful.data.reader import check_readable
from heedful.errors import HeedfulError, StoppedError, check_extras
from heedful.files import atomic_write, check_writable, is_gzip, lock_folder, new_digest
from heedful.inference.bulk import (
    LineStatistics,
    TranslateOptions,
    check_options,
    file_fingerprint,
    load_translator,
    resolve_output,
)
from heedful.inference.bulk_shards import (
    INCOMPLETE_FOLDER,
    MANIFEST_FILE,
    BulkManifest,
    ShardRecord,
    ShardTask,
    ShardWorker,
    incomplete_paths,
    read_shard_record,
    round_to_batches,
    split_into_shards,
)
from heedful.inference.loading import parse_engine_name
from heedful.progress import Reporter, format_count

DEFAULT_SHARD_LINES = 16_384
"""Some minutes of work for one core."""

LARGE_GZIP_BYTES = 1 << 26
"""Size from which a gzip input is reported: it is one shard, for one worker."""


LOCAL_ADDRESS = "local"

OBJECT_STORE_BYTES = 100 << 20
"""Memory for objects sent between processes: here only shard numbers."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
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
    task.folder.mkdir(exist_ok=True)
    with lock_folder(task.folder):
        task = replace(task, manifest=_load_or_create_manifest(task, output != folder, report))
        _translate_remaining(task, options, gpus_per_worker, report)
        shards = task.manifest.shards
        records = [record for shard in shards if (record := read_shard_record(task.folder, task.manifest, shard))]
        if len(records) < len(shards):
            raise HeedfulError(
                f"{len(shards) - len(records):,} of {len(shards):,} shards are corrupt",
                hint="run the same command to translate them again",
            )
        if output != folder:
            _join_shards(task, records, output)
            shutil.rmtree(task.folder)  # with its lock: the next holder starts over
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
) -> tuple[ShardTask, int]:
    """The task of the workers, and the GPUs that each needs; loads the translator once to find out."""
    options = replace(options, models=tuple(model.absolute() for model in options.models))
    translator, line_options = load_translator(options, workers=1)
    report.info(f"engine: {translator.name}")
    settings = json.loads(json.dumps(line_options.fingerprint(options.models, translator.name)))
    manifest = BulkManifest(
        settings,
        tuple(map(file_fingerprint, inputs)),
        round_to_batches(options.shard_lines or DEFAULT_SHARD_LINES),
        line_options.output_format,
        shards=(),
    )
    gpus_per_worker = int(str(getattr(translator.backend, "device", "cpu")).startswith("cuda"))
    task = ShardTask(
        folder,
        manifest,
        options.models,
        line_options,
        options.device,
        parse_engine_name(options.engine),
        translator.name,
    )
    return task, gpus_per_worker


def _load_or_create_manifest(task: ShardTask, is_single_file: bool, report: Reporter) -> BulkManifest:
    """The manifest of the folder if inputs and settings are the same; else a new one, if nothing is lost."""
    folder = task.folder
    if (folder / MANIFEST_FILE).exists():
        existing = BulkManifest.read(folder)
        if existing.fingerprint == task.manifest.fingerprint:
            return existing
        if not is_single_file:
            raise HeedfulError(f"{folder} has another input, model or settings", hint="name another folder")
        report.warning(f"{folder} has another input, model or settings; starting over")
    other_files = [path for path in folder.iterdir() if path.name not in ("lock", f"{MANIFEST_FILE}.partial")]
    if other_files and not is_single_file:
        raise HeedfulError(f"{folder} contains other files ({other_files[0].name})", hint="name an empty or new folder")
    for path in other_files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    inputs = [Path(fingerprint["path"]) for fingerprint in task.manifest.inputs]
    for path in inputs:
        if path.stat().st_size > LARGE_GZIP_BYTES and is_gzip(path):
            report.warning(f"{path} is a gzip file: one shard, for one worker; decompress it to use more workers")
    manifest = replace(task.manifest, shards=tuple(split_into_shards(inputs, task.manifest.shard_lines)))
    manifest.write(folder)
    return manifest


def _translate_remaining(task: ShardTask, options: TranslateOptions, gpus_per_worker: int, report: Reporter) -> None:
    """Translate the shards that are not finished."""
    shards = task.manifest.shards
    remaining = [shard for shard in shards if not read_shard_record(task.folder, task.manifest, shard)]
    if done_count := len(shards) - len(remaining):
        report.info(f"resuming: {done_count:,} of {format_count(len(shards), 'shard')} are done")
    shutil.rmtree(task.folder / INCOMPLETE_FOLDER, ignore_errors=True)
    if not remaining:
        return
    total, lines_left = (sum(shard.line_count for shard in group) for group in (shards, remaining))
    try:
        with (
            ray_session(options.ray_address, options.workers) as cores,
            report.task("translating", total, total - lines_left, "lines") as progress,
        ):
            workers = min(options.workers or cores, len(remaining))
            report.info(f"{format_count(len(remaining), 'shard')} for {format_count(workers, 'worker')}")
            numbers, lost_workers = [shard.number for shard in remaining], 0
            for row in map_shards(ShardWorker, task, numbers, workers, gpus_per_worker):
                if row["problem"]:
                    raise HeedfulError(row["problem"], hint=row["hint"])
                progress.advance(row["lines"])
                # Attempts of killed workers at this shard:
                for path in incomplete_paths(task.manifest.output_path(task.folder, shards[row["shard"]])):
                    path.unlink(missing_ok=True)
                    lost_workers += 1
    except KeyboardInterrupt:
        report.warning(f"the translations so far are in {task.folder}; run the same command to resume")
        raise
    shutil.rmtree(task.folder / INCOMPLETE_FOLDER, ignore_errors=True)
    if lost_workers:
        report.warning(f"{format_count(lost_workers, 'worker')} died during a shard, which was translated again")


def _join_shards(task: ShardTask, records: Sequence[ShardRecord], path: Path) -> None:
    """Concatenate the shards in order, checking them once more on the way."""
    with atomic_write(path) as output_file:
        for shard, record in zip(task.manifest.shards, records, strict=True):
            digest = new_digest()
            with task.manifest.output_path(task.folder, shard).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
                    output_file.write(block)
            if digest.hexdigest() != record.checksum:
                raise HeedfulError(f"shard {shard.number} changed while it was read", hint="try again")


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
    try:
        cores = _connect(ray, address, init_options)
        if threading.current_thread() is threading.main_thread():  # only it receives signals
            signal.signal(signal.SIGTERM, _stop)
        with Path(os.devnull).open("w") as devnull, redirect_stdout(devnull):  # Ray prints about lost workers
            yield cores
    finally:
        ray.shutdown()
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


def _stop(signal_number: int, _: object) -> None:
    """Stop cleanly on SIGTERM; Ray's handler would print a traceback."""
    raise StoppedError(signal_number, hint="run the same command to resume")


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


def map_shards(
    worker: Callable[[Any], Any], task: object, shard_numbers: Sequence[int], workers: int, gpus: int
) -> Iterator[dict[str, Any]]:
    """The results of the workers as they finish; a lost worker is replaced and its shard repeated."""
    import ray
    import ray.data
    from ray.exceptions import ActorDiedError, RayError, RayTaskError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    dataset = ray.data.from_items(
        [{"shard": shard_number} for shard_number in shard_numbers], override_num_blocks=len(shard_numbers)
    )
    pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1)
    results = dataset.map(worker, fn_constructor_args=(task,), compute=pool, num_cpus=1, num_gpus=gpus)
    try:
        yield from results.iter_rows()
    except RayError as error:
        if isinstance(error, RayTaskError) and not isinstance(error, ActorDiedError):
            raise RuntimeError(str(error)) from None  # a bug of ours keeps its traceback
        raise HeedfulError(
            f"Ray failed: {str(error).strip().splitlines()[0]}",
            hint="run the same command to resume; killed workers may lack memory",
        ) from None
