"""Cleaned pairs to token ids on the disk, without those that are too long for the model: shard by shard.

data/encoding.json    what is encoded, and how: every process that encodes reads it
"""

import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from heedful.corpora.filters import Pair
from heedful.corpora.parts import Mixture
from heedful.corpora.shards import (
    MANIFEST,
    SHARD,
    Manifest,
    ShardSummary,
    checksums,
    damaged_shards,
    is_whole,
    read_shard,
    shard_batches,
    shard_folder,
    write_manifest,
)
from heedful.corpora.store import StoreWriter, TokenStore
from heedful.errors import HeedfulError
from heedful.files import checksum, read_json, sync_folder, write_json
from heedful.model.config import Architecture
from heedful.places import LIMIT
from heedful.progress import Reporter, counted
from heedful.text.tokenizer import PairTokenizer
from heedful.text.trees import encoded_sources
from heedful.training.config import RunConfig
from heedful.training.corpus import CLEANED, Corpus, Numbered, shard_names
from heedful.training.crew import Crew
from heedful.training.learns import Learns
from heedful.training.terms import TermWriter

ENCODED_AT_ONCE = 10_000
TRAINING = "training"
ENCODING = "encoding.json"
_AGAIN = "delete the model folder and train anew"


def encode(
    corpus: Corpus, learns: Learns, config: RunConfig, processes: int, report: Reporter, unit: str
) -> Manifest:
    """Write the token stores of a corpus whose tokenizer is there; those that are finished stay."""
    folder, count = corpus.folder / TRAINING, len(corpus.shards)
    _begin(corpus, learns, config)
    orders = [
        {"task": "encode", "number": number}
        for number in range(count)
        if not _is_finished(shard_folder(folder, number, count))
    ]
    with report.task("encoding", total=sum(corpus.sizes), unit=f"{unit}s") as task:
        Crew(corpus.folder, processes).run(orders, task)
    return write_manifest(folder, count)


def _begin(corpus: Corpus, learns: Learns, config: RunConfig) -> None:
    """Write down what there is to do; shards of something else are forgotten."""
    folder, path = corpus.folder / TRAINING, corpus.folder / ENCODING
    job = {
        "corpus": corpus.to_json(),
        "learns": learns.to_json(),
        "config": config.model_dump(mode="json", exclude={"preparation"}),
        "tokenizer": checksum(corpus.folder / "tokenizer.json"),
    }
    if path.is_file() and read_json(path, _AGAIN) == json.loads(json.dumps(job)):  # which has no tuples
        (folder / MANIFEST).unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(path, job)
    folder.mkdir(exist_ok=True)
    for left in folder.glob("*.partial"):  # by a worker that was ended
        shutil.rmtree(left)


def _is_finished(folder: Path) -> bool:
    if (folder / SHARD).is_file() and is_whole(folder, read_shard(folder)):
        return True
    (folder / SHARD).unlink(missing_ok=True)
    return False


def encode_shard(folder: Path, number: int, advance: Callable[[int], None]) -> None:
    """Encode one shard of the job in a folder: by a worker."""
    job = read_json(folder / ENCODING, _AGAIN)
    corpus, learns = Corpus.from_json(folder, job["corpus"]), Learns.from_json(job["learns"])
    config, count = RunConfig.checked(job["config"]), len(corpus.shards)
    final = shard_folder(folder / TRAINING, number, count)
    aside = final
    if count > 1:
        aside = Path(tempfile.mkdtemp(prefix=f"{number:05}.", suffix=".partial", dir=final.parent))
    terms = TermWriter(
        config.terms,
        lambda: ((part, pair) for part, pair in corpus.of_shard(number) if learns(pair)),
        lambda: ((part, pair) for part, pair in corpus.numbered() if learns(pair)),
    )
    tokenizer = PairTokenizer.load(folder / "tokenizer.json")
    kept, too_long = write_store(terms.pairs(), tokenizer, aside, config.model, advance)
    parts = tuple(kept[part] for part in range(len(corpus.parts)))
    batches = 0
    if count > 1:
        store, seed = TokenStore.open(aside), config.training.seed
        mixture = Mixture(parts, corpus.mixture.shares)
        batches = len(shard_batches(store, number, config.batches, seed, mixture).of_epoch(0))
    summary = ShardSummary(
        parts=parts,
        batches=batches,
        too_long=too_long,
        listed=terms.listed,
        found=terms.found,
        blake2b=checksums(aside),
    )
    write_json(aside / SHARD, summary.model_dump())
    if count > 1:
        sync_folder(aside)
        shutil.rmtree(final, ignore_errors=True)  # a damaged one
        aside.rename(final)


