"""`heedful translate --ray` in separate processes: killed and resumed, the output is identical."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.formats.lines import count_lines
from heedful.errors import StoppedError
from heedful.inference.ray_bulk import _stop_on_signal
from tests.conftest import run_heedful
from tests.inference.bulk_processes import (
    RAY_ENGINE,
    SECONDS,
    find_workers,
    release_workers,
    start_bulk,
    wait_for_exit,
    wait_for_shards,
)
from tests.inference.test_bulk_shards import UNUSUAL_INPUTS
from tests.processes import descendants

SHARD = ["--shard-lines", "2048"]
KILLS = int(os.environ.get("HEEDFUL_KILLS", "6"))
"""How many processes the slow test kills at random."""


def write_lines(path: Path, count: int) -> Path:
    """Write a file of unusual lines, then `count` ordinary ones."""
    unusual = b"".join(UNUSUAL_INPUTS[name] + b"\n" for name in UNUSUAL_INPUTS if "longer" not in name)
    sources = [pair.source for pair in generate_pairs(3000, seed=9)]
    ordinary = "\n".join((sources * (count // 3000 + 1))[:count]).encode()
    path.write_bytes(unusual + ordinary)  # without a last line feed
    return path


@pytest.mark.long
def test_ray_killed_driver_and_worker_resume(quick_model: Path, tmp_path: Path) -> None:
    source, output, folder = (
        write_lines(tmp_path / "in.txt", 12_000),
        tmp_path / "out.txt",
        tmp_path / "out.txt.shards",
    )
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    plain = run_heedful(*args, "-o", tmp_path / "plain.txt")
    assert plain.status == 0, plain.err
    args += ["--ray", "local", "--workers", "2", "-o", output, *SHARD]

    killed = start_bulk(args, hold_after=1)
    wait_for_shards(folder, 1, killed)
    workers = find_workers(killed.pid)
    killed.kill()
    killed.communicate()
    assert workers
    assert not output.exists()
    wait_for_exit(workers)

    resumed = start_bulk(args, hold_after=3)  # at most 4 of the 6 shards: two workers may finish at the same time
    wait_for_shards(folder, 3, resumed)
    wait_for_shards(folder, 2, resumed, pattern="incomplete/*")
    os.kill(find_workers(resumed.pid)[0], signal.SIGKILL)
    release_workers(folder)
    out, err = resumed.communicate(timeout=SECONDS)
    assert (resumed.returncode, out) == (0, ""), err
    assert "resuming: " in err
    assert output.read_bytes() == (tmp_path / "plain.txt").read_bytes()
    assert "2 lines could not be read (in.txt, line 23: invalid UTF-8)" in err
    assert [line for line in err.splitlines() if "maximum length" in line] == [
        line for line in plain.err.splitlines() if "maximum length" in line
    ]
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "plain.txt", "out.txt"}


@pytest.mark.long
def test_ray_folder_output_keeps_shards(quick_model: Path, tmp_path: Path) -> None:
    """Several inputs; finished shards are not translated again; other settings raise."""
    inputs, folder = tmp_path / "inputs", tmp_path / "shards"
    inputs.mkdir()
    first = write_lines(inputs / "a.txt", 5000)
    second = inputs / "b.txt"
    second.write_text("The dog is tired.\n", encoding="utf-8")
    args = ["translate", quick_model, *RAY_ENGINE, "--scores"]
    bulk = [*args, "-i", inputs, "-o", folder, "--ray", "local", *SHARD]
    result = run_heedful(*bulk)
    assert result.status == 0, result.err
    for path in (first, second):
        assert run_heedful(*args, "-i", path, "-o", tmp_path / path.name).status == 0
        shards = sorted(folder.glob(f"*-{path.name}.tsv"))
        assert b"".join(map(Path.read_bytes, shards)) == (tmp_path / path.name).read_bytes()
    assert len(list(folder.glob("0*.tsv"))) == 4
    assert len(list(folder.iterdir())) == 2 * 4 + len(["manifest.json", "lock"])

    second_result = run_heedful(*bulk)
    assert "resuming: 4 of 4 shards are done" in second_result.err
    assert "worker" not in second_result.err  # nothing to do, so Ray is not started
    other_settings = run_heedful(*bulk, "--set", "generation.max_length_offset=5")
    assert other_settings.status == 1
    assert "another input, model or settings" in other_settings.err


@pytest.mark.slow
def test_ray_corrupt_shard_is_translated_again(quick_model: Path, tmp_path: Path) -> None:
    source, folder = write_lines(tmp_path / "in.txt", 5000), tmp_path / "shards"
    folder.mkdir()
    args = ["translate", quick_model, *RAY_ENGINE, "-i", source, "-o", folder, "--ray", "local", *SHARD]
    assert run_heedful(*args).status == 0
    shard = folder / "000001-in.txt"
    translation = shard.read_bytes()
    shard.write_bytes(translation.replace(b"e", b"a", 1))
    result = run_heedful(*args)
    assert "resuming: 2 of 3 shards are done" in result.err
    assert shard.read_bytes() == translation


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ray_signal_stops_cleanly(quick_model: Path, tmp_path: Path, number: signal.Signals, status: int) -> None:
    source, folder = write_lines(tmp_path / "in.txt", 12_000), tmp_path / "out.txt.shards"
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE, "-o", tmp_path / "out.txt", "--ray", "local"]
    process = start_bulk([*args, "--workers", "2", *SHARD], hold_after=1)
    wait_for_shards(folder, 1, process)
    children = list(descendants(process.pid))
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == status
    assert "run the same command to resume" in err
    assert "Traceback" not in err
    wait_for_exit(children)
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ray_signal_while_joining_resumes(
    quick_model: Path, tmp_path: Path, number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_lines(tmp_path / "in.txt", 5000), tmp_path / "out.txt"
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE, "-o", output, "--ray", "local", *SHARD]
    with monkeypatch.context() as context:
        context.setenv("HEEDFUL_HOLD_JOIN", "1")
        process = start_bulk(args, hold_after=9)
    wait_for_shards(tmp_path, 1, process, pattern="out.txt.partial")
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == status
    assert f"the translations so far are in {output}.shards; run the same command to resume" in err
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt.shards"}
    resumed = run_heedful(*args)
    assert resumed.status == 0, resumed.err
    assert "resuming: 3 of 3 shards are done" in resumed.err
    assert count_lines(output) == count_lines(source)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_on_signal_raises_and_restores_handler(number: signal.Signals) -> None:
    previous_handler = signal.getsignal(signal.SIGTERM)

    def interrupt_work() -> None:
        with _stop_on_signal("resume"):
            try:
                os.kill(os.getpid(), number)
                time.sleep(SECONDS)
            finally:
                if number == signal.SIGTERM:
                    os.kill(os.getpid(), number)  # a second one does not interrupt the cleanup
                is_cleaned_up.append(True)

    is_cleaned_up: list[bool] = []
    with pytest.raises(StoppedError) as raised:
        interrupt_work()
    assert (raised.value.signal_number, raised.value.hint) == (number, "resume")
    assert is_cleaned_up
    assert signal.getsignal(signal.SIGTERM) == previous_handler


@pytest.mark.slow
def test_ray_workers_die_at_the_same_shard_raises(
    quick_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_lines(tmp_path / "in.txt", 5000), tmp_path / "out.txt"
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE, "-o", output, "--ray", "local", "--workers", "1"]
    monkeypatch.setenv("HEEDFUL_DIE_AT", "1")
    process = start_bulk([*args, *SHARD], hold_after=9)
    children = list(descendants(process.pid))
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (1, "")
    assert "error: 8 workers died at the same shard\n" in err
    assert "Traceback" not in err
    wait_for_exit(children)
    monkeypatch.delenv("HEEDFUL_DIE_AT")
    result = run_heedful(*args, *SHARD)
    assert result.status == 0, result.err
    assert "resuming: 1 of 3 shards are done" in result.err


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of one host, as `ray start --head` makes it, on the loopback interface."""
    folder = f"/tmp/heedful-cluster-{os.getpid()}"  # short: socket paths have a maximum length
    environment = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex, "OMP_NUM_THREADS": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    address = f"127.0.0.1:{random.randrange(20_000, 30_000)}"
    ray_command = [sys.executable, "-m", "ray.scripts.scripts"]
    start = [*ray_command, "start", "--head", "--block", "--num-cpus", "2", "--port", address.split(":")[1]]
    start += ["--include-dashboard", "false", "--temp-dir", folder, "--object-store-memory", str(100 << 20)]
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        deadline, status = time.monotonic() + SECONDS, ""
        while "/2.0 CPU" not in status:
            assert time.monotonic() < deadline, status
            assert head.poll() is None, "Ray did not start"
            command = [*ray_command, "status", "--address", address]
            status = subprocess.run(command, capture_output=True, text=True).stdout
        children = list(descendants(head.pid))
        yield address
        head.terminate()
    wait_for_exit(children)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_ray_existing_cluster_is_used(
    quick_model: Path, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.txt", 9000)
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    assert run_heedful(*args, "-o", tmp_path / "plain.txt").status == 0
    result = run_heedful(*args, "-o", tmp_path / "out.txt", "--ray", cluster, *SHARD)
    assert result.status == 0, result.err
    assert "for 2 workers" in result.err
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "plain.txt").read_bytes()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    unauthorized = run_heedful(*args, "-o", tmp_path / "x.txt", "--ray", cluster, *SHARD)
    assert unauthorized.status == 1
    assert "set RAY_AUTH_MODE=token" in unauthorized.err


