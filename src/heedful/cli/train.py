"""``heedful train``: parse the command line, call workflows/train, print the summary."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.options import GlossaryOption, QuietOption, SettingsOption, parse_languages, print_lines
from heedful.errors import HeedfulError, check_extras

if TYPE_CHECKING:
    from heedful.data.corpus import CorpusSource
    from heedful.model_folder import ModelFolder

BACK_TRANSLATION_TAG = "bt"
"""The tag before sources that a model has written."""
SAMPLES_SHOWN = 3

ValidationOption = Annotated[
    list[Path] | None,
    typer.Option("--validation", "-v", help="Pairs to validate on: one file, or -v twice for two parallel files."),
]
TimeOption = Annotated[
    str | None,
    typer.Option(help="Time budget: 30m, 2h, 1h30m, 90s, 10 (minutes). Preset auto: 30m unless epochs are set."),
]
ProcessesOption = Annotated[
    int, typer.Option(min=0, help="Number of training processes on this machine; default: measured for long runs.")
]
ResumeOption = Annotated[Path | None, typer.Option(help="Resume the interrupted training run of this folder.")]
MixOption = Annotated[
    list[str] | None,
    typer.Option(
        help="More training pairs: FILE, or FILE:FRACTION of each epoch (default: all pairs once); separate "
        "two parallel files by a comma. Repeatable."
    ),
]
BackTranslatedOption = Annotated[
    list[str] | None,
    typer.Option(help="Like --mix, for pairs from `heedful corpus back-translate`: their sources are tagged."),
]
DirectionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--direction",
        help="A direction of a multilingual model: en-de=pairs.tsv or en-de=train.en,train.de. Repeatable; "
        "-v takes the same form.",
    ),
]
BothWaysOption = Annotated[bool, typer.Option("--both-ways", help="Train the reverse of each direction too.")]
OriginalValidationOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="With --from: original-domain validation pairs, one file or the option twice; default: the "
        "validation pairs of the original model, or pairs from --mix."
    ),
]
InitFromOption = Annotated[Path | None, typer.Option("--from", help="Fine-tune this model: start from its weights.")]
TrainingFilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of sentence pairs (.tsv, .tmx, .po, ...), or two parallel files; - is stdin."),
]
ModelOutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="The model folder to write; default: model.")
]
TaskOption = Annotated[str, typer.Option(help="translate (sentence pairs); causal_lm or masked_lm (plain text).")]


def train(
    pairs: TrainingFilesArgument = None,
    output: ModelOutputOption = None,
    validation: ValidationOption = None,
    languages: Annotated[
        str | None, typer.Option(help="Source and target, such as en-de or pt-BR:en; default: from the file names.")
    ] = None,
    mix: MixOption = None,
    back_translated: BackTranslatedOption = None,
    direction: DirectionsOption = None,
    both_ways: BothWaysOption = False,
    init_from: InitFromOption = None,
    original_validation: OriginalValidationOption = None,
    task: TaskOption = "translate",
    preset: Annotated[str | None, typer.Option(help="auto, demo, tiny, small, base or big.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Settings, a TOML file.")] = None,
    time: TimeOption = None,
    glossary: GlossaryOption = None,
    settings: SettingsOption = [],  # noqa: B006 - Typer copies it
    processes: ProcessesOption = 0,
    resume: ResumeOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model on your sentence pairs or on plain text, or fine-tune a trained model.

    \b
    heedful train pairs.tsv -o my-model
    heedful train --from my-model new.tsv --mix pairs.tsv:0.5 -o finetuned
    """
    check_extras("training", "train")
    from heedful.progress import Reporter
    from heedful.training.config import TASKS, build_run_settings
    from heedful.workflows import train as workflow

    report = Reporter(quiet=quiet)
    if resume is not None:
        files = (pairs, output, validation, languages, mix, back_translated, direction, both_ways, glossary)
        if any((*files, init_from, original_validation, preset, recipe, time, settings)):
            raise HeedfulError(
                "--resume uses the files and settings of its run",
                hint=f"only --processes can be added: heedful train --resume {resume}",
            )
        model_folder = workflow.resume_training(resume, processes=processes, report=report)
        print_lines(_summarize_training(resume, model_folder))
        return
    folder, language_pair = output or Path("model"), parse_languages(languages)
    mixed = (*map(parse_mix, mix or ()), *map(parse_back_translation, back_translated or ()))
    run_settings = build_run_settings(recipe, preset, time, settings, glossary, processes)
    if task not in TASKS:
        raise HeedfulError(f"unknown task {task!r}", hint=f"tasks: {', '.join(TASKS)}")
    if direction or both_ways:
        incompatible = {
            "FILES": pairs,
            "--languages": languages,
            "--mix": mixed,
            "--from": init_from,
            "--original-validation": original_validation,
            "--task": task != "translate",
        }
        if conflicting := [name for name, value in incompatible.items() if value]:
            hint = "every --direction names its languages and files"
            raise HeedfulError(f"{conflicting[0]} cannot be combined with --direction", hint=hint)
        model_folder = workflow.train_directions(
            [parse_direction(spec) for spec in direction or ()],
            folder,
            both_ways=both_ways,
            validation=[parse_direction(str(path)) for path in validation or ()],
            settings=run_settings,
            report=report,
        ).model_folder
    elif task == "translate":
        if not pairs:
            raise HeedfulError("no pairs to train on", hint="heedful train pairs.tsv -o my-model")
        model_folder = workflow.train(
            pairs,
            folder,
            validation=validation or (),
            languages=language_pair,
            mix=mixed,
            init_from=init_from,
            original_validation=original_validation or (),
            settings=run_settings,
            report=report,
        ).model_folder
    else:
        if language_pair:
            raise HeedfulError("plain text has a single language", hint="omit --languages")
        if init_from or original_validation:
            raise HeedfulError("only translation models can be fine-tuned", hint="omit --task")
        if mixed:
            raise HeedfulError(
                "only sentence pairs can be mixed", hint="omit --mix and --back-translated; list all text files"
            )
        model_folder = workflow.train_language_model(
            pairs or [], folder, task=task, validation=validation or (), settings=run_settings, report=report
        )
    print_lines(_summarize_training(folder, model_folder))


