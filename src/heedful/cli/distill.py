"""``heedful distill`` and ``heedful average``: new models from trained ones."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import DeviceOption, EngineOption, QuietOption, SettingsOption, print_lines
from heedful.errors import check_extras


def average(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Model folders, or checkpoints (MODEL/training/checkpoints/*)."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder to write.")],
    last: Annotated[
        int | None, typer.Option(min=1, help="Average the last N checkpoints of each model's training instead.")
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option("--validation", "-v", help="Pairs to report the loss on: one file, or -v twice."),
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Average the weights of checkpoints, or of models of one shape, into a new model.

    \b
    heedful average my-model --last 5 -o averaged -v validation.tsv
    heedful average first-model second-model -o averaged
    """
    check_extras("averaging", "train")
    from heedful.progress import Reporter
    from heedful.workflows.average_checkpoints import AverageOptions, average_checkpoints

    options = AverageOptions(
        paths=tuple(models), output=output, last=last, validation=tuple(validation or ()), device=device
    )
    print_lines(average_checkpoints(options, Reporter(quiet=quiet)))


def distill(
    paths: Annotated[
        list[Path], typer.Argument(metavar="TEACHER... PAIRS...", help="Model folders, then files of pairs.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The student's model folder to write.")],
    validation: Annotated[
        list[Path] | None, typer.Option("--validation", "-v", help="Real pairs to validate on: one file, or -v twice.")
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size of the teacher; 1 is greedy.")] = 4,
    real_fraction: Annotated[
        float, typer.Option(help="Fraction of the real pairs to train on too, from 0 to 1.")
    ] = 0.0,
    preset: Annotated[str | None, typer.Option(help="Preset of the student; default: tiny.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Settings of the student, a TOML file.")] = None,
    time: Annotated[str | None, typer.Option(help="Time budget of the student: 30m, 2h, 90s.")] = None,
    settings: SettingsOption = [],  # noqa: B006
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Train a small, fast model on the translations of a large one, or of an ensemble.

    Run the same command again to resume it.

    \b
    heedful distill my-model pairs.tsv -o student --time 1h
    heedful distill first-model second-model pairs.tsv -o student --real-fraction 0.5
    """
    check_extras("distillation", "train")
    from heedful.progress import Reporter
    from heedful.training.config import build_run_settings
    from heedful.workflows.distill import DistillOptions, distill_model

    options = DistillOptions(
        paths=tuple(paths),
        output=output,
        validation=tuple(validation or ()),
        beam_size=beam,
        real_fraction=real_fraction,
        settings=build_run_settings(recipe, preset, time, settings),
        engine=engine,
        device=device,
    )
    print_lines(distill_model(options, Reporter(quiet=quiet)))
