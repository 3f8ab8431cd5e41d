"""``heedful corpus``: inspect, clean, split, join, convert and create files of sentence pairs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.options import (
    DeviceOption,
    EngineOption,
    EnsembleOption,
    LanguagesOption,
    PairsArgument,
    QuietOption,
    SettingsOption,
    parse_languages,
    print_lines,
)

if TYPE_CHECKING:
    from heedful.workflows.corpus import CorpusInput

CorpusOutputOption = Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")]

corpus_app = typer.Typer(
    no_args_is_help=True, help="Inspect, clean, split, join, convert and create files of sentence pairs."
)


@corpus_app.command("stats")
def corpus_stats(
    pairs: PairsArgument,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
) -> None:
    """Count pairs, words and characters, and report what cleaning would filter out."""
    from heedful.workflows.corpus import corpus_statistics

    print_lines(corpus_statistics(_build_input(pairs, languages, settings)))


@corpus_app.command("clean")
def corpus_clean(
    pairs: PairsArgument,
    output: CorpusOutputOption,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
) -> None:
    """Write the cleaned pairs, and report which pairs were filtered out, and why."""
    from heedful.workflows.corpus import clean_corpus

    print_lines(clean_corpus(_build_input(pairs, languages, settings), output))


@corpus_app.command("split")
def corpus_split(
    pairs: PairsArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for train.tsv and validation.tsv.")],
    validation_size: Annotated[int | None, typer.Option(help="Number of validation source sentences.")] = None,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
) -> None:
    """Split pairs into training and validation; no sentence is in both."""
    from heedful.workflows.corpus import split_corpus

    print_lines(split_corpus(_build_input(pairs, languages, settings), output, validation_size))


@corpus_app.command("join")
def corpus_join(
    pairs: PairsArgument,
    output: CorpusOutputOption,
    lines: Annotated[int, typer.Option(min=2, help="Maximum lines per paragraph.")] = 10,
    characters: Annotated[int, typer.Option(min=0, help="Maximum characters per paragraph and side; 0: no limit.")] = 0,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
) -> None:
    """Join adjacent pairs into paragraphs, for document-level training; a blank line ends a paragraph."""
    from heedful.workflows.corpus import ParagraphSize, join_corpus

    print_lines(join_corpus(_build_input(pairs, languages, settings), output, ParagraphSize(lines, characters)))


@corpus_app.command("convert")
def corpus_convert(
    pairs: PairsArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .tsv .jsonl .csv .tmx .po .xlf, optionally .gz.")
    ],
    output_format: Annotated[
        str | None,
        typer.Option("--format", help="tsv, jsonl, csv, tmx, po, xliff (1.2), xliff2; default: by extension."),
    ] = None,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
) -> None:
    """Convert pairs to another format, unchanged; only malformed pairs and empty sides are dropped."""
    from heedful.workflows.corpus import convert_corpus

    print_lines(convert_corpus(_build_input(pairs, languages, settings), output, output_format))


@corpus_app.command("gettext")
def corpus_gettext(
    target: Annotated[str, typer.Option("--to", help="Target language, such as de or pt_BR.")],
    output: CorpusOutputOption,
    source: Annotated[str, typer.Option("--from", help="Source language; most programs are written in en.")] = "en",
    folder: Annotated[
        list[Path] | None, typer.Option(help="Locale folders; default: the system's. Repeatable.")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="Only these catalogs, such as bash or gtk*. Repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Exclude these catalogs. Repeatable.")] = None,
) -> None:
    """Collect pairs from the gettext catalogs of the programs on this machine."""
    from heedful.data.formats.gettext import CatalogSelection
    from heedful.workflows.corpus import collect_catalogs

    selection = CatalogSelection(source, target, tuple(package or ()), tuple(exclude or ()))
    print_lines(collect_catalogs(selection, folder or [], output))


def _build_input(pairs: list[Path], languages: str | None, settings: list[str]) -> "CorpusInput":
    from heedful.workflows.corpus import CorpusInput

    return CorpusInput(pairs, parse_languages(languages), settings)


@corpus_app.command("back-translate")
def back_translate(
    model: Annotated[Path, typer.Argument(help="A model that translates from the target to the source language.")],
    text: Annotated[Path, typer.Argument(help="Target-language text, one sentence per line; - is stdin.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .tsv or .tsv.gz file to write.")],
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of beam search.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Sampling: only the k most probable tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling only.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling only.")] = None,
    ensemble_models: EnsembleOption = [],  # noqa: B006
    engine: EngineOption = "auto",
    workers: Annotated[int, typer.Option(min=0, help="CPU cores for CTranslate2; 0: all.")] = 0,
    settings: SettingsOption = [],  # noqa: B006
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Back-translate target-language text into synthetic sentence pairs.

    \b
    heedful corpus back-translate fr-en-model mono.fr -o back-translated.tsv
    heedful train en-fr.tsv --back-translated back-translated.tsv -o en-fr-model
    """
    from heedful.config import drop_unset
    from heedful.progress import Reporter
    from heedful.workflows.back_translate import BackTranslateOptions, back_translate_text

    options = BackTranslateOptions(
        models=(model, *ensemble_models),
        text=text,
        output=output,
        generation_overrides=drop_unset(
            beam_size=beam, top_k=top_k, temperature=temperature, seed=seed, method="sample" if sample else None
        ),
        settings=tuple(settings),
        engine=engine,
        workers=workers,
        device=device,
    )
    print_lines(back_translate_text(options, Reporter(quiet=quiet)))
