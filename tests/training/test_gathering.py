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

from heedful.choosing import chooser
from heedful.corpora.filters import CleaningConfig
from heedful.corpora.formats import write_tsv
from heedful.corpora.grammar import generate
from heedful.corpora.parts import Part
from heedful.corpora.shards import Shards, damaged_shards
from heedful.corpora.split import split
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.corpus import CLEANED
from heedful.training.crew import Crew
from heedful.training.preparation import PREPARED, RECIPE, Inputs, Prepared, prepare
from heedful.training.preparation_config import PreparationConfig
from heedful.training.survey import split_shards
from tests.conftest import quick_train_words, run_heedful
from tests.processes import family

QUIET = Reporter(quiet=True)
SETTINGS = {
    "preset": "tiny",
    "tokenizer": {"vocabulary": 600},
    "training": {"updates": 5},
    "batches": {"tokens": 256},
}
ONE = PreparationConfig(processes=1)
PIECES = PreparationConfig(processes=1, piece_megabytes=0.005)
SHARDED = PIECES.model_copy(update={"shard_pairs": 150})
TREES = Path(__file__).parent


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several formats with duplicates in and across them, and lines that fall out."""
    folder, pairs = tmp_path_factory.mktemp("files"), generate(700)
    lines = [f"{pair.source}\t{pair.target}" for pair in pairs]
    faulty = ["no tab", "\tempty", *lines[:3], "x\t" + "y" * 2000, lines[5], "\u2028 a line \tb"]
    (folder / "a.tsv").write_text("\ufeff" + "\n".join([*lines[:300], *faulty]), encoding="utf-8")
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress(
            "".join(
                f'{{"source": "{pair.source}", "target": "{pair.target}"}}\n' for pair in pairs[250:400]
            ).encode()
        )
    )
    for name, side in (("c.en", 0), ("c.fr", 1)):
        rows = [(pair.source, pair.target)[side] for pair in pairs[380:]]
        (folder / name).write_text("\r\n".join(rows) + "\r\n", encoding="utf-8")
    write_tsv([(f"{pair.source} {n}", pair.target) for n, pair in enumerate(pairs[:90])], folder / "d.tsv")
    return folder


def test_files_that_changed_since_are_read_again(grammar_pairs: Path, tmp_path: Path) -> None:
    """Prepared, but nothing learned: the same command on a corrected file must not learn from the old one."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    shutil.copyfile(grammar_pairs, pairs)
    words = [*quick_train_words(pairs, folder), "--set", "training.updates=1"]
    assert run_heedful(*words).status == 0
    for path in (*folder.glob("*.*"), *(folder / "training" / "checkpoints").iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = pairs.read_text().splitlines(keepends=True)
    pairs.write_text("".join(lines[:500]))
    done = run_heedful(*words)
    assert done.status == 0, done.err
    assert "read 500 pairs" in done.err


def inputs(files: Path) -> Inputs:
    mixed = (Part((files / "d.tsv",), share=0.3, held_out=False),)
    return Inputs(tuple(files / name for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr")), parts=mixed)


def prepared(given: Inputs, folder: Path, scale: PreparationConfig, **settings: object) -> Prepared:
    return prepare(given, folder, CleaningConfig(), chooser({**SETTINGS, **settings}), QUIET, scale=scale)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file; how many processes made them is no part of it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_pieces_give_what_one_by_one_gives(files: Path, tmp_path: Path) -> None:
    one = prepared(inputs(files), tmp_path / "one", ONE)
    prepared(inputs(files), tmp_path / "pieces", PIECES)
    assert contents(tmp_path / "pieces") == contents(tmp_path / "one")
    assert any("duplicate (first: a.tsv:" in line for line in one.summary)


def test_the_number_of_processes_does_not_matter(files: Path, tmp_path: Path) -> None:
    one = prepared(inputs(files), tmp_path / "one", SHARDED)
    prepared(inputs(files), tmp_path / "three", SHARDED.model_copy(update={"processes": 3}))
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    assert isinstance(one.training, Shards)
    assert len(one.training.manifest.shards) == 6
    # Neither does the size of pieces.
    prepared(inputs(files), tmp_path / "whole", ONE.model_copy(update={"shard_pairs": 150}))
    assert contents(tmp_path / "whole") == contents(tmp_path / "one")


def test_shards_hold_what_one_store_holds(files: Path, tmp_path: Path) -> None:
    """The same pairs are learned and held out; the tokenizer sees them in another order only."""
    one = prepared(inputs(files), tmp_path / "one", ONE)
    many = prepared(inputs(files), tmp_path / "many", SHARDED)

    def texts(found: Prepared) -> list[tuple[str, str]]:
        store, tokenizer = found.training, found.tokenizer
        return sorted(
            (tokenizer.source.decode(store.source(i)), tokenizer.target.decode(store.target(i)))
            for i in range(len(store))
        )

    assert texts(many) == texts(one)
    assert sorted(many.validation) == sorted(one.validation)
    assert many.training.longest_source == one.training.longest_source


def test_every_pair_once_an_epoch_in_any_order(files: Path, tmp_path: Path) -> None:
    given = Inputs(inputs(files).training)
    found = prepared(given, tmp_path, SHARDED, training={"updates": 5, "accumulate": 3})
    batches, again = found.batches(), found.batches()
    orders = []
    for epoch in (0, 1):
        updates = [batches.update(epoch, n) for n in range(batches.updates_per_epoch(epoch))]
        seen = [index for update in updates for batch in update for index in batch.tolist()]
        assert sorted(seen) == list(range(len(found.training)))
        assert all(len(update) == 3 for update in updates[:-1])
        for number in (7, 2, len(updates) - 1):  # reached directly
            there = again.update(epoch, number)
            assert [b.tolist() for b in there] == [b.tolist() for b in updates[number]]
        orders.append(seen)
    assert orders[0] != orders[1]
    with pytest.raises(IndexError):
        batches.update(0, batches.updates_per_epoch(0))


def test_shares_hold_in_shards(files: Path, tmp_path: Path) -> None:
    found = prepared(inputs(files), tmp_path, SHARDED)
    tags = [0, *np.cumsum([size for shard in found.training.manifest.shards for size in shard.parts])]  # type: ignore[union-attr]
    mixed = {i for a, b in zip(tags[1::2], tags[2::2], strict=True) for i in range(a, b)}
    batches = found.batches()
    for epoch in (0, 3):
        seen = [
            index
            for n in range(batches.updates_per_epoch(epoch))
            for batch in batches.update(epoch, n)
            for index in batch.tolist()
        ]
        assert sum(index in mixed for index in seen) / len(seen) == pytest.approx(0.3, abs=0.06)


def test_hashes_hold_out_what_reading_holds_out(files: Path, tmp_path: Path) -> None:
    from heedful.training.division import cleaned_corpus
    from heedful.training.survey import surveyed

    corpus, _ = cleaned_corpus(inputs(files), tmp_path, CleaningConfig(), SHARDED, QUIET)
    surveyed(corpus, 1, QUIET, "pair")
    for count in (None, 1, 40):
        quick = split_shards(corpus, count)
        slow = split(lambda: corpus.pairs(held_out=True), count, lambda: corpus.pairs(held_out=False))
        assert quick.held_out == slow.held_out
        assert (quick.sources, quick.leaks, quick.training_pairs) == (
            slow.sources,
            slow.leaks,
            slow.training_pairs,
        )
    with pytest.raises(HeedfulError, match="leaves too few"):
        split_shards(corpus, 500)


def test_a_damaged_shard_is_encoded_again(files: Path, tmp_path: Path) -> None:
    prepared(inputs(files), tmp_path, SHARDED)
    before = contents(tmp_path)
    path = tmp_path / "training" / "00002" / "target.ids"
    flipped = bytearray(path.read_bytes())
    flipped[17] ^= 4
    path.write_bytes(flipped)
    (tmp_path / "training" / "00004" / "source.offsets").unlink()
    assert damaged_shards(tmp_path / "training") == [2, 4]
    prepared(inputs(files), tmp_path, SHARDED)
    assert contents(tmp_path) == before
    path.write_bytes(flipped)
    text = tmp_path / "pairs" / "00002.tsv"
    text.write_bytes(text.read_bytes().replace(b"the", b"thy", 1))
    with pytest.raises(HeedfulError, match=r"00002\.tsv is damaged"):
        prepared(inputs(files), tmp_path, SHARDED)


def test_a_damaged_single_store_is_encoded_again(files: Path, tmp_path: Path) -> None:
    prepared(inputs(files), tmp_path, ONE)
    before = contents(tmp_path)
    (tmp_path / "training" / "source.ids").write_bytes(b"")
    prepared(inputs(files), tmp_path, ONE)
    assert contents(tmp_path) == before


def test_a_run_of_an_older_heedful_opens(files: Path, tmp_path: Path) -> None:
    found = prepared(inputs(files), tmp_path, ONE)
    for name in ("training/manifest.json", "training/shard.json", "encoding.json", CLEANED, "recipe.json"):
        (tmp_path / name).unlink()
    again = prepared(inputs(files), tmp_path, ONE)
    assert len(again.training) == len(found.training)
    assert again.config == found.config


def test_a_changed_file_is_cleaned_again(files: Path, tmp_path: Path) -> None:
    """Pieces that a killed preparation left are of use only as long as their files are the same."""
    for name in ("a.tsv", "b.jsonl.gz", "c.en", "c.fr", "d.tsv"):
        shutil.copy(files / name, tmp_path)
    two = SHARDED.model_copy(update={"processes": 2})
    process = preparing(tmp_path, tmp_path / "data", two)
    while not list((tmp_path / "data" / "gathering").glob("0000?")) and process.poll() is None:
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
from heedful.training.preparation_config import PreparationConfig
from tests.training.test_gathering import inputs, prepared
prepared(inputs(Path(sys.argv[2])), Path(sys.argv[3]), PreparationConfig.model_validate_json(sys.argv[4]))
"""


def preparing(files: Path, folder: Path, scale: PreparationConfig) -> "subprocess.Popen[bytes]":
    """A preparation in a process of its own."""
    words = [TREES.parent.parent, files, folder, scale.model_dump_json()]
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, words)],
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def seconds_of(files: Path, folder: Path, scale: PreparationConfig) -> float:
    started = time.monotonic()
    process = preparing(files, folder, scale)
    assert process.wait() == 0, process.communicate()
    process.communicate()
    return time.monotonic() - started


def stage(folder: Path) -> str:
    """How far a preparation was when it was killed."""
    ends = {CLEANED: "cleaning", RECIPE: "looking through", PREPARED: "encoding"}
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
def test_killed_again_and_again(files: Path, tmp_path: Path) -> None:
    scale = SHARDED.model_copy(update={"processes": 2})
    seconds = seconds_of(files, tmp_path / "whole", scale)
    dice = random.Random(3)
    moments = [dice.uniform(0.3, 1.0) * seconds for _ in range(3)]
    survives(files, tmp_path / "killed", contents(tmp_path / "whole"), moments)


@pytest.mark.slow
def test_killed_at_sixty_random_moments(files: Path, tmp_path: Path) -> None:
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
    return [pid for pid, command in family(leader).items() if "heedful.training.preparer" in command]


def started(words: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "heedful", *words], stderr=subprocess.PIPE)


def wait_for(pattern: str, folder: Path, process: "subprocess.Popen[bytes]") -> list[Path]:
    while not (found := list(folder.glob(pattern))) and process.poll() is None:
        time.sleep(0.005)
    return found


def test_the_same_command_goes_on(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """What a killed one had cleaned is not cleaned again, and the model is that of one that was let alone."""
    folder = tmp_path / "model"
    words = [*quick_train_words(grammar_pairs, folder), "--set", "preparation.piece_megabytes=0.005"]
    process = started(words)
    [piece, *_] = wait_for("training/data/gathering/00000", folder, process)
    process.kill()
    process.communicate()
    before, seen = (piece / "pairs.tsv").stat().st_mtime_ns, set[int]()
    process = started(words)
    while process.poll() is None:
        with suppress(FileNotFoundError):  # at the end it goes
            seen.add((piece / "pairs.tsv").stat().st_mtime_ns)
        time.sleep(0.005)
    assert process.returncode == 0, process.communicate()
    process.communicate()
    assert seen == {before}
    name = "weights.safetensors"
    assert (folder / name).read_bytes() == (quick_model / name).read_bytes()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_ctrl_c_ends_all(grammar_pairs: Path, tmp_path: Path) -> None:
    more = ["preparation.piece_megabytes=0.002", "preparation.processes=2"]
    words = [*quick_train_words(grammar_pairs, tmp_path / "model"), *(w for m in more for w in ("--set", m))]
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
def test_a_killed_worker_is_replaced(files: Path, tmp_path: Path) -> None:
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
def test_workers_end_with_their_leader(files: Path, tmp_path: Path) -> None:
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


def test_what_always_kills_its_worker_is_an_error(tmp_path: Path) -> None:
    """A task that nobody can do ends the workers that try it: no hang, no endless row of attempts."""
    with (
        pytest.raises(HeedfulError, match="has ended 3 times"),
        QUIET.task("") as task,
    ):
        Crew(tmp_path, 2).run([{"task": "unknown"}, {"task": "unknown"}], task)


def test_an_error_of_a_worker_is_told(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes("\ufeffa\tb\n".encode("utf-16-le") * 2000)
    given = Inputs((tmp_path / "a.tsv", files / "a.tsv"))
    with pytest.raises(HeedfulError, match="is UTF-16") as told:
        prepared(given, tmp_path / "data", PIECES.model_copy(update={"processes": 2}))
    assert "iconv" in told.value.hint
