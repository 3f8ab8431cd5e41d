"""Pairs straight from the files: every update can be found again, and nothing of the corpus is kept."""

import gzip
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from heedful.data.config import CleaningConfig, PreprocessingConfig
from heedful.data.corpus import CorpusInputs, CorpusSource, make_sources
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.formats.base import ReadOptions
from heedful.data.reader import write_tsv
from heedful.data.streaming import POSITIONS_FILE, ReadPosition, RepeatingReader
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.preparation import PreparedCorpus, load_prepared, prepare
from heedful.training.run import make_config_chooser
from tests.conftest import quick_train_args, run_heedful

QUIET = Reporter(quiet=True)
SCALE = {"streaming": True, "shuffle_buffer_pairs": 70, "sample_pairs": 200}
SETTINGS = {"preset": "tiny", "tokenizer": {"vocab_size": 600}, "batching": {"max_tokens": 200}, "preprocessing": SCALE}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, pairs = tmp_path_factory.mktemp("stream"), generate_pairs(600)
    write_tsv([(pair.source, pair.target) for pair in pairs[:300]], folder / "a.tsv")
    write_tsv([(pair.source, pair.target) for pair in pairs[300:400]], folder / "b.tsv.gz")
    for name, side in (("c.en", 0), ("c.fr", 1)):
        text = "".join(f"{(pair.source, pair.target)[side]}\n" for pair in pairs[400:])
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def inputs(files: Path) -> CorpusInputs:
    return CorpusInputs(make_sources([files / name for name in ("a.tsv", "b.tsv.gz", "c.en", "c.fr")]))


def prepared(given: CorpusInputs, folder: Path, **training: object) -> PreparedCorpus:
    settings = {**SETTINGS, "training": {"max_updates": 500, "validation_size": 15, **training}}
    scale = PreprocessingConfig(**SCALE)  # type: ignore[arg-type]
    return prepare(given, folder, CleaningConfig(), make_config_chooser(settings), QUIET, preprocessing=scale)


def sentences(found: PreparedCorpus, updates: range) -> list[list[tuple[str, str]]]:
    """What each update reads."""
    batches, store, tokenizer = found.create_batches(), found.dataset, found.tokenizer
    per_epoch = batches.updates_per_epoch(0)
    return [
        [
            (tokenizer.source.decode(store.source(i)), tokenizer.target.decode(store.target(i)))
            for batch in batches.update(*divmod(number, per_epoch))
            for i in batch.tolist()
        ]
        for number in updates
    ]


def test_stream_repeats_every_pair_equally(files: Path, tmp_path: Path) -> None:
    found = prepared(inputs(files), tmp_path)
    seen = Counter(pair for update in sentences(found, range(250)) for pair in update)
    everything = {(pair.source, pair.target) for pair in generate_pairs(600)}
    held_out = {pair.source for pair in found.validation}
    assert set(seen) == {pair for pair in everything if pair[0] not in held_out}
    assert max(seen.values()) - min(seen.values()) <= 2
    assert len(found.validation) >= 10
    assert not list(tmp_path.glob("train/*"))
    assert len((tmp_path / "cleaned.tsv").read_text(encoding="utf-8").splitlines()) <= 450  # the sample alone


def test_stream_resumes_at_any_update(files: Path, tmp_path: Path) -> None:
    """Going on from the journal, from a part of it, or from nothing; in another process, or backwards."""
    found = prepared(inputs(files), tmp_path, gradient_accumulation=3)
    expected = sentences(found, range(60))
    assert sentences(load_prepared(tmp_path), range(41, 60)) == expected[41:]
    assert sentences(found, range(7, 9)) == expected[7:9]
    journal = tmp_path / POSITIONS_FILE
    lines = journal.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["buffer"] for line in lines] == list(range(len(lines)))
    for kept in ("\n".join(lines[:5]) + '\n{"buffer": 5, "ba', ""):
        journal.write_text(kept, encoding="utf-8")
        assert sentences(load_prepared(tmp_path), range(41, 60)) == expected[41:]
    journal.unlink()
    assert sentences(load_prepared(tmp_path), range(20, 22)) == expected[20:22]


def test_stream_weights_files_by_fraction_and_temperature(files: Path, tmp_path: Path) -> None:
    given = CorpusInputs(
        (
            CorpusSource((files / "a.tsv",)),
            CorpusSource((files / "c.en", files / "c.fr"), fraction=0.2, use_for_validation=False),
        )
    )
    own = {pair.source for pair in generate_pairs(600)[400:]}
    seen = [pair for update in sentences(prepared(given, tmp_path / "a"), range(150)) for pair in update]
    assert sum(source in own for source, _ in seen) / len(seen) == pytest.approx(0.2, abs=0.03)
    given = CorpusInputs(
        (CorpusSource((files / "a.tsv",)), CorpusSource((files / "b.tsv.gz",), use_for_validation=False))
    )
    own = {pair.source for pair in generate_pairs(600)[300:400]}
    found = prepared(given, tmp_path / "b", sampling_temperature=2)
    seen = [pair for update in sentences(found, range(150)) for pair in update]
    # 300 and 100 pairs, by their square roots
    assert sum(source in own for source, _ in seen) / len(seen) == pytest.approx(0.366, abs=0.04)


