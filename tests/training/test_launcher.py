"""Ranks on this machine: --processes, through torchrun's launcher; and what each rank computes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.model_folder import read_tensors
from heedful.models.base import Model
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.training import launcher
from heedful.training.checkpoint import list_checkpoints
from heedful.training.distributed import ProcessGroup
from heedful.training.preparation import load_prepared
from heedful.training.run import AUTOTUNE_FILE, choose_compute_config
from heedful.training.step import LossSums, accumulate_gradient
from heedful.training.trainer import ComputeConfig, Trainer
from tests.conftest import MODEL_FILES, quick_train_args, run_heedful
from tests.processes import descendants, is_running
from tests.training import held_training
from tests.training.test_distributed import (
    SAME,
    SECONDS,
    STORE,
    TORCHRUN_COMMAND,
    check_equal_training,
    start,
    wait_for_update,
)

pytestmark = pytest.mark.long  # every test starts processes

QUIET = Reporter(quiet=True)
ALONE = ProcessGroup()
RANK_GRADIENTS = Path(__file__).with_name("rank_gradients.py")


@pytest.fixture(scope="module")
def run(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder training/ of a run without dropout after one update: only the pairs differ by rank."""
    folder = tmp_path_factory.mktemp("ranks") / "model"
    args = quick_train_args(grammar_pairs, folder)
    assert run_heedful(*args, "--set", "training.max_updates=1", "--set", "model.dropout=0").status == 0
    return folder / "training"


def copy_run(run: Path, folder: Path, **settings: object) -> Path:
    """The corpus of a run with other training settings, before the first update."""
    shutil.copytree(run / "data", folder / "data")
    path = folder / "data" / "preprocessed.json"
    values = json.loads(path.read_text())
    values["config"]["training"] |= settings
    path.write_text(json.dumps(values))
    return folder


def new_trainer(run: Path) -> Trainer:
    prepared = load_prepared(run / "data")
    torch.manual_seed(3)
    return Trainer(run, prepared, new_model(prepared.model_config), QUIET, time.monotonic())


def compute_part(trainer: Trainer, update: int, precision: str, rank: int, size: int) -> LossSums:
    """Add the gradient of one rank's part of an update."""
    schedule = trainer.batch_schedule
    trainer.model.train()
    return accumulate_gradient(
        schedule.create_loss(trainer.model), schedule.start_update(update, rank, size), precision
    )


def run_rank_gradients(run: Path, precision: str, size: int, output: Path) -> tuple[dict[str, Tensor], LossSums]:
    command = [*TORCHRUN_COMMAND, str(size), str(RANK_GRADIENTS), str(run), precision, str(output)]
    subprocess.run(command, check=True, timeout=SECONDS, env=os.environ | STORE | {"OMP_NUM_THREADS": "1"})
    gradients = read_tensors(output)
    nll_sum, tokens, splits = gradients.pop("sums").tolist()
    return gradients, LossSums(nll_sum, int(tokens), int(splits))


def check_gradients(actual: dict[str, Tensor], model: Model) -> None:
    for name, parameter in model.named_parameters():
        reference = parameter.grad
        assert reference is not None
        torch.testing.assert_close(actual[name], reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()) + 1e-6)


@pytest.mark.parametrize(("size", "parallel"), [(2, "ddp"), (3, "ddp"), (3, "fsdp")])
def test_gradient_matches_one_process(run: Path, tmp_path: Path, size: int, parallel: str) -> None:
    run = copy_run(run, tmp_path / "run", parallel=parallel)
    trainer = new_trainer(run)
    expected_sums = compute_part(trainer, 2, "float32", 0, 1)
    gradients, sums = run_rank_gradients(run, "float32", size, tmp_path / "gradients")
    assert sums.tokens == expected_sums.tokens
    assert sums.nll_sum == pytest.approx(expected_sums.nll_sum, rel=1e-6)
    check_gradients(gradients, trainer.model)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradient_matches_the_ranks_computed_alone(grammar_pairs: Path, tmp_path: Path, precision: str) -> None:
    """With dropout, which differs by rank, in the requested precision."""
    args = quick_train_args(grammar_pairs, tmp_path / "model")
    assert run_heedful(*args, "--set", "training.max_updates=1", "--set", "model.dropout=0.3").status == 0
    run = copy_run(tmp_path / "model" / "training", tmp_path / "run")
    trainer = new_trainer(run)
    rank_sums = [compute_part(trainer, 2, precision, rank, 2) for rank in (0, 1)]  # their gradients add up
    gradients, sums = run_rank_gradients(run, precision, 2, tmp_path / "gradients")
    assert sums.nll_sum == pytest.approx(rank_sums[0].nll_sum + rank_sums[1].nll_sum, rel=1e-6)
    check_gradients(gradients, trainer.model)


