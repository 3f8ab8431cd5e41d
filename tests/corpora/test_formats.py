import gzip
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.corpora import lines
from heedful.corpora.formats import (
    check_inputs,
    grouped,
    languages_of,
    read_pairs,
    write_tsv,
)
from heedful.corpora.reading import Reading, Record
from heedful.errors import HeedfulError

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


def pairs_of(*paths: Path) -> list[tuple[str | None, str | None]]:
    return [(record.source, record.target) for record in read_pairs(paths)]


def as_tsv(pairs: list[tuple[str, str]], ending: str = "\n") -> str:
    return "".join(f"{source}\t{target}{ending}" for source, target in pairs)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_tsv_in_every_script(tmp_path: Path, ending: str, mark: bytes) -> None:
    path = write(tmp_path / "pairs.tsv", mark + as_tsv(SCRIPTS, ending).encode())
    assert pairs_of(path) == SCRIPTS


def test_records_know_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\nc\td\tCC-BY Tatoeba #1\tmore")
    assert list(read_pairs([path])) == [
        Record("pairs.tsv", 1, "a", "b"),
        Record("pairs.tsv", 2, "c", "d", heads="CC-BY Tatoeba #1"),
    ]


def test_faults_do_not_stop_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", b"\xff\xfe bad\tx\nno tab here\n\ngood\tgut\n")
    assert list(read_pairs([path])) == [
        Record("pairs.tsv", 1, None, None, "invalid UTF-8"),
        Record("pairs.tsv", 2, None, None, "no tab"),
        Record("pairs.tsv", 3, "", ""),
        Record("pairs.tsv", 4, "good", "gut"),
    ]


def test_a_very_long_line(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "語" * 100_000 + "\tlong\nshort\tkurz\n")
    assert pairs_of(path) == [("語" * 100_000, "long"), ("short", "kurz")]


@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_an_absurdly_long_line_is_passed_over(tmp_path: Path, beyond: int) -> None:
    path = write(tmp_path / "pairs.tsv", b"a\tb\n" + b"x" * (2 * lines.LONGEST_LINE + beyond) + b"\nc\td")
    first, second, third = read_pairs([path])
    assert (first.source, third.source, third.line) == ("a", "c", 3)
    assert second.source is None
    assert second.fault.startswith("line over")


def test_utf16_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\n".encode("utf-16"))
    with pytest.raises(HeedfulError, match="is UTF-16"):
        list(read_pairs([path]))


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz", "pairs.txt"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(as_tsv(SCRIPTS[:2]).encode()) + gzip.compress(as_tsv(SCRIPTS[2:]).encode())
    assert pairs_of(write(tmp_path / name, packed)) == SCRIPTS


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv.gz", gzip.compress(os.urandom(5000))[:-100])
    with pytest.raises(HeedfulError, match="damaged gzip"):
        list(read_pairs([path]))


def test_jsonl_keys(tmp_path: Path) -> None:
    objects = [
        {"source": "a", "target": "b"},
        {"translation": {"en": "c", "de": "d", "fr": "?"}},
        {"en": "e", "de": "f", "id": 3},
    ]
    path = write(tmp_path / "pairs.jsonl", "\n".join(map(json.dumps, objects)))
    found = [(record.source, record.target) for record in read_pairs([path], Reading(("en", "de")))]
    assert found == [("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("line", "fault"),
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
def test_jsonl_faults(tmp_path: Path, line: str, fault: str) -> None:
    path = write(tmp_path / "pairs.jsonl", line + "\n\n")
    assert list(read_pairs([path])) == [
        Record("pairs.jsonl", 1, None, None, fault),
        Record("pairs.jsonl", 2, "", ""),
    ]


def test_parallel_files(tmp_path: Path) -> None:
    source = write(tmp_path / "train.en", b"\xef\xbb\xbfone\r\n\r\nthree\xff\nfour\nfive")
    target = write(tmp_path / "train.de.gz", gzip.compress(b"eins\nzwei\ndrei\nvi\xffer\nf\tnf\n"))
    check_inputs([source, target])
    assert list(read_pairs([source, target])) == [
        Record("train.en", 1, "one", "eins"),
        Record("train.en", 2, "", "zwei"),
        Record("train.en", 3, None, None, "invalid UTF-8"),
        Record("train.de.gz", 4, None, None, "invalid UTF-8"),
        Record("train.en", 5, "five", "f\tnf"),
    ]


def test_unequal_line_counts_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "train.en", "x\n" * 1003)
    target = write(tmp_path / "train.de", "x\n" * 1001 + "x")
    message = re.escape("train.en has 1,003 lines, train.de has 1,002")
    with pytest.raises(HeedfulError, match=message):
        check_inputs([source, target])
    with pytest.raises(HeedfulError, match=message):
        list(read_pairs([source, target]))


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for language, count in (("en", 1), ("de", 0)):
        (tmp_path / language).mkdir()
        write(tmp_path / language / "train.txt", "x\n" * count)
    with pytest.raises(HeedfulError, match=r"en/train.txt has 1 lines, .*de/train.txt has 0"):
        check_inputs([tmp_path / "en" / "train.txt", tmp_path / "de" / "train.txt"])


def test_empty_files_have_no_pairs(tmp_path: Path) -> None:
    empty = [write(tmp_path / name, "") for name in ("a.en", "a.de", "b.tsv")]
    check_inputs(empty)
    assert pairs_of(*empty) == []
    assert lines.count_lines(empty[0]) == 0


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"no such file: .*nowhere\.tsv"):
        check_inputs([tmp_path / "nowhere.tsv"])
    with pytest.raises(HeedfulError, match="is a folder"):
        check_inputs([tmp_path])
    with pytest.raises(HeedfulError, match="no input files"):
        check_inputs([])
    with pytest.raises(HeedfulError, match="only once"):
        check_inputs([Path("-"), Path("-")])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "a\tb\n")
    path.chmod(0)
    with pytest.raises(HeedfulError, match="cannot read"):
        check_inputs([path])


