"""Parallel cleaning and sharded datasets: the same result with any number of processes, and after every kill."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
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
from heedful.errors import HeedfulError, ResumableError
from heedful.progress import Reporter
from heedful.training.preparation import PreparedCorpus, prepare
from heedful.training.run import make_config_chooser
from tests.conftest import quick_train_args, run_heedful
from tests.processes import descendants, exit_worker, is_running, write_imports
from tests.stop_points import TIMEOUT, StopPoint, wait_until_stopped

QUIET = Reporter(quiet=True)
SETTINGS = {
    "preset": "tiny",
    "tokenizer": {"vocab_size": 600},
    "training": {"max_updates": 5},
    "batching": {"max_tokens": 256},
}
ONE_CHUNK = PreprocessingConfig(processes=1)
CHUNKED = PreprocessingConfig(processes=1, chunk_megabytes=0.005)
SHARDED = CHUNKED.model_copy(update={"shard_pairs": 150})
PROJECT_FOLDER = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several formats, with duplicates within and across files and with malformed lines."""
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
    """Preprocessed but not trained: the same command with a corrected file must not use the old one."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    shutil.copyfile(grammar_pairs, pairs)
    args = [*quick_train_args(pairs, folder), "--set", "training.max_updates=1"]
    assert run_heedful(*args).status == 0
    for path in (*folder.glob("*.*"), *(folder / "training" / "checkpoints").iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = pairs.read_text().splitlines(keepends=True)
    pairs.write_text("".join(lines[:500]))
    result = run_heedful(*args)
    assert result.status == 0, result.err
    assert "read 500 pairs" in result.err


def inputs(files: Path) -> CorpusInputs:
    additional = (CorpusSource((files / "d.tsv",), fraction=0.3, use_for_validation=False),)
    paths = [files / name for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr")]
    return CorpusInputs((*make_sources(paths), *additional))


def prepare_corpus(
    corpus_inputs: CorpusInputs, folder: Path, config: PreprocessingConfig, **settings: object
) -> PreparedCorpus:
    choose_config = make_config_chooser({**SETTINGS, **settings})
    return prepare(corpus_inputs, folder, CleaningConfig(), choose_config, QUIET, preprocessing=config)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_clean_in_chunks_matches_one_file(files: Path, tmp_path: Path) -> None:
    one = prepare_corpus(inputs(files), tmp_path / "one", ONE_CHUNK)
    prepare_corpus(inputs(files), tmp_path / "chunked", CHUNKED)
    assert contents(tmp_path / "chunked") == contents(tmp_path / "one")
    assert any("duplicate (first: a.tsv:" in line for line in one.summary)


@pytest.mark.long
def test_preprocess_with_any_process_count_is_identical(files: Path, tmp_path: Path) -> None:
    one = prepare_corpus(inputs(files), tmp_path / "one", SHARDED)
    prepare_corpus(inputs(files), tmp_path / "three", SHARDED.model_copy(update={"processes": 3}))
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    assert isinstance(one.dataset, ShardedTokenDataset)
    assert len(one.dataset.manifest.shards) == 6
    # The chunk size does not matter either.
    prepare_corpus(inputs(files), tmp_path / "one-chunk", ONE_CHUNK.model_copy(update={"shard_pairs": 150}))
    assert contents(tmp_path / "one-chunk") == contents(tmp_path / "one")


def test_shards_equal_single_dataset(files: Path, tmp_path: Path) -> None:
    """The same pairs are for training and validation; only the order that the tokenizer sees differs."""
    one = prepare_corpus(inputs(files), tmp_path / "one", ONE_CHUNK)
    sharded = prepare_corpus(inputs(files), tmp_path / "sharded", SHARDED)

    def texts(corpus: PreparedCorpus) -> list[tuple[str, str]]:
        dataset, tokenizer = corpus.dataset, corpus.tokenizer
        return sorted(
            (tokenizer.source.decode(dataset.source(i)), tokenizer.target.decode(dataset.target(i)))
            for i in range(len(dataset))
        )

    assert texts(sharded) == texts(one)
    assert sorted(sharded.validation) == sorted(one.validation)
    assert sharded.dataset.max_source_length == one.dataset.max_source_length


def test_sharded_epoch_has_every_pair_once(files: Path, tmp_path: Path) -> None:
    corpus_inputs = CorpusInputs(inputs(files).sources[:1])
    training = {"max_updates": 5, "gradient_accumulation": 3}
    corpus = prepare_corpus(corpus_inputs, tmp_path, SHARDED, training=training)
    batches, other_batches = corpus.create_batches(), corpus.create_batches()
    epochs = []
    for epoch in (0, 1):
        updates = [batches.update(epoch, n) for n in range(batches.updates_per_epoch(epoch))]
        indices = [index for update in updates for batch in update for index in batch.tolist()]
        assert sorted(indices) == list(range(len(corpus.dataset)))
        assert all(len(update) == 3 for update in updates[:-1])
        for number in (7, 2, len(updates) - 1):  # random access
            update = other_batches.update(epoch, number)
            assert [batch.tolist() for batch in update] == [batch.tolist() for batch in updates[number]]
        epochs.append(indices)
    assert epochs[0] != epochs[1]
    with pytest.raises(IndexError):
        batches.update(0, batches.updates_per_epoch(0))


def test_sharded_mixture_keeps_fractions(files: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus(inputs(files), tmp_path, SHARDED)
    sizes = [size for shard in corpus.dataset.manifest.shards for size in shard.pairs_per_source]  # type: ignore[union-attr]
    starts = [0, *np.cumsum(sizes)]
    additional = {i for start, end in zip(starts[1::2], starts[2::2], strict=True) for i in range(start, end)}
    batches = corpus.create_batches()
    for epoch in (0, 3):
        indices = [
            index
            for n in range(batches.updates_per_epoch(epoch))
            for batch in batches.update(epoch, n)
            for index in batch.tolist()
        ]
        assert sum(index in additional for index in indices) / len(indices) == pytest.approx(0.3, abs=0.06)


def test_hash_split_matches_split_of_pairs(files: Path, tmp_path: Path) -> None:
    corpus, _ = clean_corpus(inputs(files), tmp_path, CleaningConfig(), SHARDED, QUIET)
    compute_statistics(corpus, 1, QUIET, "pair")
    for count in (None, 1, 40):
        by_hash = split_by_shard_hashes(corpus, count)
        by_pair = split_pairs(
            lambda: corpus.iter_pairs(use_for_validation=True),
            count,
            lambda: corpus.iter_pairs(use_for_validation=False),
        )
        assert by_hash.validation == by_pair.validation
        assert (by_hash.excluded_source_hashes, by_hash.leaks, by_hash.num_training_pairs) == (
            by_pair.excluded_source_hashes,
            by_pair.leaks,
            by_pair.num_training_pairs,
        )
    with pytest.raises(HeedfulError, match="leaves too few"):
        split_by_shard_hashes(corpus, 500)


@pytest.mark.long
def test_resume_with_corrupt_shard_encodes_it_again(files: Path, tmp_path: Path) -> None:
    prepare_corpus(inputs(files), tmp_path, SHARDED)
    before = contents(tmp_path)
    path = tmp_path / "train" / "00002" / "target.ids"
    corrupt_data = bytearray(path.read_bytes())
    corrupt_data[17] ^= 4
    path.write_bytes(corrupt_data)
    (tmp_path / "train" / "00004" / "source.offsets").unlink()
    assert find_corrupt_shards(tmp_path / "train") == [2, 4]
    prepare_corpus(inputs(files), tmp_path, SHARDED)
    assert contents(tmp_path) == before
    path.write_bytes(corrupt_data)
    text = tmp_path / "cleaned" / "00002.tsv"
    text.write_bytes(text.read_bytes().replace(b"the", b"thy", 1))
    with pytest.raises(HeedfulError, match=r"00002\.tsv is corrupt"):
        prepare_corpus(inputs(files), tmp_path, SHARDED)


def test_resume_with_corrupt_dataset_encodes_it_again(files: Path, tmp_path: Path) -> None:
    prepare_corpus(inputs(files), tmp_path, ONE_CHUNK)
    before = contents(tmp_path)
    (tmp_path / "train" / "source.ids").write_bytes(b"")
    prepare_corpus(inputs(files), tmp_path, ONE_CHUNK)
    assert contents(tmp_path) == before


@pytest.mark.long
def test_resume_with_changed_file_cleans_it_again(files: Path, tmp_path: Path) -> None:
    """Chunks of a killed run are reused only while their input files are unchanged."""
    for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr", "d.tsv"):
        shutil.copy(files / name, tmp_path)
    process = start_preparation(tmp_path, tmp_path / "data", TWO_PROCESSES, SOME_CHUNKS_COMPLETE)
    wait_until_stopped(process.pid)
    process.kill()
    process.communicate()
    assert list((tmp_path / "data" / "chunks").glob("0000?"))
    corrected_text = (tmp_path / "a.tsv").read_text(encoding="utf-8").replace("The", "Thy")
    (tmp_path / "a.tsv").write_text(corrected_text, encoding="utf-8")
    prepare_corpus(inputs(tmp_path), tmp_path / "data", SHARDED)
    prepare_corpus(inputs(tmp_path), tmp_path / "reference", SHARDED)
    assert contents(tmp_path / "data") == contents(tmp_path / "reference")


# ---- killed processes


TWO_PROCESSES = SHARDED.model_copy(update={"processes": 2})
SOME_CHUNKS_COMPLETE = StopPoint("heedful.data.process_pool:_check_result", [2])
"""When the second result arrives; a pool of two workers has at most five more tasks in its queue."""
ALL_CHUNKS_COMPLETE = StopPoint("heedful.data.parallel_cleaning:_find_unique_pairs")
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from heedful.data.config import PreprocessingConfig
from tests.data.test_parallel_cleaning import inputs, prepare_corpus
from tests.stop_points import StopPoint
for function, calls in json.loads(sys.argv[5]):
    StopPoint(function, calls).install()
prepare_corpus(inputs(Path(sys.argv[2])), Path(sys.argv[3]), PreprocessingConfig.model_validate_json(sys.argv[4]))
"""


