"""Damaged and hostile files, made of valid ones: bytes flipped, cut and joined, numbers and types exchanged.

Each strategy gives bytes. What a format is made of decides how it is damaged: JSON value by value,
safetensors by its header, text by fragments that readers stumble over, everything by its bytes.
"""

import copy
import gzip
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzzing.fragments import HOSTILE, HOSTILE_VALUES

Mutation = Callable[[DrawFn, bytes], bytes]


def _flip(draw: DrawFn, data: bytes) -> bytes:
    place = _place(draw, data)
    return data[:place] + bytes([data[place] ^ (1 << draw(st.integers(0, 7)))]) + data[place + 1 :]


def _overwrite(draw: DrawFn, data: bytes) -> bytes:
    place, new = _place(draw, data), draw(st.binary(min_size=1, max_size=8))
    return data[:place] + new + data[place + len(new) :]


def _truncate(draw: DrawFn, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _delete(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    return data[:start] + data[end:]


def _duplicate(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    return data[:end] + data[start:end] * draw(st.integers(1, 20)) + data[end:]


def _move(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    rest = data[:start] + data[end:]
    place = draw(st.integers(0, len(rest)))
    return rest[:place] + data[start:end] + rest[place:]


def _number(draw: DrawFn, data: bytes) -> bytes:
    """A number of a binary format, made extreme."""
    form = draw(st.sampled_from(["<I", ">I", "<q", "<H", "<f"]))
    extreme = {"f": [float("nan"), float("inf"), -1e38], "q": [-1, 2**60, 2**63 - 1, 0]}
    values = extreme.get(form[1], [0, 1, 0xFFFF, 2 ** (8 * struct.calcsize(form)) - 1])
    new, place = struct.pack(form, draw(st.sampled_from(values))), _place(draw, data)
    return data[:place] + new + data[place + len(new) :]


BYTES: tuple[Mutation, ...] = (_flip, _overwrite, _truncate, _delete, _duplicate, _move, _number)


def _place(draw: DrawFn, data: bytes) -> int:
    """Anywhere, but as often in the first bytes, where formats keep what matters."""
    return draw(st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 200) - 1))


def _range(draw: DrawFn, data: bytes) -> tuple[int, int]:
    start = _place(draw, data)
    return start, min(len(data), start + draw(st.integers(1, 100) | st.integers(1, len(data))))


def _inserted(fragments: Sequence[bytes]) -> Mutation:
    """A fragment put in, or in the place of something."""

    def insert(draw: DrawFn, data: bytes) -> bytes:
        place, over = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 0, 1, 5, 40]))
        return data[:place] + draw(st.sampled_from(fragments)) + data[place + over :]

    return insert


@st.composite
def damaged(draw: DrawFn, seeds: Sequence[bytes], fragments: Sequence[bytes] = ()) -> bytes:
    """A valid file with some mutations of its bytes, and with fragments put in."""
    return _damaged(draw, draw(st.sampled_from(seeds)), fragments)


def _damaged(draw: DrawFn, data: bytes, fragments: Sequence[bytes] = ()) -> bytes:
    mutations = [*BYTES, *([_inserted([*fragments, *HOSTILE])] * len(BYTES) if fragments else [])]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3, 5]))):
        if not data:
            break
        data = draw(st.sampled_from(mutations))(draw, data)
    return data


def noise(fragments: Sequence[bytes] = HOSTILE) -> SearchStrategy[bytes]:
    """Bytes, or fragments of a format without its order."""
    return st.binary(max_size=300) | st.lists(st.sampled_from([*fragments, *HOSTILE]), max_size=12).map(b"".join)


