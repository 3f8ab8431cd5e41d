"""Sentences with tags in them, of TMX and XLIFF: without the tags, or with them as they stand."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

CODES = {"bpt", "ept", "ph", "it", "ut", "sub", "x", "bx", "ex", "sc", "ec", "sm", "em"}
"""Elements that stand for codes of another format: what is in them is no part of the sentence.

Of all others (hi, g, mrk, pc) what they enclose is.
"""


class UndefinedEntityError(ValueError):
    """A sentence holds a reference to nothing."""


def sentence(element: "Element", tags: Literal["strip", "keep"]) -> str:
    """What an element says."""
    if not len(element):
        return element.text or ""
    return (element.text or "") + "".join(_inline(child, tags) + (child.tail or "") for child in element)


def _inline(child: "Element", tags: Literal["strip", "keep"]) -> str:
    if not isinstance(child.tag, str):  # a comment, an instruction, or an entity that nobody defined
        if (child.text or "").startswith("&"):
            raise UndefinedEntityError(f"entity {child.text} is not defined")
        return ""
    name = child.tag.rpartition("}")[2]
    if name == "cp":  # XLIFF 2: a character that XML cannot hold
        return _character(child.get("hex", ""))
    within = sentence(child, tags)
    if tags == "strip":
        return "" if name in CODES else within
    attributes = "".join(f' {str(key).rpartition("}")[2]}="{value!s}"' for key, value in child.attrib.items())
    return f"<{name}{attributes}>{within}</{name}>" if within else f"<{name}{attributes}/>"


def _character(number: str) -> str:
    try:
        code = int(number, 16)
    except ValueError:
        return ""
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else ""
