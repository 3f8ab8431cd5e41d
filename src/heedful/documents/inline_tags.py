"""Text with inline tags: the tags are removed before translation and reinserted by word alignment.

An element around source words goes around the target words aligned to them. A standalone tag (<br>, <img>, a
comment, an empty element) follows the word that it followed in the source. If the alignment is missing or would
make elements overlap, the texts between the tags are translated separately. No tag is ever lost.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Literal, NamedTuple

from heedful.inference.placeholders import ProtectedText, translate_with_rules, translate_with_spans
from heedful.inference.projection import Alignment, ProjectedTranslation, TranslationGenerator
from heedful.tokenization.normalization import has_letters, is_spaceless
from heedful.tokenization.protected_spans import ProtectionRules, Range

Escape = Callable[[str], str]
"""How text is escaped between tags."""

HTML_WHITESPACE = " \t\n\r\f"
_WHITESPACE_PATTERN = re.compile(f"[{HTML_WHITESPACE}]+")

_MAX_DEPTH, _MAX_ITEMS = 100, 2000
_MAX_FOLD_ITEMS = 60
"""Longer elements are never a single placeholder; checking them takes time."""


class MarkupToken(NamedTuple):
    """A tag or the text between two tags; comments, doctypes and the like are of kind "other"."""

    kind: Literal["text", "open", "close", "self_closing", "other"]
    raw: str
    """As written."""
    name: str = ""
    """Name of the tag: without its XML prefix; in lowercase in HTML."""
    text: str = ""
    """Unescaped text, in XML."""


def find_element_ends(tokens: Sequence[MarkupToken], implied_end_names: Set[str] = frozenset()) -> dict[int, int]:
    """Maps the index of each opening tag to the index of the tag that ends the element.

    An element without a closing tag ends with its parent; one of ``implied_end_names`` also before another of the
    same name, as <li> does.
    """
    ends: dict[int, int] = {}
    open_indices: list[int] = []
    open_counts: Counter[str] = Counter()

    def end_element(index: int) -> None:
        start = open_indices.pop()
        open_counts[tokens[start].name] -= 1
        ends[start] = index

    for index, token in enumerate(tokens):
        if token.kind == "open":
            if token.name in implied_end_names and open_indices and tokens[open_indices[-1]].name == token.name:
                end_element(index)
            open_indices.append(index)
            open_counts[token.name] += 1
        elif token.kind == "close" and open_counts[token.name]:
            while tokens[open_indices[-1]].name != token.name:
                end_element(index)
            end_element(index)
    while open_indices:
        end_element(len(tokens))
    return ends


def pair_tags(tokens: Sequence[MarkupToken], element_ends: dict[int, int]) -> dict[int, int]:
    """Maps the indices of opening and closing tags that belong together to the index of the opening tag."""
    return {
        index: start
        for start, end in element_ends.items()
        if end < len(tokens) and (tokens[end].kind, tokens[end].name) == ("close", tokens[start].name)
        for index in (start, end)
    }


class InlineItem(NamedTuple):
    """A part of a run: text, a tag, or an element that is not translated."""

    kind: Literal["text", "open", "close", "verbatim", "standalone"]
    raw: str
    text: str = ""
    """The visible text of "text" and "verbatim" items."""
    key: int = -1
    """The same for an opening and its closing tag."""
    separates: bool = False
    """Whether a standalone item separates words, as <br> does."""


def split_whitespace(text: str, characters: str | None = None) -> tuple[str, str, str]:
    """Leading whitespace, text, trailing whitespace."""
    core = text.strip(characters)
    start = text.index(core)
    return text[:start], core, text[start + len(core) :]


def collapse_whitespace(text: str) -> str:
    """Text with single spaces, as a browser shows it."""
    return _WHITESPACE_PATTERN.sub(" ", text)


def escape_html(text: str) -> str:
    """Text as HTML."""
    return escape(text, quote=False)


def _join_raw(items: Sequence[InlineItem]) -> str:
    return "".join(item.raw for item in items)


def _find_paired_keys(items: Sequence[InlineItem]) -> set[int]:
    opened = {item.key for item in items if item.kind == "open"}
    return opened & {item.key for item in items if item.kind == "close"}


def _fold_elements(items: Sequence[InlineItem], rules: ProtectionRules) -> list[InlineItem]:
    """Replace elements without text by standalone items, and elements around a verbatim text by verbatim ones."""
    paired_keys, result, starts = _find_paired_keys(items), list[InlineItem](), dict[int, int]()
    for item in items:
        result.append(item)
        if item.kind == "open":
            starts[item.key] = len(result) - 1
        is_paired = item.kind == "close" and item.key in paired_keys
        if not is_paired or len(result) - starts[item.key] > _MAX_FOLD_ITEMS:
            continue
        start = starts[item.key]
        element = result[start:]
        visible_text = collapse_whitespace("".join(part.text for part in element)).strip()
        outside_text = "".join(part.text for part in element if part.kind == "text")
        has_verbatim = any(part.kind == "verbatim" for part in element)
        if not visible_text:
            separates = any(part.separates or part.text for part in element)
            result[start:] = [InlineItem("standalone", _join_raw(element), separates=separates)]
        elif (has_verbatim and not any(map(str.isalnum, outside_text))) or rules.is_verbatim(visible_text):
            result[start:] = [InlineItem("verbatim", _join_raw(element), visible_text)]
    return result


def _find_core(items: Sequence[InlineItem]) -> tuple[int, int]:
    """The range of items to translate, without the whitespace, unpaired tags and elements around it."""
    paired_keys, first, end = _find_paired_keys(items), 0, len(items)

    def is_removable(item: InlineItem) -> bool:
        if item.kind == "text":
            return not item.text.strip()
        return item.kind == "standalone" or (item.kind in ("open", "close") and item.key not in paired_keys)

    while first < end:
        if is_removable(items[first]):
            first += 1
        elif is_removable(items[end - 1]):
            end -= 1
        elif items[first].kind == "open" and items[first].key == items[end - 1].key:
            first, end = first + 1, end - 1
        else:
            break
    return first, end


@dataclass
class InlineTag:
    """An element, a verbatim text or a standalone tag, and its range in the text without tags."""

    kind: Literal["element", "verbatim", "standalone"]
    opening: str
    start: int
    end: int = 0
    closing: str = ""
    children: list["InlineTag"] = field(default_factory=list)
    before: str = ""
    """Whitespace before a standalone tag."""
    after: str = ""
    separates: bool = False
    target_range: Range = (0, 0)
    """Its range in the translation."""


class TaggedText(NamedTuple):
    """The text of a run without tags, and its tags."""

    text: str
    root: InlineTag
    elements: list[InlineTag]
    """All tags but the standalone ones, parents before children."""


def build_tagged_text(items: Sequence[InlineItem]) -> TaggedText | None:
    """Separate text and tags; None if tags are unpaired, nested too deep or too many."""
    paired_keys = _find_paired_keys(items)
    text, root, elements = "", InlineTag("element", "", 0), list[InlineTag]()
    open_tags = [root]
    for item in items:
        unpaired = item.kind in ("open", "close") and item.key not in paired_keys
        if unpaired or len(open_tags) > _MAX_DEPTH or len(items) > _MAX_ITEMS:
            return None
        siblings = open_tags[-1].children
        last = siblings[-1] if siblings and siblings[-1].kind == "standalone" else None
        if last and text[last.start :].strip():
            last = None  # visible text follows it
        if item.kind == "text":
            if last and item.text[0] in HTML_WHITESPACE:
                last.after = " "
            text += item.text.removeprefix(" ") if not text or text.endswith(" ") else item.text
        elif item.kind == "standalone":
            if last:
                last.opening += last.after + item.raw
                last.after, last.separates = "", last.separates or item.separates
            else:
                end = len(text.rstrip(" "))
                siblings.append(InlineTag("standalone", item.raw, end, before=text[end:], separates=item.separates))
            if item.separates and text and not text.endswith(" "):
                text += " "
        elif item.kind == "close":
            tag = open_tags.pop()
            tag.end, tag.closing = len(text), item.raw
        else:
            tag = InlineTag("verbatim" if item.kind == "verbatim" else "element", item.raw, len(text))
            siblings.append(tag)
            elements.append(tag)
            if item.kind == "verbatim":
                text += item.text
                tag.end = len(text)
            else:
                open_tags.append(tag)
    return TaggedText(text.rstrip(), root, elements)


def reinsert_tags(
    tagged_text: TaggedText,
    spans: Sequence[Range],
    translation: ProjectedTranslation,
    escape_text: Escape = escape_html,
) -> str | None:
    """The translation with its tags; None if the alignment does not show where they belong.

    ``spans`` are the source ranges whose target ranges are ``translation.span_ranges``.
    """
    text, root, elements = tagged_text
    has_alignment = translation.links and not is_spaceless(text) and not is_spaceless(translation.text)
    if not has_alignment and any(tag.kind != "verbatim" for tag in root.children):
        return None
    alignment = Alignment(text, translation.text, translation.links)
    for tag in reversed(elements):  # children before parents
        if tag.kind == "verbatim":
            ranges = [
                (target + tag.start - start, target + tag.end - start)
                for (start, end), (target, _) in zip(spans, translation.span_ranges, strict=True)
                if start <= tag.start and tag.end <= end
            ][:1]
        elif own_range := alignment.project(tag.start, tag.end):
            ranges = [own_range, *(child.target_range for child in tag.children if child.kind != "standalone")]
            # No tag goes inside a span.
            ranges += [span for span in translation.span_ranges if span[0] < own_range[1] and own_range[0] < span[1]]
        else:
            ranges = []
        if not ranges:
            return None
        tag.target_range = (min(start for start, _ in ranges), max(end for _, end in ranges))
    root.target_range = (0, len(translation.text))
    for tag in (root, *elements):
        ranges = sorted(child.target_range for child in tag.children if child.kind != "standalone")
        if any(end > start for (_, end), (start, _) in pairwise(ranges)):
            return None
    return _render(root, translation.text, alignment, escape_text)


def _render(tag: InlineTag, text: str, alignment: Alignment, escape_text: Escape) -> str:
    """The content of an element in the translation."""
    start, end = tag.target_range
    for child in tag.children:
        if child.kind == "standalone":  # after the word before it, in the same element, and not inside another
            point = min(max(alignment.project_point(child.start), start), end)
            for other in tag.children:
                if other.kind != "standalone" and other.target_range[0] < point < other.target_range[1]:
                    point = other.target_range[1]
            child.target_range = (point, point)
    parts, position = [], start
    for child in sorted(tag.children, key=lambda child: child.target_range):
        parts.append(escape_text(text[position : child.target_range[0]]))
        position = max(position, child.target_range[1])
        if child.kind == "standalone":
            separated = child.separates or child.before or child.after
            at_space = position < end and text[position].isspace()
            parts.append(child.before + child.opening + child.after if separated and at_space else child.opening)
            position += bool(separated and at_space)
        elif child.kind == "verbatim":
            parts.append(child.opening)
        else:
            parts += [child.opening, _render(child, text, alignment, escape_text), child.closing]
    return "".join([*parts, escape_text(text[position:end])])


@dataclass
class InlineRun:
    """A text with inline tags, such as the content of a paragraph, that is translated as a whole."""

    before: str
    items: Sequence[InlineItem]
    after: str
    result: str | None = None
    complete: bool = True

    @property
    def has_letters(self) -> bool:
        """Whether there is anything to translate."""
        return any(item.kind == "text" and has_letters(item.text) for item in self.items)

    @property
    def raw(self) -> str:
        """The translation, or the source if there is none."""
        return self.before + (_join_raw(self.items) if self.result is None else self.result) + self.after


def translate_runs(
    item_lists: Iterable[Sequence[InlineItem]], rules: ProtectionRules, escape_text: Escape = escape_html
) -> TranslationGenerator[list[InlineRun]]:
    """Translate runs of items, each run as a whole if possible; at most four rounds."""
    runs: list[InlineRun] = []
    for items in item_lists:
        items = _fold_elements(items, rules)
        first, end = _find_core(items)
        runs.append(InlineRun(_join_raw(items[:first]), items[first:end], _join_raw(items[end:])))
    pending = [run for run in runs if run.has_letters]

    tagged_runs = [(run, tagged_text) for run in pending if (tagged_text := build_tagged_text(run.items))]
    sources: list[ProtectedText] = []
    for _, (text, _, elements) in tagged_runs:
        verbatim_ranges = [(tag.start, tag.end) for tag in elements if tag.kind == "verbatim"]
        sources.append(ProtectedText(text, rules.find_spans(text, verbatim_ranges)))
    translations = yield from translate_with_spans(sources, rules)
    for (run, tagged_text), source, translation in zip(tagged_runs, sources, translations, strict=True):
        if translation.text == source.text:
            run.result = _join_raw(run.items)
        else:
            spans = [(span.start, span.end) for span in source.spans]
            run.result = reinsert_tags(tagged_text, spans, translation, escape_text)
        run.complete = translation.complete or run.result is None

    pending = [run for run in pending if run.result is None]
    parts = [
        split_whitespace(item.text)[1]
        for run in pending
        for item in run.items
        if item.kind == "text" and has_letters(item.text)
    ]
    part_translations = iter((yield from translate_with_rules(parts, rules)))
    for run in pending:
        result = []
        for item in run.items:
            new_raw = item.raw
            if item.kind == "text" and has_letters(item.text):
                lead, core, tail = split_whitespace(item.text)
                part = next(part_translations)
                run.complete &= part.complete
                if part.text.strip() not in ("", core):
                    new_raw = escape_text(lead + part.text.strip() + tail)
            result.append(new_raw)
        run.result = "".join(result)
    return runs