def test_ranks_have_different_dropout(run: Path) -> None:
    trainer, samples = new_trainer(run), []
    for rank in (0, 1):
        compute_part(trainer, 1, "float32", rank, 2)
        samples.append(torch.rand(3))
    assert not torch.equal(*samples)


def test_gradient_of_first_batches_only(run: Path) -> None:
    batch_schedule = new_trainer(run).batch_schedule
    batch_schedule.batches._gradient_accumulation = 3
    assert [len(batch_schedule.read_batches(1, batches=number)) for number in (0, 1, 2)] == [3, 1, 2]


def test_ranks_partition_the_pairs(run: Path) -> None:
    batch_schedule = new_trainer(run).batch_schedule
    total_tokens = sum(batch.tokens for batch in batch_schedule.read_batches(1))
    rank_tokens = [sum(batch.tokens for batch in batch_schedule.read_batches(1, rank, 3)) for rank in range(3)]
    assert sum(rank_tokens) == total_tokens
    assert min(rank_tokens) > 0


def test_rank_without_pairs_has_no_gradient(run: Path) -> None:
    """More processes than sentences: a rank without pairs adds nothing."""
    trainer = new_trainer(run)
    sentences = sum(len(batch.source) for batch in trainer.batch_schedule.read_batches(1))
    assert compute_part(trainer, 1, "float32", sentences, sentences + 1) == (0.0, 0, 0)


LOCAL_RUN = ("--processes", "3", "--set", "training.max_updates=60", "--set", "training.validate_every=20")