def parse_direction(text: str) -> "CorpusSource":
    """Parse --direction: languages, and one file of pairs or two parallel files.

    >>> parse_direction("en-de=train.en,train.de").direction, len(parse_direction("pt-BR:en=a.tsv").paths)
    (('en', 'de'), 1)
    """
    from heedful.data.corpus import CorpusSource
    from heedful.tokenization.languages import parse_language_pair

    languages, separator, files = text.partition("=")
    if not separator or not files:
        raise HeedfulError(f"invalid direction {text!r}", hint="write languages=files, such as en-de=pairs.tsv")
    source, target = parse_language_pair(languages)
    return CorpusSource(_split_paths(files), (source, target), (target,))


def _summarize_training(folder: Path, model_folder: "ModelFolder") -> list[str]:
    from heedful.devices import get_torchrun_rank
    from heedful.files import read_json
    from heedful.training.model_selection import (
        FINETUNING_FILE,
        describe_new_subwords,
        format_comparison,
        list_samples,
        usage_command,
    )

    if get_torchrun_rank():
        return []  # rank 0 prints
    lines = []
    if (folder / FINETUNING_FILE).is_file():  # scores before and after, sample translations, new subwords
        report = read_json(folder / FINETUNING_FILE, "train again")
        lines += [*format_comparison(report), ""]
        for sample in list_samples(report)[:SAMPLES_SHOWN]:
            labeled = zip(("source", "reference", "before", "after"), sample, strict=True)
            lines += [*(f"{name:<10} {text}" for name, text in labeled), ""]
        lines += [report["weights"], *filter(None, [describe_new_subwords(report)])]
    config = model_folder.config
    usage = usage_command(config.model.architecture, folder, "".join(config.target_languages[-1:]))
    return [*lines, f"model written to {folder}; its README.md has the scores", f"try it: {usage}"]


def parse_back_translation(text: str) -> "CorpusSource":
    """Parse --back-translated like --mix; synthetic sources are tagged (Caswell et al. 2019)."""
    return replace(parse_mix(text, "--back-translated"), tags=(BACK_TRANSLATION_TAG,))


def parse_mix(text: str, option: str = "--mix") -> "CorpusSource":
    """Parse --mix: FILE or FILE:FRACTION; two parallel files are separated by a comma.

    >>> parse_mix("general.tsv:0.3").fraction, len(parse_mix("general.en,general.de").paths)
    (0.3, 2)
    """
    from heedful.data.corpus import CorpusSource
    from heedful.training.config import NUMBER_PATTERN

    files, colon, number = text.rpartition(":")
    if not colon or not re.fullmatch(NUMBER_PATTERN, number) or Path(text).exists():
        files, number = text, "0"
    elif not 0 < float(number) < 1:
        raise HeedfulError(
            f"{option} {text}: {number} is not a valid fraction", hint="use a number between 0 and 1, such as 0.3"
        )
    return CorpusSource(_split_paths(files), fraction=float(number), use_for_validation=False)


def _split_paths(files: str) -> tuple[Path, ...]:
    return tuple(map(Path, [files] if Path(files).exists() else files.split(",")))
