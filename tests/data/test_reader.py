import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.formats import lines
from heedful.data.formats.base import PairRecord, ReadOptions
from heedful.data.reader import check_inputs, detect_languages, group_parallel_files, read_pairs, split_files, write_tsv
from heedful.errors import HeedfulError

NOBODY = 65534
SCRIPTS = [
    ("Good morning", "صباح الخير"),
    ("你好，世界", "Hello, world"),
    ("family 👩‍👩‍👧 emoji", "Familie 👩‍👩‍👧"),
    ("cafe\u0301", "e\u0323\u0302"),
    ("line\u2028separator", "next\x85line\x0btab\x0c."),
]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_texts(*paths: Path) -> list[tuple[str | None, str | None]]:
    return [(record.source, record.target) for record in read_pairs(paths)]


def as_tsv(pairs: list[tuple[str, str]], ending: str = "\n") -> str:
    return "".join(f"{source}\t{target}{ending}" for source, target in pairs)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_read_pairs_tsv_in_every_script(tmp_path: Path, ending: str, mark: bytes) -> None:
    path = write(tmp_path / "pairs.tsv", mark + as_tsv(SCRIPTS, ending).encode())
    assert read_texts(path) == SCRIPTS


def test_read_pairs_records_have_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\nc\td\tCC-BY Tatoeba #1\tmore")
    assert list(read_pairs([path])) == [
        PairRecord("pairs.tsv", 1, "a", "b"),
        PairRecord("pairs.tsv", 2, "c", "d", heads="CC-BY Tatoeba #1"),
    ]


def test_read_pairs_continues_after_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", b"\xff\xfe bad\tx\nno tab here\n\ngood\tgut\n")
    assert list(read_pairs([path])) == [
        PairRecord("pairs.tsv", 1, None, None, "invalid UTF-8"),
        PairRecord("pairs.tsv", 2, None, None, "no tab"),
        PairRecord("pairs.tsv", 3, "", ""),
        PairRecord("pairs.tsv", 4, "good", "gut"),
    ]


def test_read_pairs_long_line_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "語" * 100_000 + "\tlong\nshort\tkurz\n")
    assert read_texts(path) == [("語" * 100_000, "long"), ("short", "kurz")]


@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_read_pairs_too_long_line_is_an_error_record(tmp_path: Path, beyond: int) -> None:
    path = write(tmp_path / "pairs.tsv", b"a\tb\n" + b"x" * (2 * lines.MAX_LINE_BYTES + beyond) + b"\nc\td")
    first, second, third = read_pairs([path])
    assert (first.source, third.source, third.line) == ("a", "c", 3)
    assert second.source is None
    assert second.error.startswith("line over")


def test_read_pairs_utf16_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\n".encode("utf-16"))
    with pytest.raises(HeedfulError, match="is UTF-16"):
        list(read_pairs([path]))


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz", "pairs.txt"])
def test_read_pairs_gzip_detected_by_content(tmp_path: Path, name: str) -> None:
    compressed = gzip.compress(as_tsv(SCRIPTS[:2]).encode()) + gzip.compress(as_tsv(SCRIPTS[2:]).encode())
    assert read_texts(write(tmp_path / name, compressed)) == SCRIPTS


def test_read_pairs_corrupt_gzip_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv.gz", gzip.compress(os.urandom(5000))[:-100])
    with pytest.raises(HeedfulError, match="corrupt gzip"):
        list(read_pairs([path]))


def test_read_jsonl_accepts_source_target_translation_and_language_keys(tmp_path: Path) -> None:
    objects = [
        {"source": "a", "target": "b"},
        {"translation": {"en": "c", "de": "d", "fr": "?"}},
        {"en": "e", "de": "f", "id": 3},
    ]
    path = write(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, objects)))
    pairs = [(record.source, record.target) for record in read_pairs([path], ReadOptions(("en", "de")))]
    assert pairs == [("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{oops", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5000, "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"target": "x"}', "no field 'source'"),
        ('{"source": "x"}', "no field 'target'"),
        ('{"translation": {"source": "x"}}', "no field 'target'"),
        ('{"translation": 3}', "no field 'source'"),
        ('{"source": "x", "target": null}', "field 'target' is not text"),
        ('{"source": "\\ud800", "target": "x"}', "invalid Unicode"),
    ],
)
def test_read_jsonl_invalid_line_is_an_error_record(tmp_path: Path, line: str, error: str) -> None:
    path = write(tmp_path / "pairs.jsonl", line + "\n\n")
    assert list(read_pairs([path])) == [
        PairRecord("pairs.jsonl", 1, None, None, error),
        PairRecord("pairs.jsonl", 2, "", ""),
    ]


