"""The command line of the family: ``heedful compare``, ``generate``, ``fill``; arguments that verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_corpus import LanguagePair, Pairs, Set, told_languages

Model = Annotated[Path, typer.Argument(help="A model folder, as `heedful train` writes it.")]
With = Annotated[
    list[Path],
    typer.Option("--with", help="A model with the same tokenizer to translate together with. Repeat."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Engine = Annotated[
    str,
    typer.Option(help="auto (the quickest), exact (with the same results), pytorch, ctranslate2[-int8]."),
]
Glossary = Annotated[
    Path | None, typer.Option(help="Terms and what they must become: TSV or CSV, a term a line.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Seen = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="A folder for pictures, page.html for a page, record.safetensors for all numbers; "
        "a file for --alignments.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", help="Language to translate into, of a model that writes several.")
]


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="What the texts begin with; may be empty.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="Texts to write.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="Below 1 bolder words, above 1 rarer.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Only among the k likeliest words; 0 for all.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Only among the likeliest that together reach this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another number, other texts; 0 if not given.")] = None,
    longest: Annotated[int, typer.Option(min=1, help="Tokens of a text at most.")] = 100,
    device: Device = "auto",
) -> None:
    """Go on with a text, word by word at random (a model of `train --task language`)."""
    from heedful.commands.plain_text import generate_command

    given = {"n_best": count, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = {name: value for name, value in given.items() if value is not None}
    for line in generate_command(model, prompt, longest, search, device):
        print(line)


def fill(
    model: Model,
    text: Annotated[str, typer.Argument(help="A text with blanks, written __.")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="Guesses for each blank.")] = 5,
    device: Device = "auto",
) -> None:
    """Guess what stands in the blanks of a text (a model of `train --task mask`)."""
    from heedful.commands.plain_text import fill_command

    for line in fill_command(model, text, top, device):
        print(line)


def compare(
    pairs: Pairs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for models, table and curves.")],
    validation: Annotated[
        list[Path] | None,
        typer.Option("--validation", "-v", help="Pairs to validate on: one file, or -v twice for two."),
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option("--test", help="Pairs to score on, like -v; else the validation set.")
    ] = None,
    question: Annotated[
        str, typer.Option(help="Of the paper: recurrence, heads, positions, ablations; several with commas.")
    ] = "",
    recipe: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE.toml: settings to compare. Repeat for more.")
    ] = None,
    preset: Annotated[str, typer.Option(help="What all have in common: demo, tiny, small, base.")] = "tiny",
    updates: Annotated[int | None, typer.Option(min=1, help="Budget of each in updates.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget of each in target tokens.")] = None,
    time: Annotated[str | None, typer.Option(help="Budget of each in time: 10m, 1h.")] = None,
    languages: LanguagePair = None,
    settings: Set = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Train several recipes on the same pairs with the same budget: a table, and curves."""
    from heedful.commands.compare import CompareOptions, compare_command
    from heedful.progress import Reporter

    options = CompareOptions(
        pairs,
        output,
        validation or (),
        test or (),
        [name.strip() for name in question.split(",") if name.strip()],
        recipe or (),
        preset,
        updates,
        tokens,
        time,
        settings,
        told_languages(languages),
    )
    for line in compare_command(options, Reporter(quiet=quiet)):
        print(line)