def test_ray_unreachable_cluster_raises(quick_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("The dog is tired.\n")
    for address in ("127.0.0.1:1", "nonsense"):
        result = run_heedful("translate", quick_model, "-i", source, "-o", tmp_path / "x", "--ray", address)
        assert result.status == 1
        assert f"cannot start or reach Ray ({address})" in result.err


@pytest.mark.slow
def test_ray_random_kills_keep_output_identical(quick_model: Path, tmp_path: Path) -> None:
    """Kill the command or a worker at random times; every output that is completed is identical."""
    seed = int(os.environ.get("HEEDFUL_SEED", "7"))
    rng = random.Random(seed)
    source = write_lines(tmp_path / "in.txt", 24_000)
    args = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    assert run_heedful(*args, "-o", tmp_path / "plain.txt").status == 0
    plain = (tmp_path / "plain.txt").read_bytes()
    args += ["--ray", "local", "-o", tmp_path / "out.txt", *SHARD]
    counts: Counter[str] = Counter()
    while counts["command"] + counts["worker"] < KILLS:
        counts["commands started"] += 1
        if run_with_kills(args, tmp_path / "out.txt.shards", rng, counts):
            counts["outputs completed"] += 1
            assert (tmp_path / "out.txt").read_bytes() == plain
            assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "plain.txt", "out.txt"}
            (tmp_path / "out.txt").unlink()
    last_result = run_heedful(*args)
    assert last_result.status == 0, last_result.err
    assert (tmp_path / "out.txt").read_bytes() == plain
    print(f"seed {seed}: {dict(counts)}")


