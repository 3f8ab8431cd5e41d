"""One training run: from the user's files to a model folder, in one session or several.

MODEL/                 the model folder, written at the end
MODEL/training/        run.json, data/, autotune.json, metrics.jsonl, checkpoints/, snapshots/
"""

import difflib
import errno
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from heedful.config import Settings
from heedful.data.config import CleaningConfig, PreprocessingConfig, ReadingConfig
from heedful.data.corpus import PREPROCESSED_FILE, CorpusInputs, CorpusSource
from heedful.data.formats.lines import STANDARD_INPUT
from heedful.devices import available_cores, select_device
from heedful.errors import DiskError, HeedfulError, ResumableError, StoppedError
from heedful.files import disk_error, lock_folder, read_json, wrap_write_errors, write_json
from heedful.model_folder import ModelFolder
from heedful.models.base import Model
from heedful.models.config import DEPENDENCY_POSITIONS, LANGUAGE_MODEL_ARCHITECTURES
from heedful.models.factory import new_model
from heedful.progress import Reporter, format_count
from heedful.training.auto_config import MODEL_SHAPES, choose_auto_config, choose_finetuning_settings, get_speed
from heedful.training.autotune import autotune
from heedful.training.checkpoint import list_checkpoints
from heedful.training.config import (
    PRESETS,
    RunConfig,
    TrainingConfig,
    apply_settings,
    check_process_option,
    format_minutes,
    get_setting,
    tiny,
)
from heedful.training.distributed import LostProcessError, ProcessGroup
from heedful.training.finetuning import init_from_model
from heedful.training.guided_attention import copy_alignments
from heedful.training.initialization import check_embedding_files, init_embeddings, init_encoder
from heedful.training.launcher import launch
from heedful.training.model_selection import write_model_folder
from heedful.training.preparation import ConfigChooser, CorpusSize, PreparedCorpus, load_prepared, prepare
from heedful.training.signals import collect_signals, raise_on_signal
from heedful.training.trainer import ComputeConfig, Trainer

UNLIMITED_EPOCHS = 100_000
"""More than any training reaches."""

TIME_LIMITED_SETTINGS: Settings = {
    "max_epochs": UNLIMITED_EPOCHS,
    "max_updates": 0,
    "patience": 0,
    "lr_schedule": "linear",
    "cooldown_fraction": 0,
    "validate_every": 0,
}
"""Settings that make a preset use its whole time limit and end with a learning rate of zero."""

UNWRITABLE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

MAX_PREPARATION_FRACTION = 0.8
"""Fraction of the time limit after which a run that has not started training gives up."""

MAX_THREADS = 10_000
"""More in run.json means that it is corrupt."""

AUTOTUNE_FILE = "autotune.json"

LONG_RUN_OPERATIONS, LONG_RUN_MINUTES = 2e13, 3.0
"""Runs above these thresholds are long enough for autotuning to pay off."""


SOURCE_KEYS = ("sources", "validation_sources", "original_validation")


class RunDescription(NamedTuple):
    """The content of run.json."""

    inputs: CorpusInputs
    settings: Settings
    overrides: Settings
    threads: int


def make_config_chooser(settings: Settings, overrides: Settings | None = None) -> ConfigChooser:
    """A function that chooses the configuration for a corpus size: a preset, overridden by the settings.

    ``overrides`` are the settings given by the user, if not all of them.
    """
    name, preset_names = settings.get("preset", "auto"), ["auto", *PRESETS]
    is_finetuning = bool(get_setting(settings, "finetuning", "init_from"))
    if not is_finetuning and name not in preset_names:
        matches = difflib.get_close_matches(str(name), preset_names, n=1)
        hint = f"did you mean {matches[0]!r}?" if matches else f"presets: {', '.join(preset_names)}"
        raise HeedfulError(f"there is no preset {name!r}", hint=hint)

    def choose(size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]:
        preset = RunConfig(preset="finetuning") if is_finetuning else PRESETS.get(name, tiny)()
        requested = apply_settings(preset, settings)
        limits = {"max_epochs", "max_updates"} & settings.get("training", {}).keys()
        if is_finetuning:
            speed = get_speed(requested.training, measured=measured and not limits)
            changes, reason = choose_finetuning_settings(size, requested, speed, choose_epochs=not limits)
            config = apply_settings(requested, changes)
        elif name == "auto":
            config, reason = choose_auto_config(size, settings, requested.training, measured=measured)
        else:
            config, reason = preset, f"preset {name}"
            if requested.training.max_minutes and not limits:
                config = apply_settings(config, {"training": TIME_LIMITED_SETTINGS})
        if limits == {"max_updates"} and requested.training.max_updates:  # the preset's epochs could end first
            config = apply_settings(config, {"training": {"max_epochs": UNLIMITED_EPOCHS}})
        config = apply_settings(config, settings)
        if measured and (config.training.source_embeddings or config.training.target_embeddings):
            check_embedding_files([config])
        return config, reason + _describe_overrides(settings if overrides is None else overrides)

    # Invalid settings raise now, not after the corpus is read.
    choose(CorpusSize(50_000, 5_000_000, 100))
    return choose


