"""The converted CTranslate2 model in MODEL/ctranslate2/PRECISION/, converted again when the weights change.

Needs no PyTorch.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from heedful.convert.compatibility import check_ctranslate2
from heedful.files import checksum, lock_folder, write_json
from heedful.model_folder import ModelFolder, list_model_files

Precision = Literal["float32", "int8"]

CONVERSION_FILE = "conversion.json"

CONVERSION_VERSION = 3
"""Increment when the conversion changes, so that existing conversions are replaced."""


def find_conversion(folder: Path, precision: Precision) -> Path | None:
    """The folder of the conversion of the current weights, if there is one."""
    conversion = folder / "ctranslate2" / precision
    return conversion if _is_current(conversion, _new_manifest(folder, precision)) else None


def get_conversion(folder: Path, model_folder: ModelFolder, precision: Precision) -> Path:
    """The folder of the CTranslate2 model; converts the weights if there is no current conversion."""
    check_ctranslate2(model_folder.config.model)
    conversion, manifest = folder / "ctranslate2" / precision, _new_manifest(folder, precision)
    if not _is_current(conversion, manifest):
        from heedful.convert.ctranslate2.weights import export_ctranslate2

        with lock_folder(conversion.parent, wait=True):  # another process may convert the same model
            if not _is_current(conversion, manifest):
                shutil.rmtree(conversion, ignore_errors=True)
                export_ctranslate2(model_folder, conversion, precision)
                write_json(conversion / CONVERSION_FILE, {**manifest, "files": _file_digests(conversion)})
    return conversion


def _new_manifest(folder: Path, precision: Precision) -> dict[str, Any]:
    """What a current conversion was made from."""
    fingerprint = [checksum(path) for path in list_model_files(folder)]
    return {"version": CONVERSION_VERSION, "fingerprint": fingerprint, "precision": precision}


def _is_current(conversion: Path, manifest: dict[str, Any]) -> bool:
    try:
        stored = json.loads((conversion / CONVERSION_FILE).read_text(encoding="utf-8"))
        # CTranslate2 does not validate its files, so corrupt ones must not reach it.
        return bool(stored == {**manifest, "files": _file_digests(conversion)})
    except (OSError, ValueError, RecursionError):  # missing or corrupt
        return False


def _file_digests(conversion: Path) -> dict[str, str]:
    files = sorted(path for path in conversion.iterdir() if path.name != CONVERSION_FILE)
    return {path.name: checksum(path) for path in files}
