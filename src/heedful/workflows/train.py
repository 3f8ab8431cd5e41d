"""Train and resume: what ``import heedful`` and the command line call."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from heedful.config import Settings, merge_settings
from heedful.data.config import ReadingConfig
from heedful.data.corpus import CorpusInputs, CorpusSource, check_fractions, make_sources
from heedful.data.formats.lines import STANDARD_INPUT
from heedful.data.glossary import read_glossary
from heedful.data.reader import check_inputs, check_plain_text, check_supports_heads, detect_languages
from heedful.devices import is_under_torchrun, select_device
from heedful.errors import HeedfulError
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.models.config import DEPENDENCY_POSITIONS, LANGUAGE_MODEL_ARCHITECTURES
from heedful.progress import Reporter
from heedful.training.config import TASKS, TrainingConfig, get_setting
from heedful.training.distributed import ProcessGroup, join_group
from heedful.training.finetuning import add_model_settings, build_finetuning_inputs, get_finetuning_languages
from heedful.training.guided_attention import check_alignments
from heedful.training.initialization import (
    EMBEDDING_SETTINGS,
    add_encoder_settings,
    check_embedding_files,
    resolve_embedding_paths,
)
from heedful.training.run import (
    create_run,
    is_finished,
    is_same_run,
    join_run,
    list_possible_configs,
    make_config_chooser,
    read_run_description,
    resume_run,
    run_training,
)

Paths = str | Path | Sequence[str | Path]


def train(
    pairs: Paths,
    folder: str | Path,
    *,
    validation: Paths = (),
    languages: tuple[str, str] | None = None,
    mix: Sequence[CorpusSource] = (),
    init_from: str | Path | None = None,
    original_validation: Paths = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> Translator:
    """Train a model on files of sentence pairs, write it to ``folder``, and return it ready to translate.

    ``mix`` adds corpora, each with its fraction of an epoch. ``init_from`` is a model folder to fine-tune;
    ``original_validation`` are pairs of its domain, to measure forgetting.
    """
    settings = settings or {}
    if init_from is not None:
        settings = merge_settings(settings, {"finetuning": {"init_from": str(init_from)}})
    init_from = get_setting(settings, "finetuning", "init_from")
    init_folder = Path(str(init_from)).expanduser().absolute() if init_from else None
    if get_setting(settings, "model", "architecture") in LANGUAGE_MODEL_ARCHITECTURES:
        raise HeedfulError(
            "this architecture trains on plain text, not on sentence pairs", hint="--task causal_lm or masked_lm"
        )
    paths = _to_paths(pairs)
    original_sources = make_sources(_to_paths(original_validation), languages)
    if original_sources and init_folder is None:
        raise HeedfulError("original_validation is only for fine-tuning", hint="add --from MODEL")
    reading_config = ReadingConfig.from_settings(settings.get("reading", {}))
    if languages is None and init_folder:
        languages = get_finetuning_languages(init_folder, paths)
    languages = languages or detect_languages(paths, reading_config)
    inputs = CorpusInputs(
        (*make_sources(paths, languages), *mix),
        make_sources(_to_paths(validation), languages),
        original_sources,
        languages=languages,
        trees=get_setting(settings, "model", "positions") in DEPENDENCY_POSITIONS,
        reading=reading_config,
    )
    if init_folder and paths:
        inputs = build_finetuning_inputs(init_folder, inputs)
    _check_files(inputs)
    return Translator.with_pytorch(_run_training(inputs, Path(folder), settings, report or Reporter()))


def train_directions(
    directions: Sequence[CorpusSource],
    folder: str | Path,
    *,
    both_ways: bool = False,
    validation: Sequence[CorpusSource] = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> Translator:
    """Train one multilingual model; each source is tagged with its target, ``CorpusSource(paths, (s, t), (t,))``.

    ``both_ways`` adds the reverse of each direction. Without ``validation``, pairs of each are held out.
    """
    sources, validation_sources = (_add_reverse_directions(group, both_ways) for group in (directions, validation))
    if not sources:
        raise HeedfulError("no directions to train", hint="--direction en-fr=pairs.tsv --direction en-de=...")
    reading_config = ReadingConfig.from_settings((settings or {}).get("reading", {}))
    inputs = CorpusInputs(sources, validation_sources, languages=sources[0].languages, reading=reading_config)
    _check_directions(inputs)
    _check_files(inputs)
    return Translator.with_pytorch(_run_training(inputs, Path(folder), settings or {}, report or Reporter()))


def _add_reverse_directions(sources: Sequence[CorpusSource], both_ways: bool) -> tuple[CorpusSource, ...]:
    """The sources, each followed by its reverse if ``both_ways``."""
    reversed_sources = [
        replace(source_corpus, languages=source_corpus.languages[::-1], tags=source_corpus.languages[:1], reverse=True)
        for source_corpus in sources
        if source_corpus.languages
    ]
    return tuple(item for pair in zip(sources, reversed_sources, strict=True) for item in pair[: 1 + both_ways])


def _check_directions(inputs: CorpusInputs) -> None:
    """Every direction has two languages, and only trained languages are validated."""
    languages = [set(side) for side in zip(*inputs.directions, strict=True)]
    for corpus in (*inputs.sources, *inputs.validation_sources):
        source, target = corpus.direction or ("", "")
        if source == target:
            raise HeedfulError(f"{corpus.name} needs two different languages", hint="write a direction such as en-de")
        if source not in languages[0] or target not in languages[1]:
            raise HeedfulError(
                f"cannot validate {source}-{target}: no direction reads {source} or none writes {target}",
                hint=f"directions: {', '.join(map('-'.join, inputs.directions))}",
            )


def train_language_model(
    texts: Paths,
    folder: str | Path,
    *,
    task: str,
    validation: Paths = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> ModelFolder:
    """Train a model of plain text, ``task`` "causal_lm" or "masked_lm", and write it to ``folder``."""
    text_paths, validation_paths = _to_paths(texts), _to_paths(validation)
    check_plain_text(text_paths)
    if validation_paths:
        check_plain_text(validation_paths)
    inputs = CorpusInputs(make_sources(text_paths), make_sources(validation_paths), plain_text=True)
    return _run_training(inputs, Path(folder), settings or {}, report or Reporter(), task)


def _run_training(
    inputs: CorpusInputs, folder: Path, overrides: Settings, report: Reporter, task: str = "translate"
) -> ModelFolder:
    settings = overrides
    if get_setting(settings, "finetuning", "init_from"):
        settings = add_model_settings(settings)
    settings = merge_settings(TASKS[task], settings)
    if any(get_setting(settings, "training", name) for name in EMBEDDING_SETTINGS):
        settings = resolve_embedding_paths(settings)
    if get_setting(settings, "training", "init_encoder_from"):
        settings = add_encoder_settings(settings)
    # Invalid settings and files raise now, not after the corpus is read.
    choose_config = make_config_chooser(settings, overrides)
    if any(get_setting(settings, "training", name) for name in EMBEDDING_SETTINGS):
        check_embedding_files(list_possible_configs(settings))
    if get_setting(settings, "guided_attention", "alignments"):
        check_alignments(settings)
    if glossary := get_setting(settings, "inline_terms", "glossary"):
        read_glossary(Path(glossary))
    with _open_group(settings) as group:
        if group.rank:
            join_run(folder, group)
            return ModelFolder.load(folder)
        if is_under_torchrun() and is_same_run(folder, inputs, settings, overrides):
            if is_finished(folder):
                report.info(f"the model in {folder} is already trained")
                group.share({"finished": True})
                return ModelFolder.load(folder)
            with resume_run(folder):
                return run_training(folder, choose_config, report, group)
        with create_run(folder, inputs, settings, overrides):
            report.info(f"training into {folder}; Ctrl-C saves and stops")
            if not (inputs.plain_text or inputs.languages):
                report.info("languages unknown; set them with --languages en-de (source-target)")
            return run_training(folder, choose_config, report, group)


def _open_group(settings: Settings) -> AbstractContextManager[ProcessGroup]:
    """The ranks that torchrun started, or this process alone; raises if the device does not exist."""
    config = TrainingConfig.from_settings(settings.get("training", {}))
    return join_group(select_device(config.device), config.timeout_seconds)


def _check_files(inputs: CorpusInputs) -> None:
    """Raise now, not after the corpus is read."""
    check_fractions(inputs.sources)
    sources = (*inputs.sources, *inputs.validation_sources, *inputs.original_validation)
    if not inputs.sources or sum(STANDARD_INPUT in source_corpus.paths for source_corpus in sources) > 1:
        check_inputs([STANDARD_INPUT] * 2 if inputs.sources else ())  # raises with the reason
    for source_corpus in sources:
        check_inputs(source_corpus.paths)
        if inputs.trees:
            check_supports_heads(source_corpus.paths)


def resume(folder: str | Path, *, processes: int = 0, report: Reporter | None = None) -> Translator:
    """Resume an interrupted training bit-exactly.

    With another number of ``processes`` it continues at the same pair but rounds sums differently.
    """
    return Translator.with_pytorch(resume_training(folder, processes=processes, report=report))


def resume_training(folder: str | Path, *, processes: int = 0, report: Reporter | None = None) -> ModelFolder:
    """Resume the training of a model of any task."""
    folder = Path(folder)
    settings = read_run_description(folder).settings
    with _open_group(settings) as group:
        if group.rank:
            join_run(folder, group)
            return ModelFolder.load(folder)
        with resume_run(folder) as run:
            choose_config = make_config_chooser(run.settings, run.overrides)
            return run_training(folder, choose_config, report or Reporter(), group, processes)


def _to_paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))
