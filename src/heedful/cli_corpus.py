"""The command line of ``heedful corpus``; the arguments that other verbs share with it."""

from pathlib import Path
from typing import Annotated

import typer

Pairs = Annotated[
    list[Path],
    typer.Argument(help="One file of pairs (.tsv, .jsonl), or two parallel files; gzip is fine, - is stdin."),
]
Set = Annotated[
    list[str], typer.Option("--set", help="A setting, such as training.epochs=5. Repeat for more.")
]
corpus_app = typer.Typer(no_args_is_help=True, help="Look at, clean, split and join files of sentence pairs.")


@corpus_app.command("stats")
def corpus_stats(pairs: Pairs) -> None:
    """Count pairs, words and characters, and what cleaning would drop."""
    from heedful.commands.corpus import corpus_statistics

    for line in corpus_statistics(pairs):
        print(line)


@corpus_app.command("clean")
def corpus_clean(
    pairs: Pairs,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")],
    settings: Set = [],  # noqa: B006
) -> None:
    """Write the pairs that are fit to learn from, and say what fell out and why."""
    from heedful.commands.corpus import clean_corpus

    for line in clean_corpus(pairs, output, settings):
        print(line)


@corpus_app.command("split")
def corpus_split(
    pairs: Pairs,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for train.tsv and held-out.tsv.")],
    held_out: Annotated[int | None, typer.Option(help="Source sentences to hold out.")] = None,
) -> None:
    """Split pairs into a training and a held-out part; no sentence is in both."""
    from heedful.commands.corpus import split_corpus

    for line in split_corpus(pairs, output, held_out):
        print(line)


@corpus_app.command("join")
def corpus_join(
    pairs: Pairs,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")],
    lines: Annotated[int, typer.Option(min=2, help="Lines of a paragraph at most.")] = 10,
    characters: Annotated[
        int, typer.Option(min=0, help="Characters of a paragraph at most, of either side; 0 for any number.")
    ] = 0,
) -> None:
    """Join neighbouring pairs into paragraphs, to learn from whole texts; a blank line ends one."""
    from heedful.commands.corpus import join_corpus

    for line in join_corpus(pairs, output, lines, characters):
        print(line)