KILL_PHASES = {
    # Fraction of the commands, shards to wait for before the first kill, maximum seconds between kills.
    "starting": (0.2, None, 10.0),
    "translating": (0.5, 0, 4.0),
    "joining": (0.3, 11, 0.5),  # of 12: joining them takes a moment
}


def run_with_kills(args: list[str | Path], folder: Path, rng: random.Random, counts: Counter[str]) -> bool:
    """Run the command and kill it or its workers at random times; return whether it completed."""
    process = start_bulk(args)
    phase = rng.choices(list(KILL_PHASES), [fraction for fraction, _, _ in KILL_PHASES.values()])[0]
    _, shards, max_seconds = KILL_PHASES[phase]
    if shards is not None:
        wait_for_progress(process, folder, shards)
    while True:
        try:
            _, err = process.communicate(timeout=rng.uniform(0, max_seconds))
        except subprocess.TimeoutExpired:
            workers = find_workers(process.pid)
            finished, incomplete = (len(list(folder.glob(pattern))) for pattern in ("0*.json", "incomplete/*"))
            kind = "worker" if workers and rng.random() < 0.6 else "command"
            counts[kind] += 1
            counts["with incomplete shards"] += incomplete > 0
            print(f"{kind} killed while {phase}: {finished} shards finished, {incomplete} incomplete", flush=True)
            if kind == "worker":
                os.kill(rng.choice(workers), signal.SIGKILL)
                continue
            process.kill()
            process.communicate()
            return False
        assert process.returncode == 0, err
        return True


def wait_for_progress(process: "subprocess.Popen[str]", folder: Path, finished: int) -> None:
    """Wait until so many shards are finished (for 0: until one is started), or the command has ended."""
    count, pattern = (finished, "0*.json") if finished else (1, "incomplete/*")
    while process.poll() is None and len(list(folder.glob(pattern))) < count:
        time.sleep(0.02)
