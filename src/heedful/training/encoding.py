"""Cleaned pairs to token ids on the disk, without those that are too long for the model."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from heedful.corpora.filters import Pair
from heedful.corpora.store import StoreWriter
from heedful.errors import HeedfulError
from heedful.model.config import Architecture
from heedful.places import LIMIT
from heedful.progress import Reporter, counted
from heedful.text.tokenizer import PairTokenizer
from heedful.text.trees import encoded_sources

ENCODED_AT_ONCE = 10_000

Numbered = tuple[int, Pair]
"""A pair, and the number of its part."""


def encode(
    pairs: Iterable[Numbered],
    tokenizer: PairTokenizer,
    folder: Path,
    model: Architecture,
    report: Reporter,
    unit: str,
) -> tuple[Counter[int], list[str]]:
    """Write the token store; returns how many pairs of each part it has, and says what was too long."""
    kept: Counter[int] = Counter()
    too_long = 0
    longest, trees = model.longest, model.trees
    with (
        StoreWriter(folder, LIMIT if trees else tokenizer.source.size, tokenizer.target.size) as writer,
        report.task("encoding", unit=f"{unit}s") as task,
    ):
        for chunk in _chunks(pairs, ENCODED_AT_ONCE):
            sources = encoded_sources(tokenizer.source, [pair.read for _, pair in chunk])
            targets = tokenizer.target.encode_batch([pair.target for _, pair in chunk])
            for (number, _), source, target in zip(chunk, sources, targets, strict=True):
                if max(len(source), len(target)) < longest:  # END needs a place too
                    writer.add(source, target)
                    kept[number] += 1
                else:
                    too_long += 1
            task.advance(len(chunk))
    if not kept:
        raise HeedfulError(
            f"every {unit} has more than {longest} tokens", hint="raise model.longest, or split the sentences"
        )
    notes = [f"{counted(kept.total(), unit)} to learn from; vocabulary {_vocabulary(tokenizer)}"]
    return kept, notes + [f"dropped {too_long:,}: more than {longest} tokens (model.longest)"] * (
        too_long > 0
    )


def readable_pairs(pairs: Iterable[Pair], tokenizer: PairTokenizer, model: Architecture) -> list[Pair]:
    """Those that are not too long for the model."""
    return [pair for pair in pairs if longest_side(pair, tokenizer) < model.longest]


def longest_side(pair: Pair, tokenizer: PairTokenizer) -> int:
    """Tokens of the longer side of a pair."""
    return max(len(tokenizer.source.encode(pair.source)), len(tokenizer.target.encode(pair.target)))


def _vocabulary(tokenizer: PairTokenizer) -> str:
    if tokenizer.joint:
        return f"{tokenizer.source.size:,}, joint"
    return f"{tokenizer.source.size:,} and {tokenizer.target.size:,}"


def _chunks(items: Iterable[Numbered], size: int) -> Iterator[list[Numbered]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
