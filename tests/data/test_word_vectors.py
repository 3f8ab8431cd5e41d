"""Word vectors: round trips in every format, an excerpt of GloVe, and malformed files."""

import gzip
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from heedful.data.word_vectors import VectorFormat, WordVectors, read_dimension, read_word_vectors
from heedful.errors import HeedfulError
from tests.data.word_vector_files import write_word_vectors

GLOVE_EXCERPT = Path(__file__).with_name("glove_excerpt.txt")
"""A few vectors of GloVe 6B, 50 dimensions (public domain)."""
WORDS = ("the", "مرحبا", "世界", "🙂", "l'été", "5", ",")
FORMATS: list[VectorFormat] = ["glove", "word2vec", "binary"]


def some_vectors(dimension: int = 11) -> WordVectors:
    numbers = np.random.default_rng(3).normal(size=(len(WORDS), dimension)).astype(np.float32)
    return WordVectors(WORDS, numbers)


def write_file(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def is_identical(one: WordVectors, other: WordVectors) -> bool:
    return one.words == other.words and one.matrix.tobytes() == other.matrix.tobytes()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dimension", [1, 2, 3, 11, 300])
@pytest.mark.parametrize("file_format", FORMATS)
def test_read_word_vectors_restores_written_numbers(
    file_format: VectorFormat, dimension: int, compressed: bool, tmp_path: Path
) -> None:
    """Bit-exactly; the format is detected from the content, not from the file name."""
    vectors, path = some_vectors(dimension), tmp_path / "vectors.anything"
    write_word_vectors(path, vectors, file_format)
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    copy = read_word_vectors(path)
    assert is_identical(copy, vectors)
    assert copy.matrix.dtype == np.float32
    assert read_dimension(path) == dimension


def test_write_word_vectors_by_hand(tmp_path: Path) -> None:
    vectors = WordVectors(("a", "é"), [[1, 0.1], [-2.5, 1e-9]])  # type: ignore[arg-type]
    write_word_vectors(tmp_path / "g", vectors, "glove")
    assert (tmp_path / "g").read_bytes() == "a 1.0 0.1\né -2.5 1e-09\n".encode()
    write_word_vectors(tmp_path / "t", vectors, "word2vec")
    assert (tmp_path / "t").read_bytes() == "2 2\na 1.0 0.1\né -2.5 1e-09\n".encode()
    write_word_vectors(tmp_path / "b", vectors, "binary")
    assert (tmp_path / "b").read_bytes() == (
        b"2 2\na \0\0\x80\x3f\xcd\xcc\xcc\x3d\n\xc3\xa9 \0\0\x20\xc0\x5f\x70\x89\x30\n"
    )


def test_read_word_vectors_binary_without_line_feeds(tmp_path: Path) -> None:
    """As gensim writes it; word2vec itself ends each word with a line feed."""
    vectors = some_vectors()
    rows = zip(vectors.words, vectors.matrix, strict=True)
    data = b"".join(word.encode() + b" " + row.tobytes() for word, row in rows)
    assert is_identical(read_word_vectors(write_file(tmp_path / "b", b"7 11\n" + data)), vectors)


def test_read_word_vectors_binary_larger_than_a_block(tmp_path: Path) -> None:
    words = tuple(f"word{number}" for number in range(6_007))
    numbers = np.random.default_rng(5).normal(size=(6_007, 97)).astype(np.float32)
    vectors = WordVectors(words, numbers)  # 2.3 MB
    write_word_vectors(tmp_path / "b", vectors, "binary")
    assert is_identical(read_word_vectors(tmp_path / "b"), vectors)


@pytest.mark.parametrize("header", ["", "2 3\n"])
@pytest.mark.parametrize(
    ("start", "end"), [("", "\n"), ("\ufeff", "\n"), ("", "\r\n"), ("\ufeff", "\r\n"), ("", " \n")]
)
def test_read_word_vectors_byte_order_mark_and_line_endings(start: str, end: str, header: str, tmp_path: Path) -> None:
    lines = [*header.splitlines(), "世界 1 2 3", "🙂\t4  5 6"]
    copy = read_word_vectors(write_file(tmp_path / "v", start + "".join(line + end for line in lines) + "\n"))
    assert copy.words == ("世界", "🙂")
    assert copy.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_read_word_vectors_missing_final_line_feed(tmp_path: Path) -> None:
    assert read_word_vectors(write_file(tmp_path / "v", "a 1 2\nb 3 4")).matrix.tolist() == [[1, 2], [3, 4]]


def test_read_word_vectors_words_with_spaces(tmp_path: Path) -> None:
    """As in GloVe 840B; spaces that are not ASCII belong to words too."""
    path = write_file(tmp_path / "v", ". . . 1 2\nat name@domain.com 3 4\na\u00a0b 5 6\n\u3000 7 8\n")
    vectors = read_word_vectors(path)
    assert vectors.words == (". . .", "at name@domain.com", "a\u00a0b", "\u3000")
    write_word_vectors(tmp_path / "again", vectors)
    assert is_identical(read_word_vectors(tmp_path / "again"), vectors)


def test_read_word_vectors_first_duplicate_wins_and_invalid_bytes_are_replaced(tmp_path: Path) -> None:
    vectors = read_word_vectors(write_file(tmp_path / "v", b"a 1 2\nb\xff 3 4\na 5 6\n"))
    assert vectors.words == ("a", "b\ufffd")
    assert vectors["a"].tolist() == [1, 2]
    latin = read_word_vectors(write_file(tmp_path / "w", b"1 2\n\xe9t\xe9 3 4\n"))
    assert latin.words == ("\ufffdt\ufffd",)


@pytest.mark.parametrize("file_format", FORMATS)
def test_read_word_vectors_only_selects_words(file_format: VectorFormat, tmp_path: Path) -> None:
    vectors = some_vectors()
    write_word_vectors(tmp_path / "v", vectors, file_format)
    some = read_word_vectors(tmp_path / "v", only={"🙂", "the", "absent"})
    assert some.words == ("the", "🙂")
    assert (some["🙂"] == vectors["🙂"]).all()
    none = read_word_vectors(tmp_path / "v", only=())
    assert none.matrix.shape == (0, 11)
    assert none.nearest(np.ones(11)) == []


@pytest.mark.parametrize(
    ("file_format", "count", "max_bytes"), [("glove", 5_000, 500_000), ("binary", 20_000, 4_000_000)]
)
def test_read_word_vectors_memory_is_for_selected_words(
    file_format: VectorFormat, count: int, max_bytes: int, tmp_path: Path
) -> None:
    """A fraction of the matrix; binary files are read in blocks of a megabyte."""
    words = tuple(f"word{number}" for number in range(count))
    write_word_vectors(tmp_path / "v", WordVectors(words, np.ones((count, 100), dtype=np.float32)), file_format)
    tracemalloc.start()
    read_word_vectors(tmp_path / "v", only={"word4999"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max_bytes < 4 * 100 * count


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "v.txt is empty"),
        ("a 1 2\nb 3\n", "v.txt, line 2: 1 numbers, expected 2"),
        ("a 1 2\nb 3 4 5\n", "v.txt, line 2: 3 numbers, expected 2"),
        ("a 1 2\n\nb 3 x\n", "v.txt, line 3: 'x' is not a number"),
        ("a 1 x 3\n", "line 1: 'x' is not a number"),
        ("a 1 2\nb 3 nan\n", "v.txt, line 2: non-finite number"),
        ("a 1 2\nb 3 1e99\n", "v.txt, line 2: non-finite number"),
        ("2 3\na 1 2 3\n", "v.txt has 1 words, but its first line declares 2"),
        ("1 3\na 1 2 3\nb 1 2 3\n", "v.txt has 2 words, but its first line declares 1"),
        ("3 3\n", "v.txt has 0 words, but its first line declares 3"),
        ("2 3\na 1 2\nété 1 2 3\n", "v.txt, line 2: 2 numbers, expected 3"),
        ("2 99999999\n", "declares 99,999,999 numbers per word"),
        ("just some text\n", "line 1: expected a word and its numbers"),
        ("word\n", "line 1: expected a word and its numbers"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "line 1: expected a word and its numbers"),
        (b"PK\x03\x04 glove.6B.50d.txt", "zip archive"),
        (b"x" * (1 << 22), "line 1 is too long"),
    ],
)
def test_read_word_vectors_malformed_file_raises(content: str | bytes, problem: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "v.txt", content)
    with pytest.raises(HeedfulError, match=problem):
        read_word_vectors(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(HeedfulError, match=problem):
        read_word_vectors(path)


def test_read_word_vectors_unselected_words_need_only_enough_numbers(tmp_path: Path) -> None:
    path = write_file(tmp_path / "v.txt", "a 1 2\nb 3 x\n")
    assert read_word_vectors(path, only={"a"}).words == ("a",)
    path = write_file(tmp_path / "v.txt", "a 1 2\nb 3 x\nc 5\n")
    with pytest.raises(HeedfulError, match=r"line 3: 1 numbers, expected 2"):
        read_word_vectors(path, only={"a"})


@pytest.mark.parametrize("file_format", FORMATS)
def test_read_word_vectors_truncated_file_raises(file_format: VectorFormat, tmp_path: Path) -> None:
    """Wherever it is cut. Not for uncompressed text: GloVe declares no length, so a cut can look like an end."""
    write_word_vectors(tmp_path / "complete", some_vectors(3), file_format)
    data = (tmp_path / "complete").read_bytes()
    compressed = gzip.compress(data)
    for end in range(1, len(compressed)):
        with pytest.raises(HeedfulError):
            read_word_vectors(write_file(tmp_path / "cut", compressed[:end]))
    if file_format == "binary":
        for end in range(len(data) - 1):
            with pytest.raises(HeedfulError):
                read_word_vectors(write_file(tmp_path / "cut", data[:end]))


def test_read_word_vectors_malformed_binary_raises(tmp_path: Path) -> None:
    write_word_vectors(tmp_path / "v.bin", some_vectors(3), "binary")
    data = (tmp_path / "v.bin").read_bytes()
    with pytest.raises(HeedfulError, match=r"v.bin ends inside a record"):
        read_word_vectors(write_file(tmp_path / "v.bin", data[:-3]))
    with pytest.raises(HeedfulError, match=r"v.bin has 7 words, but its first line declares 9"):
        read_word_vectors(write_file(tmp_path / "v.bin", b"9" + data[1:]))
    infinite_vectors = WordVectors(("a", "b"), np.array([[1, 2], [3, math.inf]], dtype=np.float32))
    write_word_vectors(tmp_path / "v.bin", infinite_vectors, "binary")
    with pytest.raises(HeedfulError, match=r"v.bin, word 2: non-finite number"):
        read_word_vectors(tmp_path / "v.bin")


def test_read_word_vectors_truncated_gzip_raises(tmp_path: Path) -> None:
    path = write_file(tmp_path / "v.gz", gzip.compress(b"a 1 2\nb 3 4\n")[:-9])
    with pytest.raises(HeedfulError, match="corrupt gzip file"):
        read_word_vectors(path)


def test_read_word_vectors_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no such file"):
        read_word_vectors(tmp_path / "absent.txt")
    with pytest.raises(HeedfulError, match="not a regular file"):
        read_word_vectors(tmp_path)


PLANE = WordVectors(
    ("east", "north", "west", "northeast", "nowhere"),
    np.array([[3, 0], [0, 0.5], [-1, 0], [2, 2], [0, 0]], dtype=np.float32),
    "plane.txt",
)


def test_nearest_by_hand() -> None:
    diagonal = pytest.approx(math.sqrt(0.5))
    assert PLANE.nearest("east") == [("northeast", diagonal), ("north", 0), ("nowhere", 0), ("west", -1)]
    assert PLANE.nearest([0, 9], count=2) == [("north", 1), ("northeast", diagonal)]
    assert PLANE.nearest("north", count=1, exclude=["northeast"]) == [("east", 0)]
    assert PLANE.nearest("north", exclude="northeast", count=1) == [("east", 0)]
    assert PLANE.nearest("east", count=0) == []
    assert [similarity for _, similarity in PLANE.nearest("nowhere")] == [0, 0, 0, 0]


def test_analogy_by_hand() -> None:
    """Lengths do not matter: the mean of east (1, 0) and north (0, 1), though one is six times as long."""
    assert PLANE.analogy(["east", "north"], count=1) == [("northeast", pytest.approx(1))]
    assert PLANE.analogy("north", "west", count=1) == [("northeast", pytest.approx(1))]
    assert PLANE.analogy(negative="west", count=1) == [("east", 1)]
    assert {word for word, _ in PLANE.analogy(["east"], ["north"])} == {"west", "northeast", "nowhere"}
    with pytest.raises(HeedfulError, match="needs words"):
        PLANE.analogy([])


def test_nearest_matches_reference() -> None:
    vectors = some_vectors()
    units = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    query = np.random.default_rng(7).normal(size=11)
    expected = units @ (query / np.linalg.norm(query))
    neighbors = vectors.nearest(query)
    assert [word for word, _ in neighbors] == [WORDS[row] for row in np.argsort(-expected)]
    np.testing.assert_allclose([value for _, value in neighbors], np.sort(expected)[::-1], atol=1e-6)
    np.testing.assert_allclose(vectors.similarities(5 * query), vectors.similarities(query), atol=1e-15)


def test_getitem_unknown_word_raises_with_suggestion() -> None:
    with pytest.raises(HeedfulError, match=r"'nort' is not among the 5 words of plane.txt") as caught:
        PLANE["nort"]
    assert caught.value.hint == "did you mean 'north'?"
    with pytest.raises(HeedfulError, match="did you mean 'west'"):
        PLANE.nearest("WEST")
    with pytest.raises(HeedfulError, match="'xyz' is not among the 5 words") as caught:
        PLANE.analogy(["east"], ["xyz"])
    assert caught.value.hint == ""


def test_word_vectors_wrong_shapes_raise() -> None:
    with pytest.raises(HeedfulError, match=r"shape \(3,\), but the vectors have 2 numbers"):
        PLANE.nearest([1, 2, 3])
    with pytest.raises(HeedfulError, match="non-finite"):
        PLANE.nearest([1, math.nan])
    with pytest.raises(HeedfulError, match="do not match"):
        WordVectors(("a",), np.ones((2, 3), dtype=np.float32))
    with pytest.raises(HeedfulError, match="duplicate word"):
        WordVectors(("a", "a"), np.ones((2, 3), dtype=np.float32))


def test_word_vectors_are_a_collection() -> None:
    assert "east" in PLANE
    assert "south" not in PLANE
    assert 3 not in PLANE
    assert list(PLANE) == list(PLANE.words)
    assert (len(PLANE), PLANE.dimension) == (5, 2)


def test_analogy_king_minus_man_plus_woman_is_queen(tmp_path: Path) -> None:
    vectors = read_word_vectors(GLOVE_EXCERPT)
    assert vectors.matrix.shape == (20, 50)
    assert vectors["the"][:3].tolist() == np.array([0.418, 0.24968, -0.41242], dtype=np.float32).tolist()
    assert vectors.analogy(["king", "woman"], ["man"])[0][0] == "queen"
    for file_format in FORMATS:
        write_word_vectors(tmp_path / file_format, vectors, file_format)
        assert is_identical(read_word_vectors(tmp_path / file_format), vectors)
