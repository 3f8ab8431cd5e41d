"""``heedful export MODEL --to FORMAT -o OUT``: a model for other programs, whole or not at all."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.files import built_aside, check_new
from heedful.progress import Reporter
from heedful.text.languages import language_pair


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is exported, as what and where to."""

    model: Path
    format: str
    output: Path
    quantization: str | None = None
    languages: str | None = None


class Format(NamedTuple):
    """A kind of file or folder that a model can become."""

    write: Callable[[Bundle, Path, ExportOptions], list[str]]
    """Makes it at a path that is not there yet; returns what is to be said of it."""
    use: str
    """How to use it; {output} stands for its path, as a shell takes it."""
    takes: tuple[str, ...] = ()
    """Options that have a meaning for it."""


def _write_ctranslate2(bundle: Bundle, path: Path, options: ExportOptions) -> list[str]:
    from heedful.interop.ctranslate2_folder import export_folder

    return export_folder(bundle, path, options.quantization or "float32")


def _write_argos(bundle: Bundle, path: Path, options: ExportOptions) -> list[str]:
    from heedful.interop.argos import export_argos

    languages = language_pair(options.languages) if options.languages else None
    return export_argos(bundle, path, languages, options.quantization or "int8")


def _write_onnx(bundle: Bundle, path: Path, options: ExportOptions) -> list[str]:
    from heedful.interop.onnx import export_onnx

    return export_onnx(bundle, path)


def _write_marian(bundle: Bundle, path: Path, options: ExportOptions) -> list[str]:
    from heedful.interop.marian_export import export_marian

    export_marian(bundle, path)
    return []


FORMATS: dict[str, Format] = {
    "ctranslate2": Format(
        _write_ctranslate2,
        "{output}/README.md has a program that translates with it (pip install ctranslate2 sentencepiece)",
        takes=("quantization",),
    ),
    "argos": Format(
        _write_argos,
        "install it: python -c 'import sys, argostranslate.package as p; p.install_from_path(sys.argv[1])' "
        "{output}; Argos Translate and LibreTranslate then have it",
        takes=("quantization", "languages"),
    ),
    "onnx": Format(
        _write_onnx,
        "{output}/README.md has a program that translates with it (pip install onnxruntime sentencepiece)",
    ),
    "marian": Format(
        _write_marian,
        "transformers loads it: MarianMTModel.from_pretrained('{output}'), MarianTokenizer likewise",
    ),
}


def export_command(options: ExportOptions, report: Reporter) -> Iterator[str]:
    """Write the model in the wanted format; yields lines to print."""
    chosen = _chosen(options)
    check_new(options.output)
    bundle = Bundle.open(options.model)
    bundle.check_translates()
    report.say(f"writing {options.output}")
    with built_aside(options.output) as path:
        said = chosen.write(bundle, path, options)
    yield from said
    yield f"written: {options.output} ({_size(options.output)})"
    yield chosen.use.format(output=shlex.quote(str(options.output)))


def _chosen(options: ExportOptions) -> Format:
    """The format; an option that has no meaning for it is an error."""
    chosen = FORMATS.get(options.format)
    if chosen is None:
        raise HeedfulError(f"there is no format {options.format!r}", hint=f"formats: {', '.join(FORMATS)}")
    for option in ("quantization", "languages"):
        if getattr(options, option) is not None and option not in chosen.takes:
            takers = " and ".join(name for name, each in FORMATS.items() if option in each.takes)
            raise HeedfulError(
                f"--{option} has no meaning for {options.format}", hint=f"leave it out; it is for {takers}"
            )
    return chosen


def _size(path: Path) -> str:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return f"{sum(each.stat().st_size for each in files) / 1e6:,.1f} MB"
