"""The command line of ``heedful export``."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_family import Model, Quiet


def export(
    model: Model,
    to: Annotated[str, typer.Option(help="The format: ctranslate2, argos, onnx or marian.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="What to write; must not exist yet.")],
    quantization: Annotated[
        str | None, typer.Option(help="ctranslate2 and argos: float32, float16, int16, int8 and others.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="argos: source-target, such as en-fr, if the model does not know.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a model for CTranslate2, Argos Translate and LibreTranslate, ONNX Runtime or transformers."""
    from heedful.commands.exporting import ExportOptions, export_command
    from heedful.progress import Reporter

    options = ExportOptions(model, to, output, quantization, languages)
    for line in export_command(options, Reporter(quiet=quiet)):
        print(line)
