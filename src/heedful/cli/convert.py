"""``heedful export`` and ``heedful import``: models for and from other programs."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import ModelArgument, QuietOption, parse_languages, print_lines


def export(
    model: ModelArgument,
    to: Annotated[str, typer.Option(help="Format: ctranslate2, argos, onnx or marian.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Path to write; must not exist.")],
    quantization: Annotated[
        str | None, typer.Option(help="ctranslate2 and argos: float32, float16, int16, int8 and others.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="argos: source-target, such as en-fr, if the model does not know it.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Export a model for CTranslate2, Argos Translate and LibreTranslate, ONNX Runtime or transformers."""
    from heedful.convert import ExportOptions, export_model
    from heedful.progress import Reporter

    options = ExportOptions(model=model, format=to, output=output, quantization=quantization, languages=languages)
    print_lines(export_model(options, Reporter(quiet=quiet)))


def import_(
    path: Annotated[Path, typer.Argument(metavar="FOLDER_OR_ZIP", help="A Hugging Face MarianMT model (opus-mt).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder to write.")],
    languages: Annotated[
        str | None, typer.Option(help="Source and target, if the files do not say: en-de or pt-BR:en.")
    ] = None,
    allow_bin: Annotated[
        bool, typer.Option("--allow-bin", help="Read weights from pytorch_model.bin, the old format.")
    ] = False,
) -> None:
    """Convert a MarianMT / opus-mt model to a model folder."""
    from heedful.convert import import_model

    print_lines(import_model(path, output, parse_languages(languages), allow_bin=allow_bin))
