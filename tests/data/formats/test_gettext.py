"""PO and MO: plurals, fuzzy and obsolete entries, character sets, languages, and malformed files."""

import gzip
import struct
from pathlib import Path

import polib
import pytest

from heedful.data.reader import detect_languages
from heedful.errors import HeedfulError
from tests.data.format_files import errors, pairs, records, write

HEADER = r"""msgid ""
msgstr ""
"Language: %s\n"
"Content-Type: text/plain; charset=%s\n"
"Plural-Forms: %s\n"

"""
GERMAN = "nplurals=2; plural=(n != 1);"


def po(body: str, language: str = "de", charset: str = "UTF-8", plural: str = GERMAN) -> str:
    return HEADER % (language, charset, plural) + body


ENTRIES = r"""# a comment
#: main.c:3
msgid "Open \"file\"\n"
msgstr "Datei \"öffnen\"\n"

#, fuzzy
msgid "Close"
msgstr "Auf"

msgctxt "menu"
msgid "Save"
msgstr "Sichern"
msgctxt "button"
msgid "Save"
msgstr "Speichern"

msgid ""
"a long text "
"in two lines"
msgstr ""
"ein langer Text "
"in zwei Zeilen"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

msgid "untranslated"
msgstr ""

#~ msgid "old"
#~ msgstr "alt"
"""


