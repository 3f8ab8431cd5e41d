"""One pass in one file: the manifest and every tensor, as safetensors that any program opens.

The manifest is JSON in the file's metadata, under ``heedful``. The page, notebooks and Python read the same.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, NonNegativeInt, PositiveInt, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import readable, write_bytes
from heedful.inspection.asked import Asked
from heedful.inspection.record import FORMAT, Record
from heedful.inspection.trace import KINDS, Kind

KEY = "heedful"


class _Part(Config):
    """A part of a manifest of which only some is used here; the page reads the rest."""

    model_config = ConfigDict(extra="ignore")


class _Model(_Part):
    name: str
    layers: dict[Kind, NonNegativeInt]
    heads: PositiveInt
    arithmetic: bool

    @model_validator(mode="after")
    def _looks_somewhere(self) -> Self:
        if self.layers.keys() != set(KINDS) or not any(self.layers.values()):
            raise ValueError("the manifest names no attention")
        return self


class _Side(_Part):
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    groups: tuple[int, ...]
    words: tuple[str, ...]


class _Sides(_Part):
    source: _Side
    read: _Side
    written: _Side


class _Manifest(_Part):
    """What Python uses of a manifest."""

    model: _Model
    asked: Asked
    sides: _Sides
    tensors: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    checkpoint: int | None


@dataclass(frozen=True)
class RecordFile:
    """A record that was read from a file: it has its numbers, but no model any more."""

    manifest: dict[str, Any]
    tensors: dict[str, Tensor]


def manifest_alone(record: Record, *, name: str = "", checkpoint: int | None = None) -> dict[str, Any]:
    """The manifest of a record that leaves its server: it names its model and holds one sentence."""
    manifest = dict(record.manifest)
    manifest["id"] = record.identity
    manifest["checkpoint"] = checkpoint
    manifest["model"] = {**manifest["model"], "name": name or "model"}
    manifest["segments"] = [[record.asked.source, ""]]
    manifest["segment"] = 0
    return manifest


def record_bytes(record: Record, manifest: dict[str, Any], names: Iterable[str] | None = None) -> bytes:
    """The manifest and all tensors, or the named ones, as a safetensors file."""
    chosen = record.tensors.entries if names is None else names
    told = json.dumps(manifest, ensure_ascii=False)
    return save({each: record.tensors.get(each) for each in chosen}, metadata={KEY: told})


def save_record(record: Record, path: Path | str, *, name: str = "") -> None:
    """Write the record to a file, whole or not at all."""
    write_bytes(Path(path), record_bytes(record, manifest_alone(record, name=name)))


def load_record(path: Path | str) -> RecordFile:
    """What ``save_record`` has written."""
    path = Path(path)
    hint = 'write one: heedful inspect MODEL "A sentence." -o record.safetensors'
    try:
        with readable(path), safe_open(path, "pt") as file:
            told = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise HeedfulError(f"{path} is no record: {error}", hint=hint) from None
    if told is None:
        raise HeedfulError(f"{path} is no record: it has no manifest", hint=hint)
    try:
        manifest = json.loads(told)
        found = manifest.get("format") if isinstance(manifest, dict) else None
        if found != FORMAT:
            raise HeedfulError(
                f"{path} is a record of format {found}, not {FORMAT}",
                hint="record the sentence again with this version",
            )
        _Manifest.checked(manifest)
        json.dumps(manifest, ensure_ascii=False).encode()  # half a surrogate pair can be in no page
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{path} is damaged: {error}", hint=hint) from None
    return RecordFile(manifest, tensors)