def test_stream_with_duplicate_mixed_pairs_reads_both(files: Path, tmp_path: Path) -> None:
    """Some of one's own pairs, to be seen more often."""
    often = [(pair.source, pair.target) for pair in generate_pairs(600)[:50]]
    write_tsv(often, tmp_path / "often.tsv")
    given = CorpusInputs(
        (
            CorpusSource((files / "a.tsv",)),
            CorpusSource((tmp_path / "often.tsv",), fraction=0.5, use_for_validation=False),
        )
    )
    found = prepared(given, tmp_path / "data")
    seen = [pair for update in sentences(found, range(150)) for pair in update]
    # A half of the epoch, and of the other half as many as there are of them.
    share = sum(pair in often for pair in seen) / len(seen)
    assert share == pytest.approx(0.5 + 0.5 * 50 / 300, abs=0.05)


def test_stream_resumes_in_every_format(files: Path, tmp_path: Path) -> None:
    """Reading on from a position gives what would have come next."""
    pairs = generate_pairs(37)
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"source": a.source, "target": a.target}) + "\r\n" for a in pairs), encoding="utf-8"
    )
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for paths in [("a.jsonl",), ("a.jsonl.gz",), (str(files / "c.en"), str(files / "c.fr"))]:
        given = tuple(tmp_path / name for name in paths)

        def file(position: ReadPosition, given: tuple[Path, ...] = given) -> RepeatingReader:
            return RepeatingReader(given, lambda piece: piece.read_records(ReadOptions()), position, plain_text=False)

        whole = file(ReadPosition())
        for count in (5, 1, 60, 200, 3):
            position = whole.position
            assert file(position).take(count) == whole.take(count)
        assert whole.position.epoch >= 1


def test_stream_with_invalid_input_raises(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="streaming has no epochs"):
        prepared(inputs(files), tmp_path / "a", max_updates=0, max_epochs=3)
    with pytest.raises(HeedfulError, match="standard input and pipes do not allow"):
        prepared(CorpusInputs(make_sources((Path("-"),))), tmp_path / "b")
    (tmp_path / "empty.tsv").write_text("no pair\n")
    given = CorpusInputs(
        (CorpusSource((files / "a.tsv",)), CorpusSource((tmp_path / "empty.tsv",), use_for_validation=False))
    )
    with pytest.raises(HeedfulError, match=r"the start of \S+empty\.tsv contains almost no usable pairs"):
        prepared(given, tmp_path / "d")
    shutil.copy(files / "a.tsv", tmp_path)
    prepared(CorpusInputs(make_sources((tmp_path / "a.tsv",))), tmp_path / "c")
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(HeedfulError, match=r"a\.tsv was changed or deleted"):
        load_prepared(tmp_path / "c")


@pytest.mark.long
def test_streaming_train_killed_resumes_bit_exactly(grammar_pairs: Path, tmp_path: Path) -> None:
    more = ["--set", "preprocessing.streaming=true", "--set", "preprocessing.shuffle_buffer_pairs=100"]
    more += ["--set", "training.max_updates=40", "--set", "training.checkpoint_minutes=0.001"]
    assert run_heedful(*quick_train_args(grammar_pairs, tmp_path / "whole"), *more).status == 0
    killed = tmp_path / "killed"
    dice, process = random.Random(2), None
    for attempt in range(2):
        words = ["train", "--resume", str(killed)] if attempt else [*quick_train_args(grammar_pairs, killed), *more]
        process = subprocess.Popen([sys.executable, "-m", "heedful", *words], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while not list(killed.glob("training/checkpoints/*")) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 0.6) + 1.5 * attempt)
        process.kill()
        process.wait()
    done = run_heedful("train", "--resume", killed)
    assert done.status == 0, done.err
    name = "weights.safetensors"
    assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_stream_is_divided_between_two_processes(grammar_pairs: Path, tmp_path: Path) -> None:
    """Each takes its share of every update, and both find the same updates."""
    words = quick_train_args(grammar_pairs, tmp_path / "model")
    more = ["--set", "preprocessing.streaming=true", "--set", "preprocessing.shuffle_buffer_pairs=100"]
    done = run_heedful(*words, *more, "--set", "training.processes=2", "--set", "training.threads=2")
    assert done.status == 0, done.err
    lines = (tmp_path / "model" / "training" / "data" / POSITIONS_FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["buffer"] for line in lines] == list(range(len(lines)))
