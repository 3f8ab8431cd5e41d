"""Interoperability with gettext, translate-toolkit and LibreOffice: we read their files, and they read ours.

Tests are skipped if a program is not installed; with HEEDFUL_TOOLS_REQUIRED set, they fail instead.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heedful.data.formats.writers import write_pairs
from heedful.data.reader import detect_languages
from tests.data.format_files import errors, pairs, write

SOURCE = r"""
int main() {
    puts(_("Open the file"));
    puts(_("A text that is so long that the tool has to write it "
           "in more than one line of the catalog, \"quoted\".\n"));
    puts(pgettext("menu", "Close"));
    printf(ngettext("%d file", "%d files", n), n);
    puts(_("Never translated"));
    puts(_("Gone soon"));
}
"""
GERMAN = {"Open the file": "Datei öffnen", "Close": "Schließen", "Gone soon": "Bald fort"}
LONG = 'A text that is so long that the tool has to write it in more than one line of the catalog, "quoted".\n'


def program(name: str) -> str:
    """Path of a program on PATH or in the folder of this Python."""
    beside = Path(sys.executable).parent / name
    result = shutil.which(name) or (str(beside) if beside.exists() else None)
    if result is None:
        if os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            pytest.fail(f"{name} is not installed, but HEEDFUL_TOOLS_REQUIRED is set")
        pytest.skip(f"{name} is not installed")
    return result


def run(folder: Path, name: str, *args: str | Path) -> None:
    process = subprocess.run(
        [program(name), *map(str, args)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONWARNINGS": "ignore"},
    )
    assert process.returncode == 0, process.stderr


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A PO file written by gettext: extracted, initialized, translated, and merged with changed source code."""
    write(tmp_path / "main.c", SOURCE)
    xgettext_args = ("--language=C", "--from-code=UTF-8", "-k_", "-kngettext:1,2", "-kpgettext:1c,2", "-o", "x.pot")
    run(tmp_path, "xgettext", *xgettext_args, "main.c")
    run(tmp_path, "msginit", "--no-translator", "--locale=de_DE.UTF-8", "-i", "x.pot", "-o", "de.po")
    text = (tmp_path / "de.po").read_text(encoding="utf-8")
    for message, translation in GERMAN.items():
        text = text.replace(f'msgid "{message}"\nmsgstr ""', f'msgid "{message}"\nmsgstr "{translation}"')
    text = text.replace('msgstr[0] ""', 'msgstr[0] "%d Datei"').replace('msgstr[1] ""', 'msgstr[1] "%d Dateien"')
    text = text.replace('\\"quoted\\".\\n"\nmsgstr ""', '\\"quoted\\".\\n"\nmsgstr "Ein langer Text\\n"')
    text = text.replace("charset=ASCII", "charset=UTF-8")  # where the locale is not installed
    write(tmp_path / "de.po", text)
    write(tmp_path / "main.c", SOURCE.replace("Gone soon", "Quite new").replace("Open the file", "Open the files"))
    run(tmp_path, "xgettext", *xgettext_args, "main.c")
    run(tmp_path, "msgmerge", "--quiet", "-U", "--backup=none", "de.po", "x.pot")
    return tmp_path / "de.po"


def test_read_po_files_of_gettext(catalog: Path, tmp_path: Path) -> None:
    result = pairs(catalog)
    assert {
        (LONG, "Ein langer Text\n"),
        ("Close", "Schließen"),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
    } <= set(result)
    reasons = [error for _, error in errors(catalog)]
    assert reasons.count("fuzzy") == 1  # "Open the files" is a guess of msgmerge
    assert reasons.count("obsolete") == 1
    assert "not translated" in reasons
    assert ("Open the files", "Datei öffnen") in pairs(catalog, include_fuzzy=True)
    assert detect_languages([catalog]) == ("en", "de")
    run(tmp_path, "msgattrib", "--translated", "--no-fuzzy", "--no-obsolete", "-o", "done.po", catalog)
    assert pairs(tmp_path / "done.po") == result
    assert not errors(tmp_path / "done.po")
    for order in ("little", "big"):
        run(tmp_path, "msgfmt", f"--endianness={order}", "-o", f"{order}.mo", catalog)
        assert sorted(pairs(tmp_path / f"{order}.mo")) == sorted(result)
    run(tmp_path, "msgconv", "--to-code=ISO-8859-1", "-o", "latin.po", catalog)
    assert "ß".encode("latin-1") in (tmp_path / "latin.po").read_bytes()
    assert pairs(tmp_path / "latin.po") == result


AWKWARD = [
    (LONG, "lang\\n\t\n"),
    ("Yes", "Ja"),
    ("Yes", "Doch"),
    ("a\r\nb", "<b>&amp;\x0b</b>"),
    ("family 👩‍👩‍👧", "عائلة"),
]


