"""CSV: delimiters, quotes, headers, encodings, and malformed files."""

from pathlib import Path

import pytest

from heedful.data.reader import detect_languages
from heedful.errors import HeedfulError
from tests.data.format_files import errors, pairs, records, write

TWO = [("Hello, you; there|now", "Hallo\nda"), ('say "x"', "sag")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_read_csv_with_any_delimiter_and_line_ending_gives_pairs(
    tmp_path: Path, delimiter: str, end: str, mark: str
) -> None:
    rows = [
        ["id", "source", "note", "target"],
        ["1", '"Hello, you; there|now"', "", '"Hallo\nda"'],
        ["2", '"say ""x"""', "n", "sag"],
    ]
    text = mark + end.join(delimiter.join(row) for row in rows) + end
    path = write(tmp_path / "pairs.csv", text)
    assert pairs(path) == TWO
    assert [record.line for record in records(path)] == [3, 4]
    assert pairs(write(tmp_path / "pairs.txt", text)) == TWO


@pytest.mark.parametrize(
    ("header", "languages", "detected"),
    [
        ("source,target", None, None),
        ("SRC,tgt", None, None),
        ("note,Target,Source", None, None),
        ("en,de", None, ("en", "de")),
        ("EN-us,de_DE", None, ("en-US", "de-DE")),
        ("de,en,fr", ("en", "fr"), None),
        ("German,English", ("en", "de"), None),
        ("id,en,de", ("en", "de"), None),
    ],
)
def test_read_csv_header_names_columns(
    tmp_path: Path, header: str, languages: tuple[str, str] | None, detected: tuple[str, str] | None
) -> None:
    names = [name.lower() for name in header.split(",")]
    path = write(tmp_path / "x.csv", f"{header}\n{','.join(names)}\n")
    [record] = records(path, languages)
    expected = {"de,en,fr": ("en", "fr"), "German,English": ("english", "german"), "id,en,de": ("en", "de")}
    columns = expected.get(header) or (("source", "target") if "source" in names else tuple(names))
    assert (record.source, record.target, record.note) == (*columns, "")
    assert detect_languages([path]) == detected


def test_read_csv_with_sep_line_uses_its_delimiter(tmp_path: Path) -> None:
    assert pairs(write(tmp_path / "x.csv", "sep=;\r\nsource;target\r\na,b;c\r\n")) == [("a,b", "c")]


def test_read_csv_two_columns_without_names_add_a_note(tmp_path: Path) -> None:
    first, second = records(write(tmp_path / "x.csv", "Yes;Ja\nNo;Nein\nOh;Ach\n"))
    assert (first.source, second.source) == ("No", "Oh")
    assert first.note == "the first line is read as a header: 'Yes' and 'Ja'"
    assert not second.note


def test_read_csv_unnamed_columns_raise_with_list(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "id,english,german\n1,a,b\n")
    with pytest.raises(HeedfulError, match="'id', 'english', 'german'") as caught:
        pairs(path)
    assert "--languages" in caught.value.hint
    assert pairs(path, ("en", "de")) == [("a", "b")]
    with pytest.raises(HeedfulError, match="which columns"):
        pairs(write(tmp_path / "y.csv", "just text\n"))


def test_read_csv_in_other_encoding_raises_unless_configured(tmp_path: Path) -> None:
    text = "source;target\nsize;größer\nx;y\n"
    path = write(tmp_path / "x.csv", text.encode("cp1252"))
    with pytest.raises(HeedfulError, match="line 2: invalid utf-8") as caught:
        pairs(path)
    assert "reading.encoding=cp1252" in caught.value.hint
    assert pairs(path, encoding="cp1252") == [("size", "größer"), ("x", "y")]
    assert pairs(path, malformed="skip") == [("x", "y")]
    assert errors(path, malformed="skip") == [(2, "invalid in the file's encoding")]
    assert pairs(write(tmp_path / "y.csv", text.encode("utf-16"))) == [("size", "größer"), ("x", "y")]
    with pytest.raises(HeedfulError, match="unknown encoding 'klingon'"):
        pairs(path, encoding="klingon")


def test_read_csv_malformed_rows_raise_or_skip(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", 'source,target\na,b\n"c"oops,d\ne\n\nf,g\n')
    with pytest.raises(HeedfulError, match="line 3"):
        pairs(path)
    assert pairs(path, malformed="skip") == [("a", "b"), ("f", "g")]
    assert errors(path, malformed="skip") == [(3, "malformed row"), (4, "too few columns")]


def test_read_csv_unclosed_quote_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", 'source,target\na,b\n"c,d\n' + "e,f\n" * 60_000)
    with pytest.raises(HeedfulError, match="is a quote not closed"):
        pairs(path)
    with pytest.raises(HeedfulError, match="line 4"):
        pairs(write(tmp_path / "y.csv", 'source,target\na,b\n"c,d\ne,f\n'))
