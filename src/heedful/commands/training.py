"""What `heedful train` is told, as settings."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.config import Settings, merged, parsed_overrides, read_toml
from heedful.corpora.parts import Part
from heedful.errors import HeedfulError
from heedful.files import read_json
from heedful.progress import Reporter
from heedful.text.languages import language_pair

MINUTES = {"h": 60.0, "m": 1.0, "s": 1 / 60}
BACK_TRANSLATED = "bt"
"""The tag before sources that a model has written."""
SAMPLES_SHOWN = 3
NUMBER = r"\d+(?:\.\d+)?"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What the command line says."""

    files: tuple[Path, ...]
    folder: Path
    validation: tuple[Path, ...]
    languages: tuple[str, str] | None
    mix: tuple[Part, ...]
    start_from: Path | None
    old_validation: tuple[Path, ...]
    task: str
    settings: Settings
    directions: tuple[str, ...] = ()
    """Such as en-fr=pairs.tsv, in place of files."""
    both_ways: bool = False


def train_command(options: TrainOptions, report: Reporter) -> list[str]:
    """Train a model for a task; returns what to print."""
    from heedful.api import train, train_on_texts
    from heedful.training.tasks import TASKS

    if options.task not in TASKS:
        raise HeedfulError(f"there is no task {options.task!r}", hint=f"tasks: {', '.join(TASKS)}")
    if options.directions or options.both_ways:
        bundle = _several(options, report)
    elif options.task == "translate":
        if not options.files:
            raise HeedfulError("no pairs to train on", hint="heedful train pairs.tsv -o my-model")
        bundle = train(
            options.files,
            options.folder,
            validation=options.validation,
            languages=options.languages,
            mix=options.mix,
            start_from=options.start_from,
            old_validation=options.old_validation,
            settings=options.settings,
            report=report,
        ).bundle
    else:
        if options.languages:
            raise HeedfulError("plain text has no two languages", hint="leave out --languages")
        if options.start_from or options.old_validation:
            raise HeedfulError("only a model that translates can be tuned", hint="leave out --task")
        if options.mix:
            raise HeedfulError(
                "only pairs can be mixed", hint="leave out --mix and --back-translated, and name all texts"
            )
        bundle = train_on_texts(
            options.files,
            options.folder,
            task=options.task,
            validation=options.validation,
            settings=options.settings,
            report=report,
        )
    return _written(options.folder, bundle)


def _several(options: TrainOptions, report: Reporter) -> Bundle:
    """A model of several directions."""
    from heedful.api import train_directions

    wrong = {
        "FILES": options.files,
        "--languages": options.languages,
        "--mix": options.mix,
        "--from": options.start_from,
        "--old-validation": options.old_validation,
        "--task": options.task != "translate",
    }
    for name, given in wrong.items():
        if given:
            raise HeedfulError(
                f"{name} does not go with directions", hint="each --direction has its languages and its files"
            )
    return train_directions(
        [direction_part(word) for word in options.directions],
        options.folder,
        both_ways=options.both_ways,
        validation=[direction_part(str(path)) for path in options.validation],
        settings=options.settings,
        report=report,
    ).bundle


def direction_part(text: str) -> Part:
    """What --direction says: languages, and one file of pairs or two parallel ones.

    >>> direction_part("en-de=train.en,train.de").direction, len(direction_part("pt-BR:en=a.tsv").paths)
    (('en', 'de'), 1)
    """
    languages, equals, files = text.partition("=")
    if not equals or not files:
        raise HeedfulError(
            f"cannot read the direction {text!r}", hint="write languages=files, such as en-de=pairs.tsv"
        )
    source, target = language_pair(languages)
    return Part(_mixed_paths(files), (source, target), (target,))


def resume_command(folder: Path, processes: int, report: Reporter) -> list[str]:
    """Go on with an interrupted training; returns what to print."""
    from heedful.api import resume_any

    return _written(folder, resume_any(folder, processes=processes, report=report))


