"""Large corpora: cleaned in pieces and kept in shards by any number of processes, through every kill."""

import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from heedful.data.config import CleaningConfig, PreprocessingConfig
from heedful.data.corpus import CLEANING_RECORD, PREPROCESSED_FILE, CorpusInputs, CorpusSource, make_sources
from heedful.data.dataset import ShardedTokenDataset, find_corrupt_shards
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.parallel_cleaning import compute_statistics
from heedful.data.preprocess import CONFIG_FILE, clean_corpus
from heedful.data.process_pool import run_tasks
from heedful.data.reader import write_tsv
from heedful.data.splits import split_by_shard_hashes, split_pairs
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.preparation import PreparedCorpus, prepare
from heedful.training.run import make_config_chooser
from tests.conftest import quick_train_args, run_heedful
from tests.processes import descendants, exit_worker

QUIET = Reporter(quiet=True)
SETTINGS = {
    "preset": "tiny",
    "tokenizer": {"vocab_size": 600},
    "training": {"max_updates": 5},
    "batching": {"max_tokens": 256},
}
ONE = PreprocessingConfig(processes=1)
PIECES = PreprocessingConfig(processes=1, chunk_megabytes=0.005)
SHARDED = PIECES.model_copy(update={"shard_pairs": 150})
TREES = Path(__file__).parent


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several formats with duplicates in and across them, and lines that fall out."""
    folder, pairs = tmp_path_factory.mktemp("files"), generate_pairs(700)
    lines = [f"{pair.source}\t{pair.target}" for pair in pairs]
    faulty = ["no tab", "\tempty", *lines[:3], "x\t" + "y" * 2000, lines[5], "\u2028 a line \tb"]
    (folder / "a.tsv").write_text("\ufeff" + "\n".join([*lines[:300], *faulty]), encoding="utf-8")
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress(
            "".join(f'{{"source": "{pair.source}", "target": "{pair.target}"}}\n' for pair in pairs[250:400]).encode()
        )
    )
    for name, side in (("c.en", 0), ("c.fr", 1)):
        rows = [(pair.source, pair.target)[side] for pair in pairs[380:]]
        (folder / name).write_text("\r\n".join(rows) + "\r\n", encoding="utf-8")
    write_tsv([(f"{pair.source} {n}", pair.target) for n, pair in enumerate(pairs[:90])], folder / "d.tsv")
    return folder


@pytest.mark.long
def test_preprocess_after_files_changed_reads_them_again(grammar_pairs: Path, tmp_path: Path) -> None:
    """Prepared, but nothing learned: the same command on a corrected file must not learn from the old one."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    shutil.copyfile(grammar_pairs, pairs)
    words = [*quick_train_args(pairs, folder), "--set", "training.max_updates=1"]
    assert run_heedful(*words).status == 0
    for path in (*folder.glob("*.*"), *(folder / "training" / "checkpoints").iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = pairs.read_text().splitlines(keepends=True)
    pairs.write_text("".join(lines[:500]))
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert "read 500 pairs" in done.err


def inputs(files: Path) -> CorpusInputs:
    mixed = (CorpusSource((files / "d.tsv",), fraction=0.3, use_for_validation=False),)
    paths = [files / name for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr")]
    return CorpusInputs((*make_sources(paths), *mixed))


def prepared(given: CorpusInputs, folder: Path, scale: PreprocessingConfig, **settings: object) -> PreparedCorpus:
    return prepare(
        given, folder, CleaningConfig(), make_config_chooser({**SETTINGS, **settings}), QUIET, preprocessing=scale
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file; how many processes made them is no part of it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_clean_in_chunks_matches_one_file(files: Path, tmp_path: Path) -> None:
    one = prepared(inputs(files), tmp_path / "one", ONE)
    prepared(inputs(files), tmp_path / "pieces", PIECES)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "one")
    assert any("duplicate (first: a.tsv:" in line for line in one.summary)


@pytest.mark.long
def test_preprocess_with_any_process_count_is_identical(files: Path, tmp_path: Path) -> None:
    one = prepared(inputs(files), tmp_path / "one", SHARDED)
    prepared(inputs(files), tmp_path / "three", SHARDED.model_copy(update={"processes": 3}))
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    assert isinstance(one.dataset, ShardedTokenDataset)
    assert len(one.dataset.manifest.shards) == 6
    # Neither does the size of pieces.
    prepared(inputs(files), tmp_path / "whole", ONE.model_copy(update={"shard_pairs": 150}))
    assert contents(tmp_path / "whole") == contents(tmp_path / "one")


def test_shards_equal_single_dataset(files: Path, tmp_path: Path) -> None:
    """The same pairs are learned and held out; the tokenizer sees them in another order only."""
    one = prepared(inputs(files), tmp_path / "one", ONE)
    many = prepared(inputs(files), tmp_path / "many", SHARDED)

    def texts(found: PreparedCorpus) -> list[tuple[str, str]]:
        store, tokenizer = found.dataset, found.tokenizer
        return sorted(
            (tokenizer.source.decode(store.source(i)), tokenizer.target.decode(store.target(i)))
            for i in range(len(store))
        )

    assert texts(many) == texts(one)
    assert sorted(many.validation) == sorted(one.validation)
    assert many.dataset.max_source_length == one.dataset.max_source_length


def test_sharded_epoch_has_every_pair_once(files: Path, tmp_path: Path) -> None:
    given = CorpusInputs(inputs(files).sources[:1])
    found = prepared(given, tmp_path, SHARDED, training={"max_updates": 5, "gradient_accumulation": 3})
    batches, again = found.create_batches(), found.create_batches()
    orders = []
    for epoch in (0, 1):
        updates = [batches.update(epoch, n) for n in range(batches.updates_per_epoch(epoch))]
        seen = [index for update in updates for batch in update for index in batch.tolist()]
        assert sorted(seen) == list(range(len(found.dataset)))
        assert all(len(update) == 3 for update in updates[:-1])
        for number in (7, 2, len(updates) - 1):  # reached directly
            there = again.update(epoch, number)
            assert [b.tolist() for b in there] == [b.tolist() for b in updates[number]]
        orders.append(seen)
    assert orders[0] != orders[1]
    with pytest.raises(IndexError):
        batches.update(0, batches.updates_per_epoch(0))


def test_sharded_mixture_keeps_fractions(files: Path, tmp_path: Path) -> None:
    found = prepared(inputs(files), tmp_path, SHARDED)
    tags = [0, *np.cumsum([size for shard in found.dataset.manifest.shards for size in shard.pairs_per_source])]  # type: ignore[union-attr]
    mixed = {i for a, b in zip(tags[1::2], tags[2::2], strict=True) for i in range(a, b)}
    batches = found.create_batches()
    for epoch in (0, 3):
        seen = [
            index
            for n in range(batches.updates_per_epoch(epoch))
            for batch in batches.update(epoch, n)
            for index in batch.tolist()
        ]
        assert sum(index in mixed for index in seen) / len(seen) == pytest.approx(0.3, abs=0.06)


def test_hash_split_matches_split_of_pairs(files: Path, tmp_path: Path) -> None:
    corpus, _ = clean_corpus(inputs(files), tmp_path, CleaningConfig(), SHARDED, QUIET)
    compute_statistics(corpus, 1, QUIET, "pair")
    for count in (None, 1, 40):
        quick = split_by_shard_hashes(corpus, count)
        slow = split_pairs(
            lambda: corpus.iter_pairs(use_for_validation=True),
            count,
            lambda: corpus.iter_pairs(use_for_validation=False),
        )
        assert quick.validation == slow.validation
        assert (quick.excluded_source_hashes, quick.leaks, quick.num_training_pairs) == (
            slow.excluded_source_hashes,
            slow.leaks,
            slow.num_training_pairs,
        )
    with pytest.raises(HeedfulError, match="leaves too few"):
        split_by_shard_hashes(corpus, 500)


@pytest.mark.long
def test_resume_with_corrupt_shard_encodes_it_again(files: Path, tmp_path: Path) -> None:
    prepared(inputs(files), tmp_path, SHARDED)
    before = contents(tmp_path)
    path = tmp_path / "train" / "00002" / "target.ids"
    flipped = bytearray(path.read_bytes())
    flipped[17] ^= 4
    path.write_bytes(flipped)
    (tmp_path / "train" / "00004" / "source.offsets").unlink()
    assert find_corrupt_shards(tmp_path / "train") == [2, 4]
    prepared(inputs(files), tmp_path, SHARDED)
    assert contents(tmp_path) == before
    path.write_bytes(flipped)
    text = tmp_path / "cleaned" / "00002.tsv"
    text.write_bytes(text.read_bytes().replace(b"the", b"thy", 1))
    with pytest.raises(HeedfulError, match=r"00002\.tsv is corrupt"):
        prepared(inputs(files), tmp_path, SHARDED)


def test_resume_with_corrupt_dataset_encodes_it_again(files: Path, tmp_path: Path) -> None:
    prepared(inputs(files), tmp_path, ONE)
    before = contents(tmp_path)
    (tmp_path / "train" / "source.ids").write_bytes(b"")
    prepared(inputs(files), tmp_path, ONE)
    assert contents(tmp_path) == before


@pytest.mark.long
def test_resume_with_changed_file_cleans_it_again(files: Path, tmp_path: Path) -> None:
    """Pieces that a killed preparation left are of use only as long as their files are the same."""
    for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr", "d.tsv"):
        shutil.copy(files / name, tmp_path)
    two = SHARDED.model_copy(update={"processes": 2})
    process = preparing(tmp_path, tmp_path / "data", two)
    while not list((tmp_path / "data" / "chunks").glob("0000?")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    changed = (tmp_path / "a.tsv").read_text(encoding="utf-8").replace("The", "Thy")
    (tmp_path / "a.tsv").write_text(changed, encoding="utf-8")
    prepared(inputs(tmp_path), tmp_path / "data", SHARDED)
    prepared(inputs(tmp_path), tmp_path / "anew", SHARDED)
    assert contents(tmp_path / "data") == contents(tmp_path / "anew")


# ---- processes that are killed


CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from heedful.data.config import PreprocessingConfig
from tests.data.test_parallel_cleaning import inputs, prepared
prepared(inputs(Path(sys.argv[2])), Path(sys.argv[3]), PreprocessingConfig.model_validate_json(sys.argv[4]))
"""


def preparing(files: Path, folder: Path, scale: PreprocessingConfig) -> "subprocess.Popen[bytes]":
    """A preparation in a process of its own."""
    words = [TREES.parent.parent, files, folder, scale.model_dump_json()]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, words)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def seconds_of(files: Path, folder: Path, scale: PreprocessingConfig) -> float:
    started = time.monotonic()
    process = preparing(files, folder, scale)
    assert process.wait() == 0, process.communicate()
    process.communicate()
    return time.monotonic() - started


def stage(folder: Path) -> str:
    """How far a preparation was when it was killed."""
    ends = {CLEANING_RECORD: "cleaning", CONFIG_FILE: "looking through", PREPROCESSED_FILE: "encoding"}
    under_way = [name for end, name in ends.items() if not (folder / end).exists()]
    return (under_way or ["prepared"])[0] if folder.exists() else "starting"


def survives(files: Path, folder: Path, expected: dict[str, bytes], seconds: Iterable[float]) -> Counter[str]:
    """Kill a preparation after so many seconds, once for each, and let the next go on with it; returns where
    those were that it did not forestall."""
    scale, landed = SHARDED.model_copy(update={"processes": 2}), Counter[str]()
    for each in seconds:
        process = preparing(files, folder, scale)
        time.sleep(each)
        landed[stage(folder)] += process.poll() is None
        process.kill()
        process.communicate()
    prepared(inputs(files), folder, scale)
    assert contents(folder) == expected
    return landed


@pytest.mark.long
def test_preprocess_killed_repeatedly_is_identical(files: Path, tmp_path: Path) -> None:
    scale = SHARDED.model_copy(update={"processes": 2})
    seconds = seconds_of(files, tmp_path / "whole", scale)
    dice = random.Random(3)
    moments = [dice.uniform(0.3, 1.0) * seconds for _ in range(3)]
    survives(files, tmp_path / "killed", contents(tmp_path / "whole"), moments)


@pytest.mark.slow
def test_preprocess_killed_at_sixty_random_moments_is_identical(files: Path, tmp_path: Path) -> None:
    """Each of a preparation that was killed once before; sooner, since less of it is left."""
    scale = SHARDED.model_copy(update={"processes": 2})
    seconds = seconds_of(files, tmp_path / "whole", scale)
    expected, dice = contents(tmp_path / "whole"), random.Random(5)
    landed, folders = Counter[str](), 0
    while landed.total() < 60:
        moments = [dice.uniform(0.25, 1.0) * seconds, dice.uniform(0.25, 0.9) * seconds]
        landed += survives(files, tmp_path / str(folders), expected, moments)
        folders += 1
        assert folders < 90, "nearly all kills come too late"
    print(f"{landed.total()} kills of {folders} preparations: {dict(landed)}")


def workers_of(leader: int) -> list[int]:
    """The processes that work for another."""
    return [pid for pid, command in descendants(leader).items() if "heedful.data.process_pool" in command]


def started(words: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "heedful", *words], stderr=subprocess.PIPE)


def wait_for(pattern: str, folder: Path, process: "subprocess.Popen[bytes]") -> list[Path]:
    while not (found := list(folder.glob(pattern))) and process.poll() is None:
        time.sleep(0.005)
    return found


@pytest.mark.long
def test_train_repeated_after_kill_resumes_preprocessing(
    grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    """What a killed one had cleaned is not cleaned again, and the model is that of one that was let alone."""
    folder = tmp_path / "model"
    words = [*quick_train_args(grammar_pairs, folder), "--set", "preprocessing.chunk_megabytes=0.005"]
    process = started(words)
    [piece, *_] = wait_for("training/data/chunks/00000", folder, process)
    process.kill()
    process.communicate()
    before, seen = (piece / "cleaned.tsv").stat().st_mtime_ns, set[int]()
    process = started(words)
    while process.poll() is None:
        with suppress(FileNotFoundError):  # at the end it goes
            seen.add((piece / "cleaned.tsv").stat().st_mtime_ns)
        time.sleep(0.005)
    assert process.returncode == 0, process.communicate()
    process.communicate()
    assert seen == {before}
    name = "weights.safetensors"
    assert (folder / name).read_bytes() == (quick_model / name).read_bytes()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.long
def test_train_interrupted_leaves_no_worker(grammar_pairs: Path, tmp_path: Path) -> None:
    more = ["preprocessing.chunk_megabytes=0.002", "preprocessing.processes=2"]
    words = [*quick_train_args(grammar_pairs, tmp_path / "model"), *(w for m in more for w in ("--set", m))]
    process = started(words)
    workers: list[int] = []
    while not workers and process.poll() is None:
        workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert b"Traceback" not in told
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_process_pool_with_killed_worker_replaces_it(files: Path, tmp_path: Path) -> None:
    scale = SHARDED.model_copy(update={"processes": 2})
    process = preparing(files, tmp_path / "data", scale)
    killed = 0
    while process.poll() is None and killed < 2:
        for worker in workers_of(process.pid)[: 2 - killed]:
            os.kill(worker, signal.SIGKILL)
            killed += 1
        time.sleep(0.01)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert killed == 2
    prepared(inputs(files), tmp_path / "undisturbed", SHARDED)
    assert contents(tmp_path / "data") == contents(tmp_path / "undisturbed")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.long
def test_process_pool_workers_exit_with_parent(files: Path, tmp_path: Path) -> None:
    process = preparing(files, tmp_path / "data", SHARDED.model_copy(update={"processes": 2}))
    workers: list[int] = []
    while not workers and process.poll() is None:
        workers = workers_of(process.pid)
    process.kill()
    process.communicate()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < until:
        time.sleep(0.02)
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_process_pool_with_task_that_kills_workers_raises(tmp_path: Path) -> None:
    """A task that nobody can do ends the workers that try it: no hang, no endless row of attempts."""
    with pytest.raises(HeedfulError, match="worker ended 3 times"), QUIET.task("") as task:
        run_tasks(exit_worker, tmp_path, [0, 1], 2, task)


@pytest.mark.long
def test_process_pool_with_failing_task_raises_its_error(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("\ufeffa\tb\n".encode("utf-16-le") * 2000)
    given = CorpusInputs(make_sources((tmp_path / "a.tsv", files / "a.tsv")))
    with pytest.raises(HeedfulError, match="is UTF-16") as told:
        prepared(given, tmp_path / "data", PIECES.model_copy(update={"processes": 2}))
    assert "iconv" in told.value.hint
