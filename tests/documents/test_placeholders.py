"""Whatever a model writes, placeholders, tags and line breaks come out as programs need them."""

import random
from collections import Counter
from pathlib import Path

import polib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.documents.accelerators import without_accelerator
from heedful.documents.format_strings import FormatRules
from heedful.documents.messages import translate_message
from heedful.documents.xml_content import tokens, translate_content
from heedful.text.translated import Translated, drive
from tests.documents.tools import tool

PATIENT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
C = ["%s", "%d", "%-5.2lu", "%%", "%5.1f", "%c", "%'d", "%lld"]
NUMBERED = ["%1$s", "%2$d", "%3$-5.2lu"]
PYTHON = ["%(name)s", "%(count)d", "%%"]
BRACES = ["{0}", "{name}", "{0:>{width}}", "{{", "}}"]
WORDS = [
    "Open",
    "the",
    "file",
    "(now)",
    "--all",
    "file_name",
    "<b>bold</b>",
    "\n",
    "\n  ",
    "\t",
    "  ",
    "été",
    "中文",
]
XML_PARTS = ['<g id="1">', "</g>", '<x id="2"/>', '<ph id="3">%s</ph>', "&amp;", "&lt;b&gt;", "<!-- c -->"]

INVENTED = ["%s", "%", "{", "}", "% d", "{0}", "%2$s", "<b>", "&", "bla", "--all", "_x", '"']


class Babbler:
    """A model that knows nothing: words and placeholders at random, doubled, dropped, invented."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def __call__(self, texts: list[str]) -> list[Translated]:
        return [self._babbled(text) for text in texts]

    def _babbled(self, text: str) -> Translated:
        known = [*text.split(), *INVENTED]
        words = self.chance.choices(known, k=self.chance.randrange(1, 8))
        if self.chance.random() < 0.4:
            words = text.split()
            self.chance.shuffle(words)
        links = [(self.chance.randrange(9), place) for place in range(len(words))]
        return Translated(" ".join(words), tuple(links))


def messages(placeholders: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(WORDS + placeholders), min_size=1, max_size=9).map(" ".join)


@pytest.mark.parametrize(
    ("flag", "placeholders"),
    [
        ("c-format", C),
        ("c-format", NUMBERED),
        ("python-format", PYTHON),
        ("python-brace-format", BRACES),
    ],
)
def test_msgfmt_accepts_what_any_model_writes(tmp_path: Path, flag: str, placeholders: list[str]) -> None:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Content-Transfer-Encoding": "8bit"}
    refused = []

    @PATIENT
    @given(messages(placeholders), st.integers(0, 2**32))
    def fill(text: str, seed: int) -> None:
        result = drive(translate_message(text, FormatRules(flags=(flag,))), Babbler(seed))
        if result is None:
            refused.append(text)
        elif result.strip():
            file.append(polib.POEntry(msgid=text, msgctxt=f"{len(file)}", msgstr=result, flags=[flag]))

    fill()
    file.save(str(tmp_path / "a.po"))
    tool("msgfmt", "--check-format", "-o", "/dev/null", tmp_path / "a.po")
    assert len(file) > 50
    assert len(refused) < 5


@PATIENT
@given(st.lists(st.sampled_from(WORDS + XML_PARTS + C), min_size=1, max_size=9), st.integers(0, 2**32))
def test_elements_are_never_lost(parts: list[str], seed: int) -> None:
    depth, content = 0, []
    for part in parts:
        part = part.replace("<b>", "&lt;b&gt;").replace("</b>", "&lt;/b&gt;")
        if part == "</g>" and not depth:
            continue
        depth += {'<g id="1">': 1, "</g>": -1}.get(part, 0)
        content.append(part)
    raw = " ".join(content + ["</g>"] * depth)
    result = drive(translate_content(raw, FormatRules()), Babbler(seed))
    if result is None:
        return
    kept = [Counter(token.raw for token in tokens(text) if token.kind != "text") for text in (raw, result)]
    assert kept[0] == kept[1]


def test_order_is_kept_where_it_counts() -> None:
    def swapped(texts: list[str]) -> list[Translated]:
        return [Translated(" ".join(reversed(text.split()))) for text in texts]

    rules = FormatRules(flags=("c-format",))
    assert drive(translate_message("take %s and %d away", rules), swapped) == "take %s and %d away"
    assert drive(translate_message("take %1$s and %2$d away", rules), swapped) == "away %2$d and %1$s take"


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
def test_accelerators(text: str, plain: str | None) -> None:
    assert without_accelerator(text)[0] == (text if plain is None else plain)
