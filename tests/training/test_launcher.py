"""Worker processes that compute one gradient together, over the loopback interface."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data.collate import Batch
from heedful.errors import HeedfulError
from heedful.models.factory import new_model
from heedful.models.transformer import Transformer
from heedful.progress import Reporter
from heedful.training.checkpoint import list_checkpoints
from heedful.training.distributed.group import ProcessGroup
from heedful.training.distributed.leader import WorkerGroup, open_workers
from heedful.training.preparation import load_prepared
from heedful.training.run import AUTOTUNE_FILE, choose_compute_config
from heedful.training.step import BatchSchedule, TrainState, new_optimizer
from heedful.training.trainer import ComputeConfig
from tests.conftest import quick_train_args, run_heedful
from tests.inference.signaled_command import run_signaled
from tests.processes import descendants, is_running

pytestmark = pytest.mark.long  # every test starts worker processes

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def run(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder training/ of a run without dropout after one update: only the pairs differ by rank."""
    folder = tmp_path_factory.mktemp("workers") / "model"
    args = quick_train_args(grammar_pairs, folder)
    assert run_heedful(*args, "--set", "training.max_updates=1", "--set", "model.dropout=0").status == 0
    return folder / "training"


def load_run(run: Path) -> tuple[TrainState, BatchSchedule, Transformer]:
    prepared = load_prepared(run / "data")
    torch.manual_seed(3)  # other initial weights than those of a worker
    batch_schedule, model = BatchSchedule(prepared, run, QUIET), new_model(prepared.model_config)
    return TrainState(run, batch_schedule, model, new_optimizer(model, batch_schedule.settings)), batch_schedule, model


def copy_with_parallel_mode(run: Path, folder: Path, parallel: str) -> Path:
    """A copy of the run with this value of training.parallel."""
    shutil.copytree(run / "data", folder / "data")
    prepared = folder / "data" / "preprocessed.json"
    values = json.loads(prepared.read_text())
    values["config"]["training"]["parallel"] = parallel
    prepared.write_text(json.dumps(values))
    return folder


def new_single_process(train_state: TrainState) -> WorkerGroup:
    return WorkerGroup(train_state, ProcessGroup())


def clone_gradients(model: Transformer) -> list[torch.Tensor]:
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [gradient.clone() for gradient in gradients if gradient is not None]


@pytest.mark.parametrize("size", [2, 3])
def test_gradient_matches_one_process(run: Path, size: int) -> None:
    train_state, _, model = load_run(run)
    expected_sums = new_single_process(train_state).gradient(2, "float32").sums
    expected = clone_gradients(model)
    with open_workers(train_state, ProcessGroup(), size, 1, QUIET) as workers:
        for update in (1, 2):  # the second time with gradients and buffers of the first
            sums = workers.gradient(update, "float32").sums
    assert sums.tokens == expected_sums.tokens
    assert sums.nll_sum == pytest.approx(expected_sums.nll_sum, rel=1e-6)
    for actual, reference in zip(clone_gradients(model), expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()) + 1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_processes_match_their_ranks_computed_alone(grammar_pairs: Path, tmp_path: Path, precision: str) -> None:
    """With dropout, which differs by rank, in the requested precision."""
    args = quick_train_args(grammar_pairs, tmp_path / "model")
    assert run_heedful(*args, "--set", "training.max_updates=1", "--set", "model.dropout=0.3").status == 0
    run = tmp_path / "model" / "training"
    train_state, batch_schedule, model = load_run(run)
    model.train()
    # The gradients of the ranks add up.
    rank_sums = [batch_schedule.accumulate_gradient(model, 1, precision, rank, 2) for rank in (0, 1)]
    expected = clone_gradients(model)
    with open_workers(train_state, ProcessGroup(), 2, 1, QUIET) as workers:
        sums = workers.gradient(1, precision).sums
    assert sums.nll_sum == pytest.approx(rank_sums[0].nll_sum + rank_sums[1].nll_sum, rel=1e-6)
    for actual, reference in zip(clone_gradients(model), expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()) + 1e-6)


def test_ranks_have_different_dropout(run: Path) -> None:
    _, batch_schedule, model = load_run(run)
    samples = []
    for rank in (0, 1):
        batch_schedule.accumulate_gradient(model, 1, "float32", rank, 2)
        samples.append(torch.rand(3))
    assert not torch.equal(*samples)


def test_gradient_of_first_batches_only(run: Path) -> None:
    _, batch_schedule, _ = load_run(run)
    batch_schedule.batches._gradient_accumulation = 3
    assert [len(batch_schedule.read_batches(1, batches=number)) for number in (0, 1, 2)] == [3, 1, 2]


