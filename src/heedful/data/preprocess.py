"""Raw files to token ids: clean all sources, then (given split and tokenizer) encode them, shard by shard.

A corpus smaller than one chunk stays in memory and is preprocessed in this process; a larger one is cleaned
and encoded by a process pool. Both give the same files.

data/train/           token dataset of the training pairs (dataset.py)
data/encoding.json    the encoding task of several processes, while they run
"""

import hashlib
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heedful.data.cleaning import CleaningReport, HashSet, Pair, clean_pairs
from heedful.data.config import CleaningConfig, PreprocessingConfig, PreprocessOptions
from heedful.data.corpus import (
    CLEANED_FILE,
    CLEANED_FOLDER,
    CLEANING_RECORD,
    RETRAIN_HINT,
    Corpus,
    CorpusInputs,
    IndexedPair,
    Mixture,
    check_fractions,
    iter_lines,
    list_shard_names,
    load_cleaned_corpus,
    save_cleaning_record,
    write_corpus,
)
from heedful.data.dataset import (
    MANIFEST_NAME,
    SHARD_SUMMARY_NAME,
    ShardManifest,
    ShardSummary,
    TokenDataset,
    TokenDatasetWriter,
    compute_checksums,
    find_corrupt_shards,
    is_intact,
    read_shard,
    shard_folder,
    write_manifest,
)
from heedful.data.glossary import TermWriter
from heedful.data.parallel_cleaning import clean_in_parallel, delete_chunks
from heedful.data.process_pool import Advance, replace_folder, run_tasks
from heedful.data.reader import files_fingerprint, write_tsv
from heedful.data.sampler import create_shard_sampler
from heedful.data.splits import SplitFilter
from heedful.errors import HeedfulError
from heedful.files import checksum, read_json, write_json
from heedful.progress import ProgressTask, Reporter, format_count
from heedful.tokenization.dependency_trees import SentenceIds, TreeToken, encode_sources
from heedful.tokenization.pair_tokenizer import PairTokenizer, delete_tokenizer, tokenizer_checksums

PAIRS_PER_BATCH = 10_000
CONFIG_FILE = "config.json"
TRAIN_FOLDER = "train"
ENCODING_FILE = "encoding.json"


def clean_corpus(
    inputs: CorpusInputs, folder: Path, cleaning: CleaningConfig, preprocessing: PreprocessingConfig, report: Reporter
) -> tuple[Corpus, list[str]]:
    """Clean all sources, or load what an earlier call cleaned; returns the corpus and report lines."""
    check_fractions(inputs.sources)
    files = files_fingerprint(inputs.paths)
    if (cleaned := load_cleaned_corpus(folder, inputs.sources, files)) is not None:
        return cleaned
    for name in (TRAIN_FOLDER, CLEANED_FOLDER):  # made of other pairs; chunks have their own fingerprints
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (CLEANING_RECORD, CONFIG_FILE):
        (folder / name).unlink(missing_ok=True)
    delete_tokenizer(folder)
    paths = [path for source in inputs.sources for path in source.paths]
    in_parallel = all(path.is_file() for path in paths) and (  # pipes are never split
        sum(path.stat().st_size for path in paths) > preprocessing.chunk_bytes
    )
    clean_sources = clean_in_parallel if in_parallel else _clean_in_memory
    corpus, counts = clean_sources(inputs, folder, cleaning, preprocessing, report)
    prefixes = [f"{source.name}: " * (len(inputs.sources) > 1) for source in inputs.sources]
    lines = [prefix + line for prefix, count in zip(prefixes, counts, strict=True) for line in count.summary_lines()]
    for line in lines:
        report.info(line)
    for source, count in zip(inputs.sources, counts, strict=True):
        if count.accepted < (2 if len(inputs.sources) == 1 else 1):
            hint = f"write one pair per line, source TAB target{' TAB heads' * inputs.trees}; "
            hint = "" if inputs.plain_text else hint
            hint += f"the report above says why {inputs.unit}s were dropped"
            if count.dropped["too long"] > count.read / 2:
                hint = "keep long lines: --set cleaning.max_characters=0 (0 for any length)"
            problem = f"{source.name}: {count.accepted} of {format_count(count.read, inputs.unit)} are usable"
            raise HeedfulError(problem, hint=hint)
    save_cleaning_record(corpus, lines, files)
    if in_parallel:
        delete_chunks(folder)
    return corpus, lines


