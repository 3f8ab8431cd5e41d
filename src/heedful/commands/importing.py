"""``heedful import``: a model of another program becomes one of ours."""

from collections.abc import Iterator
from pathlib import Path

from heedful.files import built_aside, check_new
from heedful.interop.marian import import_marian
from heedful.progress import counted


def import_command(
    path: Path, output: Path, languages: tuple[str, str] | None, *, allow_bin: bool = False
) -> Iterator[str]:
    """Write the model folder, which appears whole or not at all; yields lines to print."""
    check_new(output)
    bundle = import_marian(path, languages, allow_bin=allow_bin)
    with built_aside(output) as aside:
        bundle.save(aside)
    model, pair = bundle.config.model, bundle.config.languages
    yield (
        f"{output}: {' to '.join(pair) if pair else 'languages unknown (--languages en-de names them)'}, "
        f"{model.encoder_layers} + {model.decoder_layers} layers, width {model.width}, "
        f"{counted(bundle.predictor.parameter_count(), 'parameter')}"
    )
    targets = bundle.config.targets
    if targets:
        usual = bundle.language_tag()
        yield (
            f"it writes {counted(len(targets), 'language')}: {_listed(targets)}; {usual} unless "
            "search.language or >>CODE<< before a text says otherwise"
        )
    yield f'translate with: heedful translate {output} "..."'


def _listed(names: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")