def test_error_leaves_no_worker_process(run: Path) -> None:
    """An interruption during a gradient, while a worker is stopped."""
    train_state, batch_schedule, _ = load_run(run)
    before = torch.get_num_threads()

    def stop_worker_and_interrupt(*args: object, **options: object) -> None:
        os.kill(find_workers(os.getpid())[0], signal.SIGSTOP)
        raise KeyboardInterrupt

    def compute_gradient() -> None:
        with open_workers(train_state, ProcessGroup(), 2, before + 1, QUIET) as workers:
            assert torch.get_num_threads() == before + 1
            batch_schedule.read_batches = stop_worker_and_interrupt  # type: ignore[assignment, method-assign]
            workers.gradient(1, "float32")

    for _ in range(2):  # workers can be opened again
        with pytest.raises(KeyboardInterrupt):
            compute_gradient()
        assert not find_workers(os.getpid())
        assert torch.get_num_threads() == before
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_worker_that_does_not_start_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.training.distributed.leader.WORKER_MODULE", "heedful.no_such_module")
    train_state, _, _ = load_run(run)
    with (
        pytest.raises(HeedfulError, match="exited with status") as error,
        open_workers(train_state, ProcessGroup(), 2, 1, QUIET),
    ):
        pass
    assert "--processes 1" in (error.value.hint or "")


def test_ranks_partition_the_pairs(run: Path) -> None:
    _, batch_schedule, _ = load_run(run)
    total_tokens = sum(batch.tokens for batch in batch_schedule.read_batches(1))
    rank_tokens = [sum(batch.tokens for batch in batch_schedule.read_batches(1, rank, 3)) for rank in range(3)]
    assert sum(rank_tokens) == total_tokens
    assert min(rank_tokens) > 0


def test_rank_without_pairs_has_no_gradient(run: Path) -> None:
    """More processes than sentences: a rank without pairs adds nothing."""
    _, batch_schedule, model = load_run(run)
    sentences = sum(len(batch.source) for batch in batch_schedule.read_batches(1))
    assert batch_schedule.accumulate_gradient(model, 1, "float32", sentences, sentences + 1) == (0.0, 0, 0)


