"""Streaming: pairs are read from the input files during training, and every update can be repeated."""

import gzip
import json
import random
import shutil
import subprocess
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
from tests.stop_points import StopPoint, wait_until_stopped

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


def prepare_corpus(corpus_inputs: CorpusInputs, folder: Path, **training: object) -> PreparedCorpus:
    settings = {**SETTINGS, "training": {"max_updates": 500, "validation_size": 15, **training}}
    preprocessing = PreprocessingConfig(**SCALE)  # type: ignore[arg-type]
    return prepare(
        corpus_inputs, folder, CleaningConfig(), make_config_chooser(settings), QUIET, preprocessing=preprocessing
    )


def sentences(corpus: PreparedCorpus, updates: range) -> list[list[tuple[str, str]]]:
    """The pairs of each update."""
    batches, dataset, tokenizer = corpus.create_batches(), corpus.dataset, corpus.tokenizer
    per_epoch = batches.updates_per_epoch(0)
    return [
        [
            (tokenizer.source.decode(dataset.source(i)), tokenizer.target.decode(dataset.target(i)))
            for batch in batches.update(*divmod(number, per_epoch))
            for i in batch.tolist()
        ]
        for number in updates
    ]


def test_stream_repeats_every_pair_equally(files: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus(inputs(files), tmp_path)
    counts = Counter(pair for update in sentences(corpus, range(250)) for pair in update)
    all_pairs = {(pair.source, pair.target) for pair in generate_pairs(600)}
    validation_sources = {pair.source for pair in corpus.validation}
    assert set(counts) == {pair for pair in all_pairs if pair[0] not in validation_sources}
    assert max(counts.values()) - min(counts.values()) <= 2
    assert len(corpus.validation) >= 10
    assert not list(tmp_path.glob("train/*"))
    assert len((tmp_path / "cleaned.tsv").read_text(encoding="utf-8").splitlines()) <= 450  # only the sample


def test_stream_resumes_at_any_update(files: Path, tmp_path: Path) -> None:
    """From a complete, truncated or missing journal; after reloading, or going back."""
    corpus = prepare_corpus(inputs(files), tmp_path, gradient_accumulation=3)
    expected = sentences(corpus, range(60))
    assert sentences(load_prepared(tmp_path), range(41, 60)) == expected[41:]
    assert sentences(corpus, range(7, 9)) == expected[7:9]
    journal = tmp_path / POSITIONS_FILE
    lines = journal.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["buffer"] for line in lines] == list(range(len(lines)))
    for journal_text in ("\n".join(lines[:5]) + '\n{"buffer": 5, "ba', ""):
        journal.write_text(journal_text, encoding="utf-8")
        assert sentences(load_prepared(tmp_path), range(41, 60)) == expected[41:]
    journal.unlink()
    assert sentences(load_prepared(tmp_path), range(20, 22)) == expected[20:22]


def test_stream_weights_files_by_fraction_and_temperature(files: Path, tmp_path: Path) -> None:
    corpus_inputs = CorpusInputs(
        (
            CorpusSource((files / "a.tsv",)),
            CorpusSource((files / "c.en", files / "c.fr"), fraction=0.2, use_for_validation=False),
        )
    )
    weighted_sources = {pair.source for pair in generate_pairs(600)[400:]}
    pairs = [pair for update in sentences(prepare_corpus(corpus_inputs, tmp_path / "a"), range(150)) for pair in update]
    assert sum(source in weighted_sources for source, _ in pairs) / len(pairs) == pytest.approx(0.2, abs=0.03)
    corpus_inputs = CorpusInputs(
        (CorpusSource((files / "a.tsv",)), CorpusSource((files / "b.tsv.gz",), use_for_validation=False))
    )
    weighted_sources = {pair.source for pair in generate_pairs(600)[300:400]}
    corpus = prepare_corpus(corpus_inputs, tmp_path / "b", sampling_temperature=2)
    pairs = [pair for update in sentences(corpus, range(150)) for pair in update]
    # 300 and 100 pairs, weighted by their square roots
    assert sum(source in weighted_sources for source, _ in pairs) / len(pairs) == pytest.approx(0.366, abs=0.04)


