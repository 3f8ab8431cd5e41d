"""A model as an Argos Translate package, which LibreTranslate serves too: a zip file of a CTranslate2 model,
its SentencePiece file and the names of its languages.

A package has one SentencePiece file. It cuts sources; to join the pieces of a translation any will do, since
what it does not know it leaves as it is. So models with two vocabularies go in as well.
"""

import json
import re
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.interop.ctranslate2_folder import checked, export_pieces, notes
from heedful.interop.sentencepiece_model import spm_bytes
from heedful.text.languages import language_name

SUFFIX = ".argosmodel"
VERSION = "1.0"
"""Of the package, and of the oldest Argos Translate that reads it."""
LONGEST = 1024
"""Tokens of the longest sentence that Argos Translate gives to a model."""
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_README = """# {from_name} to {to_name}

A translation model for Argos Translate and LibreTranslate, made by Heedful (weights: {quantization}).

{card}"""


def export_argos(
    bundle: Bundle, path: Path, languages: tuple[str, str] | None = None, quantization: str = "int8"
) -> list[str]:
    """Write the package; returns what is to be said of it."""
    if path.suffix != SUFFIX:
        raise HeedfulError(
            f"Argos Translate would not know {path.name} as a package", hint=f"let its name end in {SUFFIX}"
        )
    found = languages or bundle.config.languages
    if found is None:
        raise HeedfulError(
            "a package must say its languages, and this model does not know them",
            hint="name them: --languages en-fr (source-target)",
        )
    for code in found:
        if not _CODE.fullmatch(code):
            raise HeedfulError(f"no language has the code {code!r}", hint="write a code such as fr or pt-BR")
    spm = spm_bytes(bundle.tokenizer.source)
    with TemporaryDirectory(dir=path.parent) as aside:
        model = Path(aside)
        export_pieces(bundle, model, quantization)
        said = checked(bundle, model, quantization)
        _pack(path, model, spm, _texts(bundle, found, quantization), package_name(found))
    return [said, *notes(bundle), *_warnings(bundle)]


def package_name(languages: tuple[str, str]) -> str:
    """Of the folder in the zip file, and of the file where Argos Translate keeps one.

    >>> package_name(("en", "fr"))
    'translate-en_fr-1_0'
    """
    return f"translate-{languages[0]}_{languages[1]}-{VERSION.replace('.', '_')}"


def _texts(bundle: Bundle, languages: tuple[str, str], quantization: str) -> dict[str, str]:
    """What the package says of itself."""
    names = [language_name(code) for code in languages]
    metadata = {
        "package_version": VERSION,
        "argos_version": VERSION,
        "from_code": languages[0],
        "from_name": names[0],
        "to_code": languages[1],
        "to_name": names[1],
    }
    readme = _README.format(from_name=names[0], to_name=names[1], quantization=quantization, card=bundle.card)
    return {"metadata.json": json.dumps(metadata, ensure_ascii=True, indent=4) + "\n", "README.md": readme}


def _pack(path: Path, model: Path, spm: bytes, texts: dict[str, str], name: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file, text in texts.items():
            packed.writestr(f"{name}/{file}", text)
        packed.writestr(f"{name}/sentencepiece.model", spm)
        for part in sorted(model.iterdir()):
            packed.write(part, f"{name}/model/{part.name}")


def _warnings(bundle: Bundle) -> list[str]:
    model = bundle.config.model
    if not model.ends or model.longest >= LONGEST:
        return []
    return [f"its learned positions end at {model.longest} tokens: Argos Translate fails on longer sentences"]
