"""Writers of all formats: the pairs read back are the pairs written."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.formats.writers import WRITERS, match_edge_newlines, remove_unsupported_characters, write_pairs
from heedful.data.reader import detect_languages, read_pairs
from heedful.errors import HeedfulError
from tests.data.format_files import pairs

EXTENSIONS = {"jsonl": "jsonl", "csv": "csv", "po": "po", "tmx": "tmx", "xliff": "xlf", "xliff2": "xlf"}
CONTROLS = ["\r\n", "\r", "\n", "\t", "\u2028", "\x85", "\x0b", "\x00", "\x1b", "\x7f", "\ufffe", "\ufeff"]
SCRIPTS = ["صباح", "👩‍👩‍👧", "e\u0301", " ", "  "]
MARKUP = ["\\", '"', "&", "<b>", "]]>", "\\n", "msgid", "#~", "%", "&amp;", ";", ","]
AWKWARD = st.sampled_from(CONTROLS + SCRIPTS + MARKUP)
TEXT = st.lists(st.one_of(AWKWARD, st.text(st.characters(codec="utf-8"), max_size=5)), max_size=8).map("".join)


def test_writers_cover_every_extension() -> None:
    assert set(EXTENSIONS) == set(WRITERS)


@pytest.mark.parametrize("format_name", WRITERS)
@settings(deadline=None)
@given(texts=st.lists(st.tuples(TEXT, TEXT), max_size=4))
@pytest.mark.long
def test_write_pairs_any_text_round_trips(
    tmp_path_factory: pytest.TempPathFactory, format_name: str, texts: list[tuple[str, str]]
) -> None:
    supported_pairs = [
        (remove_unsupported_characters(source, format_name), remove_unsupported_characters(target, format_name))
        for source, target in texts
    ]
    expected = [pair for pair in supported_pairs if pair[0].strip() and pair[1].strip()]
    path = tmp_path_factory.mktemp("written") / f"x.{EXTENSIONS[format_name]}"
    assert write_pairs(expected, path, format_name, ("en", "pt-BR")) == len(expected)
    if format_name == "po":  # source and target have the same leading and trailing newlines
        expected = [(source, match_edge_newlines(source, target)) for source, target in expected]
    assert pairs(path) == expected
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("format_name", WRITERS)
def test_write_pairs_declares_languages_and_compresses(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / f"x.{EXTENSIONS[format_name]}.gz"
    write_pairs([("olá", "hello")], path, format_name, ("pt-BR", "en"))
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert pairs(path) == [("olá", "hello")]
    assert detect_languages([path]) == (None if format_name == "jsonl" else ("pt-BR", "en"))


@pytest.mark.parametrize("format_name", WRITERS)
def test_write_pairs_failure_leaves_no_file(tmp_path: Path, format_name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        write_pairs(((str(1 // number), "x") for number in (1, 0)), tmp_path / "x", format_name, ("en", "de"))
    assert not list(tmp_path.iterdir())


def test_remove_unsupported_characters_by_format() -> None:
    assert remove_unsupported_characters("a\x00b\x0cc\x1fd\ufffee\r\n", "xliff") == "ab c de\r\n"
    assert remove_unsupported_characters("a\x00\x0c", "po") == "a\x0c"


@pytest.mark.long
def test_write_pairs_many_pairs_keep_order(tmp_path: Path) -> None:
    numbered_pairs = [(f"a {number}", f"b {number}") for number in range(5000)]
    for format_name, extension in EXTENSIONS.items():
        path = tmp_path / f"{format_name}.{extension}"
        write_pairs(iter(numbered_pairs), path, format_name, ("en", "de"))
        assert pairs(path) == numbered_pairs


def test_read_pairs_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no such file"):
        list(read_pairs([tmp_path / "x.tmx"]))