def test_stream_with_duplicate_mixed_pairs_reads_both(files: Path, tmp_path: Path) -> None:
    """Pairs of the corpus in a second source are seen more often."""
    frequent_pairs = [(pair.source, pair.target) for pair in generate_pairs(600)[:50]]
    write_tsv(frequent_pairs, tmp_path / "frequent.tsv")
    corpus_inputs = CorpusInputs(
        (
            CorpusSource((files / "a.tsv",)),
            CorpusSource((tmp_path / "frequent.tsv",), fraction=0.5, use_for_validation=False),
        )
    )
    corpus = prepare_corpus(corpus_inputs, tmp_path / "data")
    pairs = [pair for update in sentences(corpus, range(150)) for pair in update]
    # Half of the epoch, plus their fraction of the other half.
    fraction = sum(pair in frequent_pairs for pair in pairs) / len(pairs)
    assert fraction == pytest.approx(0.5 + 0.5 * 50 / 300, abs=0.05)


def test_stream_resumes_in_every_format(files: Path, tmp_path: Path) -> None:
    """Reading from a position gives the records that follow it."""
    pairs = generate_pairs(37)
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"source": a.source, "target": a.target}) + "\r\n" for a in pairs), encoding="utf-8"
    )
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    for paths in [("a.jsonl",), ("a.jsonl.gz",), (str(files / "c.en"), str(files / "c.fr"))]:
        input_paths = tuple(tmp_path / name for name in paths)

        def open_reader(position: ReadPosition, input_paths: tuple[Path, ...] = input_paths) -> RepeatingReader:
            return RepeatingReader(
                input_paths, lambda chunk: chunk.read_records(ReadOptions()), position, plain_text=False
            )

        reader = open_reader(ReadPosition())
        for count in (5, 1, 60, 200, 3):
            position = reader.position
            assert open_reader(position).take(count) == reader.take(count)
        assert reader.position.epoch >= 1


def test_stream_with_invalid_input_raises(files: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match="streaming has no epochs"):
        prepare_corpus(inputs(files), tmp_path / "a", max_updates=0, max_epochs=3)
    with pytest.raises(HeedfulError, match="standard input and pipes do not allow"):
        prepare_corpus(CorpusInputs(make_sources((Path("-"),))), tmp_path / "b")
    (tmp_path / "empty.tsv").write_text("no pair\n")
    corpus_inputs = CorpusInputs(
        (CorpusSource((files / "a.tsv",)), CorpusSource((tmp_path / "empty.tsv",), use_for_validation=False))
    )
    with pytest.raises(HeedfulError, match=r"the start of \S+empty\.tsv contains almost no usable pairs"):
        prepare_corpus(corpus_inputs, tmp_path / "d")
    shutil.copy(files / "a.tsv", tmp_path)
    prepare_corpus(CorpusInputs(make_sources((tmp_path / "a.tsv",))), tmp_path / "c")
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(HeedfulError, match=r"a\.tsv was changed or deleted"):
        load_prepared(tmp_path / "c")


@pytest.mark.long
def test_streaming_train_killed_resumes_bit_exactly(grammar_pairs: Path, tmp_path: Path) -> None:
    """Two kills at random updates, the first after at least one checkpoint, the second of the resumed run."""
    settings = ["--set", "preprocessing.streaming=true", "--set", "preprocessing.shuffle_buffer_pairs=100"]
    settings += ["--set", "training.max_updates=40", "--set", "training.checkpoint_minutes=0.001"]
    assert run_heedful(*quick_train_args(grammar_pairs, tmp_path / "reference"), *settings).status == 0
    folder, rng = tmp_path / "killed", random.Random(2)
    for args in ([*quick_train_args(grammar_pairs, folder), *settings], ["train", "--resume", str(folder)]):
        point = StopPoint("heedful.training.distributed:Replica.update", [rng.randint(2, 16)])
        process = subprocess.Popen([*point.program(), *args], stderr=subprocess.DEVNULL)
        wait_until_stopped(process.pid)
        process.kill()
        process.wait()
        assert list(folder.glob("training/checkpoints/*"))
    result = run_heedful("train", "--resume", folder)
    assert result.status == 0, result.err
    name = "weights.safetensors"
    assert (folder / name).read_bytes() == (tmp_path / "reference" / name).read_bytes()


@pytest.mark.slow
def test_stream_of_two_processes_has_consistent_journal(grammar_pairs: Path, tmp_path: Path) -> None:
    """Both processes compute a part of every update, and both read the same stream."""
    args = quick_train_args(grammar_pairs, tmp_path / "model")
    settings = ["--set", "preprocessing.streaming=true", "--set", "preprocessing.shuffle_buffer_pairs=100"]
    result = run_heedful(*args, *settings, "--set", "training.processes=2", "--set", "training.threads=2")
    assert result.status == 0, result.err
    lines = (tmp_path / "model" / "training" / "data" / POSITIONS_FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["buffer"] for line in lines] == list(range(len(lines)))
