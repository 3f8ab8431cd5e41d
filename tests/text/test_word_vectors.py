"""Word vectors: every form there and back, real ones, and every way for a file to be broken."""

import gzip
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.text.word_vectors import (
    Form,
    WordVectors,
    read_dimension,
    read_word_vectors,
    write_word_vectors,
)

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "glove50_sample.txt"
WORDS = ("the", "مرحبا", "世界", "🙂", "l'été", "5", ",")
FORMS: list[Form] = ["glove", "word2vec", "binary"]


def some_vectors(dimension: int = 11) -> WordVectors:
    numbers = np.random.default_rng(3).normal(size=(len(WORDS), dimension)).astype(np.float32)
    return WordVectors(WORDS, numbers)


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def same(one: WordVectors, other: WordVectors) -> bool:
    return one.words == other.words and one.matrix.tobytes() == other.matrix.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dimension", [1, 2, 3, 11, 300])
@pytest.mark.parametrize("form", FORMS)
def test_there_and_back(form: Form, dimension: int, packed: bool, tmp_path: Path) -> None:
    """To the bit; and whatever the name, the beginning of the file says what it is."""
    vectors, path = some_vectors(dimension), tmp_path / "vectors.anything"
    write_word_vectors(path, vectors, form)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    read = read_word_vectors(path)
    assert same(read, vectors)
    assert read.matrix.dtype == np.float32
    assert read_dimension(path) == dimension


def test_forms_by_hand(tmp_path: Path) -> None:
    vectors = WordVectors(("a", "é"), [[1, 0.1], [-2.5, 1e-9]])  # type: ignore[arg-type]
    write_word_vectors(tmp_path / "g", vectors, "glove")
    assert (tmp_path / "g").read_bytes() == "a 1.0 0.1\né -2.5 1e-09\n".encode()
    write_word_vectors(tmp_path / "t", vectors, "word2vec")
    assert (tmp_path / "t").read_bytes() == "2 2\na 1.0 0.1\né -2.5 1e-09\n".encode()
    write_word_vectors(tmp_path / "b", vectors, "binary")
    assert (tmp_path / "b").read_bytes() == (
        b"2 2\na \0\0\x80\x3f\xcd\xcc\xcc\x3d\n\xc3\xa9 \0\0\x20\xc0\x5f\x70\x89\x30\n"
    )


def test_binary_without_line_feeds(tmp_path: Path) -> None:
    """As gensim writes it; word2vec itself ends each word with a line feed."""
    vectors = some_vectors()
    rows = zip(vectors.words, vectors.matrix, strict=True)
    data = b"".join(word.encode() + b" " + row.tobytes() for word, row in rows)
    assert same(read_word_vectors(written(tmp_path / "b", b"7 11\n" + data)), vectors)


def test_binary_larger_than_a_block(tmp_path: Path) -> None:
    words = tuple(f"word{number}" for number in range(6_007))
    numbers = np.random.default_rng(5).normal(size=(6_007, 97)).astype(np.float32)
    vectors = WordVectors(words, numbers)  # 2.3 MB
    write_word_vectors(tmp_path / "b", vectors, "binary")
    assert same(read_word_vectors(tmp_path / "b"), vectors)


@pytest.mark.parametrize("header", ["", "2 3\n"])
@pytest.mark.parametrize(
    ("start", "end"), [("", "\n"), ("\ufeff", "\n"), ("", "\r\n"), ("\ufeff", "\r\n"), ("", " \n")]
)
def test_marks_and_line_ends(start: str, end: str, header: str, tmp_path: Path) -> None:
    lines = [*header.splitlines(), "世界 1 2 3", "🙂\t4  5 6"]
    read = read_word_vectors(written(tmp_path / "v", start + "".join(line + end for line in lines) + "\n"))
    assert read.words == ("世界", "🙂")
    assert read.matrix.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_no_line_feed_at_the_end(tmp_path: Path) -> None:
    assert read_word_vectors(written(tmp_path / "v", "a 1 2\nb 3 4")).matrix.tolist() == [[1, 2], [3, 4]]


def test_words_with_spaces(tmp_path: Path) -> None:
    """As in GloVe 840B; spaces that are not ASCII belong to words too."""
    path = written(tmp_path / "v", ". . . 1 2\nat name@domain.com 3 4\na\u00a0b 5 6\n\u3000 7 8\n")
    vectors = read_word_vectors(path)
    assert vectors.words == (". . .", "at name@domain.com", "a\u00a0b", "\u3000")
    write_word_vectors(tmp_path / "again", vectors)
    assert same(read_word_vectors(tmp_path / "again"), vectors)


def test_first_of_two_wins_and_bad_bytes_are_replaced(tmp_path: Path) -> None:
    vectors = read_word_vectors(written(tmp_path / "v", b"a 1 2\nb\xff 3 4\na 5 6\n"))
    assert vectors.words == ("a", "b\ufffd")
    assert vectors["a"].tolist() == [1, 2]
    latin = read_word_vectors(written(tmp_path / "w", b"1 2\n\xe9t\xe9 3 4\n"))
    assert latin.words == ("\ufffdt\ufffd",)