def lines(seeds: Sequence[bytes], fragments: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Damaged text of a format that has such fragments; some of it packed by gzip, some damaged after."""
    plain = damaged(seeds, fragments)
    packed = damaged([gzip.compress(seed, mtime=0) for seed in seeds])
    return plain | plain | plain | noise(fragments) | packed | plain.map(_packed)


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


def binary(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Damaged files of numbers."""
    return damaged(seeds) | damaged(seeds) | damaged(seeds) | noise()


# ---- JSON


@st.composite
def changed_json(draw: DrawFn, value: Any) -> Any:
    """JSON data in which some values are exchanged, lost, doubled or renamed."""
    value = copy.deepcopy(value)  # ours to change
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        inside, key = draw(st.sampled_from(places))
        _change(draw, inside, key, places)
    return value


def _places(value: Any) -> Any:
    """Every (container, key), those of long lists only at their ends."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return
    for key in keys if len(keys) < 40 else [*keys[:20], *keys[-20:]]:
        yield value, key
        yield from _places(value[key])


def _change(draw: DrawFn, inside: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    kind = draw(st.sampled_from(["value", "value", "value", "other", "delete", "rename", "number", "nest"]))
    if kind == "other":  # what stands elsewhere in the same file
        other, name = draw(st.sampled_from(places))
        inside[key] = copy.deepcopy(other[name])
    elif kind == "delete":
        del inside[key]
    elif kind == "rename" and isinstance(inside, dict):
        inside[draw(st.sampled_from(["", "x", "\ud800", "format", key + " "]))] = inside.pop(key)
    elif kind == "number" and isinstance(inside[key], (int, float)):
        inside[key] = inside[key] * draw(st.sampled_from([-1, 2, 1000, 10**12])) + draw(st.integers(-1, 1))
    elif kind == "nest":
        inside[key] = [inside[key]]
    else:
        inside[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))


def json_file(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """JSON files with odd values, and a few that are no JSON at all."""
    values = st.sampled_from(seeds).map(json.loads).flatmap(changed_json)
    text = values.map(lambda value: json.dumps(value).encode())
    alone = st.sampled_from(HOSTILE_VALUES).map(lambda value: json.dumps(value).encode())
    return text | text | text | text | damaged(seeds, [b"[", b"{", b",", b":"]) | alone | noise()


# ---- files of tensors


def safetensors_file(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Files of tensors whose header lies, or whose bytes are damaged."""
    headers, numbers = (st.sampled_from(seeds).flatmap(_changed_header), st.sampled_from(seeds).flatmap(_numbers))
    return headers | headers | numbers | damaged(seeds) | noise()


@st.composite
def _numbers(draw: DrawFn, seed: bytes) -> bytes:
    """The header as it is, and other numbers."""
    (size,) = struct.unpack_from("<Q", seed)
    head, data = seed[: 8 + size], seed[8 + size :]
    for _ in range(draw(st.integers(1, 20))):
        data = draw(st.sampled_from([_flip, _number]))(draw, data)[: len(data)]
    return head + data


@st.composite
def _changed_header(draw: DrawFn, seed: bytes) -> bytes:
    (size,) = struct.unpack_from("<Q", seed)
    header = draw(changed_json(json.loads(seed[8 : 8 + size])))
    text = json.dumps(header).encode()
    told = draw(st.sampled_from([len(text)] * 8 + [0, len(text) + 1, 2**60, 2**64 - 1]))
    return struct.pack("<Q", told) + text + seed[8 + size :]


@st.composite
def safetensors_metadata(draw: DrawFn, seeds: Sequence[bytes], key: str) -> bytes:
    """Files of tensors with damaged JSON in their metadata."""
    seed = draw(st.sampled_from(seeds))
    (size,) = struct.unpack_from("<Q", seed)
    header = json.loads(seed[8 : 8 + size])
    told = draw(json_file([header["__metadata__"][key].encode()]))
    header["__metadata__"][key] = told.decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + seed[8 + size :]


# ---- archives

NAMES = (
    "../../outside.tsv",
    "/absolute.tsv",
    "a/../b.tsv",
    "X.en-de.en",
    "X.en-de.de",
    "README",
    "nested.zip",
    "\u202e.tsv",
    "a" * 300 + ".tsv",
    "folder/",
    "",
    ".",
    "/",
    "con.jsonl",
    "x.tmx",
    "x.po",
    "config.json",
    "model/config.json",
    "vocab.json",
)


SIGNATURES = (b"PK\x01\x02", b"PK\x05\x06", b"PK\x03\x04")


@st.composite
def archive(draw: DrawFn, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A zip of members, some damaged or under odd names; the archive itself may be damaged as well."""
    file = io.BytesIO()
    kinds = st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", draw(kinds)) as packed:
        warnings.simplefilter("ignore")  # a name may come twice
        for name, data in members:
            wished = draw(st.sampled_from([name] * 10 + [*NAMES]))
            content = _damaged(draw, data) if data and draw(st.booleans()) else data
            packed.writestr(zipfile.ZipInfo(wished), content)
    data = file.getvalue()
    kind = draw(st.sampled_from(["whole", "damaged", "joined"]))
    return data if kind == "whole" else _damaged(draw, data, SIGNATURES if kind == "joined" else ())