def test_read_pairs_parallel_files_are_joined_by_line(tmp_path: Path) -> None:
    source = write(tmp_path / "train.en", b"\xef\xbb\xbfone\r\n\r\nthree\xff\nfour\nfive")
    target = write(tmp_path / "train.de.gz", gzip.compress(b"eins\nzwei\ndrei\nvi\xffer\nf\tnf\n"))
    check_inputs([source, target])
    assert list(read_pairs([source, target])) == [
        PairRecord("train.en", 1, "one", "eins"),
        PairRecord("train.en", 2, "", "zwei"),
        PairRecord("train.en", 3, None, None, "invalid UTF-8"),
        PairRecord("train.de.gz", 4, None, None, "invalid UTF-8"),
        PairRecord("train.en", 5, "five", "f\tnf"),
    ]


def test_read_pairs_unequal_line_counts_raise(tmp_path: Path) -> None:
    source = write(tmp_path / "train.en", "x\n" * 1003)
    target = write(tmp_path / "train.de", "x\n" * 1001 + "x")
    message = re.escape("train.en has 1,003 lines, train.de has 1,002")
    with pytest.raises(HeedfulError, match=message):
        check_inputs([source, target])
    with pytest.raises(HeedfulError, match=message):
        list(read_pairs([source, target]))


def test_check_inputs_with_equal_file_names_reports_full_paths(tmp_path: Path) -> None:
    for language, count in (("en", 1), ("de", 0)):
        (tmp_path / language).mkdir()
        write(tmp_path / language / "train.txt", "x\n" * count)
    with pytest.raises(HeedfulError, match=r"en/train.txt has 1 lines, .*de/train.txt has 0"):
        check_inputs([tmp_path / "en" / "train.txt", tmp_path / "de" / "train.txt"])


def test_read_pairs_empty_files_have_no_pairs(tmp_path: Path) -> None:
    empty = [write(tmp_path / name, "") for name in ("a.en", "a.de", "b.tsv")]
    check_inputs(empty)
    assert read_texts(*empty) == []
    assert lines.count_lines(empty[0]) == 0


def test_check_inputs_missing_files_and_folders_raise(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"no such file: .*nowhere\.tsv"):
        check_inputs([tmp_path / "nowhere.tsv"])
    with pytest.raises(HeedfulError, match="is a folder"):
        check_inputs([tmp_path])
    with pytest.raises(HeedfulError, match="no input files"):
        check_inputs([])
    with pytest.raises(HeedfulError, match="only once"):
        check_inputs([Path("-"), Path("-")])


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")
def test_check_inputs_unreadable_file_raises() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = write(folder / "pairs.tsv", "a\tb\n")
        path.chmod(0)
        user = os.geteuid()
        os.seteuid(user or NOBODY)  # root can read any file
        try:
            with pytest.raises(HeedfulError, match="cannot read"):
                check_inputs([path])
        finally:
            os.seteuid(user)


def test_group_parallel_files_pairs_and_singles() -> None:
    names = ["a.en", "x.tsv", "a.de", "y.JSONL.gz", "b.en.gz", "b.de.gz", "-"]
    groups = [[path.name for path in group] for group in group_parallel_files([Path(name) for name in names])]
    assert groups == [["x.tsv"], ["a.en", "a.de"], ["y.JSONL.gz"], ["b.en.gz", "b.de.gz"], ["-"]]
    with pytest.raises(HeedfulError, match=r"odd number: a\.en, a\.de, b\.en"):
        group_parallel_files([Path("a.en"), Path("a.de"), Path("b.en")])


def test_read_pairs_single_file_is_detected_by_content(tmp_path: Path) -> None:
    tsv = write(tmp_path / "deu.txt", "Go.\tGeh.\tCC-BY\n")
    objects = write(tmp_path / "pairs.json", '\n {"source": "a", "target": "b"}\n')
    check_inputs([tsv])
    check_inputs([objects])
    assert read_texts(tsv) == [("Go.", "Geh.")]
    assert read_texts(objects) == [("", ""), ("a", "b")]
    plain = write(tmp_path / "plain.txt", "just a sentence\n")
    with pytest.raises(HeedfulError, match="holds no pairs"):
        read_texts(plain)
    with pytest.raises(HeedfulError, match="holds no pairs") as caught:
        check_inputs([plain])
    assert "other language" in caught.value.hint


@pytest.mark.parametrize(
    "content", [b"\nGo.\tGeh.\n", b'\n{"source": "Go.", "target": "Geh."}', gzip.compress(b"\nGo.\tGeh.\r\n", mtime=0)]
)
@pytest.mark.parametrize("buffered", [True, False])
def test_read_pairs_from_stdin_detects_format(monkeypatch: pytest.MonkeyPatch, content: bytes, buffered: bool) -> None:
    stream = io.BytesIO(content)
    stdin = io.TextIOWrapper(io.BufferedReader(stream) if buffered else stream)
    monkeypatch.setattr(sys, "stdin", stdin)
    check_inputs([Path("-")])
    assert list(read_pairs([Path("-")])) == [
        PairRecord("standard input", 1, "", ""),
        PairRecord("standard input", 2, "Go.", "Geh."),
    ]
    assert not stdin.closed
    assert not stream.closed


