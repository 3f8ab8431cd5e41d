"""Groups of processes under torchrun: the same loss curve as one process, even if a process is lost."""

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
from tests.faults.training_process import wait_for_exit
from tests.processes import descendants
from tests.training import held_training

SAME = ("--set", "model.dropout=0", "--set", "model.attention_bias=false")
"""Without dropout, which differs by rank, processes differ in rounding only; and without key biases, whose true
gradient is zero: Adam would amplify the rounding errors."""
SECONDS = 600
"""How long to wait for a training; on an idle machine it takes some seconds."""
LONG_RUN = ("--set", "training.max_updates=300", "--set", "training.validate_every=100")
STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Needed for restarts."""
TORCHRUN_COMMAND = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "100"),
    *("--monitor-interval", "0.5", "--nproc-per-node"),
]


def start(size: int, *args: str, hold_file: Path | None = None, under_torchrun: bool = True) -> "subprocess.Popen[str]":
    """Start the command line, under torchrun or directly; with a hold file, see held_training.py."""
    program = ["-m", "heedful"] if hold_file is None else [held_training.__file__]
    command = [*TORCHRUN_COMMAND, str(size)] if under_torchrun else [sys.executable]
    return subprocess.Popen(
        [*command, *program, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | STORE | {"OMP_NUM_THREADS": "1", held_training.HOLD_FILE_VARIABLE: str(hold_file)},
    )


def torchrun(size: int, *args: str) -> str:
    """Run to the end and return the output of all processes."""
    process = start(size, *args)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    return output


def read_losses(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "training" / "metrics.jsonl").read_text().splitlines())
    return [(line["update"], line["loss"]) for line in lines if "tokens" in line]


def validation(folder: Path) -> list[float]:
    """The loss of each validation, which one pair too many or too few would change."""
    lines = map(json.loads, (folder / "training" / "metrics.jsonl").read_text().splitlines())
    return [line["validation_loss"] for line in lines if "validation_loss" in line]


def check_equal_training(folder: Path, expected: Path) -> None:
    """The same curve and the same weights, to float tolerance."""
    actual, reference = read_losses(folder), read_losses(expected)
    assert [update for update, _ in actual] == [update for update, _ in reference]
    assert [loss for _, loss in actual] == pytest.approx([loss for _, loss in reference], rel=1e-5)
    check_weights(folder, expected)


def check_weights(folder: Path, expected: Path) -> None:
    weights = [read_tensors(path / "weights.safetensors") for path in (folder, expected)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def single_process_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained in one process with two batches per update."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    args = [*quick_train_args(grammar_pairs, folder), *SAME, "--set", "training.gradient_accumulation=2"]
    assert run_heedful(*args).status == 0
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("size", "parallel"), [(4, "ddp"), (2, "ddp"), (4, "fsdp"), (2, "fsdp")])
def test_loss_curve_matches_one_process(
    grammar_pairs: Path, single_process_model: Path, tmp_path: Path, size: int, parallel: str
) -> None:
    args = [*quick_train_args(grammar_pairs, tmp_path / "model"), *SAME]
    options = ["--set", "training.gradient_accumulation=2", "--set", f"training.parallel={parallel}"]
    output = torchrun(size, *args, *options)
    assert output.count("model written to") == 1  # by rank 0
    check_equal_training(tmp_path / "model", single_process_model)
    if (size, parallel) == (2, "ddp"):  # the same command on a host that joins too late
        assert "is already trained" in torchrun(1, *args, *options)


@pytest.fixture(scope="module")
def long_single_process_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "model"
    assert run_heedful(*quick_train_args(grammar_pairs, folder), *SAME, *LONG_RUN).status == 0
    return folder


def ranks_of(launcher: int) -> list[int]:
    """The process ids of the ranks that torchrun has started, by rank."""
    pids: dict[int, int] = {}
    for pid in descendants(launcher):
        with suppress(OSError):  # it has just exited
            rank = re.search(rb"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
            if rank:
                pids.setdefault(int(rank[1]), pid)
    return [pids[rank] for rank in sorted(pids)]


def wait_for_update(folder: Path, update: int, process: "subprocess.Popen[str]") -> None:
    metrics, deadline = folder / "training" / "metrics.jsonl", time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and any(number >= update for number, _ in read_complete_lines(metrics)):
            return
        time.sleep(0.02)
    raise AssertionError(f"update {update} was never reached")


def read_complete_lines(metrics: Path) -> list[tuple[int, float]]:
    updates = []
    for line in metrics.read_text().splitlines():
        try:
            values = json.loads(line)
            updates.append((values["update"], values.get("loss", 0.0)))
        except ValueError:
            break
    return updates


@pytest.mark.long
def test_lost_rank_restarts_the_group(grammar_pairs: Path, long_single_process_model: Path, tmp_path: Path) -> None:
    """Rank 1, then rank 0: the group resumes from the last checkpoint."""
    folder, hold_file = tmp_path / "model", tmp_path / "hold"
    hold_file.write_text("110")
    process = start(2, *quick_train_args(grammar_pairs, folder), *SAME, *LONG_RUN, hold_file=hold_file)
    wait_for_update(folder, 110, process)
    os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
    hold_file.write_text("210")
    wait_for_update(folder, 210, process)
    os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
    hold_file.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert list(map(int, re.findall(r"resuming from update (\d+)", output))) == [100, 200]
    assert validation(folder) == pytest.approx(validation(long_single_process_model), rel=1e-4)


@pytest.mark.long
def test_torchrun_killed_while_ranks_start_leaves_none(grammar_pairs: Path, tmp_path: Path) -> None:
    """Before they have joined the group: they still import PyTorch."""
    process = start(2, *quick_train_args(grammar_pairs, tmp_path / "model"))
    while len(ranks := ranks_of(process.pid)) < 2:
        time.sleep(0.01)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    wait_for_exit(ranks)
    assert not (tmp_path / "model" / "config.json").exists()


@pytest.mark.long
def test_resume_with_other_process_count_continues_at_the_same_pair(
    grammar_pairs: Path, long_single_process_model: Path, tmp_path: Path
) -> None:
    """Three processes under torchrun, stopped by a signal; then two of --processes; then one."""
    folder, hold_file = tmp_path / "model", tmp_path / "hold"
    hold_file.write_text("30")
    process = start(3, *quick_train_args(grammar_pairs, folder), *SAME, *LONG_RUN, hold_file=hold_file)
    wait_for_update(folder, 30, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert list_checkpoints(folder / "training" / "checkpoints")[-1].name == f"{30:09}"
    hold_file.write_text("70")
    process = start(1, "train", "--resume", str(folder), "--processes", "2", hold_file=hold_file, under_torchrun=False)
    wait_for_update(folder, 70, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, output
    assert output.count("resuming from update 30") == 1
    assert list_checkpoints(folder / "training" / "checkpoints")[-1].name == f"{70:09}"
    result = run_heedful("train", "--resume", folder, "--processes", "1")
    assert result.status == 0, result.err
    assert validation(folder) == pytest.approx(validation(long_single_process_model), rel=1e-4)


@pytest.mark.long
def test_fsdp_checkpoint_resumes(grammar_pairs: Path, long_single_process_model: Path, tmp_path: Path) -> None:
    folder, hold_file = tmp_path / "model", tmp_path / "hold"
    args = [*quick_train_args(grammar_pairs, folder), *SAME, *LONG_RUN, "--set", "training.parallel=fsdp"]
    hold_file.write_text("30")
    process = start(2, *args, hold_file=hold_file)
    wait_for_update(folder, 30, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=SECONDS)
    assert "stopped by SIGTERM" in output
    assert "lost a process" not in output  # rank 0 tells the others that it stops
    assert list_checkpoints(folder / "training" / "checkpoints")[-1].name == f"{30:09}"
    hold_file.write_text("210")
    process = start(2, *args, hold_file=hold_file)
    wait_for_update(folder, 210, process)
    os.kill(ranks_of(process.pid)[1], signal.SIGKILL)  # and its shard of the weights
    hold_file.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert list(map(int, re.findall(r"resuming from update (\d+)", output))) == [30, 200]
    assert validation(folder) == pytest.approx(validation(long_single_process_model), rel=1e-4)


@pytest.mark.long
def test_batch_out_of_memory_is_split(grammar_pairs: Path, tmp_path: Path) -> None:
    """All pairs in one batch, in a process whose memory limit is too small for it."""
    options = [
        *("--set", "batching.max_tokens=30000", "--set", "batching.max_sentences=0"),
        *("--set", "model.d_ff=8192", "--set", "training.precision=float32"),
        *("--set", "training.max_updates=2", "--set", "training.validate_every=2", *SAME),
    ]
    unsplit, split = tmp_path / "unsplit", tmp_path / "split"
    assert run_heedful(*quick_train_args(grammar_pairs, unsplit), *options).status == 0
    args = [sys.executable, "-m", "heedful", *quick_train_args(grammar_pairs, split), *options]
    result = subprocess.run(
        ["prlimit", f"--data={1200 << 20}", *args],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "did not fit in memory and was split" in result.stderr
    last = list_checkpoints(split / "training" / "checkpoints")[-1]
    assert read_state(last).failures.splits >= 2
    check_weights(split, unsplit)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "restarts", "problem"),
    [
        ((), 0, "already exists"),
        (("--processes", "3"), 0, "--processes cannot be used under torchrun"),
        ((), 1, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun"),
    ],
)
def test_user_error_under_torchrun_is_reported(
    grammar_pairs: Path, tmp_path: Path, options: tuple[str, ...], restarts: int, problem: str
) -> None:
    """As such, not as a lost process."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    args = [*quick_train_args(grammar_pairs, folder), *options]
    result = subprocess.run(
        [*TORCHRUN_COMMAND[:4], "--max-restarts", str(restarts), "--nproc-per-node", "2", "-m", "heedful", *args],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert result.returncode == 1
    assert problem in result.stderr
    assert "lost a process" not in result.stderr


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
    """Every update after the first is skipped, until the maximum is reached."""
    options = [
        "--set",
        "training.learning_rate=1e30",
        "--set",
        "training.warmup_updates=1",
        "--set",
        "training.max_nonfinite_updates=3",
    ]
    result = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "model"), *options)
    assert result.status == 1
    assert result.err.count("is skipped: non-finite loss or gradient") == 3
    assert "in 4 updates in a row" in result.err
    assert "lower training.learning_rate" in result.err