def test_write_po_is_valid_for_gettext(tmp_path: Path) -> None:
    write_pairs(AWKWARD, tmp_path / "x.po", "po", ("en", "ar"))
    run(tmp_path, "msgfmt", "-o", "x.mo", "x.po")
    assert sorted(pairs(tmp_path / "x.mo")) == sorted(AWKWARD)


def test_write_po_matches_edge_newlines(tmp_path: Path) -> None:
    """As msgfmt requires; newlines inside a message stay."""
    messages = [("Done\n", "Fertig"), ("Go", "\nLos\n"), ("\nStop\n", "Halt"), ("a\n\n", "b\nc\n")]
    write_pairs(messages, tmp_path / "x.po", "po", ("en", "de"))
    run(tmp_path, "msgfmt", "--check", "-o", "x.mo", "x.po")
    result = [("Done\n", "Fertig\n"), ("Go", "Los"), ("\nStop\n", "\nHalt\n"), ("a\n\n", "b\nc\n")]
    assert pairs(tmp_path / "x.po") == result


def test_read_files_of_translate_toolkit(catalog: Path, tmp_path: Path) -> None:
    translated_catalog = tmp_path / "done.po"
    run(tmp_path, "msgattrib", "--translated", "--no-fuzzy", "--no-obsolete", "-o", translated_catalog, catalog)
    expected = sorted(pairs(translated_catalog))
    run(tmp_path, "po2xliff", "--progress=none", "done.po", "done.xlf")
    assert sorted(pairs(tmp_path / "done.xlf")) == expected
    assert detect_languages([tmp_path / "done.xlf"]) == ("en-US", "de")
    run(tmp_path, "po2tmx", "--progress=none", "-l", "de", "done.po", "done.tmx")
    assert sorted(pairs(tmp_path / "done.tmx")) == expected
    run(tmp_path, "po2csv", "--progress=none", "done.po", "done.csv")
    assert sorted(pairs(tmp_path / "done.csv")) == expected
    run(tmp_path, "csv2po", "--progress=none", "done.csv", "again.po")
    assert sorted(pairs(tmp_path / "again.po")) == expected
    run(tmp_path, "po2xliff", "--progress=none", str(catalog), "all.xlf")
    assert set(expected) <= set(pairs(tmp_path / "all.xlf"))
    assert "state needs-translation" in [error for _, error in errors(tmp_path / "all.xlf")]


@pytest.mark.parametrize(("form", "name"), [("tmx", "x.tmx"), ("xliff", "x.xlf"), ("xliff2", "x.xlf")])
def test_write_files_for_translate_toolkit(tmp_path: Path, form: str, name: str) -> None:
    program("po2tmx")  # skips the test if translate-toolkit is not installed
    from translate.storage import factory
    from translate.storage.xliff2 import Xliff2File

    translations = [("Yes & <no>", "Ja"), ("你好", "👩‍👩‍👧")]
    write_pairs(translations, tmp_path / name, form, ("en", "de"))
    with (tmp_path / name).open("rb") as file:
        store = Xliff2File.parsefile(file) if form == "xliff2" else factory.getobject(file)
    assert [(unit.source, unit.target) for unit in store.units] == translations


CELL = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
SHEET = (
    '<?xml version="1.0" encoding="UTF-8"?><office:document office:version="1.3" '
    'office:mimetype="application/vnd.oasis.opendocument.spreadsheet" '
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:spreadsheet>'
    '<table:table table:name="pairs">{}</table:table></office:spreadsheet></office:body></office:document>'
)


def sheet(rows: list[list[str]]) -> str:
    cells = ["".join(CELL.format(text.replace("\n", "</text:p><text:p>")) for text in row) for row in rows]
    return SHEET.format("".join(f"<table:table-row>{row}</table:table-row>" for row in cells))


@pytest.mark.long
def test_read_csv_of_libreoffice(tmp_path: Path) -> None:
    """Semicolons in UTF-8, and commas in Windows-1252."""
    rows = [
        ["nr", "en", "de"],
        ["1", "Size; large", 'Größe "L"'],
        ["2", "two\nlines", "zwei\nZeilen"],
        ["3", "Yes, sir", "Ja"],
    ]
    write(tmp_path / "pairs.fods", sheet(rows))
    profile = f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}"
    for folder, choice in (("utf8", "59,34,76,1"), ("western", "44,34,1,1")):
        (tmp_path / folder).mkdir()
        form = f"csv:Text - txt - csv (StarCalc):{choice}"
        run(tmp_path, "soffice", profile, "--headless", "--convert-to", form, "--outdir", folder, "pairs.fods")
    expected = [(row[1], row[2]) for row in rows[1:]]
    assert pairs(tmp_path / "utf8" / "pairs.csv", ("en", "de")) == expected
    assert pairs(tmp_path / "western" / "pairs.csv", ("en", "de"), encoding="cp1252") == expected
    assert b";" in (tmp_path / "utf8" / "pairs.csv").read_bytes().splitlines()[0]
