"""What goes into a page that stands alone, and what is left out so that the file stays small.

Tensors go in by how much the views need them. The arithmetic of cells goes in head by head, the chosen one
first; all rows of a head share most of their numbers (its weights, keys and values), which are stored once.
"""

import base64
import gzip
import json
from dataclasses import dataclass, replace
from typing import Any, cast

from safetensors.torch import save

from heedful.inspection.ablation import Head
from heedful.inspection.record import Record
from heedful.inspection.record_file import RecordFile, manifest_alone
from heedful.inspection.tables import as_data
from heedful.inspection.trace import KINDS
from heedful.inspection.trace import place as place_name
from heedful.inspection.word import explain_word
from heedful.page.place import chosen_head

BUDGET = 6_000_000
"""Characters of tensors and cells in one file."""
TENSORS_SHARE = 0.6
"""Of the budget, at most, so that the chosen head's arithmetic has room too."""
ORDER = (
    "thumbnails",
    "lens",
    "mask",
    "positions",
    "weights",
    "residual",
    "embedding",
    "memory",
    "states",
    "logits",
    "scores",
    "q",
    "k",
    "v",
    "heads",
    "output",
    "x",
)
"""Tensors by what they are, the most needed first."""
COMMON = ("w_query", "b_query", "k", "v")
"""Values of a cell that are the same in every row of a head."""
UNUSED = ("w_key", "b_key", "w_value", "b_value", "w_output", "b_output")
"""Values that no view computes with."""


@dataclass(frozen=True)
class Packed:
    """A record as a page holds it."""

    manifest: dict[str, Any]
    tensors: str
    """A safetensors file in base64."""
    cells: dict[str, str]
    """The arithmetic of heads by name (cross.1.0): JSON, squeezed, in base64."""


def packed(
    record: Record | RecordFile,
    url: str = "",
    *,
    name: str = "",
    checkpoint: int | None = None,
    budget: int = BUDGET,
) -> Packed:
    """A record with as much as the budget allows; ``url`` says what will be looked at first."""
    if isinstance(record, Record):
        manifest = manifest_alone(record, name=name, checkpoint=checkpoint)
    else:
        manifest = dict(record.manifest)
    head = chosen_head(url, manifest)
    tensors, left_out = _tensors(record, head, int(budget * TENSORS_SHARE))
    shows_cells = isinstance(record, Record) and manifest["model"]["arithmetic"]
    cells = _cells(cast("Record", record), head, budget - len(tensors)) if shows_cells else {}
    manifest["tensors"] = {each: told for each, told in manifest["tensors"].items() if each not in left_out}
    missing = _missing(manifest, left_out, cells)
    manifest["notes"] = [*manifest["notes"], *missing]
    return Packed(manifest, tensors, cells)


def _tensors(record: Record | RecordFile, head: Head, budget: int) -> tuple[str, set[str]]:
    """The tensors that fit, in base64, and the names of those that do not."""
    index = record.tensors
    names = list(index) if isinstance(index, dict) else list(index.entries)
    own = f"{place_name(head.kind, head.layer)}.weights"
    names.sort(key=lambda each: (each != own, _rank(each)))
    room, chosen = budget * 3 // 4, []  # base64 takes four letters for three bytes
    for each in names:
        size = index[each].nbytes if isinstance(index, dict) else index.size([each])
        if size <= room:
            room -= size
            chosen.append(each)
    found = {each: index[each] if isinstance(index, dict) else index.get(each) for each in chosen}
    return base64.b64encode(save(found)).decode(), set(names) - set(chosen)


def _rank(name: str) -> int:
    parts = name.split(".")
    return next((rank for rank, part in enumerate(ORDER) if part in (parts[0], parts[-1])), len(ORDER))


def _cells(record: Record, first: Head, budget: int) -> dict[str, str]:
    """The arithmetic of as many heads as fit, those nearest to the chosen one first."""
    found: dict[str, str] = {}
    for head in _nearest(record, first):
        cells = _head_cells(record, head)
        if found and len(cells) > budget:
            break
        budget -= len(cells)
        found[".".join(map(str, head))] = cells
    return found


def _nearest(record: Record, first: Head) -> list[Head]:
    """All heads: the chosen one, those of its layer, those of its kind, the others."""
    every = [
        Head(kind, layer, head)
        for kind in KINDS
        for layer in range(record.seen.layers[kind])
        for head in range(record.seen.heads)
    ]
    return sorted(every, key=lambda one: (one != first, one[:2] != first[:2], one.kind != first.kind))


def _head_cells(record: Record, head: Head) -> str:
    """Every row of a head; what rows have in common stands once, in ``parts``."""
    parts: dict[str, int] = {}
    common: dict[str, int] = {}

    def kept(part: Any) -> int:
        text = json.dumps(rounded(part), ensure_ascii=False, separators=(",", ":"))
        return parts.setdefault(text, len(parts))

    rows = []
    for row in range(len(record.seen.sides(head.kind)[0].pieces)):
        found = explain_word(record.bundle, record.seen, *head, row)
        common = common or {name: kept(found.values[name]) for name in COMMON}
        own = {name: value for name, value in found.values.items() if name not in COMMON + UNUSED}
        told = as_data(replace(found, values=own))
        told["values"] = common | {name: kept(value) for name, value in told["values"].items()}
        for section in told["sections"]:
            section["tables"] = [kept(table) for table in section["tables"]]
        rows.append(told)
    text = f'{{"parts":[{",".join(parts)}],"rows":{json.dumps(rows, ensure_ascii=False)}}}'
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def rounded(value: Any) -> Any:
    """With nine digits that count: all of a float32, far more than is ever printed, in half the size."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _missing(manifest: dict[str, Any], left_out: set[str], cells: dict[str, str]) -> list[str]:
    """What is not in the file, in words."""
    notes = []
    if left_out:
        kinds = sorted({part for name in left_out if (part := ORDER[_rank(name)])}, key=ORDER.index)
        notes.append(f"Left out to keep this file small: some of {', '.join(kinds)}.")
    layers = manifest["model"]["layers"]
    if manifest["model"]["arithmetic"] and len(cells) < sum(layers.values()) * manifest["model"]["heads"]:
        held = f"of {len(cells)} heads" if len(cells) > 1 else "of one head" if cells else "of no head"
        notes.append(f"This file holds the arithmetic {held}; a running server shows every one.")
    return notes
