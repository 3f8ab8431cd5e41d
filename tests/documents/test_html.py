"""HTML keeps its tags and attributes; only its text is translated."""

import random
from collections import Counter
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser

import lxml.html
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.documents.html import tokenize_html, translate_html
from heedful.inference.projection import run_generator
from heedful.inference.translation import Alternative
from heedful.tokenization.protected_spans import ProtectionRules
from tests.scaling import check_nearly_linear

SETTINGS = settings(max_examples=80, deadline=None)  # no deadline: the machine may be busy
Function = Callable[[str], Alternative]


def upper(text: str) -> Alternative:
    return Alternative(text.upper(), alignment=tuple((word, word) for word in range(len(text.split()))))


def reverse(text: str) -> Alternative:
    words = text.split()
    links = tuple((word, len(words) - 1 - word) for word in range(len(words)))
    return Alternative(" ".join(reversed(words)), alignment=links)


def upper_without_alignment(text: str) -> Alternative:
    return Alternative(text.upper())


def copy_text(text: str) -> Alternative:
    return Alternative(text)


def lookup(translations: dict[str, Alternative]) -> Function:
    return lambda text: translations[text]


def translate_markup(text: str, function: Function = upper, rules: ProtectionRules | None = None) -> str:
    result = run_generator(
        translate_html(text, rules or ProtectionRules()), lambda texts: [function(text) for text in texts]
    )
    return result.text


def list_translated_texts(text: str, function: Function = upper) -> list[list[str]]:
    """The texts of each round of translation."""
    rounds: list[list[str]] = []

    def translate_batch(texts: list[str]) -> list[Alternative]:
        rounds.append(texts)
        return [function(text) for text in texts]

    run_generator(translate_html(text, ProtectionRules()), translate_batch)
    return rounds


