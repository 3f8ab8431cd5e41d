"""The command line of ``heedful corpus``; the arguments that other verbs share with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heedful.commands.corpus import CorpusInput

Pairs = Annotated[
    list[Path],
    typer.Argument(
        help="Files of pairs (.tsv, .jsonl, .csv, .tmx, .po, .mo, .xlf, .zip), or two parallel files; "
        "gzip is fine, - is stdin."
    ),
]
Set = Annotated[
    list[str], typer.Option("--set", help="A setting, such as training.epochs=5. Repeat for more.")
]
LanguagePair = Annotated[
    str | None,
    typer.Option("--languages", help="Source and target, such as en-de or pt-BR:en; else as the files tell."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")]
corpus_app = typer.Typer(
    no_args_is_help=True, help="Look at, clean, split, join, convert and find files of sentence pairs."
)


@corpus_app.command("stats")
def corpus_stats(pairs: Pairs, languages: LanguagePair = None, settings: Set = []) -> None:  # noqa: B006
    """Count pairs, words and characters, and what cleaning would drop."""
    from heedful.commands.corpus import corpus_statistics

    _print(corpus_statistics(_input(pairs, languages, settings)))


@corpus_app.command("clean")
def corpus_clean(
    pairs: Pairs,
    output: Output,
    languages: LanguagePair = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Write the pairs that are fit to learn from, and say what fell out and why."""
    from heedful.commands.corpus import clean_corpus

    _print(clean_corpus(_input(pairs, languages, settings), output))


@corpus_app.command("split")
def corpus_split(
    pairs: Pairs,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for train.tsv and held-out.tsv.")],
    held_out: Annotated[int | None, typer.Option(help="Source sentences to hold out.")] = None,
    languages: LanguagePair = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Split pairs into a training and a held-out part; no sentence is in both."""
    from heedful.commands.corpus import split_corpus

    _print(split_corpus(_input(pairs, languages, settings), output, held_out))


@corpus_app.command("join")
def corpus_join(
    pairs: Pairs,
    output: Output,
    lines: Annotated[int, typer.Option(min=2, help="Lines of a paragraph at most.")] = 10,
    characters: Annotated[
        int, typer.Option(min=0, help="Characters of a paragraph at most, of either side; 0 for any number.")
    ] = 0,
    languages: LanguagePair = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Join neighbouring pairs into paragraphs, to learn from whole texts; a blank line ends one."""
    from heedful.commands.corpus import join_corpus
    from heedful.corpora.paragraphs import ParagraphSize

    _print(join_corpus(_input(pairs, languages, settings), output, ParagraphSize(lines, characters)))


@corpus_app.command("convert")
def corpus_convert(
    pairs: Pairs,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The file to write: .tsv .jsonl .csv .tmx .po .xlf, .gz of each."
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option("--format", help="tsv, jsonl, csv, tmx, po, xliff (1.2), xliff2; else by the name."),
    ] = None,
    languages: LanguagePair = None,
    settings: Set = [],  # noqa: B006
) -> None:
    """Write pairs in another format, as they are; only what has an empty side or is broken falls out."""
    from heedful.commands.converting import convert_corpus

    _print(convert_corpus(_input(pairs, languages, settings), output, form))


@corpus_app.command("gettext")
def corpus_gettext(
    target: Annotated[str, typer.Option("--to", help="The language to translate to, such as de or pt_BR.")],
    output: Output,
    source: Annotated[
        str, typer.Option("--from", help="The language to translate from; programs are written in en.")
    ] = "en",
    folder: Annotated[
        list[Path] | None, typer.Option(help="Locale folders; else the system's. Repeat for more.")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="Only these catalogues, such as bash or gtk*. Repeat for more.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Not these catalogues, likewise.")] = None,
) -> None:
    """Collect the pairs of the programs on this machine, out of their gettext catalogues."""
    from heedful.commands.converting import collect_catalogues
    from heedful.corpora.locale_folders import Wanted

    wanted = Wanted(source, target, tuple(package or ()), tuple(exclude or ()))
    _print(collect_catalogues(wanted, folder or [], output))


def told_languages(text: str | None) -> tuple[str, str] | None:
    """What ``--languages`` says, if it was given."""
    from heedful.text.languages import language_pair

    return None if text is None else language_pair(text)


def _input(pairs: list[Path], languages: str | None, settings: list[str]) -> "CorpusInput":
    from heedful.commands.corpus import CorpusInput

    return CorpusInput(pairs, told_languages(languages), settings)


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line)