@pytest.mark.parametrize("parallel", ["sum", "ddp"])
def test_dead_worker_is_replaced_without_loss(
    run: Path, tmp_path: Path, parallel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reference_state, _, reference_model = load_run(run)
    with open_workers(reference_state, ProcessGroup(), 2, 1, QUIET) as workers:
        for update in (1, 2, 3):
            workers.update(update, "float32", 0.01)
    train_state, _, model = load_run(copy_with_parallel_mode(run, tmp_path, parallel))
    with open_workers(train_state, ProcessGroup(), 2, 1, Reporter()) as workers:
        for update in (1, 2, 3):
            workers.update(update, "float32", 0.01)
            os.kill(find_workers(os.getpid())[0], signal.SIGKILL)
    assert capsys.readouterr().err.count("a worker process is lost; starting new ones") == 2
    assert not find_workers(os.getpid())
    for actual, reference in zip(model.parameters(), reference_model.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-6)


def test_worker_that_keeps_dying_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.training.distributed.leader.MAX_RESTARTS", 1)
    train_state, batch_schedule, _ = load_run(run)
    read_batches = batch_schedule.read_batches

    def kill_worker_and_read(*args: Any) -> list[Batch]:
        os.kill(find_workers(os.getpid())[0], signal.SIGKILL)
        return read_batches(*args)

    batch_schedule.read_batches = kill_worker_and_read  # type: ignore[method-assign]
    with (
        pytest.raises(HeedfulError, match="lost a process") as error,
        open_workers(train_state, ProcessGroup(), 2, 1, QUIET) as workers,
    ):
        workers.gradient(1, "float32")
    assert "--resume" in (error.value.hint or "")
    assert not find_workers(os.getpid())


def test_workers_exit_when_the_leader_is_killed(run: Path) -> None:
    program = f"""
import time, torch
from pathlib import Path
from tests.training.test_distributed_leader import QUIET, ProcessGroup, load_run, open_workers
train_state, _, _ = load_run(Path({str(run)!r}))
with open_workers(train_state, ProcessGroup(), 2, 1, QUIET) as workers:
    workers.gradient(1, "float32")
    print("ready", flush=True)
    time.sleep(600)
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"ready\n"
        worker = find_workers(leader.pid)[0]
        leader.kill()
    deadline = time.monotonic() + 120
    while is_running(worker):
        assert time.monotonic() < deadline, "the worker is still running"
        time.sleep(0.1)


def test_signal_during_worker_start_stops_at_once(grammar_pairs: Path, tmp_path: Path) -> None:
    """More workers than cores, then Ctrl-C: it stops before the first update, without errors of the workers."""
    args = [*quick_train_args(grammar_pairs, tmp_path / "model"), "--processes", "12"]
    process = subprocess.Popen([sys.executable, "-m", "heedful", *args], stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stderr is not None
    output = ""
    for line in process.stderr:
        output += line
        if "12 processes with 1 thread each" in line:
            break
    while not find_workers(process.pid) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output += process.communicate(timeout=300)[1]
    assert process.returncode == 130, output
    assert "12 processes share" in output
    assert "stopped by Ctrl-C\n  hint: update 0 is saved" in output
    assert "worker process failed" not in output


def test_two_processes_stopped_and_resumed_match_uninterrupted_run(grammar_pairs: Path, tmp_path: Path) -> None:
    """Also: precision and processes are stored, and workers exit with the run."""
    options = ["--set", "training.processes=2", "--set", "training.precision=bfloat16"]
    uninterrupted, stopped = tmp_path / "uninterrupted", tmp_path / "stopped"
    assert run_heedful(*quick_train_args(grammar_pairs, uninterrupted), *options).status == 0
    args = [*quick_train_args(grammar_pairs, stopped), *options, "--set", "training.checkpoint_minutes=0.0001"]
    result = run_signaled(signal.SIGINT, "updates", 5, args)
    assert result.returncode == 130, result.stderr
    assert list_checkpoints(stopped / "training" / "checkpoints")[-1].name == f"{5:09}"
    assert run_heedful("train", "--resume", str(stopped)).status == 0
    compute = ComputeConfig.from_settings(json.loads((stopped / "training" / AUTOTUNE_FILE).read_text()))
    assert (compute.processes, compute.precision) == (2, "bfloat16")
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (uninterrupted, stopped)]
    assert weights[0] == weights[1]


def test_resume_without_autotune_file_matches_the_uninterrupted_run(grammar_pairs: Path, tmp_path: Path) -> None:
    uninterrupted, old = tmp_path / "uninterrupted", tmp_path / "old"
    args = quick_train_args(grammar_pairs, uninterrupted)
    assert run_heedful(*args).status == 0
    shutil.copytree(uninterrupted, old)
    for name in ("README.md", "config.json", "weights.safetensors", "tokenizer.json"):
        (old / name).unlink()
    (old / "training" / AUTOTUNE_FILE).unlink()
    shutil.rmtree(old / "training" / "checkpoints" / f"{24:09}")
    result = run_heedful("train", "--resume", old)
    assert result.status == 0, result.err
    assert "average of the last 2 checkpoints" in result.err or "best checkpoint" in result.err
    checkpoints = sorted(path.name for path in (old / "training" / "checkpoints").iterdir())
    assert checkpoints == sorted(path.name for path in (uninterrupted / "training" / "checkpoints").iterdir())
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (uninterrupted, old)]
    assert weights[0] == weights[1]


def test_choose_compute_config_divides_threads(run: Path, tmp_path: Path) -> None:
    train_state, batch_schedule, _ = load_run(run)
    batch_schedule.settings = batch_schedule.settings.model_copy(update={"processes": 2})
    train_state = replace(train_state, folder=tmp_path)
    compute = choose_compute_config(train_state, None, 4, QUIET)
    assert (compute.processes, compute.threads) == (2, 2)
    (tmp_path / AUTOTUNE_FILE).write_text('{"precision": "float32", "processes": 0, "threads": 1}')
    with pytest.raises(HeedfulError, match="is corrupt") as error:
        choose_compute_config(train_state, None, 4, QUIET)
    assert "measure again" in (error.value.hint or "")


def test_autotune_skips_processes_that_fail(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then one process is used."""
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.01)
    monkeypatch.setattr("heedful.training.distributed.leader.WORKER_MODULE", "heedful.no_such_module")
    compute = choose_compute_config(replace(load_run(run)[0], folder=tmp_path), None, 2, Reporter())
    assert compute.processes == 1
    assert "2 processes failed" in capsys.readouterr().err


def test_autotune_short_training_does_not_measure(run: Path, tmp_path: Path) -> None:
    compute = choose_compute_config(replace(load_run(run)[0], folder=tmp_path), None, 2, QUIET)
    assert (compute.precision, compute.processes, compute.threads, compute.tokens_per_second) == ("float32", 1, 2, 0.0)


def test_autotune_long_training_stores_the_fastest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.1)
    shutil.copytree(run / "data", tmp_path / "data")
    run = tmp_path  # before the first update
    train_state, _, model = load_run(run)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    compute = choose_compute_config(train_state, None, 2, Reporter())
    lines = capsys.readouterr().err.splitlines()[1:]
    speeds = [float(line.split(": ")[1].split()[0].replace(",", "")) for line in lines]
    assert len(lines) == 4
    assert max(speeds) <= 1.05**3 * compute.tokens_per_second + 1
    assert all(map(torch.equal, before, model.parameters()))  # measuring changes nothing
    monkeypatch.setattr("heedful.training.run.autotune", None)
    assert choose_compute_config(train_state, None, 2, QUIET) == compute


def find_workers(leader: int) -> list[int]:
    """The process ids of the workers of a leader."""
    return [
        pid for pid, command in descendants(leader).items() if "heedful.training.distributed.worker_process" in command
    ]