class Tags(HTMLParser):
    """Counts of all tags and comments, from the parser of the standard library, and whether tags are nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.path: list[str] = []
        self.well_formed = True
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[f"<{tag} {attrs}>"] += 1
        if tag not in ("br", "img", "wbr", "hr"):
            self.path.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.counts[f"</{tag}>"] += 1
        self.well_formed &= bool(self.path) and self.path.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.counts[f"<!--{data}-->"] += 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>a <b>c</b> d</p>", "<p>A <b>C</b> D</p>"),
        ("<p>one<br>two<br/>three</p>", "<p>ONE<br>TWO<br/>THREE</p>"),
        ("<p>one <br> <br>\n two</p>", "<p>ONE <br> <br> TWO</p>"),
        ("<p>a <a href='x'><b><i>c</i> d</b>!</a></p>", "<p>A <a href='x'><b><i>C</i> D</b>!</a></p>"),
        ("<div>a<p>b</div> c", "<div>A<p>B</div> C"),
        ("<ul><li>a<li>b</ul>", "<ul><li>A<li>B</ul>"),
        ("a <b>c <i>d</b> e</i> f", "A <b>C <i>D</b> E</i> F"),
        ("a </b> c", "A </b> C"),
        ("a <b>c", "A <b>C"),
        ("5 < 6 &lt; 7 &amp; x > y", "5 &lt; 6 &lt; 7 &amp; X &gt; Y"),
        ("a &eacute; &copy; &#233;", "A É © É"),
        ("plain\n\n  text, no HTML\n", "PLAIN\n\n  TEXT, NO HTML\n"),
        ("x <y and no end", "X &lt;Y AND NO END"),
        ("<b>  a  </b>  ", "<b>  A  </b>  "),
        ("hello<img src=a.png alt='a dog'> you", "HELLO<img src=a.png alt='a dog'> YOU"),
        ("<a name=x></a>a <i class=icon></i> c", "<a name=x></a>A <i class=icon></i> C"),
        ('<input placeholder="name" title="t">a', '<input placeholder="name" title="t">A'),
        ("<TITLE>a <b> c</TITLE>", "<TITLE>A &lt;B&gt; C</TITLE>"),
        ("<div/>a<x id='1'/> c", "<div/>A<x id='1'/> C"),
        ("12 <b>34</b>", "12 <b>34</b>"),
        ("", ""),
    ],
)
def test_translate_html_replaces_text_and_keeps_tags(source: str, expected: str) -> None:
    assert translate_markup(source) == expected


@pytest.mark.parametrize(
    "markup",
    [
        "<script>if (a < b) x('<p>hello</p>')</script>",
        "<style>a > b { color: red }</style>",
        "<!-- a comment <b> -->",
        "<!DOCTYPE html>",
        "<?php a ?>",
        "<pre>  some\n code</pre>",
        "<textarea>my <b> words</textarea>",
        '<p translate="no">a <b>word</b></p>',
        "<div class='x notranslate y'><p>a</p></div>",
        '<svg><title>a</title><path d="M 0"/></svg>',
        "<pre><code>a</code></pre>",
    ],
)
def test_translate_html_untranslatable_elements_are_copied(markup: str) -> None:
    assert translate_markup(markup) == markup
    assert translate_markup(f"<p>a</p>{markup}<p>c</p>") == f"<p>A</p>{markup}<p>C</p>"


def test_translate_html_similar_class_name_is_translated() -> None:
    assert translate_markup("<p class='notranslate-me'>a</p>") == "<p class='notranslate-me'>A</p>"


def test_translate_html_code_is_part_of_sentence() -> None:
    source = "Run <code>make all</code> now"
    assert list_translated_texts(source, reverse)[0] == ["Run make all now"]
    assert translate_markup(source, upper_without_alignment) == "RUN <code>make all</code> NOW"
    translate = lookup({"Run make all now": Alternative("Jetzt make all starten")})
    assert translate_markup(source, translate) == "Jetzt <code>make all</code> starten"


def test_translate_html_repeated_word_tags_code_only() -> None:
    source = "Use <code>if</code> if needed"
    translate = lookup({"Use if if needed": Alternative("Nimm if wenn nötig")})
    assert translate_markup(source, translate) == "Nimm <code>if</code> wenn nötig"


def test_translate_html_reordered_words_keep_tags() -> None:
    source = "<p>the <b>black</b> <i>cat</i>, <a>here</a>.</p>"
    links = ((0, 1), (1, 3), (2, 2), (3, 0))
    translate = lookup({"the black cat, here.": Alternative("ici, le chat noir.", alignment=links)})
    assert translate_markup(source, translate) == "<p><a>ici</a>, le <i>chat</i> <b>noir</b>.</p>"


def test_translate_html_split_alignment_uses_smallest_range() -> None:
    links = ((0, 0), (1, 1), (1, 3), (2, 2))
    translate = lookup({"I give up": Alternative("ich gebe nicht auf jetzt", alignment=links)})
    assert translate_markup("I <b>give</b> up", translate) == "ich <b>gebe nicht auf</b> jetzt"


def test_translate_html_standalone_tags_follow_previous_word() -> None:
    assert translate_markup("one<br>two three", reverse) == "three two one<br>"
    assert translate_markup("one <b>two<!--c--> x</b> three", reverse) == "three <b>x two<!--c--></b> one"


def test_translate_html_crossing_alignment_translates_parts() -> None:
    source = "<b>one two</b> <i>three</i>"
    crossing = Alternative("uno tres dos", alignment=((0, 0), (1, 2), (2, 1)))
    translations = {"one two three": crossing, "one two": Alternative("uno dos"), "three": Alternative("tres")}
    assert translate_markup(source, lookup(translations)) == "<b>uno dos</b> <i>tres</i>"


def test_translate_html_without_alignment_translates_parts() -> None:
    assert list_translated_texts("a <b>c</b> d", upper_without_alignment) == [["a c d"], ["a", "c", "d"]]
    translations = {"I love you": Alternative("我爱你", alignment=((0, 0), (1, 0), (2, 0)))}
    parts = {"I": Alternative("我"), "love": Alternative("爱"), "you": Alternative("你")}
    assert translate_markup("I <b>love</b> you", lookup(translations | parts)) == "我 <b>爱</b> 你"


def test_translate_html_collapses_whitespace() -> None:
    assert list_translated_texts("<p>\n  a\n  long <b>line</b>\n</p>") == [["a long line"]]
    assert translate_markup("<p>\n  a\n  long <b>line</b>\n</p>") == "<p>\n  A LONG <b>LINE</b>\n</p>"


def test_translate_html_blocks_are_separate_texts() -> None:
    source = "<h1><a href=x>a c</a></h1><table><tr><td>d<td><b>e</b></table><p>f"
    assert list_translated_texts(source) == [["a c", "d", "e", "f"]]


def test_translate_html_applies_placeholders_and_glossary() -> None:
    rules = ProtectionRules(keep=("Acme",), glossary={"cat": "Katze"})
    source = "<p>Hi <b>%s</b>, <i>the</i> cat of Acme &amp; {name}</p>"
    assert translate_markup(source, upper, rules) == "<p>HI <b>%s</b>, <i>THE</i> Katze OF Acme &amp; {name}</p>"


def test_translate_html_mastodon_post_keeps_mentions_and_links() -> None:
    mention = '<span class="h-card" translate="no"><a href="https://x.org/@bob">@<span>bob</span></a></span>'
    link = (
        '<a href="https://example.org/long"><span class="invisible">https://</span>'
        '<span class="ellipsis">example.org/lo</span><span class="invisible">ng</span></a>'
    )
    tag = '<a href="/tags/cats" class="hashtag" rel="tag">#<span>cats</span></a>'
    source = f"<p>{mention} look<br />at this: {link} {tag}</p><p>bye</p>"
    loud = tag.replace(">cats<", ">CATS<")
    expected = f"<p>{mention} LOOK<br />AT THIS: {link} {loud}</p><p>BYE</p>"
    assert translate_markup(source, upper) == expected
    assert translate_markup(source, upper_without_alignment) == expected


def test_translate_html_full_document_changes_text_only() -> None:
    source = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>my page</title>
<style>p > a { x: y }</style><script src="a.js"></script></head>
<body class="a"><h1 id=top>hello</h1><p>a <em>nice &amp; good</em> day</p><img src="x"></body></html>
"""
    expected = source.replace("my page", "MY PAGE").replace(">hello<", ">HELLO<")
    expected = expected.replace(">a <em>nice &amp; good</em> day<", ">A <em>NICE &amp; GOOD</em> DAY<")
    assert translate_markup(source) == expected