def start_preparation(
    files: Path, folder: Path, config: PreprocessingConfig, *stop_points: StopPoint
) -> "subprocess.Popen[bytes]":
    """`prepare_corpus` in a separate process."""
    points = json.dumps([(point.function, list(point.calls)) for point in stop_points])
    args = [PROJECT_FOLDER, files, folder, config.model_dump_json(), points]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, args)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def measure_seconds(files: Path, folder: Path, config: PreprocessingConfig) -> float:
    """Duration of an uninterrupted run, from which the times of kills are drawn."""
    start_time = time.monotonic()
    process = start_preparation(files, folder, config)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return time.monotonic() - start_time


def stage(folder: Path) -> str:
    """The stage in which a run was killed."""
    files_by_stage = {"cleaning": CLEANING_RECORD, "statistics": CONFIG_FILE, "encoding": PREPROCESSED_FILE}
    incomplete = [name for name, file in files_by_stage.items() if not (folder / file).exists()]
    return (incomplete or ["complete"])[0] if folder.exists() else "starting"


def kill_and_resume(files: Path, folder: Path, expected: dict[str, bytes], delays: Iterable[float]) -> Counter[str]:
    """Kill one run after each delay, then resume; returns how many kills hit each stage."""
    stages = Counter[str]()
    for delay in delays:
        process = start_preparation(files, folder, TWO_PROCESSES)
        time.sleep(delay)
        stages[stage(folder)] += process.poll() is None
        process.kill()
        process.communicate()
    prepare_corpus(inputs(files), folder, TWO_PROCESSES)
    assert contents(folder) == expected
    return stages


