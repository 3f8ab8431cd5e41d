"""Text with inline tags, such as the content of a paragraph: the tags out, and back in by the links.

An element around source words goes around the target words linked to them; a point (<br>, <img>, a comment,
an empty element) after the word that it stood after. The rule to remember: elements stay inside and outside
of each other as they were, or ``put_back`` refuses, and each part is translated by itself.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import pairwise
from typing import Literal, NamedTuple

from heedful.text.spans import Rules, has_letters, is_spaceless
from heedful.text.translated import Alignment, Placed, Range

_BLANK = " \t\n\r\f"
_BLANKS = re.compile(f"[{_BLANK}]+")
_DEEPEST = 100
_LONGEST_FOLD = 60  # items; longer elements are not worth looking at, and would take time
_LONGEST_KEPT = 200
_MOST_ITEMS = 2000


class Item(NamedTuple):
    """A piece of a run. ``key`` is the same for an opening and its closing tag."""

    kind: Literal["text", "open", "close", "kept", "point"]
    raw: str
    text: str = ""
    """What a reader sees: of "text" and "kept"."""
    key: int = -1
    separates: bool = False
    """Whether words before and after a point are apart, as around <br>."""


def text_items(raw: str, *, collapse: bool) -> list[Item]:
    """Text between tags; the white space around it stands apart."""
    core = raw.strip(_BLANK)
    start = raw.index(core)
    parts = (raw[:start], core, raw[start + len(core) :])
    decoded = (collapsed(unescape(part)) if collapse else unescape(part) for part in parts)
    return [Item("text", part, text) for part, text in zip(parts, decoded, strict=True) if part]


def kept_item(raw: str, text: str) -> Item:
    """Something that stays as it is; what is long or empty does not take part in the sentence."""
    text = collapsed(unescape(text)).strip()
    if text and len(text) <= _LONGEST_KEPT:
        return Item("kept", raw, text)
    return Item("point", raw, separates=True)


def collapsed(text: str) -> str:
    """Text with single spaces, as a browser shows it."""
    return _BLANKS.sub(" ", text)


def written(text: str) -> str:
    """Text as HTML."""
    return escape(text, quote=False)


def paired(items: Sequence[Item]) -> set[int]:
    """Keys of the elements that begin and end among the items."""
    opened = {item.key for item in items if item.kind == "open"}
    return opened & {item.key for item in items if item.kind == "close"}


def folded(items: Sequence[Item], rules: Rules) -> list[Item]:
    """Items in which an element around nothing is a point, and one around a kept thing is kept with it."""
    pairs, result, starts = paired(items), list[Item](), dict[int, int]()
    for item in items:
        result.append(item)
        if item.kind == "open":
            starts[item.key] = len(result) - 1
        elif item.key in pairs and len(result) - starts[item.key] <= _LONGEST_FOLD:
            start = starts[item.key]
            if fold := _folded(result[start:], rules):
                result[start:] = [fold]
    return result


def _folded(element: Sequence[Item], rules: Rules) -> Item | None:
    raw = "".join(item.raw for item in element)
    visible = collapsed("".join(item.text for item in element)).strip()
    if not visible:
        apart = any(item.separates or item.text for item in element)
        return Item("point", raw, separates=apart)
    outside = "".join(item.text for item in element if item.kind == "text")
    holds_kept = any(item.kind == "kept" for item in element)
    if (holds_kept and not any(map(str.isalnum, outside))) or rules.is_kept(visible):
        return Item("kept", raw, visible)
    return None


def peeled(items: Sequence[Item]) -> tuple[int, int]:
    """The first item and the end of what has to be translated, without what stands or wraps around it."""
    pairs, first, end = paired(items), 0, len(items)
    while first < end:
        if _is_loose(items[first], pairs):
            first += 1
        elif _is_loose(items[end - 1], pairs):
            end -= 1
        elif items[first].kind == "open" and items[first].key == items[end - 1].key:
            first, end = first + 1, end - 1
        else:
            break
    return first, end


def _is_loose(item: Item, pairs: set[int]) -> bool:
    if item.kind == "text":
        return not item.text.strip()
    return item.kind == "point" or (item.kind in ("open", "close") and item.key not in pairs)


@dataclass
class Box:
    """Inline markup and the range of the text that it has; a point has none."""

    kind: Literal["element", "kept", "point"]
    opening: str
    start: int
    end: int = 0
    closing: str = ""
    children: list["Box"] = field(default_factory=list)
    before: str = ""
    """White space before a point."""
    after: str = ""
    separates: bool = False
    place: Range = (0, 0)
    """Where it goes in the translation."""


@dataclass
class Layout:
    """The text of a run without tags, and its tags."""

    text: str
    boxes: list[Box]
    places: list[Box]
    """All boxes, in and out of others, that are not points."""

    @property
    def kept(self) -> list[Range]:
        """The ranges of what is kept."""
        return [(box.start, box.end) for box in self.places if box.kind == "kept"]


class _Writer:
    """Writes the text of items one after the other and remembers where the tags were."""

    def __init__(self) -> None:
        self.text = ""
        self.root = Box("element", "", 0)
        self.path = [self.root]
        self.places: list[Box] = []

    def add(self, item: Item) -> None:
        """Take the next item."""
        if item.kind == "text":
            self._write(item.text)
        elif item.kind == "point":
            self._point(item)
        elif item.kind == "close":
            self._close(item)
        else:
            self._open(item)

    def _write(self, text: str) -> None:
        if text[0] in _BLANK and (last := self._last_point()):
            last.after = " "
        if not self.text or self.text.endswith(" "):
            text = text.removeprefix(" ")
        self.text += text

    def _last_point(self) -> Box | None:
        """A point after which nothing that can be seen has come."""
        children = self.path[-1].children
        if children and children[-1].kind == "point" and not self.text[children[-1].start :].strip():
            return children[-1]
        return None

    def _point(self, item: Item) -> None:
        if last := self._last_point():
            last.opening += last.after + item.raw
            last.after, last.separates = "", last.separates or item.separates
        else:
            seen = self.text.rstrip(" ")
            point = Box("point", item.raw, len(seen), before=self.text[len(seen) :], separates=item.separates)
            self.path[-1].children.append(point)
        if item.separates and self.text and not self.text.endswith(" "):
            self.text += " "

    def _open(self, item: Item) -> None:
        box = Box("kept" if item.kind == "kept" else "element", item.raw, len(self.text))
        self.path[-1].children.append(box)
        self.places.append(box)
        if item.kind == "kept":
            self.text += item.text
            box.end = len(self.text)
        else:
            self.path.append(box)

    def _close(self, item: Item) -> None:
        box = self.path.pop()
        box.end, box.closing = len(self.text), item.raw


def laid_out(items: Sequence[Item]) -> Layout | None:
    """The text of items and their tags; None if tags have no partner, stand too deep or are too many."""
    pairs, writer = paired(items), _Writer()
    for item in items:
        lonely = item.kind in ("open", "close") and item.key not in pairs
        if lonely or len(writer.path) > _DEEPEST or len(items) > _MOST_ITEMS:
            return None
        writer.add(item)
    return Layout(writer.text.rstrip(), writer.root.children, writer.places)


def put_back(
    layout: Layout, spans: Sequence[Range], placed: Placed, write: Callable[[str], str] = written
) -> str | None:
    """The translation with the tags in it; None if the links do not say where they go.

    ``spans`` are the ranges whose new places ``placed`` knows; what is kept is in them. ``write`` says how
    text is written between tags.
    """
    known = placed.links and not is_spaceless(layout.text) and not is_spaceless(placed.text)
    if not known and any(box.kind != "kept" for box in layout.boxes):
        return None
    alignment = Alignment(layout.text, placed.text, placed.links)
    root = Box("element", "", 0, len(layout.text), children=layout.boxes, place=(0, len(placed.text)))
    if not all(_find_place(box, alignment, spans, placed.places) for box in reversed(layout.places)):
        return None
    return _rendered(root, placed.text, alignment, write) if _is_orderly([root, *layout.places]) else None


def _find_place(box: Box, alignment: Alignment, spans: Sequence[Range], places: Sequence[Range]) -> bool:
    """Set the place of a box whose children have theirs; False if there is none."""
    if box.kind == "kept":
        for (start, end), (place, _) in zip(spans, places, strict=True):
            if start <= box.start and box.end <= end:
                box.place = (place + box.start - start, place + box.end - start)
                return True
        return False
    own = alignment.carried(box.start, box.end)
    if own is None:
        return False
    touched = [place for place in places if place[0] < own[1] and own[0] < place[1]]  # no tag inside a span
    all_places = [own, *touched, *(child.place for child in box.children if child.kind != "point")]
    box.place = (min(start for start, _ in all_places), max(end for _, end in all_places))
    return True


def _is_orderly(boxes: Sequence[Box]) -> bool:
    """Whether no two children of a box overlap."""
    for box in boxes:
        places = sorted(child.place for child in box.children if child.kind != "point")
        if any(end > start for (_, end), (start, _) in pairwise(places)):
            return False
    return True


def _rendered(box: Box, text: str, alignment: Alignment, write: Callable[[str], str]) -> str:
    """What stands between the tags of a box."""
    for child in box.children:
        if child.kind == "point":
            child.place = _point_place(child, box, alignment)
    parts, (place, end) = [], box.place
    for child in sorted(box.children, key=lambda child: child.place):
        parts.append(write(text[place : child.place[0]]))
        place = max(place, child.place[1])
        if child.kind == "point":
            apart = child.separates or child.before or child.after
            blank = place < end and text[place].isspace()
            parts.append(child.before + child.opening + child.after if apart and blank else child.opening)
            place += bool(apart and blank)
        elif child.kind == "kept":
            parts.append(child.opening)
        else:
            parts += [child.opening, _rendered(child, text, alignment, write), child.closing]
    return "".join([*parts, write(text[place:end])])


def _point_place(point: Box, parent: Box, alignment: Alignment) -> Range:
    """After the word before, inside the parent, and not inside the parent's other children."""
    place = min(max(alignment.before(point.start), parent.place[0]), parent.place[1])
    for child in parent.children:
        if child.kind != "point" and child.place[0] < place < child.place[1]:
            place = child.place[1]
    return place, place


def translatable(text: str) -> tuple[str, str, str]:
    """White space, what may be translated, white space; nothing may be if there are no letters."""
    if not has_letters(text):
        return text, "", ""
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    return text[:start], text[start:end], text[end:]
