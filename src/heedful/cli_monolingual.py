"""The command line for more quality from what there is: average, distill, corpus back-translate."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_corpus import Set, corpus_app
from heedful.cli_family import Device, Engine, Quiet, With


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

    \b
    heedful average my-model --last 5 -o averaged -v held-out.tsv
    heedful average first-model second-model -o averaged
    """
    from heedful.commands.average import AverageOptions, average_command
    from heedful.progress import Reporter

    options = AverageOptions(tuple(parts), output, last, tuple(validation or ()), device)
    for line in average_command(options, Reporter(quiet=quiet)):
        print(line)


def distill(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="TEACHER... PAIRS...", help="Model folders, then files of pairs."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The student's model folder to write.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option("--validation", "-v", help="Real pairs to examine on: one file, or -v twice for two."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses that the teacher keeps; 1 is greedy.")] = 4,
    keep_real: Annotated[
        float, typer.Option(help="Share of the real pairs to learn from too: 0 (none) to 1 (all).")
    ] = 0.0,
    preset: Annotated[str | None, typer.Option(help="Of the student; tiny if not given.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="The student's settings in a TOML file.")] = None,
    time: Annotated[str | None, typer.Option(help="To train the student in: 30m, 2h, 90s.")] = None,
    settings: Set = [],  # noqa: B006
    engine: Engine = "auto",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a small, quick model on the translations of a large one, or of several together.

    Stopped at any point, the same command goes on.

    \b
    heedful distill my-model pairs.tsv -o student --time 1h
    heedful distill first-model second-model pairs.tsv -o student --keep-real 0.5
    """
    from heedful.commands.distill import DistillOptions, distill_command
    from heedful.commands.training import run_settings
    from heedful.progress import Reporter

    options = DistillOptions(
        tuple(paths),
        output,
        tuple(validation or ()),
        beam,
        keep_real,
        run_settings(recipe, preset, time, settings),
        engine,
        device,
    )
    for line in distill_command(options, Reporter(quiet=quiet)):
        print(line)


@corpus_app.command("back-translate")
def back_translate(
    model: Annotated[Path, typer.Argument(help="A model that translates from the target to the source.")],
    text: Annotated[Path, typer.Argument(help="Text of the target language, a sentence a line; - is stdin.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")],
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random instead of searching.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Of sampling: only the k likeliest words.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    others: With = [],  # noqa: B006
    engine: Engine = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Cores for CTranslate2; 0 for all.")] = 0,
    settings: Set = [],  # noqa: B006
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make pairs of text of the target language: a model of the other direction writes the sources.

    \b
    heedful corpus back-translate fr-en-model mono.fr -o back-translated.tsv
    heedful train en-fr.tsv --back-translated back-translated.tsv -o en-fr-model
    """
    from heedful.commands.back_translation import BackTranslateOptions, back_translate_command
    from heedful.progress import Reporter

    given = {"beam": beam, "top_k": top_k, "temperature": temperature, "seed": seed}
    search: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if sample:
        search["method"] = "sample"
    options = BackTranslateOptions(
        (model, *others), text, output, search, tuple(settings), engine, workers, device
    )
    for line in back_translate_command(options, Reporter(quiet=quiet)):
        print(line)
