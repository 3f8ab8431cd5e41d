"""Corrupt and hostile files made from valid ones: flipped, deleted and repeated bytes, replaced numbers and types.

Each strategy generates bytes. The mutations depend on the format: values of JSON, the header of safetensors,
hostile fragments in text, and bytes of every format.
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
    position = _draw_position(draw, data)
    return data[:position] + bytes([data[position] ^ (1 << draw(st.integers(0, 7)))]) + data[position + 1 :]


def _overwrite(draw: DrawFn, data: bytes) -> bytes:
    position, new = _draw_position(draw, data), draw(st.binary(min_size=1, max_size=8))
    return data[:position] + new + data[position + len(new) :]


def _truncate(draw: DrawFn, data: bytes) -> bytes:
    return data[: _draw_position(draw, data)]


def _delete(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    return data[:start] + data[end:]


def _duplicate(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    return data[:end] + data[start:end] * draw(st.integers(1, 20)) + data[end:]


def _move(draw: DrawFn, data: bytes) -> bytes:
    start, end = _range(draw, data)
    rest = data[:start] + data[end:]
    position = draw(st.integers(0, len(rest)))
    return rest[:position] + data[start:end] + rest[position:]


def _number(draw: DrawFn, data: bytes) -> bytes:
    """Overwrite bytes with an extreme number."""
    form = draw(st.sampled_from(["<I", ">I", "<q", "<H", "<f"]))
    extreme = {"f": [float("nan"), float("inf"), -1e38], "q": [-1, 2**60, 2**63 - 1, 0]}
    values = extreme.get(form[1], [0, 1, 0xFFFF, 2 ** (8 * struct.calcsize(form)) - 1])
    new, position = struct.pack(form, draw(st.sampled_from(values))), _draw_position(draw, data)
    return data[:position] + new + data[position + len(new) :]


BYTES: tuple[Mutation, ...] = (_flip, _overwrite, _truncate, _delete, _duplicate, _move, _number)


def _draw_position(draw: DrawFn, data: bytes) -> int:
    """Half of the positions are among the first bytes, where formats have their headers."""
    return draw(st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 200) - 1))


def _range(draw: DrawFn, data: bytes) -> tuple[int, int]:
    start = _draw_position(draw, data)
    return start, min(len(data), start + draw(st.integers(1, 100) | st.integers(1, len(data))))


def _insert(fragments: Sequence[bytes]) -> Mutation:
    """Insert a fragment, or overwrite something with it."""

    def insert(draw: DrawFn, data: bytes) -> bytes:
        position, overwritten = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 0, 1, 5, 40]))
        return data[:position] + draw(st.sampled_from(fragments)) + data[position + overwritten :]

    return insert


@st.composite
def corrupt_files(draw: DrawFn, seeds: Sequence[bytes], fragments: Sequence[bytes] = ()) -> bytes:
    """A valid file with some mutations of its bytes and inserted fragments."""
    return _corrupt(draw, draw(st.sampled_from(seeds)), fragments)


def _corrupt(draw: DrawFn, data: bytes, fragments: Sequence[bytes] = ()) -> bytes:
    mutations = [*BYTES, *([_insert([*fragments, *HOSTILE])] * len(BYTES) if fragments else [])]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3, 5]))):
        if not data:
            break
        data = draw(st.sampled_from(mutations))(draw, data)
    return data


def noise(fragments: Sequence[bytes] = HOSTILE) -> SearchStrategy[bytes]:
    """Random bytes, or fragments of a format in random order."""
    return st.binary(max_size=300) | st.lists(st.sampled_from([*fragments, *HOSTILE]), max_size=12).map(b"".join)


def text_files(seeds: Sequence[bytes], fragments: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Corrupt text files; some are compressed with gzip, before or after they are corrupted."""
    plain = corrupt_files(seeds, fragments)
    compressed = corrupt_files([gzip.compress(seed, mtime=0) for seed in seeds])
    return plain | plain | plain | noise(fragments) | compressed | plain.map(_compress)


