"""The verb that trains: it parses, calls the library, prints; heavy imports happen inside."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_corpus import Set
from heedful.cli_family import Glossary, Quiet
from heedful.errors import HeedfulError

Validation = Annotated[
    list[Path] | None,
    typer.Option("--validation", "-v", help="Pairs to validate on: one file, or -v twice for two."),
]
Time = Annotated[
    str | None,
    typer.Option(help="Be done in 30m, 2h, 1h30m, 90s, 10 (minutes); auto takes 30m unless told epochs."),
]
Processes = Annotated[
    int,
    typer.Option(
        min=0, help="Processes of this machine that train together; else a long training tries it out."
    ),
]
Resume = Annotated[Path | None, typer.Option(help="Go on with the interrupted training of this folder.")]
Mix = Annotated[
    list[str] | None,
    typer.Option(
        help="More pairs to learn from, FILE or FILE:SHARE (of what an epoch sees; else all of them "
        "once), two parallel files with a comma between; may be given again."
    ),
]
BackTranslated = Annotated[
    list[str] | None,
    typer.Option(
        help="Like --mix: pairs of `heedful corpus back-translate`, whose sources are tagged as such."
    ),
]
Directions = Annotated[
    list[str] | None,
    typer.Option(
        "--direction",
        help="One of several directions of a model, such as en-de=pairs.tsv or en-de=train.en,train.de; "
        "give it again for each. -v is written likewise.",
    ),
]
BothWays = Annotated[bool, typer.Option("--both-ways", help="Learn the reverse of each direction too.")]
OldValidation = Annotated[
    list[Path] | None,
    typer.Option(
        help="With --from: pairs to see by what it forgets, one file, or the option twice for two; "
        "else those that it was validated on, or some of --mix."
    ),
]
StartFrom = Annotated[
    Path | None, typer.Option("--from", help="Tune this model: training goes on from its weights.")
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of pairs (.tsv, .tmx, .po, ...), or two parallel files; - is stdin."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The model folder to write; else model.")]
Task = Annotated[
    str, typer.Option(help="translate pairs; language or mask learn from plain text (generate, fill).")
]


def train(
    pairs: Files = None,
    output: Output = None,
    validation: Validation = None,
    languages: Annotated[
        str | None, typer.Option(help="Source and target, such as en-de or pt-BR:en; else from the names.")
    ] = None,
    mix: Mix = None,
    back_translated: BackTranslated = None,
    direction: Directions = None,
    both_ways: BothWays = False,
    start_from: StartFrom = None,
    old_validation: OldValidation = None,
    task: Task = "translate",
    preset: Annotated[str | None, typer.Option(help="auto, demo, tiny, small, base or big.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    time: Time = None,
    glossary: Glossary = None,
    settings: Set = [],  # noqa: B006 - Typer copies it
    processes: Processes = 0,
    resume: Resume = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on your sentence pairs, or on plain text, or tune one that is there.

    \b
    heedful train pairs.tsv -o my-model
    heedful train --from my-model new.tsv --mix pairs.tsv:0.5 -o tuned
    """
    from heedful.commands.training import (
        TrainOptions,
        back_translated_part,
        mixed_part,
        resume_command,
        run_settings,
        train_command,
    )
    from heedful.progress import Reporter
    from heedful.text.languages import language_pair

    report = Reporter(quiet=quiet)
    if resume is not None:
        files = (pairs, output, validation, languages, mix, back_translated, direction, both_ways, glossary)
        if any((*files, start_from, old_validation, preset, recipe, time, settings)):
            raise HeedfulError(
                "--resume goes on with the files and settings of its folder",
                hint=f"only --processes may be added: heedful train --resume {resume}",
            )
        lines = resume_command(resume, processes, report)
    else:
        options = TrainOptions(
            tuple(pairs or ()),
            output or Path("model"),
            tuple(validation or ()),
            None if languages is None else language_pair(languages),
            (*map(mixed_part, mix or ()), *map(back_translated_part, back_translated or ())),
            start_from,
            tuple(old_validation or ()),
            task,
            run_settings(recipe, preset, time, settings, glossary, processes),
            tuple(direction or ()),
            both_ways,
        )
        lines = train_command(options, report)
    for line in lines:
        print(line)
