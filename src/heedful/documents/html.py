"""HTML documents and fragments: only the text is translated; all else is copied as written.

The tokenizer splits HTML as browsers do, and its tokens joined are the input. Parse trees and their serializers
repair and reformat what they read; this module does not, so malformed HTML does not get worse.
"""

import re
from collections.abc import Iterator, Set
from html import unescape

from heedful.documents.inline_tags import (
    HTML_WHITESPACE,
    InlineItem,
    MarkupToken,
    collapse_whitespace,
    find_element_ends,
    pair_tags,
    split_whitespace,
    translate_runs,
)
from heedful.inference.projection import TranslationGenerator
from heedful.inference.translation import Alternative
from heedful.tokenization.protected_spans import ProtectionRules


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VOID_ELEMENTS = _names("area base br col embed hr img input link meta param source track wbr")
"""Elements without an end tag."""

_RAW_TEXT_ELEMENTS = _names("script style textarea title xmp iframe noembed noframes plaintext")
"""Elements whose content has no tags."""

_IMPLIED_END_ELEMENTS = _names("p li dt dd option optgroup tr td th thead tbody tfoot")

_BLOCK_ELEMENTS = _names(
    """address article aside blockquote body caption center col colgroup dd details dialog dir div dl dt
    fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend
    li main menu nav noframes noscript ol optgroup option p pre search section select summary table tbody td
    tfoot th thead title tr ul"""
)

_CODE_ELEMENTS = _names("code kbd samp var")
"""Not translated, but part of the sentence."""

_SKIPPED_ELEMENTS = _names(
    """applet audio canvas iframe math noembed noframes object plaintext pre script style svg template
    textarea video xmp"""
)
"""Not translated, and not part of the sentence."""

_BREAKING_ELEMENTS = _names("br embed img input")

_MAX_VERBATIM_LENGTH = 200
"""Characters of an untranslated element that is part of the sentence."""

_ATTRIBUTE_PATTERN = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""

_MARKUP_PATTERN = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|<!\[CDATA\[(?:(?!<!\[CDATA\[).)*?\]\]>"  # unclosed, it is like any other declaration
    r"|<[!?][^>]*+(?:>|\Z)"
    r"|</(?![A-Za-z])(?=.)[^>]*+(?:>|\Z)"  # browsers read it as a comment
    rf"|<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*+)(?:\s++|/(?!>)|{_ATTRIBUTE_PATTERN})*+(?P<self_closing>/?)>",
    re.DOTALL,
)

_TAG_START = re.compile(r"</?[A-Za-z]")

_NO_TRANSLATE = re.compile(
    r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*(?:"[^"]*?(?<![\w-])notranslate(?![\w-])"""
    r"""|'[^']*?(?<![\w-])notranslate(?![\w-])|notranslate[\s>]))""",
    re.IGNORECASE,
)


def tokenize_html(html: str) -> list[MarkupToken]:
    """The tokens of a document or a fragment.

    >>> [token.raw for token in tokenize_html('1 < 2 <b title=">">&amp;</b><!-- <i> -->')]
    ['1 < 2 ', '<b title=">">', '&amp;', '</b>', '<!-- <i> -->']
    """
    return [token for token in _iter_tokens(html) if token.raw]


def _iter_tokens(html: str) -> Iterator[MarkupToken]:
    end, position = 0, html.find("<")
    while position >= 0:
        match = _MARKUP_PATTERN.match(html, position)
        if match:
            yield MarkupToken("text", html[end:position])
            end = match.end()
            name = (match["name"] or "").lower()
            if not name:
                yield MarkupToken("other", match[0])
            elif match["slash"]:
                yield MarkupToken("close", match[0], name)
            else:
                is_empty = name in _VOID_ELEMENTS or match["self_closing"]
                yield MarkupToken("self_closing" if is_empty else "open", match[0], name)
                if name in _RAW_TEXT_ELEMENTS and not is_empty:
                    end_tag = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(html, end)
                    content_end = end_tag.start() if end_tag else len(html)
                    yield MarkupToken("text" if name == "title" else "other", html[end:content_end])
                    end = content_end
        elif _TAG_START.match(html, position):
            break  # an unclosed tag: browsers drop the rest, here it is text
        position = html.find("<", max(position + 1, end))
    yield MarkupToken("text", html[end:])


def translate_html(
    html: str, rules: ProtectionRules, ignored_tags: Set[str] = frozenset()
) -> TranslationGenerator[Alternative]:
    """Translate the text of HTML; at most four rounds.

    Attributes, comments, scripts, <pre>, <code> and the like, translate="no", class "notranslate" and the elements
    of ``ignored_tags`` (in lowercase) are copied.

    >>> from heedful.inference.projection import run_generator
    >>> def french(texts: list[str]) -> list[Alternative]:
    ...     return [Alternative("le chat noir", alignment=((0, 0), (1, 2), (2, 1))) for _ in texts]
    >>> run_generator(translate_html("<p>the <b>black</b> cat<br></p>", ProtectionRules()), french).text
    '<p>le chat <b>noir</b><br></p>'
    """
    runs = yield from translate_runs(_split_blocks(html, ignored_tags), rules)
    return Alternative("".join(run.raw for run in runs), complete=all(run.complete for run in runs))


def _split_blocks(html: str, ignored_tags: Set[str]) -> Iterator[list[InlineItem]]:
    """The runs of blocks (paragraphs, cells), and between them the tags of the blocks."""
    tokens = tokenize_html(html)
    has_markup = any(token.kind != "text" for token in tokens)  # line breaks of plain text are preserved
    element_ends = find_element_ends(tokens, _IMPLIED_END_ELEMENTS)
    keys = pair_tags(tokens, element_ends)
    untranslated_names = _CODE_ELEMENTS | _SKIPPED_ELEMENTS | ignored_tags
    run: list[InlineItem] = []
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index + 1
        is_verbatim = token.kind in ("open", "self_closing") and (
            token.name in untranslated_names or _NO_TRANSLATE.search(token.raw) is not None
        )
        if is_verbatim and token.kind == "open":
            end = element_ends[index]
            end += keys.get(end) == index  # with its closing tag, if it has one
        element = tokens[index:end]
        raw = "".join(part.raw for part in element)
        if any(part.name in _BLOCK_ELEMENTS for part in element):
            yield from (run, [InlineItem("standalone", raw)])
            run = []
        elif token.kind == "text":
            for part in split_whitespace(raw, HTML_WHITESPACE):
                if part:
                    text = unescape(part)
                    run.append(InlineItem("text", part, collapse_whitespace(text) if has_markup else text))
        elif token.kind == "close" or (token.kind == "open" and not is_verbatim):
            run.append(InlineItem(token.kind, raw, key=keys.get(index, index)))
        elif token.kind == "open" and token.name not in _SKIPPED_ELEMENTS:
            text = collapse_whitespace(unescape("".join(part.raw for part in element if part.kind == "text"))).strip()
            if text and len(text) <= _MAX_VERBATIM_LENGTH:
                run.append(InlineItem("verbatim", raw, text))
            else:
                run.append(InlineItem("standalone", raw, separates=True))
        else:
            run.append(InlineItem("standalone", raw, separates=token.name in _BREAKING_ELEMENTS))
        index = end
    yield run