def _compress(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


def binary_files(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Corrupt binary files."""
    return corrupt_files(seeds) | corrupt_files(seeds) | corrupt_files(seeds) | noise()


# ---- JSON


@st.composite
def mutated_json(draw: DrawFn, value: Any) -> Any:
    """JSON data in which some values are replaced, deleted, nested or renamed."""
    value = copy.deepcopy(value)  # mutated in place
    for _ in range(draw(st.integers(1, 3))):
        entries = list(_list_entries(value))
        if not entries:
            break
        container, key = draw(st.sampled_from(entries))
        _change(draw, container, key, entries)
    return value


def _list_entries(value: Any) -> Any:
    """Every (container, key); only both ends of long containers."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return
    for key in keys if len(keys) < 40 else [*keys[:20], *keys[-20:]]:
        yield value, key
        yield from _list_entries(value[key])


def _change(draw: DrawFn, container: Any, key: Any, entries: list[tuple[Any, Any]]) -> None:
    mutation = draw(st.sampled_from(["value", "value", "value", "other", "delete", "rename", "number", "nest"]))
    if mutation == "other":  # a value from elsewhere in the same file
        other_container, name = draw(st.sampled_from(entries))
        container[key] = copy.deepcopy(other_container[name])
    elif mutation == "delete":
        del container[key]
    elif mutation == "rename" and isinstance(container, dict):
        container[draw(st.sampled_from(["", "x", "\ud800", "format", key + " "]))] = container.pop(key)
    elif mutation == "number" and isinstance(container[key], (int, float)):
        container[key] = container[key] * draw(st.sampled_from([-1, 2, 1000, 10**12])) + draw(st.integers(-1, 1))
    elif mutation == "nest":
        container[key] = [container[key]]
    else:
        container[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))


def json_files(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """JSON files with unexpected values, and a few that are not valid JSON."""
    values = st.sampled_from(seeds).map(json.loads).flatmap(mutated_json)
    text = values.map(lambda value: json.dumps(value).encode())
    single_values = st.sampled_from(HOSTILE_VALUES).map(lambda value: json.dumps(value).encode())
    return text | text | text | text | corrupt_files(seeds, [b"[", b"{", b",", b":"]) | single_values | noise()


# ---- files of tensors


def safetensors_files(seeds: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Tensor files with a wrong header or corrupt bytes."""
    headers, numbers = (
        st.sampled_from(seeds).flatmap(_corrupt_header),
        st.sampled_from(seeds).flatmap(_corrupt_numbers),
    )
    return headers | headers | numbers | corrupt_files(seeds) | noise()


@st.composite
def _corrupt_numbers(draw: DrawFn, seed: bytes) -> bytes:
    """The same header with other numbers."""
    (size,) = struct.unpack_from("<Q", seed)
    head, data = seed[: 8 + size], seed[8 + size :]
    for _ in range(draw(st.integers(1, 20))):
        data = draw(st.sampled_from([_flip, _number]))(draw, data)[: len(data)]
    return head + data


@st.composite
def _corrupt_header(draw: DrawFn, seed: bytes) -> bytes:
    (size,) = struct.unpack_from("<Q", seed)
    header = draw(mutated_json(json.loads(seed[8 : 8 + size])))
    text = json.dumps(header).encode()
    header_size = draw(st.sampled_from([len(text)] * 8 + [0, len(text) + 1, 2**60, 2**64 - 1]))
    return struct.pack("<Q", header_size) + text + seed[8 + size :]


@st.composite
def safetensors_metadata(draw: DrawFn, seeds: Sequence[bytes], key: str) -> bytes:
    """Tensor files with corrupt JSON in their metadata."""
    seed = draw(st.sampled_from(seeds))
    (size,) = struct.unpack_from("<Q", seed)
    header = json.loads(seed[8 : 8 + size])
    metadata = draw(json_files([header["__metadata__"][key].encode()]))
    header["__metadata__"][key] = metadata.decode("utf-8", "replace")
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
def zip_files(draw: DrawFn, members: Sequence[tuple[str, bytes]]) -> bytes:
    """A zip archive with some corrupt members or unusual names; the archive itself may be corrupt as well."""
    file = io.BytesIO()
    compressions = st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", draw(compressions)) as zip_file:
        warnings.simplefilter("ignore")  # names may be repeated
        for name, data in members:
            member_name = draw(st.sampled_from([name] * 10 + [*NAMES]))
            content = _corrupt(draw, data) if data and draw(st.booleans()) else data
            zip_file.writestr(zipfile.ZipInfo(member_name), content)
    data = file.getvalue()
    corruption = draw(st.sampled_from(["none", "bytes", "signatures"]))
    return data if corruption == "none" else _corrupt(draw, data, SIGNATURES if corruption == "signatures" else ())