def write_store(
    pairs: Iterable[Numbered],
    tokenizer: PairTokenizer,
    folder: Path,
    model: Architecture,
    advance: Callable[[int], None],
) -> tuple[Counter[int], int]:
    """Write a token store; returns how many pairs of each part it has, and how many were too long."""
    kept: Counter[int] = Counter()
    too_long = 0
    with StoreWriter(folder, *id_limits(tokenizer, model)) as writer:
        for chunk in chunks(pairs, ENCODED_AT_ONCE):
            for (number, _), source, target in zip(chunk, *encoded(chunk, tokenizer), strict=True):
                if max(len(source), len(target)) < model.longest:  # END needs a place too
                    writer.add(source, target)
                    kept[number] += 1
                else:
                    too_long += 1
            advance(len(chunk))
    return kept, too_long


def id_limits(tokenizer: PairTokenizer, model: Architecture) -> tuple[int, int]:
    """What all ids of sources, and of targets, are below."""
    return LIMIT if model.trees else tokenizer.source.size, tokenizer.target.size


def encoded(
    some: Sequence[Numbered], tokenizer: PairTokenizer
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
    """The ids of both sides of some pairs."""
    sources = encoded_sources(tokenizer.source, [pair.read for _, pair in some])
    return sources, tokenizer.target.encode_batch([pair.target for _, pair in some])


def encoding_notes(manifest: Manifest, tokenizer: PairTokenizer, longest: int, unit: str) -> list[str]:
    """What was kept and what was too long, for the report."""
    kept = sum(shard.pairs for shard in manifest.shards)
    too_long = sum(shard.too_long for shard in manifest.shards)
    if not kept:
        raise HeedfulError(
            f"every {unit} has more than {longest} tokens", hint="raise model.longest, or split the sentences"
        )
    shards = f" in {len(manifest.shards)} shards" if len(manifest.shards) > 1 else ""
    notes = [f"{counted(kept, unit)}{shards} to learn from; vocabulary {_vocabulary(tokenizer)}"]
    return notes + [f"dropped {too_long:,}: more than {longest} tokens (model.longest)"] * (too_long > 0)


def mend_stores(folder: Path, processes: int, report: Reporter) -> None:
    """Encode again what is no longer as it was written, if the text of it is."""
    training = folder / TRAINING
    damaged = damaged_shards(training)
    if not damaged:
        return
    manifest = read_json(training / MANIFEST, _AGAIN)
    count = len(manifest["shards"])
    _check_text(folder, [shard_names(count)[number] for number in damaged])
    for number in damaged:
        name = shard_folder(training, number, count)
        report.say(f"token store {name} is damaged; it is encoded again")
    with report.task("encoding") as task:
        Crew(folder, processes).run([{"task": "encode", "number": n} for n in damaged], task)
    if damaged_shards(training):
        raise HeedfulError(f"the prepared corpus in {folder} is damaged", hint=_AGAIN)


def _check_text(folder: Path, names: Sequence[str]) -> None:
    told = read_json(folder / CLEANED, _AGAIN)["blake2b"]
    for name in names:
        if not (folder / name).is_file() or checksum(folder / name) != told[name]:
            raise HeedfulError(f"{folder / name} is damaged, and so is what was made of it", hint=_AGAIN)


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


def chunks(items: Iterable[Numbered], size: int) -> Iterator[list[Numbered]]:
    """So many at a time."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