def _describe_overrides(overrides: Settings) -> str:
    descriptions = [
        format_minutes(value)
        if (section, name) == ("training", "max_minutes")
        else f"{section}.{name}={f'{value:g}' if isinstance(value, float) else value}"
        for section, values in overrides.items()
        for name, value in (values.items() if isinstance(values, dict) else ())
        if (section, name) != ("finetuning", "init_from")  # is in the reason
    ]
    return f"; overrides: {', '.join(descriptions)}" if descriptions else ""


def list_possible_configs(settings: Settings) -> list[RunConfig]:
    """One configuration for every d_model that a run with these settings may get."""
    choose = make_config_chooser(settings)
    configs = [choose(CorpusSize(pairs, 100 * pairs, 100))[0] for pairs in (1_000, 1_000_000)]
    if (
        configs[0].preset == "auto"
        and configs[0].training.max_minutes
        and not get_setting(settings, "model", "d_model")
    ):
        configs += [
            configs[0].model_copy(update={"model": configs[0].model.model_copy(update={"d_model": d_model})})
            for d_model, _ in MODEL_SHAPES
        ]
    return configs


@contextmanager
def create_run(folder: Path, inputs: CorpusInputs, settings: Settings, overrides: Settings) -> Iterator[None]:
    """Lock the folder and write run.json, so that the run can be resumed after any interruption.

    ``overrides`` are the settings that the user gave; the others come from the task. A run that fails before
    its first checkpoint is removed, so that the corrected command works, except on a full disk.
    """
    training_folder = folder / "training"
    _check_new_folder(folder)  # before the folder is touched
    with lock_folder(training_folder):
        _check_new_folder(folder)  # again: another process may have used it before we got the lock
        # A prepared corpus of the same command is kept; preparation checks whether files changed.
        reuse_data = False
        with suppress(HeedfulError):
            is_comparable = all(path.is_file() for path in inputs.paths)  # pipes are not
            reuse_data = is_comparable and is_same_run(folder, inputs, settings, overrides)
        (training_folder / "data" / PREPROCESSED_FILE).unlink(missing_ok=True)
        for path in training_folder.iterdir():
            if path.is_dir() and not (reuse_data and path.name == "data"):
                shutil.rmtree(path)
            elif path.is_file() and path.name != "lock":
                path.unlink()
        try:
            if get_setting(settings, "guided_attention", "alignments"):
                with wrap_write_errors(training_folder):
                    copy_alignments(settings, training_folder)
            write_json(training_folder / "run.json", _describe_run(inputs, settings, overrides))
            yield
        except ResumableError:
            raise
        except HeedfulError:
            if not list_checkpoints(training_folder / "checkpoints"):
                shutil.rmtree(training_folder, ignore_errors=True)
                with suppress(OSError):  # it holds other files
                    folder.rmdir()
            raise


def _check_new_folder(folder: Path) -> None:
    """Raise if the folder holds anything that a new run must not overwrite."""
    own_names = ("training", "distillation")  # the second belongs to `heedful distill`
    try:
        other_paths = [path for path in folder.iterdir() if path.name not in own_names]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        file = next((path for path in (folder, *folder.parents) if path.is_file()), folder)
        raise HeedfulError(f"{file} is a file", hint="choose a folder (-o)") from None
    has_trained = any(int(path.name) for path in list_checkpoints(folder / "training" / "checkpoints"))
    if not other_paths and not has_trained:
        return
    hint = "choose another folder (-o)"
    if is_finished(folder):
        hint = f"it holds a finished model: {hint}"
    elif has_trained:
        hint = f"resume it: heedful train --resume {folder}; for other files or settings {hint}"
    raise HeedfulError(f"{folder} already exists", hint=hint)


