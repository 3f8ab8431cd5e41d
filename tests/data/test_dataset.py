import json
from pathlib import Path

import numpy as np
import pytest

from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.errors import HeedfulError
from heedful.tokenization.dependency_trees import TreeToken

PAIRS = [([3, 4, 5], [6]), ([], [7, 8]), ([900], []), ([65_534], [1, 2, 3, 4, 5])]


def write_dataset(folder: Path, pairs: list[tuple[list[int], list[int]]], vocabulary: int = 65_535) -> Path:
    with TokenDatasetWriter(folder, vocabulary, 100) as writer:
        for source, target in pairs:
            writer.add(source, target)
    return folder


def contents(dataset: TokenDataset) -> list[tuple[list[int], list[int]]]:
    return [(dataset.source(index).tolist(), dataset.target(index).tolist()) for index in range(len(dataset))]


def test_token_dataset_round_trips(tmp_path: Path) -> None:
    dataset = TokenDataset.open(write_dataset(tmp_path / "new" / "dataset", PAIRS))
    assert contents(dataset) == PAIRS
    assert dataset.source_lengths.tolist() == [3, 0, 1, 1]
    assert dataset.target_lengths.tolist() == [1, 2, 0, 5]
    assert dataset.source_lengths.dtype == np.int32
    assert (dataset.summary.source.tokens, dataset.summary.target.max_length) == (5, 5)
    assert not dataset.source(0).flags.writeable


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65_535, np.uint16), (65_536, np.uint32)])
def test_token_dataset_of_small_vocabulary_uses_two_bytes(tmp_path: Path, vocabulary: int, dtype: type) -> None:
    dataset = TokenDataset.open(write_dataset(tmp_path, PAIRS, vocabulary))
    assert dataset.source(0).dtype == dataset.target(0).dtype == dtype
    assert contents(dataset) == PAIRS


def test_writer_with_more_pairs_than_buffer_writes_all(tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    pairs = [(random.integers(0, 999, random.integers(0, 30)).tolist(), [index % 90]) for index in range(20_000)]
    assert contents(TokenDataset.open(write_dataset(tmp_path, pairs))) == pairs


def test_writer_accepts_numpy_rows(tmp_path: Path) -> None:
    with TokenDatasetWriter(tmp_path, 50, 50) as writer:
        writer.add(np.array([1, 2]), np.array([], dtype=np.int64))
    assert contents(TokenDataset.open(tmp_path)) == [([1, 2], [])]


@pytest.mark.parametrize("pairs", [[], [([], [])]])
def test_empty_dataset_opens(tmp_path: Path, pairs: list[tuple[list[int], list[int]]]) -> None:
    dataset = TokenDataset.open(write_dataset(tmp_path, pairs))
    assert contents(dataset) == pairs
    assert len(dataset.source_lengths) == len(pairs)


@pytest.mark.parametrize("index", [-1, len(PAIRS)])
def test_dataset_index_out_of_range_raises(tmp_path: Path, index: int) -> None:
    dataset = TokenDataset.open(write_dataset(tmp_path, PAIRS))
    with pytest.raises(IndexError):
        dataset.source(index)


def test_open_interrupted_dataset_raises(tmp_path: Path) -> None:
    write_dataset(tmp_path, PAIRS)  # also if it replaces a complete one
    with pytest.raises(ZeroDivisionError), TokenDatasetWriter(tmp_path, 9, 9) as writer:
        writer.add([1], [1 // 0])
    with pytest.raises(HeedfulError, match="incomplete") as caught:
        TokenDataset.open(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["source.ids", "source.offsets", "target.ids", "target.offsets"])
def test_open_truncated_or_missing_file_raises(tmp_path: Path, name: str) -> None:
    path = write_dataset(tmp_path, PAIRS) / name
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(HeedfulError, match=rf"is corrupt: {name} has"):
        TokenDataset.open(tmp_path)
    path.unlink()
    with pytest.raises(HeedfulError, match=rf"is corrupt: {name} has 0 bytes"):
        TokenDataset.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1}', "\udcff"])
def test_open_corrupt_summary_raises(tmp_path: Path, text: str) -> None:
    write_dataset(tmp_path, PAIRS)
    (tmp_path / "dataset.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(HeedfulError, match="corrupt"):
        TokenDataset.open(tmp_path)


def test_open_wrong_summary_raises(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, PAIRS) / "dataset.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"pairs": 99}))
    with pytest.raises(HeedfulError, match="contradicts itself"):
        TokenDataset.open(tmp_path)
    path.write_text(json.dumps(summary | {"version": 2}))
    with pytest.raises(HeedfulError, match="has format 2, not 1"):
        TokenDataset.open(tmp_path)
    path.write_text(json.dumps(summary))
    offsets = tmp_path / "target.offsets"
    offsets.write_bytes(bytes(offsets.stat().st_size))
    with pytest.raises(HeedfulError, match="sentences end at"):
        TokenDataset.open(tmp_path)


def test_writer_in_unwritable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeedfulError, match="cannot write token dataset"):
        TokenDatasetWriter(tmp_path / "file" / "dataset", 9, 9)


def test_dataset_keeps_dependency_trees_as_columns(tmp_path: Path) -> None:
    trees = [[TreeToken(7, 1, 2), TreeToken(65_534, 2, 0)], [], [TreeToken(9, 1, 0)]]
    with TokenDatasetWriter(tmp_path, 65_535, 100, source_columns=3) as writer:
        for tree in trees:
            writer.add(tree, [6])
    dataset = TokenDataset.open(tmp_path)
    assert [[tuple(row) for row in source] for source, _ in contents(dataset)] == trees
    assert (dataset.source(1).shape, dataset.target(1).tolist()) == ((0, 3), [6])
    assert (dataset.summary.source.tokens, dataset.max_source_length) == (3, 2)
    assert dataset.source_lengths.tolist() == [2, 0, 1]