def test_grouping() -> None:
    names = ["a.en", "x.tsv", "a.de", "y.JSONL.gz", "b.en.gz", "b.de.gz", "-"]
    groups = [[path.name for path in group] for group in grouped([Path(name) for name in names])]
    assert groups == [["x.tsv"], ["a.en", "a.de"], ["y.JSONL.gz"], ["b.en.gz", "b.de.gz"], ["-"]]
    with pytest.raises(HeedfulError, match=r"two by two: a\.en, a\.de, b\.en"):
        grouped([Path("a.en"), Path("a.de"), Path("b.en")])


def test_a_lone_file_is_looked_into(tmp_path: Path) -> None:
    tsv = write(tmp_path / "deu.txt", "Go.\tGeh.\tCC-BY\n")
    objects = write(tmp_path / "pairs.json", '\n {"source": "a", "target": "b"}\n')
    check_inputs([tsv])
    check_inputs([objects])
    assert pairs_of(tsv) == [("Go.", "Geh.")]
    assert pairs_of(objects) == [("", ""), ("a", "b")]
    plain = write(tmp_path / "plain.txt", "just a sentence\n")
    with pytest.raises(HeedfulError, match="holds no pairs"):
        pairs_of(plain)
    with pytest.raises(HeedfulError, match="holds no pairs") as caught:
        check_inputs([plain])
    assert "other language" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [b"\nGo.\tGeh.\n", b'\n{"source": "Go.", "target": "Geh."}', gzip.compress(b"\nGo.\tGeh.\r\n", mtime=0)],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes, buffered: bool) -> None:
    stream = io.BytesIO(content)
    stdin = io.TextIOWrapper(io.BufferedReader(stream) if buffered else stream)
    monkeypatch.setattr(sys, "stdin", stdin)
    check_inputs([Path("-")])
    assert list(read_pairs([Path("-")])) == [
        Record("standard input", 1, "", ""),
        Record("standard input", 2, "Go.", "Geh."),
    ]
    assert not stdin.closed
    assert not stream.closed


def test_standard_input_of_a_real_process() -> None:
    code = (
        "from pathlib import Path; from heedful.corpora.formats import read_pairs\n"
        "print([ascii(record.target) for record in read_pairs([Path('-')])])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="a\tä\nb\t字".encode(), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == repr([ascii("ä"), ascii("字")])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_checking_does_not_drain_pipes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_inputs([pipe])  # must not wait for a writer either
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\tb\n",))
    writer.start()
    assert pairs_of(pipe) == [("a", "b")]
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
def test_languages_by_name(names: list[str], languages: tuple[str, str] | None) -> None:
    assert (
        languages_of([Path("folder.fr-it.x", name) if name != "-" else Path(name) for name in names])
        == languages
    )


@pytest.mark.parametrize("name", ["out.tsv", "out.tsv.gz"])
def test_written_pairs_are_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_tsv(SCRIPTS, path) == len(SCRIPTS)
    assert pairs_of(path) == SCRIPTS
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    before = path.read_bytes()
    write_tsv(SCRIPTS, path)
    assert path.read_bytes() == before
    assert [path] == list(tmp_path.iterdir())


def test_breaking_characters_become_spaces_when_written(tmp_path: Path) -> None:
    write_tsv([("a\tb\r", "c\r\nd")], tmp_path / "out.tsv")
    assert pairs_of(tmp_path / "out.tsv") == [("a b ", "c  d")]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path / "out.tsv", "old\talt\n")
    with pytest.raises(ZeroDivisionError):
        write_tsv(((str(1 // number), "x") for number in (1, 0)), path)
    assert pairs_of(path) == [("old", "alt")]
    assert [path] == list(tmp_path.iterdir())
    with pytest.raises(HeedfulError, match="cannot write"):
        write_tsv([], tmp_path / "nowhere" / "out.tsv")


@given(content=st.binary(max_size=60))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = write(folder / "pairs.tsv", b"x\ty\n" + content)
    records = list(read_pairs([path]))
    assert len(records) == lines.count_lines(path)
    assert all((record.source is None) == bool(record.fault) for record in records)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("[2, 0]", "2 0"),
        ("[]", ""),
        ('"2 0"', "2 0"),
        ("[true]", "True"),
        ('{"a": 1}', "{'a': 1}"),
        ("null", "None"),
    ],
)
def test_heads_of_json(tmp_path: Path, heads: str, expected: str) -> None:
    """What is no list of numbers is no list of heads either: cleaning finds that."""
    path = write(tmp_path / "pairs.jsonl", f'{{"source": "a b", "target": "c", "heads": {heads}}}\n')
    assert [record.heads for record in read_pairs([path])] == [expected]