def _describe_run(inputs: CorpusInputs, settings: Settings, overrides: Settings) -> dict[str, Any]:
    def describe_source(source: CorpusSource) -> dict[str, Any]:
        paths = [str(path if path == STANDARD_INPUT else path.absolute()) for path in source.paths]
        return source.to_json() | {"paths": paths}

    return {
        "languages": inputs.languages,
        **{name: list(map(describe_source, getattr(inputs, name))) for name in SOURCE_KEYS},
        "settings": settings,
        "overrides": overrides,
        "threads": TrainingConfig.from_settings(settings.get("training", {})).threads or available_cores(),
    }


def is_same_run(folder: Path, inputs: CorpusInputs, settings: Settings, overrides: Settings) -> bool:
    """Whether the same training was started before: torchrun and schedulers repeat the first command."""
    path = folder / "training" / "run.json"
    if not path.is_file():
        return False
    expected = json.loads(json.dumps(_describe_run(inputs, settings, overrides)))
    stored = read_json(path, "delete the folder and train again")
    return bool(expected | {"threads": 0} == stored | {"threads": 0})


def is_finished(folder: Path) -> bool:
    """Whether the model was written: config.json comes last."""
    return (folder / "config.json").exists()


def read_run_description(folder: Path) -> RunDescription:
    """Read run.json of a model folder."""
    path = folder / "training" / "run.json"
    if not path.is_file():
        raise HeedfulError(
            f"there is no training run to resume in {folder}", hint="start one: heedful train FILES -o FOLDER"
        )
    hint = "this run cannot be resumed: delete the folder and train again"
    content = read_json(path, hint)
    try:
        settings, languages = dict(content["settings"]), content["languages"]
        if not isinstance(settings.get("model", {}), dict):
            raise TypeError("settings.model is not a section")
        sources, validation_sources, original_validation = (
            tuple(map(CorpusSource.from_json, content[name])) for name in SOURCE_KEYS
        )
        inputs = CorpusInputs(
            sources,
            validation_sources,
            original_validation,
            languages=(languages[0], languages[1]) if languages else None,
            plain_text=get_setting(settings, "model", "architecture") in LANGUAGE_MODEL_ARCHITECTURES,
            trees=get_setting(settings, "model", "positions") in DEPENDENCY_POSITIONS,
            reading=ReadingConfig.from_settings(settings.get("reading", {})),
        )
        threads = int(content["threads"])
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"{threads} threads")
        return RunDescription(inputs, settings, dict(content["overrides"]), threads)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise HeedfulError(f"{path} is corrupt: {error}", hint=hint) from None


@contextmanager
def resume_run(folder: Path) -> Iterator[RunDescription]:
    """Lock the folder of an existing run and read its description."""
    read_run_description(folder)  # raises before the folder is touched
    with lock_folder(folder / "training"):
        yield read_run_description(folder)