def _clean_in_memory(
    inputs: CorpusInputs, folder: Path, cleaning: CleaningConfig, preprocessing: PreprocessingConfig, report: Reporter
) -> tuple[Corpus, list[CleaningReport]]:
    """Clean record by record; the pairs stay in memory unless a pipe or archive holds more than a chunk."""
    sources = inputs.sources
    counts, seen_hashes = [CleaningReport(unit=inputs.unit) for _ in sources], HashSet()
    pairs, characters = list[Pair](), 0

    def iter_pairs() -> Iterator[Pair]:
        nonlocal characters
        for source, count in zip(sources, counts, strict=True):
            records = report.track(inputs.read_records(source), "reading", unit=f"{inputs.unit}s")
            for pair in clean_pairs(
                records, cleaning, count, trees=inputs.trees, tags=source.tags, seen_hashes=seen_hashes
            ):
                characters += len(pair.source) + len(pair.target)
                if characters <= preprocessing.chunk_bytes:
                    pairs.append(pair)
                yield pair

    total = write_tsv(iter_pairs(), folder / CLEANED_FILE)
    sizes = tuple(count.accepted for count in counts)
    if total <= preprocessing.shard_pairs:
        return Corpus(folder, sources, (sizes,), tuple(pairs) if len(pairs) == total else None), counts
    corpus = write_corpus(iter_lines(folder / CLEANED_FILE, sizes), folder, sources, total, preprocessing.shard_pairs)
    (folder / CLEANED_FILE).unlink()
    return corpus, counts


