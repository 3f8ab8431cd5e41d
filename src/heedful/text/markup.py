"""Translation of HTML, documents and fragments: every tag and attribute stays, only the text changes.

The text of a block (a paragraph, a cell) is a run (heedful.text.runs). Kept as they are: attributes (title,
alt, placeholder too), comments, scripts, styles, <pre>, <code> and its like, translate="no", class
"notranslate". The rule to remember: what is not translated is copied.
"""

from collections.abc import Iterator, Sequence, Set

from heedful.text.html_tokens import Token, extents, html_tokens, names
from heedful.text.inline_tags import Item, kept_item, text_items
from heedful.text.protection import Rules
from heedful.text.runs import Run, translate_runs
from heedful.text.translated import Rounds, Translated

_BLOCKS = names(
    """address article aside blockquote body caption center col colgroup dd details dialog dir div dl dt
    fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend
    li main menu nav noframes noscript ol optgroup option p pre search section select summary table tbody td
    tfoot th thead title tr ul"""
)
_SPOKEN = names("code kbd samp var")
"""Kept as they are, but words of the sentence."""
_UNSEEN = names(
    """applet audio canvas iframe math noembed noframes object plaintext pre script style svg template
    textarea video xmp"""
)
"""Kept as they are, and no words of the sentence."""
_SEPARATING = names("br embed img input")


def translate_html(html: str, rules: Rules, kept_tags: Set[str] = frozenset()) -> Rounds[Translated]:
    """HTML with its text translated and with what the rules protect; at most four rounds.

    The elements of ``kept_tags``, names in small letters, stay as they are.

    >>> from heedful.text.translated import drive
    >>> def french(texts: list[str]) -> list[Translated]:
    ...     return [Translated("le chat noir", ((0, 0), (1, 2), (2, 1))) for _ in texts]
    >>> drive(translate_html("<p>the <b>black</b> cat<br></p>", Rules()), french).text
    '<p>le chat <b>noir</b><br></p>'
    """
    chunks = [chunk if isinstance(chunk, str) else Run.of(chunk, rules) for chunk in _chunks(html, kept_tags)]
    runs = [chunk for chunk in chunks if isinstance(chunk, Run)]
    yield from translate_runs(runs, rules)
    text = "".join(chunk if isinstance(chunk, str) else chunk.raw for chunk in chunks)
    return Translated(text, complete=all(run.complete for run in runs))


def _chunks(html: str, kept_tags: Set[str]) -> Iterator[str | list[Item]]:
    """What is copied, and between it the runs."""
    tokens = html_tokens(html)
    collapse = any(token.kind != "text" for token in tokens)  # in text that is no HTML, lines are lines
    reach = extents(tokens)
    openings = {extent.end - 1: start for start, extent in reach.items() if extent.closed}
    kept_names = _SPOKEN | _UNSEEN | kept_tags
    run: list[Item] = []
    number = 0
    while number < len(tokens):
        token, end = tokens[number], number + 1
        kept = token.kind == "start" and (token.name in kept_names or token.untranslated)
        if kept:
            end = reach[number].end
        stretch = tokens[number:end]
        if any(each.name in _BLOCKS for each in stretch):
            yield from (run, "".join(each.raw for each in stretch))
            run = []
        elif kept:
            run.append(_kept(stretch))
        elif token.kind == "text":
            run += text_items(token.raw, collapse=collapse)
        else:
            run.append(_tag(token, number if token.kind == "start" else openings.get(number, -1)))
        number = end
    yield run


def _kept(element: Sequence[Token]) -> Item:
    raw = "".join(token.raw for token in element)
    if element[0].name in _UNSEEN or element[0].alone:
        return Item("point", raw, separates=element[0].name in _SEPARATING)
    return kept_item(raw, "".join(token.raw for token in element if token.kind == "text"))


def _tag(token: Token, key: int) -> Item:
    if token.kind == "other" or token.alone:
        return Item("point", token.raw, separates=token.name in _SEPARATING)
    return Item("open" if token.kind == "start" else "close", token.raw, key=key)
