"""The command line of models that come from other programs: ``heedful import``."""

from pathlib import Path
from typing import Annotated

import typer


def import_model(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER_OR_ZIP", help="A Hugging Face MarianMT model (opus-mt).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder to make.")],
    languages: Annotated[
        str | None, typer.Option(help="Source and target, if the files do not say: en-de, or pt-BR:en.")
    ] = None,
    allow_bin: Annotated[
        bool, typer.Option("--allow-bin", help="Read numbers from a pytorch_model.bin, the old format.")
    ] = False,
) -> None:
    """Take over a MarianMT model: then everything works on it as on a trained one."""
    from heedful.commands.importing import import_command
    from heedful.text.languages import language_pair

    pair = None if languages is None else language_pair(languages)
    for line in import_command(path, output, pair, allow_bin=allow_bin):
        print(line)
