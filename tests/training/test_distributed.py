"""Groups of processes under torchrun: the same curve as one process, through the loss of any of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from heedful.data.collate import Batch, collate
from heedful.model_folder import read_tensors
from heedful.training.checkpoint import list_checkpoints, read_state
from tests.conftest import quick_train_args, run_heedful
from tests.processes import descendants

SAME = ("--set", "model.dropout=0", "--set", "model.attention_bias=false")
"""Without dropout, which differs from rank to rank, processes differ in rounding only; and without biases of
keys, whose true gradient is zero: Adam would blow up the rounding."""
LONGER = ("--set", "training.max_updates=300", "--set", "training.validate_every=100")
START = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "100"),
    *("--monitor-interval", "0.5", "--nproc-per-node"),
]


def start(size: int, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*START, str(size), "-m", "heedful", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def torchrun(size: int, *words: str) -> str:
    """Run to the end; the output of all processes."""
    process = start(size, *words)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "training" / "metrics.jsonl").read_text().splitlines())
    return [(line["update"], line["loss"]) for line in lines if "tokens" in line]


def validation(folder: Path) -> list[float]:
    """The loss of each validation: one pair too many or too few would change it."""
    lines = map(json.loads, (folder / "training" / "metrics.jsonl").read_text().splitlines())
    return [line["validation_loss"] for line in lines if "validation_loss" in line]


def check_alike(folder: Path, expected: Path) -> None:
    """The same curve and the same weights, to float tolerance."""
    ours, theirs = losses(folder), losses(expected)
    assert [update for update, _ in ours] == [update for update, _ in theirs]
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in theirs], rel=1e-5)
    check_weights(folder, expected)


def check_weights(folder: Path, expected: Path) -> None:
    weights = [read_tensors(path / "weights.safetensors") for path in (folder, expected)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def alone(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, two batches to an update."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    words = [*quick_train_args(grammar_pairs, folder), *SAME, "--set", "training.gradient_accumulation=2"]
    assert run_heedful(*words).status == 0
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("size", "parallel"), [(4, "sum"), (2, "ddp"), (2, "fsdp")])
def test_loss_curve_matches_one_process(
    grammar_pairs: Path, alone: Path, tmp_path: Path, size: int, parallel: str
) -> None:
    words = [*quick_train_args(grammar_pairs, tmp_path / "model"), *SAME]
    told = ["--set", "training.gradient_accumulation=2", "--set", f"training.parallel={parallel}"]
    said = torchrun(size, *words, *told)
    assert said.count("model written to") == 1  # by the leader
    check_alike(tmp_path / "model", alone)
    if parallel == "ddp":  # a host that comes too late, with the same command
        assert "is already trained" in torchrun(1, *words, *told)


@pytest.fixture(scope="module")
def long_alone(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "model"
    assert run_heedful(*quick_train_args(grammar_pairs, folder), *SAME, *LONGER).status == 0
    return folder


def ranks_of(launcher: int) -> list[int]:
    """Processes that torchrun has started, by rank."""
    found: dict[int, int] = {}
    for pid in descendants(launcher):
        with suppress(OSError):  # it has just ended
            rank = re.search(rb"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
            if rank:
                found.setdefault(int(rank[1]), pid)
    return [found[rank] for rank in sorted(found)]


def wait_for_update(folder: Path, update: int, process: "subprocess.Popen[str]") -> None:
    metrics, until = folder / "training" / "metrics.jsonl", time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        if metrics.exists() and any(number >= update for number, _ in _whole_lines(metrics)):
            return
        time.sleep(0.02)
    raise AssertionError(f"update {update} was never reached")


def _whole_lines(metrics: Path) -> list[tuple[int, float]]:
    found = []
    for line in metrics.read_text().splitlines():
        try:
            values = json.loads(line)
            found.append((values["update"], values.get("loss", 0.0)))
        except ValueError:
            break
    return found


@pytest.mark.long
def test_lost_rank_restarts_the_group(grammar_pairs: Path, long_alone: Path, tmp_path: Path) -> None:
    """When another is lost, the leader has saved what it had; if itself, all go on from its last."""
    folder = tmp_path / "model"
    process = start(2, *quick_train_args(grammar_pairs, folder), *SAME, *LONGER)
    for update, rank in ((110, 1), (210, 0)):
        wait_for_update(folder, update, process)
        os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    first, second = map(int, re.findall(r"resuming from update (\d+)", said))
    assert first >= 110
    assert 200 <= second < 300
    assert validation(folder) == pytest.approx(validation(long_alone), rel=1e-4)


@pytest.mark.long
def test_resume_with_other_process_count_continues_at_the_same_pair(
    grammar_pairs: Path, long_alone: Path, tmp_path: Path
) -> None:
    """Three processes under torchrun, stopped by a signal; then two local ones; then one."""
    folder = tmp_path / "model"
    process = start(3, *quick_train_args(grammar_pairs, folder), *SAME, *LONGER)
    wait_for_update(folder, 30, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    saved = int(list_checkpoints(folder / "training" / "checkpoints")[-1].name)
    assert 30 <= saved < 300
    stopped = subprocess.Popen(
        [sys.executable, "-m", "heedful", "train", "--resume", str(folder), "--processes", "2"],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_update(folder, saved + 40, stopped)
    stopped.send_signal(signal.SIGINT)
    assert f"resuming from update {saved}" in stopped.communicate(timeout=120)[1]
    done = run_heedful("train", "--resume", folder, "--processes", "1")
    assert done.status == 0, done.err
    assert validation(folder) == pytest.approx(validation(long_alone), rel=1e-4)


@pytest.mark.long
def test_fsdp_checkpoint_resumes(grammar_pairs: Path, long_alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    words = [*quick_train_args(grammar_pairs, folder), *SAME, *LONGER, "--set", "training.parallel=fsdp"]
    process = start(2, *words)
    wait_for_update(folder, 30, process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert "stopped by SIGTERM" in said
    assert "lost a process" not in said  # the leader tells the others that it ends
    saved = int(list_checkpoints(folder / "training" / "checkpoints")[-1].name)
    assert 30 <= saved < 100
    process = start(2, *words)
    wait_for_update(folder, 210, process)
    os.kill(ranks_of(process.pid)[1], signal.SIGKILL)  # with its part of the weights
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert list(map(int, re.findall(r"resuming from update (\d+)", said))) == [saved, 200]
    assert validation(folder) == pytest.approx(validation(long_alone), rel=1e-4)


@pytest.mark.long
def test_batch_out_of_memory_is_split(grammar_pairs: Path, tmp_path: Path) -> None:
    """All pairs in one batch, in a process that may not have the memory for it."""
    told = [
        *("--set", "batching.max_tokens=30000", "--set", "batching.max_sentences=0"),
        *("--set", "model.d_ff=8192", "--set", "training.precision=float32"),
        *("--set", "training.max_updates=2", "--set", "training.validate_every=2", *SAME),
    ]
    whole, split = tmp_path / "whole", tmp_path / "split"
    assert run_heedful(*quick_train_args(grammar_pairs, whole), *told).status == 0
    words = [sys.executable, "-m", "heedful", *quick_train_args(grammar_pairs, split), *told]
    done = subprocess.run(
        ["prlimit", f"--data={1200 << 20}", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "did not fit in memory and was split" in done.stderr
    last = list_checkpoints(split / "training" / "checkpoints")[-1]
    assert read_state(last).failures.splits >= 2
    check_weights(split, whole)


@pytest.mark.long
@pytest.mark.parametrize(
    ("told", "problem"), [((), "already exists"), (("--processes", "3"), "--processes cannot be used under torchrun")]
)
def test_user_error_under_torchrun_is_reported(
    grammar_pairs: Path, tmp_path: Path, told: tuple[str, ...], problem: str
) -> None:
    """And not as the loss of the process that found it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    words = [*quick_train_args(grammar_pairs, folder), *told]
    done = subprocess.run(
        [*START[:4], "--max-restarts", "0", "--nproc-per-node", "2", "-m", "heedful", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert problem in done.stderr
    assert "lost a process" not in done.stderr


def test_split_batch_keeps_guided_links() -> None:
    links = torch.tensor([[0, 1, 0], [1, 0, 1], [2, 1, 1]])
    batch = collate([[3], [4, 5], [6]], [[7], [8], [9]])
    first, second = Batch(batch.source, batch.decoder_input, batch.target, links).split_in_half()
    assert (len(first.source), len(second.source)) == (1, 2)
    assert first.guided_links is not None
    assert first.guided_links.tolist() == [[0, 1, 0]]
    assert second.guided_links is not None
    assert second.guided_links.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert first.tokens + second.tokens == batch.tokens


def test_diverging_training_stops(grammar_pairs: Path, tmp_path: Path) -> None:
    """Every update after the first is skipped, until there are too many."""
    told = [
        "--set",
        "training.learning_rate=1e30",
        "--set",
        "training.warmup_updates=1",
        "--set",
        "training.max_nonfinite_updates=3",
    ]
    done = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "model"), *told)
    assert done.status == 1
    assert done.err.count("is skipped: non-finite loss or gradient") == 3
    assert "in 4 updates in a row" in done.err
    assert "lower training.learning_rate" in done.err