def test_read_po_entries_and_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "de.po", po(ENTRIES))
    assert pairs(path) == [
        ('Open "file"\n', 'Datei "öffnen"\n'),
        ("Save", "Sichern"),
        ("Save", "Speichern"),
        ("a long text in two lines", "ein langer Text in zwei Zeilen"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
    ]
    assert [error for _, error in errors(path)] == ["fuzzy", "not translated", "obsolete"]
    assert ("Close", "Auf") in pairs(path, include_fuzzy=True)
    assert detect_languages([path]) == ("en", "de")
    assert all(record.line > 6 for record in records(path))


def test_read_mo_matches_po(tmp_path: Path) -> None:
    path = write(tmp_path / "de.po", po(ENTRIES))
    polib.pofile(str(path)).save_as_mofile(str(tmp_path / "de.mo"))
    assert sorted(pairs(tmp_path / "de.mo")) == sorted(pairs(path))
    assert detect_languages([tmp_path / "de.mo"]) == ("en", "de")
    path_without_extension = write(tmp_path / "messages", gzip.compress((tmp_path / "de.mo").read_bytes()))
    assert sorted(pairs(path_without_extension)) == sorted(pairs(path))


def test_read_po_languages_decide_direction(tmp_path: Path) -> None:
    path = write(tmp_path / "x.po", po('msgid "a"\nmsgstr "b"\n', language="de_AT"))
    assert detect_languages([path]) == ("en", "de-AT")
    assert pairs(path, ("fr", "de")) == [("a", "b")]
    assert pairs(path, ("de", "en")) == [("b", "a")]
    with pytest.raises(HeedfulError, match="to de_AT, not en to fr"):
        pairs(path, ("en", "fr"))
    path_without_language = write(tmp_path / "y.po", 'msgid "a"\nmsgstr "b"\n')
    assert detect_languages([path_without_language]) is None
    assert pairs(path_without_language, ("en", "fr")) == [("a", "b")]


@pytest.mark.parametrize(
    ("plural", "forms", "one", "many"),
    [
        ("nplurals=1; plural=0;", ["一"], "一", "一"),
        (GERMAN, ["1", "2"], "1", "2"),
        ("nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2);", ["1", "2-4", "5"], "1", "5"),
        ("nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n<11 ? 3 : n<100 ? 4 : 5;", list("012345"), "1", "5"),
        ("nplurals=2; plural=n==1;", ["many", "one"], "one", "many"),
        ("nplurals=2; plural=os.system();", ["1", "2"], "1", "2"),
        ("nplurals=2; plural=n/0;", ["1", "2"], "1", "2"),
        ("nplurals=2; plural=(n >!1);", ["1", "2"], "1", "2"),
        ("", ["1", "2"], "1", "2"),
    ],
)
def test_read_po_plural_forms_give_singular_and_plural_pairs(
    tmp_path: Path, plural: str, forms: list[str], one: str, many: str
) -> None:
    lines = [f'msgstr[{number}] "{form}"' for number, form in enumerate(forms)]
    body = "\n".join(['msgid "file"', 'msgid_plural "files"', *lines, ""])
    path = write(tmp_path / "x.po", po(body, plural=plural))
    assert pairs(path) == [("file", one), ("files", many)]


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1", "KOI8-R", "Shift_JIS"])
def test_read_po_uses_declared_charset(tmp_path: Path, charset: str) -> None:
    text = {"ISO-8859-1": "größer", "KOI8-R": "файл", "Shift_JIS": "ファイル表"}.get(charset, "größer файл 表")
    path = write(tmp_path / "x.po", po(f'msgid "a"\nmsgstr "{text}"\n', charset=charset).encode(charset))
    assert pairs(path) == [("a", text)]


def test_read_po_with_crlf_keeps_other_separators(tmp_path: Path) -> None:
    body = 'msgid "a\u2028b\x85c"\nmsgstr "d\x0be"\n'
    path = write(tmp_path / "messages.txt", "\ufeff" + po(body).replace("\n", "\r\n"))
    assert pairs(path) == [("a\u2028b\x85c", "d\x0be")]


def test_read_po_detected_by_content(tmp_path: Path) -> None:
    long = "# licence\n" * 900
    path = write(tmp_path / "messages.txt", gzip.compress((long + po('msgid "a"\nmsgstr "b"\n')).encode()))
    assert pairs(path) == [("a", "b")]


MALFORMED_ENTRIES = {
    'msgid "bad\nmsgstr "x"': (r"line 11: unbalanced quotes", "malformed entry"),
    'msgid "bad "quote" here"\nmsgstr "x"': (r"line 11: unbalanced quotes", "malformed entry"),
    'msgid "bad"\noops\nmsgstr "x"': (r"line 12: not a valid PO line", "malformed entry"),
    'msgstr "x"': (r"line 11: ", "malformed entry"),
}


@pytest.mark.parametrize("bad", MALFORMED_ENTRIES)
def test_read_po_malformed_entry_raises_or_skips(tmp_path: Path, bad: str) -> None:
    path = write(
        tmp_path / "x.po", po(f'msgid "a"\nmsgstr "b"\n\n\n{bad}\n\nmsgid "c"\nmsgstr "d"\nmsgid "e"\nmsgstr "f"\n')
    )
    problem, error = MALFORMED_ENTRIES[bad]
    with pytest.raises(HeedfulError, match=problem) as caught:
        pairs(path)
    assert "reading.malformed=skip" in caught.value.hint
    assert pairs(path, malformed="skip") == [("a", "b"), ("c", "d"), ("e", "f")]
    assert [error for _, error in errors(path, malformed="skip")] == [error]


def test_read_po_invalid_bytes_raise_or_skip(tmp_path: Path) -> None:
    body = po('msgid "a"\nmsgstr "b"\n\nmsgid "x"\nmsgstr "BAD"\n\nmsgid "c"\nmsgstr "d"\n').encode()
    path = write(tmp_path / "x.po", body.replace(b"BAD", b"gr\xf6"))
    with pytest.raises(HeedfulError, match=r"line 11: invalid UTF-8"):
        pairs(path)
    assert pairs(path, malformed="skip") == [("a", "b"), ("c", "d")]
    with pytest.raises(HeedfulError, match="klingon"):
        pairs(write(tmp_path / "y.po", po('msgid "a"\nmsgstr "b"\n', charset="klingon")))
    bare = write(tmp_path / "z.po", 'msgid "a"\nmsgstr "grö"\n'.encode("cp1252"))
    assert pairs(bare, encoding="cp1252") == [("a", "grö")]


def test_read_po_duplicate_messages_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.po", po('msgid "a"\nmsgstr "b"\n\nmsgid "a"\nmsgstr "c"\n'))
    assert pairs(path) == [("a", "b"), ("a", "c")]


MAGIC = b"\xde\x12\x04\x95"


@pytest.mark.parametrize(
    "data",
    [
        MAGIC,
        MAGIC + struct.pack("<6I", 0, 2**31, 28, 28, 0, 28),
        MAGIC + struct.pack("<6I", 0, 50, 28, 28, 0, 28) + struct.pack("<2I", 900, 28) * 50,
        MAGIC + struct.pack("<6I", 7 << 16, 0, 28, 28, 0, 28),
        b"\x95\x04\x12\xde" + struct.pack("<6I", 0, 2, 28, 28, 0, 28) + bytes(16),
    ],
    ids=["truncated", "too many entries", "overlapping entries", "unknown version", "wrong byte order"],
)
def test_read_mo_corrupt_file_raises_or_skips(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "x.mo", data)
    with pytest.raises(HeedfulError, match="corrupt MO file"):
        pairs(path)
    [(_, error)] = errors(path, malformed="skip")
    assert error.startswith("unreadable file")