@pytest.fixture(scope="module")
def local_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained in three processes, without interruption: sums of three depend on their order."""
    folder = tmp_path_factory.mktemp("local") / "model"
    assert run_heedful(*quick_train_args(grammar_pairs, folder), *LOCAL_RUN).status == 0
    return folder


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def find_ranks(pid: int) -> list[int]:
    """The process ids of the ranks that a command has started."""
    return [pid for pid, command in descendants(pid).items() if " fit " in command or " measure " in command]


def hold(grammar_pairs: Path, folder: Path, update: int, *options: str) -> tuple["subprocess.Popen[str]", Path]:
    """Start a training in three processes that waits after an update; without its hold file, it continues."""
    hold_file = folder.with_name("hold")
    hold_file.write_text(str(update))
    args = [*quick_train_args(grammar_pairs, folder), *LOCAL_RUN, *options]
    return start(1, *args, hold_file=hold_file, under_torchrun=False), hold_file


@pytest.mark.parametrize("rank", [0, 1])
def test_lost_rank_resumes_bit_exactly(grammar_pairs: Path, local_model: Path, tmp_path: Path, rank: int) -> None:
    process, hold_file = hold(grammar_pairs, tmp_path / "model", 30)
    wait_for_update(tmp_path / "model", 30, process)
    ranks = find_ranks(process.pid)
    os.kill(ranks[rank], signal.SIGKILL)
    hold_file.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert output.count("lost a training process; restarting all from update 20 (1 of 3)") == 1
    assert "Traceback" not in output
    assert weights(tmp_path / "model") == weights(local_model)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_ranks_and_resumes_bit_exactly(
    grammar_pairs: Path, local_model: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    """Also: precision and processes are stored, so --resume needs no options."""
    folder = tmp_path / "model"
    process, hold_file = hold(grammar_pairs, folder, 30)
    wait_for_update(folder, 30, process)
    ranks = find_ranks(process.pid)
    process.send_signal(sent)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + sent, output
    assert f"stopped by {'Ctrl-C' if sent == signal.SIGINT else sent.name}\n  hint: update 30 is saved" in output
    assert "Traceback" not in output
    assert not any(map(is_running, ranks))
    assert list_checkpoints(folder / "training" / "checkpoints")[-1].name == f"{30:09}"
    hold_file.unlink()
    result = run_heedful("train", "--resume", folder)
    assert result.status == 0, result.err
    compute = ComputeConfig.from_settings(json.loads((folder / "training" / AUTOTUNE_FILE).read_text()))
    assert compute.processes == 3
    assert weights(folder) == weights(local_model)


def test_killed_command_leaves_no_ranks(grammar_pairs: Path, local_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    process, _ = hold(grammar_pairs, folder, 30)
    wait_for_update(folder, 30, process)
    ranks = find_ranks(process.pid)
    assert len(ranks) == 3
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 120
    while any(map(is_running, ranks)):
        assert time.monotonic() < deadline, "a rank is still running"
        time.sleep(0.1)
    result = run_heedful("train", "--resume", folder)
    assert result.status == 0, result.err
    assert weights(folder) == weights(local_model)


def test_signal_while_ranks_start_stops_at_once(grammar_pairs: Path, tmp_path: Path) -> None:
    """More ranks than cores, then Ctrl-C: it stops before the first update, and no rank stays behind."""
    args = [*quick_train_args(grammar_pairs, tmp_path / "model"), "--processes", "12"]
    process = subprocess.Popen([sys.executable, "-m", "heedful", *args], stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stderr is not None
    output = ""
    for line in process.stderr:
        output += line
        if "12 processes with 1 thread each" in line:
            break
    while not (ranks := find_ranks(process.pid)) and process.poll() is None:
        time.sleep(0.01)
    ranks = find_ranks(process.pid)
    process.send_signal(signal.SIGINT)
    output += process.communicate(timeout=300)[1]
    assert process.returncode == 130, output
    assert "12 processes share" in output
    assert "stopped by Ctrl-C\n  hint: update 0 is saved" in output
    assert "Traceback" not in output
    deadline = time.monotonic() + 120
    while any(map(is_running, ranks)):
        assert time.monotonic() < deadline, "a rank is still running"
        time.sleep(0.1)


def test_rank_that_keeps_failing_is_an_error(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MAX_RESTARTS", 1)
    monkeypatch.setattr(launcher, "RANK_PROGRAM", ("-c", "raise SystemExit(7)"))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(HeedfulError, match="failed 2 times, the last time with status 7") as error:
        launcher.launch(2, "measure", run, 1, "float32")
    assert "--processes 1" in (error.value.hint or "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in os.environ


@pytest.mark.parametrize("rank", [0, 1])
def test_batch_out_of_memory_in_one_rank_is_split(
    grammar_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    split, unsplit = tmp_path / "split", tmp_path / "unsplit"
    options = ("--processes", "2", *SAME)
    assert run_heedful(*quick_train_args(grammar_pairs, unsplit), *options).status == 0
    monkeypatch.setenv(held_training.OUT_OF_MEMORY_VARIABLE, str(rank))
    process = start(1, *quick_train_args(grammar_pairs, split), *options, hold_file=tmp_path, under_torchrun=False)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert output.count("update 1: a batch did not fit in memory and was split") == 1
    check_equal_training(split, unsplit)


@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp_batch_out_of_memory_in_one_rank_is_an_error(
    grammar_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The message of that rank, once, and no restart."""
    monkeypatch.setenv(held_training.OUT_OF_MEMORY_VARIABLE, str(rank))
    options = ("--processes", "2", "--set", "training.parallel=fsdp")
    args = [*quick_train_args(grammar_pairs, tmp_path / "model"), *options]
    process = start(1, *args, hold_file=tmp_path, under_torchrun=False)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, output
    assert output.count("error: a batch does not fit in memory\n  hint: lower batching.max_tokens") == 1
    assert "restarting" not in output
    assert "Traceback" not in output


