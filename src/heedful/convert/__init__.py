"""Export models to other programs (``heedful export``) and import theirs (``heedful import``).

Each format imports its libraries only when it is used. Outputs are written atomically.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heedful.errors import HeedfulError, check_extras
from heedful.files import atomic_create, check_not_exists
from heedful.model_folder import ModelFolder
from heedful.progress import Reporter, format_count
from heedful.tokenization.languages import parse_language_pair


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Arguments of ``heedful export``."""

    model: Path
    format: str
    output: Path
    quantization: str | None = None
    languages: str | None = None


class ExportFormat(NamedTuple):
    """A file or folder format of another program."""

    usage: str
    """How to use the export; {output} is its shell-quoted path."""
    supported_options: tuple[str, ...] = ()
    """Optional arguments that this format supports."""


EXPORT_FORMATS: dict[str, ExportFormat] = {
    "ctranslate2": ExportFormat(
        "{output}/README.md shows a program that uses it (pip install ctranslate2 sentencepiece)", ("quantization",)
    ),
    "argos": ExportFormat(
        "install it: python -c 'import sys, argostranslate.package as p; p.install_from_path(sys.argv[1])' "
        "{output}; then use it in Argos Translate or LibreTranslate",
        ("quantization", "languages"),
    ),
    "onnx": ExportFormat("{output}/README.md shows a program that uses it (pip install onnxruntime sentencepiece)"),
    "marian": ExportFormat(
        "load it with transformers: MarianMTModel.from_pretrained('{output}'), MarianTokenizer likewise"
    ),
}


def _write_export(model_folder: ModelFolder, path: Path, options: ExportOptions) -> list[str]:
    """Write the export to a new path; returns messages for the user."""
    if options.format == "ctranslate2":
        from heedful.convert.ctranslate2.exporter import export_ctranslate2_folder

        return export_ctranslate2_folder(model_folder, path, options.quantization or "float32")
    if options.format == "argos":
        from heedful.convert.argos import export_argos

        languages = parse_language_pair(options.languages) if options.languages else None
        return export_argos(model_folder, path, languages, options.quantization or "int8")
    if options.format == "onnx":
        from heedful.convert.onnx import export_onnx

        return export_onnx(model_folder, path)
    from heedful.convert.marian.exporter import export_marian

    export_marian(model_folder, path)
    return []


def export_model(options: ExportOptions, report: Reporter) -> Iterator[str]:
    """Export a model; yields lines to print."""
    export_format = EXPORT_FORMATS.get(options.format)
    if export_format is None:
        raise HeedfulError(f"unknown format {options.format!r}", hint=f"formats: {', '.join(EXPORT_FORMATS)}")
    for option in ("quantization", "languages"):
        if getattr(options, option) is not None and option not in export_format.supported_options:
            supporting = [name for name, other in EXPORT_FORMATS.items() if option in other.supported_options]
            raise HeedfulError(
                f"--{option} is not supported by {options.format}",
                hint=f"remove it; it is for {' and '.join(supporting)}",
            )
    extras = ("onnx", "train") if options.format == "onnx" else ("train",)
    check_extras(f"export to {options.format}", *extras)
    check_not_exists(options.output)
    model_folder = ModelFolder.open(options.model)
    model_folder.check_translates()
    report.info(f"writing {options.output}")
    with atomic_create(options.output) as path:
        messages = _write_export(model_folder, path, options)
    yield from messages
    files = [options.output] if options.output.is_file() else list(options.output.rglob("*"))
    size = sum(file.stat().st_size for file in files if file.is_file())
    yield f"written: {options.output} ({size / 1e6:,.1f} MB)"
    yield export_format.usage.format(output=shlex.quote(str(options.output)))


# ---- Import


def import_model(
    path: Path, output: Path, languages: tuple[str, str] | None, *, allow_bin: bool = False
) -> Iterator[str]:
    """Convert a MarianMT model to a model folder; yields lines to print."""
    check_extras("import", "marian", "train")
    from heedful.convert.marian.importer import import_marian

    check_not_exists(output)
    model_folder = import_marian(path, languages, allow_bin=allow_bin)
    with atomic_create(output) as temporary_path:
        model_folder.save(temporary_path)
    model, pair = model_folder.config.model, model_folder.config.languages
    yield (
        f"{output}: {' to '.join(pair) if pair else 'languages unknown (set them with --languages en-de)'}, "
        f"{model.encoder_layers} + {model.decoder_layers} layers, d_model {model.d_model}, "
        f"{format_count(model_folder.model.parameter_count(), 'parameter')}"
    )
    targets = model_folder.config.target_languages
    if targets:
        names = f"{', '.join(targets[:12])}{' ...' if len(targets) > 12 else ''}"
        yield (
            f"target languages ({len(targets)}): {names}; default {model_folder.language_tag()}, "
            "change it with generation.target_language or >>CODE<< before a text"
        )
    yield f'translate with: heedful translate {output} "..."'