@pytest.mark.long
def test_preprocess_killed_at_random_times_is_identical(files: Path, tmp_path: Path) -> None:
    seconds = measure_seconds(files, tmp_path / "reference", TWO_PROCESSES)
    rng = random.Random(3)
    delays = [rng.uniform(0.3, 1.0) * seconds for _ in range(3)]
    kill_and_resume(files, tmp_path / "killed", contents(tmp_path / "reference"), delays)


@pytest.mark.slow
def test_preprocess_killed_sixty_times_is_identical(files: Path, tmp_path: Path) -> None:
    """Two kills per run: the second comes sooner, since less work is left."""
    seconds = measure_seconds(files, tmp_path / "reference", TWO_PROCESSES)
    expected, rng = contents(tmp_path / "reference"), random.Random(5)
    stages, folders = Counter[str](), 0
    while stages.total() < 60:
        delays = [rng.uniform(0.25, 1.0) * seconds, rng.uniform(0.25, 0.9) * seconds]
        stages += kill_and_resume(files, tmp_path / str(folders), expected, delays)
        folders += 1
        assert folders < 90, "nearly all kills come too late"
    print(f"{stages.total()} kills of {folders} runs: {dict(stages)}")


def list_workers(pid: int) -> list[int]:
    """Worker processes of the pool in a process."""
    return [worker for worker, command in descendants(pid).items() if "--multiprocessing-fork" in command]


def start_heedful(args: list[str], stop_point: StopPoint) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*stop_point.program(), *args], stderr=subprocess.PIPE)