def test_corpus_lost_during_training_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    """Restarted ranks cannot read it: no model is written."""
    folder = tmp_path / "model"
    process, hold_file = hold(grammar_pairs, folder, 30)
    wait_for_update(folder, 30, process)
    (folder / "training" / "data" / "preprocessed.json").write_text("{}")
    os.kill(find_ranks(process.pid)[1], signal.SIGKILL)
    hold_file.unlink()
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, output
    assert output.count("error: ") == 1
    assert not (folder / "config.json").exists()


def test_error_in_rank_0_ends_all_without_restart(grammar_pairs: Path, tmp_path: Path) -> None:
    """Divergence: the message of one process, and no restart."""
    options = ["--set", "training.learning_rate=1e30", "--set", "training.max_nonfinite_updates=2"]
    result = run_heedful(*quick_train_args(grammar_pairs, tmp_path / "model"), "--processes", "2", *options)
    assert result.status == 1
    assert result.err.count("training diverged") == 1
    assert "restarting" not in result.err


def test_resume_without_autotune_file_matches_the_uninterrupted_run(grammar_pairs: Path, tmp_path: Path) -> None:
    uninterrupted, old = tmp_path / "uninterrupted", tmp_path / "old"
    args = quick_train_args(grammar_pairs, uninterrupted)
    assert run_heedful(*args).status == 0
    shutil.copytree(uninterrupted, old)
    for name in ("README.md", *MODEL_FILES):
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
    trainer = new_trainer(copy_run(run, tmp_path / "run", processes=2))
    compute = choose_compute_config(trainer, ALONE, 4, QUIET)
    assert (compute.processes, compute.threads) == (2, 2)
    (trainer.folder / AUTOTUNE_FILE).write_text('{"precision": "float32", "processes": 0, "threads": 1}')
    with pytest.raises(HeedfulError, match="is corrupt") as error:
        choose_compute_config(trainer, ALONE, 4, QUIET)
    assert "measure again" in (error.value.hint or "")


def test_autotune_skips_processes_that_fail(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then one process is used."""
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.01)
    monkeypatch.setattr(launcher, "MAX_RESTARTS", 0)
    monkeypatch.setattr(launcher, "RANK_PROGRAM", ("-c", "raise SystemExit(7)"))
    compute = choose_compute_config(new_trainer(copy_run(run, tmp_path / "run")), ALONE, 2, Reporter())
    assert compute.processes == 1
    assert "2 processes failed" in capsys.readouterr().err


def test_autotune_short_training_does_not_measure(run: Path, tmp_path: Path) -> None:
    compute = choose_compute_config(new_trainer(copy_run(run, tmp_path / "run")), ALONE, 2, QUIET)
    assert (compute.precision, compute.processes, compute.threads, compute.tokens_per_second) == ("float32", 1, 2, 0.0)


def test_autotune_long_training_stores_the_fastest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("heedful.training.run.LONG_RUN_OPERATIONS", 0.0)
    monkeypatch.setattr("heedful.training.autotune.PROBE_SECONDS", 0.1)
    trainer = new_trainer(copy_run(run, tmp_path / "run"))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    compute = choose_compute_config(trainer, ALONE, 2, Reporter())
    lines = capsys.readouterr().err.splitlines()[1:]
    speeds = [float(line.split(": ")[1].split()[0].replace(",", "")) for line in lines]
    assert len(lines) == 4
    assert max(speeds) <= 1.05**3 * compute.tokens_per_second + 1
    assert all(map(torch.equal, before, trainer.model.parameters()))  # measuring changes nothing
    monkeypatch.setattr("heedful.training.run.autotune", None)
    assert choose_compute_config(trainer, ALONE, 2, QUIET) == compute