@dataclass(frozen=True, slots=True)
class EncodingTask:
    """What to encode, and how."""

    corpus: Corpus
    split_filter: SplitFilter
    tokenizer: PairTokenizer
    options: PreprocessOptions

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the checksums of the tokenizer; how many processes encode is not part of it."""
        return {
            "corpus": self.corpus.to_json(),
            "split_filter": self.split_filter.to_json(),
            "options": self.options.model_dump(mode="json", exclude={"preprocessing"}),
            "tokenizer": tokenizer_checksums(self.corpus.folder),
        }

    @classmethod
    def from_json(cls, folder: Path, state: dict[str, Any]) -> Self:
        return cls(
            Corpus.from_json(folder, state["corpus"]),
            SplitFilter.from_json(state["split_filter"]),
            PairTokenizer.load(folder),
            PreprocessOptions.from_settings(state["options"]),
        )

    @property
    def shard_count(self) -> int:
        return len(self.corpus.shard_sizes)

    @property
    def train_folder(self) -> Path:
        return self.corpus.folder / TRAIN_FOLDER


def encode_corpus(task: EncodingTask, report: Reporter, unit: str) -> ShardManifest:
    """Write the token dataset; complete shards of an earlier call stay."""
    folder, count = task.train_folder, task.shard_count
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    with report.task("encoding", total=sum(task.corpus.sizes), unit=f"{unit}s") as progress:
        if count == 1:
            return write_manifest(folder, [_write_shard(task, 0, folder, progress.advance)])
        _encode_in_parallel(task, range(count), progress)
    return write_manifest(folder, [read_shard(shard_folder(folder, index, count)) for index in range(count)])


def _encode_in_parallel(task: EncodingTask, shard_indices: Sequence[int], progress: ProgressTask) -> None:
    folder, state = task.corpus.folder, task.to_json()
    fingerprint = hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
    missing = []
    for index in shard_indices:
        shard_path = shard_folder(task.train_folder, index, task.shard_count)
        shard = read_shard(shard_path) if (shard_path / SHARD_SUMMARY_NAME).is_file() else None
        if shard is None or shard.fingerprint != fingerprint or not is_intact(shard_path, shard):
            missing.append(index)
    write_json(folder / ENCODING_FILE, state | {"fingerprint": fingerprint})
    run_tasks(encode_shard, folder, missing, task.options.preprocessing.processes, progress)
    (folder / ENCODING_FILE).unlink()


def encode_shard(folder: Path, shard_index: int, advance: Advance) -> None:
    """Encode one shard of the task in a folder: called in a worker."""
    state = read_json(folder / ENCODING_FILE, RETRAIN_HINT)
    task = EncodingTask.from_json(folder, state)
    with replace_folder(shard_folder(task.train_folder, shard_index, task.shard_count)) as partial_folder:
        summary = _write_shard(task, shard_index, partial_folder, advance)
        summary = summary.model_copy(update={"fingerprint": state["fingerprint"]})
        write_json(partial_folder / SHARD_SUMMARY_NAME, summary.model_dump())


def _write_shard(task: EncodingTask, shard_index: int, folder: Path, advance: Advance) -> ShardSummary:
    """Encode the training pairs of a shard into a token dataset."""
    corpus, options = task.corpus, task.options

    def training_pairs(pairs: Iterator[IndexedPair]) -> Iterator[IndexedPair]:
        return ((index, pair) for index, pair in pairs if task.split_filter(pair))

    term_writer = None
    pairs = training_pairs(corpus.iter_shard(shard_index))
    if options.inline_terms.fraction:
        term_writer = TermWriter(
            options.inline_terms,
            lambda: training_pairs(corpus.iter_shard(shard_index)),
            lambda: training_pairs(corpus.iter_with_index()),
        )
        pairs = term_writer.iter_pairs()
    pair_counts, too_long = _write_dataset(pairs, task.tokenizer, folder, options, advance)
    pairs_per_source = tuple(pair_counts[index] for index in range(len(corpus.sources)))
    batch_count = 0
    if task.shard_count > 1:
        dataset, mixture = TokenDataset.open(folder), Mixture(pairs_per_source, corpus.mixture.fractions)
        sampler = create_shard_sampler(dataset, shard_index, options.batching, options.seed, mixture)
        batch_count = len(sampler.epoch_batches(0))
    return ShardSummary(
        pairs_per_source=pairs_per_source,
        batches=batch_count,
        too_long=too_long,
        glossary_term_pairs=term_writer.glossary_term_pairs if term_writer else 0,
        extracted_term_pairs=term_writer.extracted_term_pairs if term_writer else 0,
        blake2b=compute_checksums(folder),
    )


def _write_dataset(
    pairs: Iterable[IndexedPair], tokenizer: PairTokenizer, folder: Path, options: PreprocessOptions, advance: Advance
) -> tuple[Counter[int], int]:
    """Write a token dataset; returns its pairs per source, and how many pairs were too long."""
    pair_counts: Counter[int] = Counter()
    too_long = 0
    source_limit, columns = tokenizer.source.vocab_size, 1
    if options.dependency_trees:
        source_limit, columns = max(source_limit, options.max_length), len(TreeToken._fields)
    with TokenDatasetWriter(folder, source_limit, tokenizer.target.vocab_size, columns) as writer:
        for batch in iter_batches(pairs):
            for (index, _), source, target in zip(batch, *encode_pairs(batch, tokenizer), strict=True):
                if max(len(source), len(target)) < options.max_length:  # leaves room for END
                    writer.add(source, target)
                    pair_counts[index] += 1
                else:
                    too_long += 1
            advance(len(batch))
    return pair_counts, too_long


def iter_batches(pairs: Iterable[IndexedPair]) -> Iterator[list[IndexedPair]]:
    """Lists of ``PAIRS_PER_BATCH`` pairs, which are encoded together."""
    iterator = iter(pairs)
    while batch := list(itertools.islice(iterator, PAIRS_PER_BATCH)):
        yield batch


def encode_pairs(
    pairs: Sequence[IndexedPair], tokenizer: PairTokenizer
) -> tuple[Sequence[SentenceIds], Sequence[Sequence[int]]]:
    """Token ids of both sides."""
    targets = tokenizer.target.encode_batch([pair.target for _, pair in pairs])
    if any(pair.heads for _, pair in pairs):
        return encode_sources(tokenizer.source, [pair.source_with_heads for _, pair in pairs]), targets
    return tokenizer.source.encode_batch([pair.source for _, pair in pairs]), targets


def format_encoding_notes(manifest: ShardManifest, tokenizer: PairTokenizer, max_length: int, unit: str) -> list[str]:
    """How many pairs there are to train on, and how many were too long."""
    pair_count = sum(shard.pairs for shard in manifest.shards)
    too_long = sum(shard.too_long for shard in manifest.shards)
    if not pair_count:
        raise HeedfulError(
            f"every {unit} has more than {max_length} tokens", hint="raise model.max_length, or split the sentences"
        )
    shards = f" in {len(manifest.shards)} shards" if len(manifest.shards) > 1 else ""
    vocabulary = f"{tokenizer.source.vocab_size:,}"
    vocabulary += ", joint" if tokenizer.joint else f" and {tokenizer.target.vocab_size:,}"
    notes = [f"{format_count(pair_count, unit)}{shards} to train on; vocabulary {vocabulary}"]
    if too_long:
        notes.append(f"dropped {too_long:,}: more than {max_length} tokens (model.max_length)")
    return notes


def repair_dataset(task: EncodingTask, report: Reporter) -> None:
    """Encode corrupt shards again, if their text is intact."""
    folder, count = task.train_folder, task.shard_count
    corrupt = find_corrupt_shards(folder)
    if not corrupt:
        return
    expected = read_json(task.corpus.folder / CLEANING_RECORD, RETRAIN_HINT)["blake2b"]
    for index in corrupt:
        name = list_shard_names(count)[index]
        path = task.corpus.folder / name
        if not path.is_file() or checksum(path) != expected[name]:
            raise HeedfulError(f"{path} is corrupt, and so is its token dataset", hint=RETRAIN_HINT)
        report.info(f"token dataset {shard_folder(folder, index, count)} is corrupt; encoding it again")
    with report.task("encoding") as progress:
        if count == 1:
            _write_shard(task, 0, folder, progress.advance)
        else:
            _encode_in_parallel(task, corrupt, progress)
    if find_corrupt_shards(folder):
        raise HeedfulError(f"the token dataset in {folder} is corrupt", hint=RETRAIN_HINT)


def fits_length(pair: Pair, tokenizer: PairTokenizer, max_length: int) -> bool:
    """Whether both sides, with END, have at most ``max_length`` tokens."""
    return max(len(tokenizer.source.encode(pair.source)), len(tokenizer.target.encode(pair.target))) < max_length