WORDS = st.sampled_from(["one", "two", "Über", "%s", "{x}", "a &amp; b", "12", "!", "&lt;i&gt;", "日本", "it's,"])
POINTS = st.sampled_from(["<br>", "<br/>", "<img src='x'>", "<!-- c -->", "<i></i>", "<wbr>"])
SPACES = st.sampled_from(["", " ", "\n  "])
INLINE = st.sampled_from(["b", "i", "a href='u?x=1&amp;y=2'", 'span class="q"', "code", "i translate=no"])
BLOCK = st.sampled_from(["p", "div id=1", "li", "h1"])


def element(tag: str, content: list[str]) -> str:
    return f"<{tag}>{''.join(content)}</{tag.split()[0]}>"


def around(tags: st.SearchStrategy[str], inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(element, tags, st.lists(inner | SPACES, max_size=5))


PHRASES = st.recursive(WORDS | POINTS | SPACES, lambda inner: around(INLINE, inner), max_leaves=10)
DOCUMENTS = st.lists(PHRASES | around(BLOCK, PHRASES), max_size=5).map("".join)
SOUP = st.lists(
    st.sampled_from(["<b>", "</b>", "<i", "</p>", "<p>", " x", "<!--", "-->", "&", "<", '"', "<br>", "%s ", ">"]),
    max_size=14,
).map("".join)


def random_translation(seed: int) -> Function:
    """Shuffles words and returns a partly wrong alignment."""
    rng = random.Random(seed)

    def translate(text: str) -> Alternative:
        words = text.split()
        order = list(range(len(words)))
        rng.shuffle(order)
        links = [(order[position], position) for position in range(len(order)) if rng.random() < 0.8]
        links += [(rng.randrange(9), rng.randrange(9)) for _ in range(rng.randrange(3))]
        return Alternative(
            " ".join(words[position] + "e" * rng.randrange(2) for position in order), alignment=tuple(links)
        )

    return translate


@SETTINGS
@given(DOCUMENTS, st.integers())
def test_translate_html_any_document_keeps_tags_and_nesting(text: str, seed: int) -> None:
    before = Tags(text)
    assert before.well_formed
    for function in (upper, reverse, upper_without_alignment, random_translation(seed)):
        after = Tags(translate_markup(text, function))
        assert after.counts == before.counts
        assert after.well_formed
        assert not after.path


@SETTINGS
@given(SOUP | DOCUMENTS | st.text(max_size=40))
def test_translate_html_identity_returns_input(text: str) -> None:
    assert "".join(token.raw for token in tokenize_html(text)) == text
    assert unescape(translate_markup(text, copy_text)) == unescape(text)


@SETTINGS
@given(SOUP, st.integers())
def test_translate_html_malformed_input_keeps_tags(text: str, seed: int) -> None:
    def tags(markup: str) -> list[str]:
        return sorted(token.raw for token in tokenize_html(markup) if token.kind in ("open", "close"))

    for function in (upper, random_translation(seed)):
        assert tags(translate_markup(text, function)) == tags(text)


@SETTINGS
@given(st.lists(st.tuples(st.sampled_from(["one", "two", "x"]), st.booleans()), min_size=1, max_size=8))
def test_translate_html_monotone_alignment_changes_text_only(words: list[tuple[str, bool]]) -> None:
    source = " ".join(f"<b>{word}</b>" if bold else word for word, bold in words)
    assert translate_markup(source) == source.upper().replace("<B>", "<b>").replace("</B>", "</b>")


def test_translate_html_lxml_finds_same_elements() -> None:
    source = "<div><p>a <b>c <i class='x'>d</i></b> e<br>f</p><ul><li>g<li>h</ul><img src=x alt='y'></div>"

    def elements(text: str) -> Counter[str]:
        return Counter(
            f"{element.tag} {sorted(element.attrib.items())}" for element in lxml.html.fromstring(text).iter()
        )

    assert elements(translate_markup(source, reverse)) == elements(source)


def test_translate_html_unclosed_cdata_ends_at_its_first_bracket() -> None:
    assert translate_markup("<p>one</p><![CDATA[ x <i>two</i><p>three</p>") == (
        "<p>ONE</p><![CDATA[ x <i>TWO</i><p>THREE</p>"
    )
    assert translate_markup("<p>one</p><![CDATA[a <b>x</b>]]><p>two</p>") == (
        "<p>ONE</p><![CDATA[a <b>x</b>]]><p>TWO</p>"
    )


@pytest.mark.parametrize(
    "unit",
    [
        "<b>",
        "<a x='",
        "<",
        "<!--",
        "</b>",
        "<b>x</b> ",
        "x<br>",
        "<code>",
        "<p translate=no>",
        "<!",
        "<a ",
        "<![CDATA[",
        "<![CDATA[<p>",
    ],
)
def test_translate_html_long_and_deep_input_takes_linear_time(unit: str) -> None:
    check_nearly_linear(lambda size: translate_markup(unit * (size // len(unit))), 50_000)


def test_translate_html_placeholder_is_never_split() -> None:
    """Punctuation around a word is left out of a tag, but not the braces of a placeholder."""
    translation = Alternative("{name} gras", alignment=((0, 0), (1, 1)))
    result = run_generator(
        translate_html("<b>bold</b> {name}", ProtectionRules()), lambda texts: [translation] * len(texts)
    )
    assert result.text == "<b>{name}</b> gras"
