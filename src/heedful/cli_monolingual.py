"""The command line for more quality from what there is: average, distill, corpus back-translate."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_family import Device, Quiet


def average(
    parts: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Model folders, or checkpoints (MODEL/training/checkpoints/*)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder to write.")],
    last: Annotated[
        int | None, typer.Option(min=1, help="The last checkpoints of each model's training, instead of it.")
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option("--validation", "-v", help="Pairs to print losses on: one file, or -v twice for two."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Average the weights of checkpoints, or of models of one shape, into a new model.

    \\b
    heedful average my-model --last 5 -o averaged -v held-out.tsv
    heedful average first-model second-model -o averaged
    """
    from heedful.commands.average import AverageOptions, average_command
    from heedful.progress import Reporter

    options = AverageOptions(tuple(parts), output, last, tuple(validation or ()), device)
    for line in average_command(options, Reporter(quiet=quiet)):
        print(line)
