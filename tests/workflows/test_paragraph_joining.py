"""Joining consecutive lines to paragraphs: boundaries, limits, byte-order marks."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from heedful.data.cleaning import CleaningReport, Pair
from heedful.data.formats.base import PairRecord
from heedful.data.reader import read_pairs
from heedful.workflows.corpus import ParagraphSize, join_paragraphs

TEXT = st.sampled_from(["", " ", "a", "a b", "ü  c", "字", "x" * 30])


def run_joining(records: list[PairRecord], size: ParagraphSize) -> tuple[list[Pair], CleaningReport]:
    report = CleaningReport()
    return list(join_paragraphs(records, size, report)), report


def test_paragraphs_end_at_blank_lines_errors_and_files() -> None:
    records = [
        PairRecord("one", 1, "a", "A"),
        PairRecord("one", 2, "b", "B"),
        PairRecord("one", 3, "", " "),
        PairRecord("one", 4, "c", "C"),
        PairRecord("one", 5, None, None, "no tab"),
        PairRecord("one", 6, "d", "D"),
        PairRecord("one", 7, "", "E"),
        PairRecord("one", 8, "f", "F"),
        PairRecord("two", 1, "g", "G"),
        PairRecord("two", 2, "h", "H"),
    ]
    paragraphs, report = run_joining(records, ParagraphSize(10))
    assert [pair.source for pair in paragraphs] == ["a b", "c", "d", "f", "g h"]
    assert [pair.target for pair in paragraphs] == ["A B", "C", "D", "F", "G H"]
    assert (report.read, report.accepted) == (10, 7)
    assert report.dropped == {"blank line (ends a paragraph)": 1, "no tab": 1, "empty side": 1}


@given(
    texts=st.lists(st.tuples(TEXT, TEXT), max_size=30),
    lines=st.integers(1, 5),
    characters=st.sampled_from([0, 1, 5, 40]),
)
def test_paragraphs_keep_all_text_within_limits(texts: list[tuple[str, str]], lines: int, characters: int) -> None:
    records = [PairRecord("file", number, *pair) for number, pair in enumerate(texts, start=1)]
    paragraphs, report = run_joining(records, ParagraphSize(lines, characters))
    accepted = [pair for pair in texts if pair[0].strip() and pair[1].strip()]
    assert report.accepted == len(accepted)
    for side in (0, 1):
        expected_words = [word for pair in accepted for word in pair[side].split()]
        assert " ".join(pair[side] for pair in paragraphs).split() == expected_words
    for pair in paragraphs:
        is_single_line = any(len(max(text, key=len)) >= len(max(pair, key=len)) for text in texts)
        assert characters == 0 or max(map(len, pair)) <= characters or is_single_line


def test_paragraphs_strip_byte_order_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffun\teins\r\ndeux\tzwei\r\n\r\ntrois\tdrei\r\n".encode())
    paragraphs, _ = run_joining(list(read_pairs([path])), ParagraphSize(5))
    assert paragraphs == [Pair("un deux", "eins zwei"), Pair("trois", "drei")]