def _written(folder: Path, bundle: Bundle) -> list[str]:
    from heedful.training.card import use_of
    from heedful.training.group import rank_under_torchrun
    from heedful.training.tuned import REPORT

    if rank_under_torchrun():
        return []  # the leader prints
    use = use_of(bundle.config.model.family, folder, "".join(bundle.config.targets[-1:]))
    lines = [f"model written to {folder}; its README.md has the scores", f"try it: {use}"]
    report = folder / REPORT
    return [*_before_and_after(read_json(report, "train anew")), *lines] if report.is_file() else lines


def _before_and_after(report: dict[str, Any]) -> list[str]:
    """What a tuning has changed."""
    from heedful.training.tuned import pieces_added, samples, table

    lines = [*table(report), ""]
    for sample in samples(report)[:SAMPLES_SHOWN]:
        named = zip(("source", "reference", "before", "after"), sample, strict=True)
        lines += [*(f"{name:<10} {text}" for name, text in named), ""]
    return [*lines, report["chosen"], *filter(None, [pieces_added(report)])]


def back_translated_part(text: str) -> Part:
    """What --back-translated says, as --mix does; sources by a model are tagged (Caswell et al. 2019).

    So the model learns to write from all of them, but not to expect sources such as a model writes.
    """
    return replace(mixed_part(text, "--back-translated"), tags=(BACK_TRANSLATED,))


def mixed_part(text: str, option: str = "--mix") -> Part:
    """What --mix says: FILE, FILE:SHARE, or the same with two parallel files and a comma between.

    >>> mixed_part("general.tsv:0.3").share, len(mixed_part("general.en,general.de").paths)
    (0.3, 2)
    """
    files, colon, number = text.rpartition(":")
    share = 0.0
    if colon and re.fullmatch(NUMBER, number) and not Path(text).exists():
        share = float(number)
        if not 0 < share < 1:
            raise HeedfulError(
                f"{option} {text}: {number} is no share of the pairs", hint="between 0 and 1, such as 0.3"
            )
    else:
        files = text
    return Part(_mixed_paths(files), share=share, held_out=False)


def _mixed_paths(files: str) -> tuple[Path, ...]:
    names = [files] if Path(files).exists() else files.split(",")
    return tuple(map(Path, names))


def run_settings(
    recipe: Path | None,
    preset: str | None,
    time: str | None,
    assignments: Sequence[str],
    glossary: Path | None = None,
    processes: int = 0,
) -> dict[str, Any]:
    """Recipe file, then --preset, --time, --processes and --glossary, then --set: the later wins."""
    settings = read_toml(recipe) if recipe else {}
    if preset:
        settings = merged(settings, {"preset": preset})
    if time is not None:
        settings = merged(settings, {"training": {"minutes": minutes_of(time)}})
    if processes:
        from heedful.training.group import check_own_processes

        check_own_processes()
        settings = merged(settings, {"training": {"processes": processes}})
    if glossary is not None:
        share = settings.get("terms", {}).get("share", 0.1)
        settings = merged(settings, {"terms": {"share": share, "glossary": str(glossary.resolve())}})
    return merged(settings, parsed_overrides(assignments))


def minutes_of(time: str) -> float:
    """A time as people write it; a bare number is minutes.

    >>> minutes_of("30m"), minutes_of("1h30m"), minutes_of("90s"), minutes_of("2.5 h"), minutes_of("10")
    (30.0, 90.0, 1.5, 150.0, 10.0)
    """
    text = time.replace(" ", "").lower()
    found = re.fullmatch("".join(rf"(?:({NUMBER}){unit})?" for unit in MINUTES), text)
    minutes = sum(
        float(number or 0) * each
        for number, each in zip(found.groups() if found else (), MINUTES.values(), strict=False)
    )
    if re.fullmatch(NUMBER, text):
        minutes = float(text)
    if minutes <= 0:
        raise HeedfulError(f"{time!r} is no time to train for", hint="write 30m, 2h, 1h30m or 90s")
    return minutes
