"""The files of a Hugging Face MarianMT model: a folder of them, or a zip of such a folder.

The rule to remember: they may come from anywhere. A zip can only give files of known names and bounded sizes,
and weights in the old format, which is a pickle, are read only when asked for, by a reader that runs no code.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from heedful.bundle import read_tensors
from heedful.corpora.archives import DAMAGED_ZIP
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
WEIGHTS, OLD_WEIGHTS, CARD = "model.safetensors", "pytorch_model.bin", "README.md"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
MEGABYTE = 1 << 20
BOUNDS = {
    **dict.fromkeys((CONFIG, GENERATION, TOKENIZER, CARD), 4 * MEGABYTE),
    **dict.fromkeys((VOCABULARY, TARGET_VOCABULARY, "source.spm", "target.spm"), 64 * MEGABYTE),
    **dict.fromkeys((WEIGHTS, OLD_WEIGHTS), 16 << 30),
}
"""The files that are read, and the most bytes that each may have."""
FETCH = "fetch the whole model again from where it comes from"


@contextmanager
def marian_folder(path: Path) -> Iterator[Path]:
    """The folder of the model; a zip is unpacked aside for the time being."""
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise HeedfulError(f"there is no {path}", hint="give the folder of a MarianMT model, or a zip of it")
    with tempfile.TemporaryDirectory(prefix="heedful-") as aside:
        _unpack(path, Path(aside))
        yield Path(aside)


def _unpack(path: Path, folder: Path) -> None:
    """Every known file beside the zip's config.json, under its own name and no other."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {PurePosixPath(entry.filename): entry for entry in archive.infolist()}
            homes = sorted(
                (name.parent for name in entries if name.name == CONFIG), key=lambda p: len(p.parts)
            )
            if not homes:
                raise HeedfulError(f"{path} has no {CONFIG}", hint="is it a zip of a MarianMT model?")
            for name, most in BOUNDS.items():
                if entry := entries.get(homes[0] / name):
                    _unpack_one(archive, entry, folder / name, most)
    except DAMAGED_ZIP as error:
        raise HeedfulError(f"{path} is no zip that can be read: {error}", hint=FETCH) from None


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, most: int) -> None:
    if entry.file_size > most:  # zipfile gives no more than it says
        raise HeedfulError(f"{entry.filename} has {entry.file_size:,} bytes, more than such a file can have")
    with archive.open(entry) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)


def read_bytes(folder: Path, name: str) -> bytes:
    """A file that has to be there."""
    path = folder / name
    if not path.is_file():
        raise HeedfulError(f"{name} is missing", hint=FETCH)
    if path.stat().st_size > BOUNDS[name]:
        raise HeedfulError(f"{name} is larger than such a file can be", hint=FETCH)
    return path.read_bytes()


def read_object(folder: Path, name: str, *, needed: bool = True) -> dict[str, Any]:
    """The JSON object of a file; empty if it is not there and not needed."""
    if not needed and not (folder / name).is_file():
        return {}
    try:
        value = json.loads(read_bytes(folder, name).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{name} is no JSON: {error}", hint=FETCH) from None
    if not isinstance(value, dict):
        raise HeedfulError(f"{name} holds no JSON object", hint=FETCH)
    return value


def read_weights(folder: Path, *, allow_bin: bool) -> "dict[str, Tensor]":
    """All tensors, from safetensors if there are any."""
    if (folder / WEIGHTS).is_file():
        return read_tensors(folder / WEIGHTS)
    if not (folder / OLD_WEIGHTS).is_file():
        split = (folder / f"{WEIGHTS}.index.json").is_file()
        problem = "weights in several files are not read" if split else f"{WEIGHTS} is missing"
        raise HeedfulError(problem, hint=FETCH)
    if not allow_bin:
        raise HeedfulError(
            f"the weights are in {OLD_WEIGHTS}, an old format that could hold more than numbers",
            hint="--allow-bin reads the numbers in it, and nothing else; a model.safetensors would be better",
        )
    return _read_bin(folder / OLD_WEIGHTS)


def _read_bin(path: Path) -> "dict[str, Tensor]":
    import torch
    from torch import Tensor

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file makes the reader say
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeedfulError(f"{path.name} cannot be read as numbers: {reason}", hint=FETCH) from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise HeedfulError(f"{path.name} holds something else than named tensors", hint=FETCH)
    return found
