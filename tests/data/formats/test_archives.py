"""Zip archives: the two files of OPUS, TMX or TSV members, and hostile or unusable archives."""

import io
import zipfile
from pathlib import Path

import pytest

from heedful.data.reader import check_inputs, detect_languages, read_pairs
from heedful.errors import HeedfulError
from tests.data.format_files import pairs, records, write


def write_zip(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


MOSES = {
    "README": "about\tit",
    "LICENSE": "free",
    "Bible.de-en.en": "one\ntwo\n",
    "Bible.de-en.de": "eins\nzwei\n",
    "Bible.de-en.ids": "a\nb\n",
    "__MACOSX/._Bible.de-en.en": "x",
}


def test_read_zip_moses_files_are_parallel(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "opus", MOSES)  # no file extension
    check_inputs([path])
    assert detect_languages([path]) == ("de", "en")
    assert pairs(path) == [("eins", "one"), ("zwei", "two")]
    assert pairs(path, ("en", "de")) == [("one", "eins"), ("two", "zwei")]
    assert [(record.origin, record.line) for record in records(path)][1] == ("opus/Bible.de-en.de", 2)


def test_read_zip_three_languages_need_a_choice(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {f"a/x.{code}": f"{code}\n" for code in ("en", "de", "fr")})
    assert pairs(path, ("fr", "de")) == [("fr", "de")]
    with pytest.raises(HeedfulError, match=r"holds no pairs; its members are: a/x\.en, a/x\.de, a/x\.fr"):
        pairs(path, ("en", "it"))


def test_read_zip_reads_files_of_pairs(tmp_path: Path) -> None:
    tmx = '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv>'
    tmx += '<tuv xml:lang="de"><seg>b</seg></tuv></tu></body></tmx>'
    path = write_zip(tmp_path / "x.zip", {"memory.xml": tmx, "more.tsv": "c\td\n", "sub/": "", "INFO": "i"})
    assert pairs(path) == [("a", "b"), ("c", "d")]
    assert detect_languages([path]) == ("en", "de")


def test_read_zip_unequal_line_counts_raise(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"x\.en has 2 lines, x\.de has 1"):
        pairs(write_zip(tmp_path / "x.zip", {"x.en": "a\nb\n", "x.de": "c\n"}))


def test_read_zip_bomb_raises(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {"x.tsv": b"a\tb\n" + bytes(70 << 20)})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(HeedfulError, match="to 73,400,324 bytes"):
        pairs(path)


def test_read_zip_without_pairs_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="holds no pairs") as caught:
        pairs(write_zip(tmp_path / "x.ods", {"content.xml": "<office/>"}))
    assert "save it as CSV" in caught.value.hint
    inner = write_zip(tmp_path / "inner.zip", MOSES).read_bytes()
    with pytest.raises(HeedfulError, match=r"holds no pairs; its members are: inner\.zip"):
        pairs(write_zip(tmp_path / "y.zip", {"inner.zip": inner}))
    with pytest.raises(HeedfulError, match="cannot unpack"):
        pairs(write(tmp_path / "z.zip", inner[:-30]))


def test_read_zip_from_pipe_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    data = write_zip(tmp_path / "x.zip", MOSES).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Pipe(data))))  # type: ignore[arg-type]
    with pytest.raises(HeedfulError, match="cannot be read from a pipe"):
        list(read_pairs([Path("-")]))
