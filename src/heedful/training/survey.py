"""What is to be known of every pair of a large corpus before it is encoded, found shard by shard.

data/pairs/00000.hashes   of source and target, as they are held out by, 16 bytes a pair
data/pairs/00000.json     written last: characters of each part, and the letters there are
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from heedful.corpora.filters import Pair
from heedful.corpora.hash_split import HashedPairs, split_by_hashes
from heedful.corpora.split import Split, split_hash
from heedful.files import read_json, whole_file, write_json
from heedful.progress import Reporter
from heedful.text.tags import without_tags
from heedful.training.corpus import CLEANED, LINES_AT_ONCE, Corpus, Numbered, lines_of
from heedful.training.crew import Crew

_AGAIN = "delete the model folder and train anew"


@dataclass(frozen=True, slots=True)
class Survey:
    """Of a corpus, or of a shard of it."""

    characters: tuple[int, ...]
    """Of both sides, of each part."""
    alphabet: frozenset[str]

    @classmethod
    def of(cls, pairs: Iterable[Numbered], parts: int) -> "Survey":
        """What these pairs have."""
        characters, alphabet = [0] * parts, set[str]()
        for number, pair in pairs:
            source = without_tags(pair.source)
            characters[number] += len(source) + len(pair.target)
            alphabet.update(source, pair.target)
        return cls(tuple(characters), frozenset(alphabet))


def surveyed(corpus: Corpus, processes: int, report: Reporter, unit: str) -> Survey:
    """Of the whole corpus; the hashes of large ones are written on the way."""
    if len(corpus.shards) == 1:
        return Survey.of(corpus.numbered(), len(corpus.parts))
    orders = [
        {"task": "survey", "number": number}
        for number, path in enumerate(corpus.paths)
        if not path.with_suffix(".json").is_file()
    ]
    with report.task("looking through", total=sum(corpus.sizes), unit=f"{unit}s") as task:
        Crew(corpus.folder, processes).run(orders, task)
    found = [read_json(path.with_suffix(".json"), _AGAIN) for path in corpus.paths]
    characters = zip(*(each["characters"] for each in found), strict=True)
    alphabet = frozenset[str]().union(*(each["alphabet"] for each in found))
    return Survey(tuple(map(sum, characters)), alphabet)


def survey_shard(folder: Path, number: int, advance: Callable[[int], None]) -> None:
    """Look through one shard: by a worker."""
    state = read_json(folder / CLEANED, _AGAIN)
    corpus = Corpus(folder, (), tuple(map(tuple, state["shards"])))
    path = corpus.paths[number]

    def hashed(file: BinaryIO) -> Iterator[Numbered]:
        for count, (part, pair) in enumerate(corpus.of_shard(number), start=1):
            file.write(split_hash(pair.source).to_bytes(8, "little"))
            file.write(split_hash(pair.target).to_bytes(8, "little"))
            yield part, pair
            if count % LINES_AT_ONCE == 0:
                advance(LINES_AT_ONCE)

    with whole_file(path.with_suffix(".hashes")) as file:
        found = Survey.of(hashed(file), len(corpus.shards[number]))
    advance(sum(corpus.shards[number]) % LINES_AT_ONCE)
    write_json(
        path.with_suffix(".json"),
        {"characters": found.characters, "alphabet": "".join(sorted(found.alphabet))},
    )


def split_shards(corpus: Corpus, count: int | None) -> Split:
    """As ``split`` does it, by the hashes on the disk; pairs of some parts may be held out."""
    eligible = [part.held_out for part in corpus.parts]
    shards = [
        HashedPairs(_hashes(path), np.repeat(eligible, sizes))
        for path, sizes in zip(corpus.paths, corpus.shards, strict=True)
    ]
    return split_by_hashes(shards, lambda masks: _pairs_at(corpus, masks), count)


def _hashes(path: Path) -> NDArray[np.uint64]:
    found = np.memmap(path.with_suffix(".hashes"), dtype="<u8", mode="r").view(np.ndarray)
    return found.reshape(-1, 2)


def _pairs_at(corpus: Corpus, masks: Sequence[NDArray[np.bool_]]) -> list[Pair]:
    """The pairs that are marked; only their lines are read as pairs."""
    found = []
    for path, sizes, mask in zip(corpus.paths, corpus.shards, masks, strict=True):
        start = 0
        for _, some in lines_of(path, [sum(sizes)]):
            for index in np.flatnonzero(mask[start : start + len(some)]).tolist():
                found.append(Pair(*some[index].decode().rstrip("\n").split("\t")))
            start += len(some)
    return found