@pytest.mark.parametrize("form", FORMS)
def test_only_and_limit(form: Form, tmp_path: Path) -> None:
    vectors = some_vectors()
    write_word_vectors(tmp_path / "v", vectors, form)
    some = read_word_vectors(tmp_path / "v", only={"🙂", "the", "absent"})
    assert some.words == ("the", "🙂")
    assert (some["🙂"] == vectors["🙂"]).all()
    assert read_word_vectors(tmp_path / "v", limit=2).words == WORDS[:2]
    assert read_word_vectors(tmp_path / "v", only={"🙂", "5", ","}, limit=2).words == ("🙂", "5")
    assert read_word_vectors(tmp_path / "v", limit=100).words == WORDS
    for none in (read_word_vectors(tmp_path / "v", limit=0), read_word_vectors(tmp_path / "v", only=())):
        assert none.matrix.shape == (0, 11)
        assert none.nearest(np.ones(11)) == []


@pytest.mark.parametrize(
    ("form", "count", "most"), [("glove", 5_000, 500_000), ("binary", 20_000, 4_000_000)]
)
def test_memory_is_taken_for_what_is_kept(form: Form, count: int, most: int, tmp_path: Path) -> None:
    """A fraction of the matrix; binary files are read in blocks of a megabyte."""
    words = tuple(f"word{number}" for number in range(count))
    write_word_vectors(tmp_path / "v", WordVectors(words, np.ones((count, 100), dtype=np.float32)), form)
    tracemalloc.start()
    read_word_vectors(tmp_path / "v", only={"word4999"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < most < 4 * 100 * count


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "v.txt is empty"),
        ("a 1 2\nb 3\n", "v.txt, line 2: 1 numbers, expected 2"),
        ("a 1 2\nb 3 4 5\n", "v.txt, line 2: 3 numbers, expected 2"),
        ("a 1 2\n\nb 3 x\n", "v.txt, line 3: 'x' is no number"),
        ("a 1 x 3\n", "line 1: 'x' is no number"),
        ("a 1 2\nb 3 nan\n", "v.txt, line 2: a number is not finite"),
        ("a 1 2\nb 3 1e99\n", "v.txt, line 2: a number is not finite"),
        ("2 3\na 1 2 3\n", "v.txt has 1 words, but its first line promises 2"),
        ("1 3\na 1 2 3\nb 1 2 3\n", "v.txt has 2 words, but its first line promises 1"),
        ("3 3\n", "v.txt has 0 words, but its first line promises 3"),
        ("2 3\na 1 2\nété 1 2 3\n", "v.txt, line 2: 2 numbers, expected 3"),
        ("2 99999999\n", "promises 99,999,999 numbers a word"),
        ("just some text\n", "line 1: expected a word and its numbers"),
        ("word\n", "line 1: expected a word and its numbers"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "line 1: expected a word and its numbers"),
        (b"PK\x03\x04 glove.6B.50d.txt", "zip archive"),
        (b"x" * (1 << 22), "endless"),
    ],
)
def test_broken_files(content: str | bytes, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", content)
    with pytest.raises(HeedfulError, match=complaint):
        read_word_vectors(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(HeedfulError, match=complaint):
        read_word_vectors(path)


def test_numbers_that_are_not_asked_for_may_be_wrong_but_not_too_few(tmp_path: Path) -> None:
    path = written(tmp_path / "v.txt", "a 1 2\nb 3 x\nc 5\n")
    assert read_word_vectors(path, only={"a"}, limit=1).words == ("a",)
    with pytest.raises(HeedfulError, match=r"line 3: 1 numbers, expected 2"):
        read_word_vectors(path, only={"a"})


@pytest.mark.parametrize("form", FORMS)
def test_every_cut_is_noticed(form: Form, tmp_path: Path) -> None:
    """However short a file with a promise is cut; GloVe has none, there a cut may look like an end."""
    write_word_vectors(tmp_path / "whole", some_vectors(3), form)
    data = (tmp_path / "whole").read_bytes()
    packed = gzip.compress(data)
    for end in range(1, len(packed)):
        with pytest.raises(HeedfulError):
            read_word_vectors(written(tmp_path / "cut", packed[:end]))
    if form == "binary":
        for end in range(len(data) - 1):
            with pytest.raises(HeedfulError):
                read_word_vectors(written(tmp_path / "cut", data[:end]))


def test_binary_that_is_wrong(tmp_path: Path) -> None:
    write_word_vectors(tmp_path / "v.bin", some_vectors(3), "binary")
    data = (tmp_path / "v.bin").read_bytes()
    with pytest.raises(HeedfulError, match=r"v.bin ends in the middle of a word's numbers"):
        read_word_vectors(written(tmp_path / "v.bin", data[:-3]))
    with pytest.raises(HeedfulError, match=r"v.bin has 7 words, but its first line promises 9"):
        read_word_vectors(written(tmp_path / "v.bin", b"9" + data[1:]))
    endless = WordVectors(("a", "b"), np.array([[1, 2], [3, math.inf]], dtype=np.float32))
    write_word_vectors(tmp_path / "v.bin", endless, "binary")
    with pytest.raises(HeedfulError, match=r"v.bin, word 2: a number is not finite"):
        read_word_vectors(tmp_path / "v.bin")


def test_gzip_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "v.gz", gzip.compress(b"a 1 2\nb 3 4\n")[:-9])
    with pytest.raises(HeedfulError, match="damaged gzip file"):
        read_word_vectors(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="no such file"):
        read_word_vectors(tmp_path / "absent.txt")
    with pytest.raises(HeedfulError, match="no ordinary file"):
        read_word_vectors(tmp_path)


@pytest.mark.parametrize("word", ["", " a", "a\n", "a\nb"])
@pytest.mark.parametrize("form", FORMS)
def test_words_that_no_file_can_hold(form: Form, word: str, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="cannot be written"):
        write_word_vectors(tmp_path / "v", WordVectors((word,), np.ones((1, 2), dtype=np.float32)), form)
    assert not (tmp_path / "v").exists()


def test_words_that_one_form_cannot_hold(tmp_path: Path) -> None:
    spaced = WordVectors(("New York",), np.ones((1, 2), dtype=np.float32))
    write_word_vectors(tmp_path / "v", spaced, "glove")
    with pytest.raises(HeedfulError, match="'New York' cannot be written in form 'binary'"):
        write_word_vectors(tmp_path / "v", spaced, "binary")
    numbered = WordVectors(("Route 66",), np.ones((1, 2), dtype=np.float32))
    with pytest.raises(HeedfulError, match="cannot be written"):
        write_word_vectors(tmp_path / "v", numbered, "glove")


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
    """Lengths do not count: the mean of east (1, 0) and north (0, 1), though one is six times as long."""
    assert PLANE.analogy(["east", "north"], count=1) == [("northeast", pytest.approx(1))]
    assert PLANE.analogy("north", "west", count=1) == [("northeast", pytest.approx(1))]
    assert PLANE.analogy(negative="west", count=1) == [("east", 1)]
    assert {word for word, _ in PLANE.analogy(["east"], ["north"])} == {"west", "northeast", "nowhere"}
    with pytest.raises(HeedfulError, match="needs words"):
        PLANE.analogy([])


def test_nearest_matches_a_plain_reference() -> None:
    vectors = some_vectors()
    units = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    query = np.random.default_rng(7).normal(size=11)
    expected = units @ (query / np.linalg.norm(query))
    found = vectors.nearest(query)
    assert [word for word, _ in found] == [WORDS[row] for row in np.argsort(-expected)]
    np.testing.assert_allclose([value for _, value in found], np.sort(expected)[::-1], atol=1e-6)
    np.testing.assert_allclose(vectors.similarities(5 * query), vectors.similarities(query), atol=1e-15)


def test_unknown_words() -> None:
    with pytest.raises(HeedfulError, match=r"'nort' is not among the 5 words of plane.txt") as caught:
        PLANE["nort"]
    assert caught.value.hint == "did you mean 'north'?"
    with pytest.raises(HeedfulError, match="did you mean 'west'"):
        PLANE.nearest("WEST")
    with pytest.raises(HeedfulError, match="'xyz' is not among the 5 words") as caught:
        PLANE.analogy(["east"], ["xyz"])
    assert caught.value.hint == ""


def test_vectors_that_do_not_fit() -> None:
    with pytest.raises(HeedfulError, match=r"shape \(3,\), the words have 2 numbers"):
        PLANE.nearest([1, 2, 3])
    with pytest.raises(HeedfulError, match="not finite"):
        PLANE.nearest([1, math.nan])
    with pytest.raises(HeedfulError, match="do not fit"):
        WordVectors(("a",), np.ones((2, 3), dtype=np.float32))
    with pytest.raises(HeedfulError, match="there twice"):
        WordVectors(("a", "a"), np.ones((2, 3), dtype=np.float32))


def test_looks_like_a_collection() -> None:
    assert "east" in PLANE
    assert "south" not in PLANE
    assert 3 not in PLANE
    assert list(PLANE) == list(PLANE.words)
    assert (len(PLANE), PLANE.dimension) == (5, 2)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the shared folder is not here")
def test_king_and_queen(tmp_path: Path) -> None:
    vectors = read_word_vectors(SAMPLE)
    assert vectors.matrix.shape == (309, 50)
    assert vectors["the"][:3].tolist() == np.array([0.418, 0.24968, -0.41242], dtype=np.float32).tolist()
    assert vectors.analogy(["king", "woman"], ["man"])[0][0] == "queen"
    for form in FORMS:
        write_word_vectors(tmp_path / form, vectors, form)
        assert same(read_word_vectors(tmp_path / form), vectors)
