"""Arguments and options that several verbs share, and the parsing of their values."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[Path, typer.Argument(help="A model folder, as written by `heedful train`.")]
PairsArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Files of sentence pairs (.tsv, .jsonl, .csv, .tmx, .po, .mo, .xlf, .zip), or two parallel "
        "files; gzip works too, - is stdin."
    ),
]
LanguagesOption = Annotated[
    str | None,
    typer.Option("--languages", help="Source and target, such as en-de or pt-BR:en; default: from the files."),
]
TargetLanguageOption = Annotated[str | None, typer.Option("--to", help="Target language, for a multilingual model.")]
SettingsOption = Annotated[
    list[str], typer.Option("--set", help="A setting, such as training.max_epochs=5. Repeatable.")
]
EngineOption = Annotated[
    str, typer.Option(help="auto (fastest), exact (same output as PyTorch), pytorch, ctranslate2 or ctranslate2-int8.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
EnsembleOption = Annotated[
    list[Path], typer.Option("--with", help="Another model with the same tokenizer, for an ensemble. Repeatable.")
]
GlossaryOption = Annotated[Path | None, typer.Option(help="Glossary: source and target term per line, TSV or CSV.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress output.")]


def parse_languages(text: str | None) -> tuple[str, str] | None:
    """The language pair of ``--languages``; None without the option."""
    from heedful.tokenization.languages import parse_language_pair

    return None if text is None else parse_language_pair(text)


def print_lines(lines: Iterable[str]) -> None:
    """Print a report, line by line as it comes."""
    for line in lines:
        print(line, flush=True)