def test_read_pairs_from_stdin_of_a_process_decodes_utf8() -> None:
    code = (
        "from pathlib import Path; from heedful.data.reader import read_pairs\n"
        "print([ascii(record.target) for record in read_pairs([Path('-')])])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], input="a\tä\nb\t字".encode(), capture_output=True, check=True
    )
    assert process.stdout.decode().strip() == repr([ascii("ä"), ascii("字")])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_check_inputs_does_not_read_pipes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_inputs([pipe])  # must not block until there is a writer
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\tb\n",))
    writer.start()
    assert read_texts(pipe) == [("a", "b")]
    writer.join()


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (["train.en", "train.de"], ("en", "de")),
        (["train.en.gz", "train.de"], ("en", "de")),
        (["train.en.txt", "train.de.txt"], ("en", "de")),
        (["europarl.de-en.en", "europarl.de-en.de"], ("en", "de")),
        (["en", "de"], ("en", "de")),
        (["flores.eng_Latn", "flores.yor_Latn"], ("eng_Latn", "yor_Latn")),
        (["pairs.en-de.tsv"], ("en", "de")),
        (["en-de.jsonl"], ("en", "de")),
        (["news.en-pt_BR.tsv.gz"], ("en", "pt_BR")),
        (["a.en-de.tsv", "-", "b.en", "b.de"], ("en", "de")),
        (["a.en-de.tsv", "b.de-en.tsv"], None),
        (["my-own.tsv"], None),
        (["pairs.tsv"], None),
        (["a.txt", "b.txt"], None),
        (["train.src", "train.tgt"], None),
        (["train.en", "other.de"], None),
        (["train.en", "train.en"], None),
        (["-"], None),
    ],
)
def test_detect_languages_by_file_name(names: list[str], languages: tuple[str, str] | None) -> None:
    assert (
        detect_languages([Path("folder.fr-it.x", name) if name != "-" else Path(name) for name in names]) == languages
    )


@pytest.mark.parametrize("name", ["out.tsv", "out.tsv.gz"])
def test_write_tsv_any_text_round_trips(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_tsv(SCRIPTS, path) == len(SCRIPTS)
    assert read_texts(path) == SCRIPTS
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    before = path.read_bytes()
    write_tsv(SCRIPTS, path)
    assert path.read_bytes() == before
    assert [path] == list(tmp_path.iterdir())


def test_write_tsv_replaces_tabs_and_line_breaks(tmp_path: Path) -> None:
    write_tsv([("a\tb\r", "c\r\nd")], tmp_path / "out.tsv")
    assert read_texts(tmp_path / "out.tsv") == [("a b ", "c  d")]


def test_write_tsv_failure_keeps_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "out.tsv", "old\talt\n")
    with pytest.raises(ZeroDivisionError):
        write_tsv(((str(1 // number), "x") for number in (1, 0)), path)
    assert read_texts(path) == [("old", "alt")]
    assert [path] == list(tmp_path.iterdir())
    with pytest.raises(HeedfulError, match="cannot write"):
        write_tsv([], tmp_path / "nowhere" / "out.tsv")


@settings(deadline=None)
@given(content=st.binary(max_size=60))
def test_read_pairs_any_bytes_give_records_or_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = write(folder / "pairs.tsv", b"x\ty\n" + content)
    records = list(read_pairs([path]))
    assert len(records) == lines.count_lines(path)
    assert all((record.source is None) == bool(record.error) for record in records)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [("[2, 0]", "2 0"), ("[]", ""), ('"2 0"', "2 0"), ("[true]", "True"), ('{"a": 1}', "{'a': 1}"), ("null", "None")],
)
def test_read_jsonl_heads_become_text(tmp_path: Path, heads: str, expected: str) -> None:
    """Values that are not lists of numbers are kept as text; cleaning rejects them."""
    path = write(tmp_path / "pairs.jsonl", f'{{"source": "a b", "target": "c", "heads": {heads}}}\n')
    assert [record.heads for record in read_pairs([path])] == [expected]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_split_files_chunks_give_all_records(chunk_bytes: int, ending: str, tmp_path: Path) -> None:
    rows = ["\ufeffone\tun", "", "no tab", "a\u2028b\tc\x0cd", *(f"{n}\t{'x' * (n % 13)}" for n in range(50))]
    for last in ("", ending):
        (tmp_path / "a.tsv").write_bytes((ending.join(rows) + last).encode())
        for name in ("b.en", "b.fr"):
            (tmp_path / name).write_bytes((ending.join(f"{name} {row}" for row in rows) + last).encode())
        for paths in (["a.tsv"], ["b.en", "b.fr"]):
            files = [tmp_path / name for name in paths]
            chunks = split_files(files, chunk_bytes)
            records = [record for chunk in chunks for record in chunk.read_records(ReadOptions())]
            assert records == list(read_pairs(files))
            assert len(chunks) == 1 or chunk_bytes < 1000