def run_training(
    folder: Path, choose: ConfigChooser, report: Reporter, group: ProcessGroup | None = None, processes: int = 0
) -> ModelFolder:
    """Do what remains of the run in the locked ``folder``: prepare, build, initialize, fit, write.

    ``group`` are the ranks that torchrun started, of which rank 0 calls this and the others ``join_run``;
    ``processes`` overrides the number in the configuration.
    """
    start_time, training_folder, group = time.monotonic(), folder / "training", group or ProcessGroup()
    with _explain_interruptions(folder):
        inputs, settings, _, threads = read_run_description(folder)
        torch.set_num_threads(threads)  # as at the start: another number rounds sums differently
        cleaning = CleaningConfig.from_settings(settings.get("cleaning", {}))
        preprocessing = PreprocessingConfig.from_settings(settings.get("preprocessing", {}))
        preprocessing = preprocessing.model_copy(update={"processes": preprocessing.processes or threads})
        prepared = prepare(inputs, training_folder / "data", cleaning, choose, report, preprocessing)
        trainer = _new_trainer(training_folder, prepared, report, start_time)
        model, budget = trainer.model, trainer.budget
        device = model.output.weight.device
        report.info(f"{model.parameter_count():,} parameters on {device}, {format_count(threads, 'thread')}")
        if trainer.state.update:
            report.info(f"resuming from update {trainer.state.update:,}")
        elif budget.prepared_fraction >= MAX_PREPARATION_FRACTION:
            raise HeedfulError(
                f"preparation took {budget.total_seconds:.0f} s of the {budget.max_seconds:.0f} s time limit",
                hint="train again with more time (--time 30m) or fewer pairs",
            )
        if trainer.is_finished:
            report.info("training had already finished; writing the model again")
        else:
            compute = choose_compute_config(trainer, group, threads, report, processes)
            if compute.processes > 1:
                report.info(f"training in {compute}")
            trainer.start(threads)
            if compute.processes == 1:
                trainer.fit(compute)
            else:
                start_time = trainer.budget.start_time
                del trainer, model, budget  # the ranks need the memory
                _fit_in_processes(group, prepared, training_folder, compute, report, start_time)
                trainer = _new_trainer(training_folder, prepared, report, time.monotonic())
        model_folder = write_model_folder(trainer, folder)
        group.share({"finished": True})
        return model_folder


def _new_trainer(folder: Path, prepared: PreparedCorpus, report: Reporter, start_time: float) -> Trainer:
    torch.manual_seed(prepared.config.training.seed)
    model = new_model(prepared.model_config).to(select_device(prepared.config.training.device))
    if not list_checkpoints(folder / "checkpoints"):
        _initialize(model, prepared, report)
    return Trainer(folder, prepared, model, report, start_time)


def _fit_in_processes(
    group: ProcessGroup,
    prepared: PreparedCorpus,
    folder: Path,
    compute: ComputeConfig,
    report: Reporter,
    start_time: float,
) -> None:
    """Train from the newest checkpoint with the group of torchrun, or with a new one on this machine."""
    if group.size > 1:
        group.share({"compute": compute.model_dump()})
        fit_rank(group, prepared, folder, compute, report, start_time)
        return
    quiet = "quiet" if report.quiet else ""
    while True:
        newest = list_checkpoints(folder / "checkpoints")[-1]
        try:
            launch(compute.processes, "fit", folder.absolute(), compute.model_dump_json(), repr(start_time), quiet)
            return
        except LostProcessError:
            if list_checkpoints(folder / "checkpoints")[-1] == newest:
                raise
            start_time = time.monotonic()  # the time before is in the checkpoint


def fit_rank(
    group: ProcessGroup,
    prepared: PreparedCorpus,
    folder: Path,
    compute: ComputeConfig,
    report: Reporter,
    start_time: float,
) -> None:
    """Train as one rank of a group, from the newest checkpoint."""
    model = new_model(prepared.model_config).to(select_device(prepared.config.training.device))
    Trainer(folder, prepared, model, report, start_time, group).fit(compute)


def join_run(folder: Path, group: ProcessGroup) -> None:
    """Train as a rank of torchrun other than 0, until the model is written."""
    training_folder = folder / "training"
    with collect_signals(ignore_repeats=True):  # rank 0 stops all
        while "compute" in (message := group.share()):
            compute = ComputeConfig.from_settings(message["compute"])
            prepared = load_prepared(training_folder / "data")
            fit_rank(group, prepared, training_folder, compute, Reporter(quiet=True), time.monotonic())


