"""Where a page that stands alone opens: what its URL says after #, made to fit the record in it.

In the URL, as for people, layers, heads and rows count from 1.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from heedful.errors import HeedfulError
from heedful.inspection.ablation import Head, read_head
from heedful.inspection.trace import KINDS, Kind, Tokens
from heedful.inspection.word_row import find_piece

DRAWING = ("seed", "temperature", "top_k", "top_p")
"""What of it is about words drawn at random; else the temperature is only of what is shown."""
QUESTION = (
    "model",
    "text",
    "sentence",
    "prefix",
    "off",
    "hidden",
    "beam",
    "checkpoint",
    "seed",
    "top_k",
    "top_p",
)
"""What decides which pass is seen: the record's own, whatever the URL says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What to look at first; None leaves the choice to the page."""

    view: str | None = None
    """translate, map, head, cell, ..."""
    kind: str | None = None
    layer: int | None = None
    """From 1."""
    head: int | None = None
    """From 1."""
    word: str | None = None
    """The word that looks, or its number."""
    pieces: bool = False
    """Pieces of words, not words."""


def address(place: Place, manifest: dict[str, Any]) -> str:
    """The part of a URL after # that shows this place of a record."""
    layers = manifest["model"]["layers"]
    kind = _kind(place.kind, place.word, layers)
    layer, head = place.layer, place.head
    if place.layer is None:
        layer = layers[kind]
    _check("layer", layer, layers[kind])
    _check("head", head, manifest["model"]["heads"])
    chosen = any(value is not None for value in (place.kind, place.layer, place.head, place.word))
    told = {"kind": kind, "layer": str(layer), "head": str(head or 1)}
    if place.word is not None:
        told["query"] = str(find_piece(_rows(manifest, kind), place.word) + 1)
    if place.pieces:
        told["words"] = "no"
    view = place.view or ("head" if chosen else "translate")
    return f"#/{view}?{urlencode(told)}"


def fitted(url: str, manifest: dict[str, Any]) -> str:
    """The same place, of the record's own pass."""
    path, told = _read(url)
    asked = manifest["asked"]
    told = {name: value for name, value in told.items() if name not in QUESTION}
    told |= {"model": manifest["model"]["name"], "text": asked["source"]}
    if asked["prefix_ids"]:
        told["prefix"] = ".".join(map(str, asked["prefix_ids"]))
    if asked["off"]:
        told["off"] = ",".join(_from_one(name) for name in asked["off"])
    if asked["hidden"]:
        told["hidden"] = ".".join(str(place + 1) for place in asked["hidden"])
    if asked["beam"]:
        told["beam"] = str(asked["beam"])
    if asked["seed"] is not None:
        told |= {name: str(asked[name]) for name in DRAWING}
    if manifest["checkpoint"] is not None:
        told["checkpoint"] = str(manifest["checkpoint"])
    return f"#/{path}?{urlencode(told)}"


def chosen_head(url: str, manifest: dict[str, Any]) -> Head:
    """The head that the URL names, from 0; the first of the last layer of attention if it names none."""
    _, told = _read(url)
    there = _there(manifest["model"]["layers"])
    kind = next((each for each in there if each == told.get("kind")), there[-1])
    layers, heads = manifest["model"]["layers"][kind], manifest["model"]["heads"]
    return Head(kind, _number(told.get("layer"), layers, layers) - 1, _number(told.get("head"), heads, 1) - 1)


def _read(url: str) -> tuple[str, dict[str, str]]:
    path, _, query = url.removeprefix("#").removeprefix("/").partition("?")
    return path if path.isascii() and path.isalpha() else "translate", dict(parse_qsl(query))


def _from_one(name: str) -> str:
    """A head's name as the URL has it: cross.0.3 is cross.1.4 there."""
    head = read_head(name)
    return f"{head.kind}.{head.layer + 1}.{head.head + 1}"


def _number(text: str | None, most: int, usual: int) -> int:
    if not text or not text.isdecimal() or len(text) > 9:  # Python refuses to read thousands of digits
        return usual
    return min(int(text), most) if int(text) > 0 else usual


def _kind(kind: str | None, word: str | None, layers: dict[str, int]) -> Kind:
    """The attention that is meant: the last there is, or, to find a word, the first."""
    there = _there(layers)
    if kind is None:
        return there[-1 if word is None else 0]
    for known in there:
        if known == kind:
            return known
    raise HeedfulError(f"there is no attention {kind!r}", hint=f"one of {', '.join(there)}")


def _there(layers: dict[str, int]) -> list[Kind]:
    return [kind for kind in KINDS if layers[kind]]


def _check(name: str, number: int | None, most: int) -> None:
    if number is not None and not 1 <= number <= most:
        raise HeedfulError(f"there is no {name} {number}", hint=f"from 1 to {most}")


def _rows(manifest: dict[str, Any], kind: Kind) -> Tokens:
    """Who looks in this attention."""
    side = manifest["sides"][{"encoder": "source", "decoder": "read", "cross": "written"}[kind]]
    return Tokens(*(tuple(side[name]) for name in ("ids", "pieces", "groups", "words")))
