"""Argos Translate packages, also for LibreTranslate: a zip of a CTranslate2 model and a SentencePiece model.

The package has one SentencePiece model, that of the source. It can also join the subwords of any target,
because it leaves unknown pieces unchanged, so models with two vocabularies work too.
"""

import json
import re
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from heedful.convert.ctranslate2.exporter import verify_export
from heedful.convert.ctranslate2.weights import export_ctranslate2
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.tokenization.languages import language_name
from heedful.tokenization.sentencepiece import sentencepiece_bytes

PACKAGE_SUFFIX = ".argosmodel"

PACKAGE_VERSION = "1.0"
"""Version of the package, and the minimum version of Argos Translate."""

MAX_LENGTH = 1024
"""Maximum sentence length in tokens that Argos Translate passes to a model."""

_LANGUAGE_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_README = """# {from_name} to {to_name}

A translation model for Argos Translate and LibreTranslate, exported by Heedful (weights: {quantization}).

{card}"""


def export_argos(
    model_folder: ModelFolder, path: Path, languages: tuple[str, str] | None = None, quantization: str = "int8"
) -> list[str]:
    """Write and verify the package; return messages for the user."""
    if path.suffix != PACKAGE_SUFFIX:
        raise HeedfulError(
            f"{path.name} is not a valid name for an Argos Translate package",
            hint=f"use a name that ends with {PACKAGE_SUFFIX}",
        )
    language_codes = languages or model_folder.config.languages
    if language_codes is None:
        raise HeedfulError(
            "an Argos Translate package needs languages, and this model has none",
            hint="add --languages SOURCE-TARGET, for example en-fr",
        )
    for code in language_codes:
        if not _LANGUAGE_CODE.fullmatch(code):
            raise HeedfulError(f"{code!r} is not a valid language code", hint="use a code such as fr or pt-BR")
    names = [language_name(code) for code in language_codes]
    metadata = {
        "package_version": PACKAGE_VERSION,
        "argos_version": PACKAGE_VERSION,
        "from_code": language_codes[0],
        "from_name": names[0],
        "to_code": language_codes[1],
        "to_name": names[1],
    }
    readme = _README.format(from_name=names[0], to_name=names[1], quantization=quantization, card=model_folder.card)
    spm = sentencepiece_bytes(model_folder.tokenizer.source)
    with TemporaryDirectory(dir=path.parent) as temporary:
        ctranslate2_folder = Path(temporary)
        export_ctranslate2(model_folder, ctranslate2_folder, quantization, token_naming="subwords")
        messages = verify_export(model_folder, ctranslate2_folder, quantization)
        name = f"translate-{'_'.join(language_codes)}-{PACKAGE_VERSION.replace('.', '_')}"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}/metadata.json", json.dumps(metadata, ensure_ascii=True, indent=4) + "\n")
            archive.writestr(f"{name}/README.md", readme)
            archive.writestr(f"{name}/sentencepiece.model", spm)
            for model_file in sorted(ctranslate2_folder.iterdir()):
                archive.write(model_file, f"{name}/model/{model_file.name}")
    model = model_folder.config.model
    if model.has_max_length and model.max_length < MAX_LENGTH:
        messages.append(
            f"this model has {model.max_length} learned positions: Argos Translate fails on longer sentences"
        )
    return messages
