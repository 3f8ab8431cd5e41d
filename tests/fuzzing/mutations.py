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

Mutation = Callable[[DrawFn, bytes], bytes]

HOSTILE_TEXT = (
    b"\0",
    b"\xef\xbb\xbf",  # a byte-order mark
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xff",
    b"\xc3",  # half a letter
    b"\xed\xa0\x80",  # half a surrogate pair
    b"\\ud800",
    "\ufffe\uffff\ufdd0".encode(),  # noncharacters
    "\u202e\u200f\u2066".encode(),  # right to left
    "\u2028\u0085\x0b\x0c\x1c".encode(),  # line breaks of other programs
    "e" + "\u0301" * 300,
    b"\r",
    b"\r\n\n",
    b"\t\t\t",
    b'"',
    b"'",
    b"\\",
    b"a" * 70_000,
    b"9" * 5000,
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"NaN",
    b"[" * 20_000,
    b"{" * 20_000,
    b"../../../../etc/passwd",
    b"%s%n{0}{}",
)
"""Fragments that readers of any text stumble over."""
_HOSTILE = tuple(each.encode() if isinstance(each, str) else each for each in HOSTILE_TEXT)
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1e308,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "a",
    "12",
    "\0",
    "\ud800",
    "\ufffe",
    "../..",
    "/",
    "x" * 5000,
    [],
    [[]],
    [0, 0],
    ["a", "b"],
    [1, "a", None],
    {},
    {"": {}},
    {"a": 1},
)
"""What may stand where another JSON value should."""
MARKUP = (
    b'<!DOCTYPE a [<!ENTITY e "ha">]>',
    b'<!ENTITY x SYSTEM "file:///etc/passwd">',
    b"&e;",
    b"&#0;",
    b"&#xD800;",
    b"&#x110000;",
    b"&amp;amp;",
    b"<!--",
    b"-->",
    b"<![CDATA[",
    b"]]>",
    b"<?xml version='1.0' encoding='utf-16'?>",
    b"<?xml version='1.0' encoding='cp037'?>",
    b"<?xml version='1.1'?>",
    b"<?pi?>",
    b"<x:y>",
    b"<b>" * 3000,
    b"</tu>",
    b"<tu/>",
    b"<tuv>",
    b"<seg/>",
    b"</seg></tuv></tu></body></tmx>",
    b'<tuv xml:lang="">',
    b'<tuv xml:lang="en"><seg>a</seg></tuv>',
    b"<file>",
    b"</file>",
    b"<unit>",
    b"<segment>",
    b"<trans-unit>",
    b"<target/>",
    b'<target state="new">',
    b"<source>",
    b'<mrk mtype="seg" mid="1">',
    b'<cp hex="ffffffffffffff"/>',
    b'<x id="1"/>',
    b' xmlns="urn:oasis:names:tc:xliff:document:2.0"',
    b' translate="no"',
    b' xml:space="preserve"',
)
"""Fragments of XML."""
CATALOGUE = (
    b'\nmsgid ""\n',
    b'\nmsgstr ""\n',
    b'\nmsgid "a"\nmsgid "b"\n',
    b'\nmsgstr[0] "a"\nmsgstr[1] "b"\n',
    b'\nmsgstr[99999999999] "a"\n',
    b"\nmsgstr[-1] ",
    b'\nmsgid_plural "many"\n',
    b'\nmsgctxt "c"\n',
    b"\n#, fuzzy\n",
    b"\n#~ ",
    b'\n#| msgid "old"\n',
    b"\n#",
    b"\n#:\n",
    b'"Plural-Forms: nplurals=99999999; plural=n/0;\\n"\n',
    b'"Plural-Forms: nplurals=2; plural=((((((((((n))))))))));\\n"\n',
    b"plural=n%0",
    b"plural=n ? n : n ? n : n",
    b"charset=utf-16",
    b"charset=utf-7",
    b"charset=base64",
    b"charset=rot13",
    b"charset=idna",
    b"charset=nonsense",
    b"charset=",
    b"\\",
    b"\\x",
    b'\\"',
    b'domain "d"\n',
)
"""Fragments of PO and MO."""
TABLE = (
    b"sep=;\n",
    b"sep=\n",
    b'sep="\n',
    b"sep=\0\n",
    b"source,target\n",
    b"source;target|\t,\n",
    b'"unclosed',
    b'""""',
    b",",
    b";",
    b"\n,,,\n",
    b"en,de\n",
    b"{}",
    b'{"source": "a"}\n',
    b'{"translation": 5}\n',
    b'{"source": "a", "target": "b", "heads": {"a": [[1]]}}\n',
)
"""Fragments of TSV, CSV and JSONL."""
RECIPE = (
    b"[model]\n",
    b"[[model]]\n",
    b"[model.model]\n",
    b"width = 1e400\n",
    b"width = 0x7fffffffffffffffffffff\n",
    b"width = nan\n",
    b"width = 1979-05-27T07:32:00Z\n",
    b"width = " + b"[" * 5000 + b"\n",
    b"width = " + b"{a=" * 5000 + b"\n",
    b'"" = 1\n',
    b"a.b.c.d = 1\n",
    b"a" + b".a" * 3000 + b" = 1\n",
    b"'''",
    b'"\\ud800"',
    b"= \n",
    b"width = " + b"9" * 5000 + b"\n",
)
"""Fragments of TOML."""
VECTORS = (
    b"2 3\n",
    b"999999999999999 65536\n",
    b"1 999999999999999\n",
    b"0 0\n",
    b"word nan inf -inf\n",
    b"word 1e999 1 1\n",
    b"word 1_0 1 1\n",
    b"word\n",
    b"\xe2\x80\xa8 1 2 3\n",
)
"""Fragments of word vectors."""


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
    mutations = [*BYTES, *([_inserted([*fragments, *_HOSTILE])] * len(BYTES) if fragments else [])]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3, 5]))):
        if not data:
            break
        data = draw(st.sampled_from(mutations))(draw, data)
    return data


def noise(fragments: Sequence[bytes] = _HOSTILE) -> SearchStrategy[bytes]:
    """Bytes, or fragments of a format without its order."""
    return st.binary(max_size=300) | st.lists(st.sampled_from([*fragments, *_HOSTILE]), max_size=12).map(
        b"".join
    )


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
    headers, numbers = (
        st.sampled_from(seeds).flatmap(_changed_header),
        st.sampled_from(seeds).flatmap(_numbers),
    )
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