@pytest.mark.long
def test_train_repeated_after_kill_resumes_preprocessing(
    grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    """Complete chunks are not cleaned again, and the model equals that of an uninterrupted run."""
    folder = tmp_path / "model"
    settings = ["preprocessing.chunk_megabytes=0.005", "preprocessing.processes=2"]
    args = [*quick_train_args(grammar_pairs, folder), *(arg for setting in settings for arg in ("--set", setting))]

    def modification_times() -> dict[str, int]:
        paths = (folder / "training" / "data" / "chunks").glob("?????/cleaned.tsv")
        return {path.parent.name: path.stat().st_mtime_ns for path in paths}

    process = start_heedful(args, SOME_CHUNKS_COMPLETE)
    wait_until_stopped(process.pid)
    process.kill()
    process.communicate()
    before = modification_times()
    process = start_heedful(args, ALL_CHUNKS_COMPLETE)
    wait_until_stopped(process.pid)
    after = modification_times()
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert before
    assert before.items() <= after.items()
    assert len(before) < len(after)
    name = "weights.safetensors"
    assert (folder / name).read_bytes() == (quick_model / name).read_bytes()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.long
def test_train_interrupted_leaves_no_worker(grammar_pairs: Path, tmp_path: Path) -> None:
    settings = ["preprocessing.chunk_megabytes=0.002", "preprocessing.processes=2"]
    args = quick_train_args(grammar_pairs, tmp_path / "model")
    process = start_heedful([*args, *(arg for setting in settings for arg in ("--set", setting))], SOME_CHUNKS_COMPLETE)
    wait_until_stopped(process.pid)
    workers = list_workers(process.pid)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert workers
    assert not any(map(is_running, workers))


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("kills", [1, 2])
def test_process_pool_with_killed_workers_runs_tasks_once_more(files: Path, tmp_path: Path, kills: int) -> None:
    """Tasks of killed workers are run again by fewer workers; after a second kill, by the next run."""
    config = TWO_PROCESSES.model_copy(update={"chunk_megabytes": 0.001})
    point = StopPoint("heedful.data.process_pool:_check_result", [2, 14][:kills])
    process = start_preparation(files, tmp_path / "data", config, point)
    for _ in point.calls:
        wait_until_stopped(process.pid)
        workers = list_workers(process.pid)
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=TIMEOUT)
    assert (process.returncode == 0) == (kills == 1), stderr
    if kills == 2:
        assert b"killed, and again with fewer processes" in stderr
        prepare_corpus(inputs(files), tmp_path / "data", config)
    prepare_corpus(inputs(files), tmp_path / "reference", SHARDED)
    assert contents(tmp_path / "data") == contents(tmp_path / "reference")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.long
def test_process_pool_workers_exit_with_parent(files: Path, tmp_path: Path) -> None:
    process = start_preparation(files, tmp_path / "data", TWO_PROCESSES, SOME_CHUNKS_COMPLETE)
    wait_until_stopped(process.pid)
    workers = list_workers(process.pid)
    process.kill()
    process.communicate()
    assert workers
    deadline = time.monotonic() + TIMEOUT
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, f"workers did not exit: {workers}"
        time.sleep(0.02)


def test_process_pool_with_task_that_kills_workers_raises(tmp_path: Path) -> None:
    """A task that ends every worker is given up after the second attempt."""
    with pytest.raises(ResumableError, match="killed, and again with fewer processes"), QUIET.task("") as task:
        run_tasks(exit_worker, tmp_path, [0, 1], 2, task)


def test_process_pool_without_posix_names_runs_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK"):
        monkeypatch.delattr(signal, name)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with QUIET.task("") as task:
        run_tasks(write_imports, tmp_path, [0, 1], 2, task)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


SCRIPT_WITHOUT_GUARD = """
import os, sys
from pathlib import Path
from heedful.data.process_pool import run_tasks
from heedful.progress import Reporter
from tests.processes import write_imports
print("started")
environment = dict(os.environ)
with Reporter(quiet=True).task("") as task:
    run_tasks(write_imports, Path(sys.argv[1]), [0, 1, 2], 2, task)
assert dict(os.environ) == environment
assert __name__ == "__main__" and sys.modules["__main__"].run_tasks is run_tasks
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["file", "stdin"])
def test_process_pool_in_script_without_guard_runs_it_once(tmp_path: Path, form: str) -> None:
    """Workers import neither the script, nor modules of the current folder, nor torch."""
    script, current_folder = tmp_path / "script.py", tmp_path / "current"
    current_folder.mkdir()
    (current_folder / "signal.py").write_text("raise SystemExit('imported from the current folder')")
    script.write_text(SCRIPT_WITHOUT_GUARD)
    result = subprocess.run(
        [sys.executable, "-P", *([str(script)] if form == "file" else ["-"]), str(tmp_path)],
        input=SCRIPT_WITHOUT_GUARD if form == "stdin" else "",
        capture_output=True,
        text=True,
        cwd=current_folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT_FOLDER / "src"), str(PROJECT_FOLDER)])},
        timeout=TIMEOUT,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "started\n", "")
    for index in range(3):
        names = (tmp_path / str(index)).read_text().splitlines()
        assert "threads=1" in names
        assert not {"torch", "numpy", "script"} & set(names)


@pytest.mark.long
def test_process_pool_with_failing_task_raises_its_error(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("\ufeffa\tb\n".encode("utf-16-le") * 2000)
    corpus_inputs = CorpusInputs(make_sources((tmp_path / "a.tsv", files / "a.tsv")))
    with pytest.raises(HeedfulError, match="is UTF-16") as caught:
        prepare_corpus(corpus_inputs, tmp_path / "data", CHUNKED.model_copy(update={"processes": 2}))
    assert "iconv" in caught.value.hint
