"""Placeholders, tags and line breaks are valid for any model output."""

import random
from collections import Counter
from pathlib import Path

import polib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.documents.messages import FormatRules, strip_accelerator, translate_message
from heedful.documents.xml_segments import tokenize_xml, translate_content
from heedful.inference.projection import run_generator
from heedful.inference.translation import Alternative
from tests.documents.external_tools import run_tool

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
C = ["%s", "%d", "%-5.2lu", "%%", "%5.1f", "%c", "%'d", "%lld"]
NUMBERED = ["%1$s", "%2$d", "%3$-5.2lu"]
PYTHON = ["%(name)s", "%(count)d", "%%"]
BRACES = ["{0}", "{name}", "{0:>{width}}", "{{", "}}"]
WORDS = ["Open", "the", "file", "(now)", "--all", "file_name", "<b>bold</b>", "\n", "\n  ", "\t", "  ", "été", "中文"]
XML_PARTS = ['<g id="1">', "</g>", '<x id="2"/>', '<ph id="3">%s</ph>', "&amp;", "&lt;b&gt;", "<!-- c -->"]

INVENTED = ["%s", "%", "{", "}", "% d", "{0}", "%2$s", "<b>", "&", "bla", "--all", "_x", '"']


class RandomTranslator:
    """Random words and placeholders: repeated, dropped or invented."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def __call__(self, texts: list[str]) -> list[Alternative]:
        return [self._translate(text) for text in texts]

    def _translate(self, text: str) -> Alternative:
        candidates = [*text.split(), *INVENTED]
        words = self.random.choices(candidates, k=self.random.randrange(1, 8))
        if self.random.random() < 0.4:
            words = text.split()
            self.random.shuffle(words)
        links = [(self.random.randrange(9), index) for index in range(len(words))]
        return Alternative(" ".join(words), alignment=tuple(links))


def messages(placeholders: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WORDS + placeholders), min_size=1, max_size=9).map(" ".join)


@pytest.mark.parametrize(
    ("flag", "placeholders"),
    [("c-format", C), ("c-format", NUMBERED), ("python-format", PYTHON), ("python-brace-format", BRACES)],
)
def test_translate_message_random_output_passes_msgfmt(tmp_path: Path, flag: str, placeholders: list[str]) -> None:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Content-Transfer-Encoding": "8bit"}
    untranslated = []

    @SETTINGS
    @given(messages(placeholders), st.integers(0, 2**32))
    def fill(text: str, seed: int) -> None:
        result = run_generator(translate_message(text, FormatRules(flags=(flag,))), RandomTranslator(seed))
        if result is None:
            untranslated.append(text)
        elif result.strip():
            file.append(polib.POEntry(msgid=text, msgctxt=f"{len(file)}", msgstr=result, flags=[flag]))

    fill()
    file.save(str(tmp_path / "a.po"))
    run_tool("msgfmt", "--check-format", "-o", "/dev/null", tmp_path / "a.po")
    assert len(file) > 50
    assert len(untranslated) < len(file) / 5  # Hypothesis may find several similar ones


@SETTINGS
@given(st.lists(st.sampled_from(WORDS + XML_PARTS + C), min_size=1, max_size=9), st.integers(0, 2**32))
def test_translate_content_random_output_keeps_elements(parts: list[str], seed: int) -> None:
    depth, content = 0, []
    for part in parts:
        part = part.replace("<b>", "&lt;b&gt;").replace("</b>", "&lt;/b&gt;")
        if part == "</g>" and not depth:
            continue
        depth += {'<g id="1">': 1, "</g>": -1}.get(part, 0)
        content.append(part)
    raw = " ".join(content + ["</g>"] * depth)
    result = run_generator(translate_content(raw, FormatRules()), RandomTranslator(seed))
    if result is None:
        return
    tags = [Counter(token.raw for token in tokenize_xml(text) if token.kind != "text") for text in (raw, result)]
    assert tags[0] == tags[1]


def test_translate_message_unnumbered_placeholders_keep_order() -> None:
    def reverse_words(texts: list[str]) -> list[Alternative]:
        return [Alternative(" ".join(reversed(text.split()))) for text in texts]

    rules = FormatRules(flags=("c-format",))
    assert run_generator(translate_message("take %s and %d away", rules), reverse_words) == "take %s and %d away"
    assert (
        run_generator(translate_message("take %1$s and %2$d away", rules), reverse_words) == "away %2$d and %1$s take"
    )


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("_File", "File"),
        ("E_xit", "Exit"),
        ("Save &As", "Save As"),
        ("~Help", "Help"),
        ("file_name", None),
        ("R&D", None),
        ("a & b", None),
        ("&amp; so", None),
        ("~5 files", None),
        ("_one _two", None),
        ("", None),
    ],
)
def test_strip_accelerator_by_hand(text: str, plain: str | None) -> None:
    assert strip_accelerator(text)[0] == (text if plain is None else plain)


def test_translate_content_protected_mark_keeps_sentence_whole() -> None:
    texts: list[str] = []

    def translate(batch: list[str]) -> list[Alternative]:
        texts.extend(batch)
        return [Alternative(text, alignment=tuple((word, word) for word in range(len(text.split())))) for text in batch]

    raw = 'The <mrk mtype="protected">Acme cat</mrk> sleeps'
    assert run_generator(translate_content(raw, FormatRules()), translate) == raw
    assert texts == ["The Acme cat sleeps"]
