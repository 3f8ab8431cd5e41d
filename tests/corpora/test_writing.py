"""What is written in any format reads back to the same pairs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.corpora.formats import languages_of, read_pairs
from heedful.corpora.writing import WRITERS, fitting, with_edges_of, write_pairs
from heedful.errors import HeedfulError
from tests.corpora.reading_files import pairs

ENDINGS = {"jsonl": "jsonl", "csv": "csv", "po": "po", "tmx": "tmx", "xliff": "xlf", "xliff2": "xlf"}
CONTROLS = ["\r\n", "\r", "\n", "\t", "\u2028", "\x85", "\x0b", "\x00", "\x1b", "\x7f", "\ufffe", "\ufeff"]
SCRIPTS = ["صباح", "👩‍👩‍👧", "e\u0301", " ", "  "]
MARKUP = ["\\", '"', "&", "<b>", "]]>", "\\n", "msgid", "#~", "%", "&amp;", ";", ","]
AWKWARD = st.sampled_from(CONTROLS + SCRIPTS + MARKUP)
TEXT = st.lists(st.one_of(AWKWARD, st.text(st.characters(codec="utf-8"), max_size=5)), max_size=8).map(
    "".join
)


def test_every_format_is_written_and_read() -> None:
    assert set(ENDINGS) == set(WRITERS)


@pytest.mark.parametrize("form", WRITERS)
@given(written=st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_written_pairs_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, form: str, written: list[tuple[str, str]]
) -> None:
    fitted = [(fitting(source, form), fitting(target, form)) for source, target in written]
    kept = [pair for pair in fitted if pair[0].strip() and pair[1].strip()]
    path = tmp_path_factory.mktemp("written") / f"x.{ENDINGS[form]}"
    assert write_pairs(kept, path, form, ("en", "pt-BR")) == len(kept)
    if form == "po":  # both sides of a message begin and end alike
        kept = [(source, with_edges_of(source, target)) for source, target in kept]
    assert pairs(path) == kept
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("form", WRITERS)
def test_languages_are_told_and_gzip_is_packed(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{ENDINGS[form]}.gz"
    write_pairs([("olá", "hello")], path, form, ("pt-BR", "en"))
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert pairs(path) == [("olá", "hello")]
    assert languages_of([path]) == (None if form == "jsonl" else ("pt-BR", "en"))


@pytest.mark.parametrize("form", WRITERS)
def test_a_failed_write_leaves_nothing(tmp_path: Path, form: str) -> None:
    with pytest.raises(ZeroDivisionError):
        write_pairs(((str(1 // number), "x") for number in (1, 0)), tmp_path / "x", form, ("en", "de"))
    assert not list(tmp_path.iterdir())


def test_controls_that_xml_cannot_hold() -> None:
    assert fitting("a\x00b\x0cc\x1fd\ufffee\r\n", "xliff") == "ab c de\r\n"
    assert fitting("a\x00\x0c", "po") == "a\x0c"


def test_many_pairs_in_constant_order(tmp_path: Path) -> None:
    many = [(f"a {number}", f"b {number}") for number in range(5000)]
    for form, ending in ENDINGS.items():
        path = tmp_path / f"{form}.{ending}"
        write_pairs(iter(many), path, form, ("en", "de"))
        assert pairs(path) == many


def test_nothing_is_read_from_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no such file"):
        list(read_pairs([tmp_path / "x.tmx"]))
