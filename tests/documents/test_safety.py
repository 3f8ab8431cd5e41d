"""Malicious, malformed and unsupported files; output files are complete or not written."""

import gzip
from pathlib import Path

import pytest

from heedful.documents.translate import detect_document
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.documents.uppercase_translator import translate_file

TMX = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>'
BOMB = "".join(
    f'<!ENTITY e{level} "{f"&e{level - 1};" * 10 if level else "ha"}">' for level in range(9)
)  # a billion laughs


@pytest.mark.parametrize(
    ("head", "text", "problem"),
    [
        (f"<!DOCTYPE tmx [{BOMB}]>", "&e8;", "defines XML entities"),
        ('<!DOCTYPE tmx [<!ENTITY secret SYSTEM "file:///etc/passwd">]>', "&secret;", "defines XML entities"),
        ('<!DOCTYPE tmx [<!ENTITY % more SYSTEM "http://localhost/more.dtd"> %more;]>', "a", "defines XML entities"),
        ("", "&secret;", "line 1: not well-formed XML: undefined entity"),
        ("\n\n", "<b>", "line 3: not well-formed XML: mismatched tag"),
        ("", "<b>" * 5000 + "</b>" * 5000, "too deep"),
        ('<?xml version="1.0" encoding="Shift_JIS"?>', "a", "multi-byte encodings are not supported"),
        ('<?xml version="1.0" encoding="nonsense"?>', "a", "nonsense"),
    ],
)
def test_open_document_malicious_or_malformed_xml_raises(tmp_path: Path, head: str, text: str, problem: str) -> None:
    source = tmp_path / "a.tmx"
    source.write_text(head + TMX.format(text))
    with pytest.raises(HeedfulError, match=problem):
        translate_file(source)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tmx"]


def test_open_document_does_not_fetch_doctype(tmp_path: Path) -> None:
    source = tmp_path / "a.tmx"
    source.write_text('<!DOCTYPE tmx SYSTEM "http://localhost:1/tmx14.dtd">' + TMX.format("dog"))
    assert "<seg>DOG</seg>" in translate_file(source).read_text()


@pytest.mark.parametrize(
    ("data", "format_name"),
    [
        (TMX.format("a").encode(), "TMX"),
        (b"\xef\xbb\xbf \n<!-- c --><x:xliff xmlns:x='urn:oasis:names:tc:xliff:document:2.1'/>", "XLIFF 2"),
        (b"<xliff version='1.0'/>", "XLIFF 1"),
        (("\ufeff" + TMX.format("a")).encode("utf-16-be"), "TMX"),
        (b'# c\r\nmsgid ""\r\n"x"\r\nmsgstr ""\r\n', "PO"),
        (b"<html><body>tmx</body></html>", ""),
        (b"msgid and msgstr are words\n", ""),
        (b"<", ""),
        (b"", ""),
        (b"The dog.\n<tmx>\n", ""),
    ],
)
def test_detect_document_by_content(tmp_path: Path, data: bytes, format_name: str) -> None:
    path = tmp_path / "no-name"
    path.write_bytes(data)
    reader = detect_document(path)
    assert (reader.format_name if reader else "") == format_name


def test_detect_document_gzip_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx.gz"
    path.write_bytes(gzip.compress(TMX.format("a").encode()))
    with pytest.raises(HeedfulError, match="is a gzip file"):
        detect_document(path)
    path.write_bytes(gzip.compress(b"plain text\n"))
    assert detect_document(path) is None


def test_cli_translate_document_rejects_options_and_writes_output(quick_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "a.tmx", tmp_path / "b.tmx"
    source.write_text(TMX.format("The dog %s sleeps."))
    for args, problem in (
        (["-i", source, "-o", source], "would overwrite"),
        (["-i", source, "-o", target, "--n-best", "2"], "do not work with a localization file"),
        (["-i", source, "-o", target, "--retranslate", "x"], "--retranslate cannot be 'x'"),
        (["-i", source, "-o", target, "--languages", "en:de:fr"], "cannot read languages"),
        (["a text", "--mark", "comment"], "require a PO, TMX or XLIFF file"),
    ):
        process = run_heedful("translate", quick_model, *args)
        assert (process.status, problem in process.err) == (1, True), process.err
    assert not target.exists()
    stdout_result = run_heedful("translate", quick_model, "-i", source)
    run_heedful("translate", quick_model, "-i", source, "-o", target)
    assert stdout_result.out == target.read_text(encoding="utf-8")
    assert stdout_result.out.count("%s") == 2
    as_text = run_heedful("translate", quick_model, "-i", source, "--format", "text")
    assert as_text.status == 0
    assert "heedful" not in as_text.out
