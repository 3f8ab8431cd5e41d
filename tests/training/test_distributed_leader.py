"""Processes that compute a gradient together: real ones, over the loopback interface."""

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
from heedful.training.distributed.group import ProcessGroup
from heedful.training.distributed.leader import WorkerGroup, open_workers
from heedful.training.preparation import load_prepared
from heedful.training.run import AUTOTUNE_FILE, choose_compute_config
from heedful.training.step import BatchSchedule, TrainState, new_optimizer
from heedful.training.trainer import ComputeConfig
from tests.conftest import quick_train_args, run_heedful
from tests.processes import descendants

pytestmark = pytest.mark.long  # every test starts worker processes

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def run(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder training/ of a run without dropout that did one update: shares differ in nothing else."""
    folder = tmp_path_factory.mktemp("team") / "model"
    words = quick_train_args(grammar_pairs, folder)
    assert run_heedful(*words, "--set", "training.max_updates=1", "--set", "model.dropout=0").status == 0
    return folder / "training"


def parts(run: Path) -> tuple[TrainState, BatchSchedule, Transformer]:
    prepared = load_prepared(run / "data")
    torch.manual_seed(3)  # other weights than a helper begins with
    plan, model = BatchSchedule(prepared, run, QUIET), new_model(prepared.model_config)
    return TrainState(run, plan, model, new_optimizer(model, plan.settings)), plan, model


def shared(run: Path, folder: Path, parallel: str) -> Path:
    """The same run with this strategy (training.parallel)."""
    shutil.copytree(run / "data", folder / "data")
    prepared = folder / "data" / "preprocessed.json"
    values = json.loads(prepared.read_text())
    values["config"]["training"]["parallel"] = parallel
    prepared.write_text(json.dumps(values))
    return folder


def alone(learner: TrainState) -> WorkerGroup:
    return WorkerGroup(learner, ProcessGroup())


def gradients(model: Transformer) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


@pytest.mark.parametrize("size", [2, 3])
def test_gradient_matches_one_process(run: Path, size: int) -> None:
    learner, _, model = parts(run)
    expected_sums = alone(learner).gradient(2, "float32").sums
    expected = gradients(model)
    with open_workers(learner, ProcessGroup(), size, 1, QUIET) as workers:
        for update in (1, 2):  # the second time with what the first left behind
            together = workers.gradient(update, "float32").sums
    assert together.tokens == expected_sums.tokens
    assert together.nll_sum == pytest.approx(expected_sums.nll_sum, rel=1e-6)
    for ours, theirs in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_processes_match_their_ranks_computed_alone(grammar_pairs: Path, tmp_path: Path, precision: str) -> None:
    """With dropout, which differs by rank, in the requested precision."""
    words = quick_train_args(grammar_pairs, tmp_path / "model")
    assert run_heedful(*words, "--set", "training.max_updates=1", "--set", "model.dropout=0.3").status == 0
    run = tmp_path / "model" / "training"
    learner, plan, model = parts(run)
    model.train()
    shares = [plan.accumulate_gradient(model, 1, precision, rank, 2) for rank in (0, 1)]  # the gradients add up
    expected = gradients(model)
    with open_workers(learner, ProcessGroup(), 2, 1, QUIET) as workers:
        together = workers.gradient(1, precision).sums
    assert together.nll_sum == pytest.approx(shares[0].nll_sum + shares[1].nll_sum, rel=1e-6)
    for ours, theirs in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-6)


def test_ranks_have_different_dropout(run: Path) -> None:
    _, plan, model = parts(run)
    drawn = []
    for rank in (0, 1):
        plan.accumulate_gradient(model, 1, "float32", rank, 2)
        drawn.append(torch.rand(3))
    assert not torch.equal(*drawn)


def test_gradient_of_first_batches_only(run: Path) -> None:
    _, plan, _ = parts(run)
    plan.batches._gradient_accumulation = 3
    assert [len(plan.read_batches(1, batches=number)) for number in (0, 1, 2)] == [3, 1, 2]


def test_error_leaves_no_worker_process(run: Path) -> None:
    """An interruption during a gradient, while a worker is stopped."""
    learner, plan, _ = parts(run)
    before = torch.get_num_threads()

    def interrupted(*asked: object, **named: object) -> None:
        os.kill(helpers_of(os.getpid())[0], signal.SIGSTOP)
        raise KeyboardInterrupt

    def work() -> None:
        with open_workers(learner, ProcessGroup(), 2, before + 1, QUIET) as workers:
            assert torch.get_num_threads() == before + 1
            plan.read_batches = interrupted  # type: ignore[assignment, method-assign]
            workers.gradient(1, "float32")

    for _ in range(2):  # and it can be tried again
        with pytest.raises(KeyboardInterrupt):
            work()
        assert not helpers_of(os.getpid())
        assert torch.get_num_threads() == before
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_worker_that_does_not_start_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.training.distributed.leader.WORKER_MODULE", "heedful.no_such_module")
    learner, _, _ = parts(run)
    with (
        pytest.raises(HeedfulError, match="exited with status") as caught,
        open_workers(learner, ProcessGroup(), 2, 1, QUIET),
    ):
        pass
    assert "--processes 1" in (caught.value.hint or "")


def test_ranks_partition_the_pairs(run: Path) -> None:
    _, plan, _ = parts(run)
    whole = sum(batch.tokens for batch in plan.read_batches(1))
    shares = [sum(batch.tokens for batch in plan.read_batches(1, rank, 3)) for rank in range(3)]
    assert sum(shares) == whole
    assert min(shares) > 0


def test_rank_without_pairs_has_no_gradient(run: Path) -> None:
    """More processes than sentences: those without work add nothing."""
    _, plan, model = parts(run)
    sentences = sum(len(batch.source) for batch in plan.read_batches(1))
    assert plan.accumulate_gradient(model, 1, "float32", sentences, sentences + 1) == (0.0, 0, 0)


@pytest.mark.parametrize("parallel", ["sum", "ddp"])
def test_dead_worker_is_replaced_without_loss(
    run: Path, tmp_path: Path, parallel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _, undisturbed = parts(run)
    with open_workers(expected, ProcessGroup(), 2, 1, QUIET) as workers:
        for update in (1, 2, 3):
            workers.update(update, "float32", 0.01)
    learner, _, model = parts(shared(run, tmp_path, parallel))
    with open_workers(learner, ProcessGroup(), 2, 1, Reporter()) as workers:
        for update in (1, 2, 3):
            workers.update(update, "float32", 0.01)
            os.kill(helpers_of(os.getpid())[0], signal.SIGKILL)
    assert capsys.readouterr().err.count("a worker process is lost; starting new ones") == 2
    assert not helpers_of(os.getpid())
    for ours, theirs in zip(model.parameters(), undisturbed.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_worker_that_keeps_dying_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.training.distributed.leader.MAX_RESTARTS", 1)
    learner, plan, _ = parts(run)
    whole = plan.read_batches

    def read(*asked: Any) -> list[Batch]:
        os.kill(helpers_of(os.getpid())[0], signal.SIGKILL)
        return whole(*asked)

    plan.read_batches = read  # type: ignore[method-assign]
    with (
        pytest.raises(HeedfulError, match="lost a process") as caught,
        open_workers(learner, ProcessGroup(), 2, 1, QUIET) as workers,
    ):
        workers.gradient(1, "float32")
    assert "--resume" in (caught.value.hint or "")
    assert not helpers_of(os.getpid())


def test_workers_exit_when_the_leader_is_killed(run: Path) -> None:
    words = f"""
import time, torch
from pathlib import Path
from tests.training.test_distributed_leader import QUIET, ProcessGroup, open_workers, parts
learner, _, _ = parts(Path({str(run)!r}))
with open_workers(learner, ProcessGroup(), 2, 1, QUIET) as workers:
    workers.gradient(1, "float32")
    print("ready", flush=True)
    time.sleep(60)
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"ready\n"
        helper = helpers_of(leader.pid)[0]
        leader.kill()
    until = time.monotonic() + 20
    while Path(f"/proc/{helper}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{helper}").exists()


def test_signal_during_worker_start_stops_at_once(grammar_pairs: Path, tmp_path: Path) -> None:
    """Far too many of them, and then Ctrl-C: the end is quiet, before the first update."""
    words = [*quick_train_args(grammar_pairs, tmp_path / "model"), "--processes", "12"]
    process = subprocess.Popen([sys.executable, "-m", "heedful", *words], stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "12 processes with 1 thread each" in line:
            break
    while not helpers_of(process.pid) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "12 processes share" in said
    assert "stopped by Ctrl-C\n  hint: update 0 is saved" in said
    assert "worker process failed" not in said


def test_two_processes_stopped_and_resumed_match_uninterrupted_run(grammar_pairs: Path, tmp_path: Path) -> None:
    """Also: precision and processes are stored, and workers exit with the run."""
    told = ["--set", "training.processes=2", "--set", "training.precision=bfloat16"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run_heedful(*quick_train_args(grammar_pairs, whole), *told).status == 0
    words = [*quick_train_args(grammar_pairs, stopped), *told, "--set", "training.checkpoint_minutes=0.0001"]
    process = subprocess.Popen([sys.executable, "-m", "heedful", *words], stderr=subprocess.DEVNULL)
    checkpoints = stopped / "training" / "checkpoints"
    until = time.monotonic() + 60
    while not list(checkpoints.glob("00000000[1-9]")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (130, 0)  # 0: it was through already
    assert run_heedful("train", "--resume", str(stopped)).status == 0
    kept = ComputeConfig.from_settings(json.loads((stopped / "training" / AUTOTUNE_FILE).read_text()))
    assert (kept.processes, kept.precision) == (2, "bfloat16")
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (whole, stopped)]
    assert weights[0] == weights[1]


def test_resume_without_autotune_file_matches_the_uninterrupted_run(grammar_pairs: Path, tmp_path: Path) -> None:
    whole, old = tmp_path / "whole", tmp_path / "old"
    words = quick_train_args(grammar_pairs, whole)
    assert run_heedful(*words).status == 0
    shutil.copytree(whole, old)
    for name in ("README.md", "config.json", "weights.safetensors", "tokenizer.json"):
        (old / name).unlink()
    (old / "training" / AUTOTUNE_FILE).unlink()
    shutil.rmtree(old / "training" / "checkpoints" / f"{24:09}")
    done = run_heedful("train", "--resume", old)
    assert done.status == 0, done.err
    assert "average of the last 2 checkpoints" in done.err or "best checkpoint" in done.err
    kept = sorted(path.name for path in (old / "training" / "checkpoints").iterdir())
    assert kept == sorted(path.name for path in (whole / "training" / "checkpoints").iterdir())
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (whole, old)]
    assert weights[0] == weights[1]


def test_choose_compute_config_divides_threads(run: Path, tmp_path: Path) -> None:
    learner, plan, _ = parts(run)
    plan.settings = plan.settings.model_copy(update={"processes": 2})
    learner = replace(learner, folder=tmp_path)
    chosen = choose_compute_config(learner, None, 4, QUIET)
    assert (chosen.processes, chosen.threads) == (2, 2)
    (tmp_path / AUTOTUNE_FILE).write_text('{"precision": "float32", "processes": 0, "threads": 1}')
    with pytest.raises(HeedfulError, match="is corrupt") as caught:
        choose_compute_config(learner, None, 4, QUIET)
    assert "measure again" in (caught.value.hint or "")


def test_autotune_skips_processes_that_fail(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then one process is used."""
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.01)
    monkeypatch.setattr("heedful.training.distributed.leader.WORKER_MODULE", "heedful.no_such_module")
    chosen = choose_compute_config(replace(parts(run)[0], folder=tmp_path), None, 2, Reporter())
    assert chosen.processes == 1
    assert "2 processes failed" in capsys.readouterr().err


def test_autotune_short_training_does_not_measure(run: Path, tmp_path: Path) -> None:
    chosen = choose_compute_config(replace(parts(run)[0], folder=tmp_path), None, 2, QUIET)
    assert (chosen.precision, chosen.processes, chosen.threads, chosen.tokens_per_second) == ("float32", 1, 2, 0.0)


def test_autotune_long_training_stores_the_fastest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.1)
    shutil.copytree(run / "data", tmp_path / "data")
    run = tmp_path  # as it was before it learned anything
    learner, _, model = parts(run)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    chosen = choose_compute_config(learner, None, 2, Reporter())
    lines = capsys.readouterr().err.splitlines()[1:]
    speeds = [float(line.split(": ")[1].split()[0].replace(",", "")) for line in lines]
    assert len(lines) == 4
    assert max(speeds) <= 1.05**3 * chosen.tokens_per_second + 1
    assert all(map(torch.equal, before, model.parameters()))  # trying changes nothing
    monkeypatch.setattr("heedful.training.run.autotune", None)
    assert choose_compute_config(learner, None, 2, QUIET) == chosen


def helpers_of(leader: int) -> list[int]:
    """The processes that help another."""
    return [
        pid for pid, command in descendants(leader).items() if "heedful.training.distributed.worker_process" in command
    ]
