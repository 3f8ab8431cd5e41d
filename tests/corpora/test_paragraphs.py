from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from heedful.corpora.filters import CleaningReport, Pair
from heedful.corpora.formats import read_pairs
from heedful.corpora.paragraphs import ParagraphSize, paragraphs
from heedful.corpora.reading import Record

TEXT = st.sampled_from(["", " ", "a", "a b", "ü  c", "字", "x" * 30])


def joined(records: list[Record], size: ParagraphSize) -> tuple[list[Pair], CleaningReport]:
    report = CleaningReport()
    return list(paragraphs(records, size, report)), report


def test_a_blank_line_a_fault_and_a_new_file_divide() -> None:
    records = [
        Record("one", 1, "a", "A"),
        Record("one", 2, "b", "B"),
        Record("one", 3, "", " "),
        Record("one", 4, "c", "C"),
        Record("one", 5, None, None, "no tab"),
        Record("one", 6, "d", "D"),
        Record("one", 7, "", "E"),
        Record("one", 8, "f", "F"),
        Record("two", 1, "g", "G"),
        Record("two", 2, "h", "H"),
    ]
    found, report = joined(records, ParagraphSize(10))
    assert [pair.source for pair in found] == ["a b", "c", "d", "f", "g h"]
    assert [pair.target for pair in found] == ["A B", "C", "D", "F", "G H"]
    assert (report.read, report.kept) == (10, 7)
    assert report.dropped == {"blank line, the end of a paragraph": 1, "no tab": 1, "empty side": 1}


@given(
    texts=st.lists(st.tuples(TEXT, TEXT), max_size=30),
    lines=st.integers(1, 5),
    characters=st.sampled_from([0, 1, 5, 40]),
)
def test_nothing_is_lost_and_nothing_is_too_long(
    texts: list[tuple[str, str]], lines: int, characters: int
) -> None:
    records = [Record("file", number, *pair) for number, pair in enumerate(texts, start=1)]
    found, report = joined(records, ParagraphSize(lines, characters))
    kept = [pair for pair in texts if pair[0].strip() and pair[1].strip()]
    assert report.kept == len(kept)
    for side in (0, 1):
        words = [word for pair in kept for word in pair[side].split()]
        assert " ".join(pair[side] for pair in found).split() == words
    for pair in found:
        alone = any(len(max(one, key=len)) >= len(max(pair, key=len)) for one in texts)
        assert characters == 0 or max(map(len, pair)) <= characters or alone


def test_marks_of_other_systems_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffun\teins\r\ndeux\tzwei\r\n\r\ntrois\tdrei\r\n".encode())
    found, _ = joined(list(read_pairs([path])), ParagraphSize(5))
    assert found == [Pair("un deux", "eins zwei"), Pair("trois", "drei")]
