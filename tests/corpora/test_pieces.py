"""Pieces of files, and duplicates among them: together they are what the whole is."""

from pathlib import Path

import numpy as np
import pytest

from heedful.corpora.duplicates import first_ones
from heedful.corpora.formats import read_pairs
from heedful.corpora.pieces import pieces_of
from heedful.corpora.reading import Reading


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_pieces_together_are_the_file(size: int, ending: str, tmp_path: Path) -> None:
    rows = ["\ufeffone\tun", "", "no tab", "a\u2028b\tc\x0cd", *(f"{n}\t{'x' * (n % 13)}" for n in range(50))]
    for last in ("", ending):
        (tmp_path / "a.tsv").write_bytes((ending.join(rows) + last).encode())
        for name in ("b.en", "b.fr"):
            (tmp_path / name).write_bytes((ending.join(f"{name} {row}" for row in rows) + last).encode())
        for paths in (["a.tsv"], ["b.en", "b.fr"]):
            given = [tmp_path / name for name in paths]
            pieces = pieces_of(given, size)
            found = [record for piece in pieces for record in piece.records(Reading())]
            assert found == list(read_pairs(given))
            assert len(pieces) == 1 or size < 1000


@pytest.mark.parametrize("at_once", [1, 50, 1 << 22])
def test_the_first_of_those_alike_stays(at_once: int) -> None:
    random = np.random.default_rng(5)
    hashes = [
        (random.integers(1, 90, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        for size in (40, 0, 130, 7)
    ]
    seen: set[int] = set()
    expected = [[not (value in seen or seen.add(value)) for value in each.tolist()] for each in hashes]  # type: ignore[func-returns-value]
    assert [kept.tolist() for kept in first_ones(hashes, at_once)] == expected
    assert first_ones([]) == []