@contextmanager
def _explain_interruptions(folder: Path) -> Iterator[None]:
    """Signals and full disks become errors that say what is saved and how to resume."""
    command = f"resume with: heedful train --resume {folder}"
    try:
        with raise_on_signal(f"nothing is lost; {command}"):
            yield
    except StoppedError as stopped:
        checkpoints = list_checkpoints(folder / "training" / "checkpoints")
        status = f"update {int(checkpoints[-1].name):,} is saved" if checkpoints else "nothing is lost"
        raise StoppedError(stopped.signal_number, stopped.hint or f"{status}; {command}") from None
    except (DiskError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNWRITABLE_ERRNOS:
            raise
        disk = error if isinstance(error, DiskError) else disk_error(error.filename or folder, error)
        checkpoints = list_checkpoints(folder / "training" / "checkpoints")
        status = "nothing is trained yet"
        if checkpoints:
            status = f"the checkpoint of update {int(checkpoints[-1].name):,} is complete"
        is_deleted = not (folder / "training" / "run.json").is_file()
        hint = f"was {folder} deleted?" if is_deleted else f"{status}; free disk space, then {command}"
        raise DiskError(disk.problem, hint=hint) from None


def _initialize(model: Model, prepared: PreparedCorpus, report: Reporter) -> None:
    """Weights that do not start at random: word vectors, a pretrained encoder, a model to fine-tune."""
    config = prepared.config.training
    if config.source_embeddings or config.target_embeddings:
        init_embeddings(model, prepared.tokenizer, config, report)
    if config.init_encoder_from:
        init_encoder(model, config.init_encoder_from, report)
    if prepared.init_config is not None:
        init_from_model(model, prepared.tokenizer, Path(prepared.config.finetuning.init_from), report)


def choose_compute_config(
    trainer: Trainer, group: ProcessGroup, threads: int, report: Reporter, processes: int = 0
) -> ComputeConfig:
    """The choice of an earlier session, of the settings or, if something is left to choose, the fastest.

    ``processes`` overrides the number of processes in this session; torchrun's group overrides both.
    """
    if processes:
        check_process_option()
    path, schedule = trainer.folder / AUTOTUNE_FILE, trainer.batch_schedule
    settings, on_cpu = schedule.settings, trainer.model.output.weight.device.type == "cpu"
    if max(processes, settings.processes) > 1 and not on_cpu:
        raise HeedfulError(
            "training.processes works only on CPUs",
            hint="for several GPUs: torchrun --nproc-per-node gpu -m heedful train ...",
        )
    process_count, cores = processes or settings.processes, available_cores()
    under_torchrun = group.size > 1
    if process_count > cores and not under_torchrun:
        report.warning(f"{process_count} processes share {format_count(cores, 'core')}: use at most one per core")

    def divide_threads(process_count: int) -> dict[str, int]:
        """The processes of one machine share its threads."""
        local_processes = group.local_size if under_torchrun else process_count
        return {"processes": process_count, "threads": max(1, threads // local_processes)}

    if path.exists():
        config = read_compute_config(path)
        process_count = group.size if under_torchrun else processes or (config.processes if on_cpu else 1)
        return config if process_count == config.processes else config.model_copy(update=divide_threads(process_count))
    process_count = group.size if under_torchrun else process_count
    precisions: list[Literal["float32", "bfloat16"]] = ["float32", "bfloat16"]
    if settings.precision != "auto":
        precisions = [settings.precision]
    operations = 6.0 * trainer.model.parameter_count() * schedule.total_updates  # and per token of an update
    operations *= schedule.prepared.config.batching.max_tokens * settings.gradient_accumulation
    is_long = operations >= LONG_RUN_OPERATIONS and not 0 < settings.max_minutes < LONG_RUN_MINUTES
    has_trained = any(int(path.name) for path in list_checkpoints(trainer.folder / "checkpoints"))
    process_counts = [1, threads] if threads > 1 and not process_count else [process_count or 1]
    if on_cpu and is_long and not has_trained and len(process_counts) * len(precisions) > 1:
        config = autotune(trainer, group, threads, precisions, process_counts, report)
    else:
        precision = precisions[0] if on_cpu else settings.precision
        config = ComputeConfig(precision=precision, **divide_threads(process_counts[0]))
    # The number of processes under torchrun may differ next time.
    stored = config.model_copy(update={"processes": 1, "threads": threads}) if under_torchrun else config
    write_json(path, stored.model_dump())
    return config


def read_compute_config(path: Path) -> ComputeConfig:
    """Read autotune.json."""
    hint = f"delete it to measure again: {path}"
    content = read_json(path, hint)
    try:
        return ComputeConfig.from_settings(content)
    except HeedfulError as error:
        raise HeedfulError(f"{path} is corrupt: {error.problem}", hint=hint) from None
