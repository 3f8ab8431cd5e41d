"""`heedful translate --ray` as real processes: killed and resumed, the output is the same to the byte."""

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
from tests.conftest import run_heedful
from tests.inference.bulk_runs import RAY_ENGINE, begun, descendants, ended, wait_for_shards, workers_of
from tests.inference.test_bulk_shards import AWKWARD

SHARD = ["--shard-lines", "2048"]
KILLS = int(os.environ.get("HEEDFUL_KILLS", "6"))
"""How many processes the slow test of kills ends at random."""


def many_lines(path: Path, count: int) -> Path:
    """Lines of all kinds, and ordinary ones."""
    odd = b"".join(AWKWARD[name] + b"\n" for name in AWKWARD if "longer" not in name)
    sources = [pair.source for pair in generate_pairs(3000, seed=9)]
    ordinary = "\n".join((sources * (count // 3000 + 1))[:count]).encode()
    path.write_bytes(odd + ordinary)  # without a last line feed
    return path


@pytest.mark.long
def test_ray_killed_driver_and_worker_resume(quick_model: Path, tmp_path: Path) -> None:
    source, output, folder = (
        many_lines(tmp_path / "in.txt", 12_000),
        tmp_path / "out.txt",
        tmp_path / "out.txt.shards",
    )
    words = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    plain = run_heedful(*words, "-o", tmp_path / "plain.txt")
    assert plain.status == 0, plain.err
    words += ["--ray", "local", "-o", output, *SHARD]

    killed = begun(words)
    wait_for_shards(folder, 1, killed)
    workers = workers_of(killed.pid)
    killed.kill()
    killed.communicate()
    assert workers
    assert not output.exists()
    assert ended(workers), "workers outlived the command"

    going_on = begun(words)
    wait_for_shards(folder, 3, going_on)
    os.kill(workers_of(going_on.pid)[0], signal.SIGKILL)
    out, err = going_on.communicate(timeout=120)
    assert (going_on.returncode, out) == (0, ""), err
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
    """Several inputs; what is finished is not begun again; other work is refused."""
    inputs, folder = tmp_path / "inputs", tmp_path / "shards"
    inputs.mkdir()
    first = many_lines(inputs / "a.txt", 5000)
    second = inputs / "b.txt"
    second.write_text("The dog is tired.\n", encoding="utf-8")
    words = ["translate", quick_model, *RAY_ENGINE, "--scores"]
    bulk = [*words, "-i", inputs, "-o", folder, "--ray", "local", *SHARD]
    done = run_heedful(*bulk)
    assert done.status == 0, done.err
    for path in (first, second):
        assert run_heedful(*words, "-i", path, "-o", tmp_path / path.name).status == 0
        shards = sorted(folder.glob(f"*-{path.name}.tsv"))
        assert b"".join(map(Path.read_bytes, shards)) == (tmp_path / path.name).read_bytes()
    assert len(list(folder.glob("0*.tsv"))) == 4
    assert len(list(folder.iterdir())) == 2 * 4 + len(["manifest.json", "lock"])

    again = run_heedful(*bulk)
    assert "resuming: 4 of 4 shards are done" in again.err
    assert "worker" not in again.err  # nothing to do, so Ray is not started
    refused = run_heedful(*bulk, "--set", "generation.max_length_offset=5")
    assert refused.status == 1
    assert "another input, model or settings" in refused.err


@pytest.mark.slow
def test_ray_corrupt_shard_is_translated_again(quick_model: Path, tmp_path: Path) -> None:
    source, folder = many_lines(tmp_path / "in.txt", 5000), tmp_path / "shards"
    folder.mkdir()
    words = ["translate", quick_model, *RAY_ENGINE, "-i", source, "-o", folder, "--ray", "local", *SHARD]
    assert run_heedful(*words).status == 0
    shard = folder / "000001-in.txt"
    whole = shard.read_bytes()
    shard.write_bytes(whole.replace(b"e", b"a", 1))
    mended = run_heedful(*words)
    assert "resuming: 2 of 3 shards are done" in mended.err
    assert shard.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ray_signal_stops_cleanly(quick_model: Path, tmp_path: Path, number: signal.Signals, status: int) -> None:
    source, folder = many_lines(tmp_path / "in.txt", 40_000), tmp_path / "out.txt.shards"
    words = ["translate", quick_model, "-i", source, *RAY_ENGINE, "-o", tmp_path / "out.txt", "--ray", "local"]
    run = begun([*words, *SHARD])
    wait_for_shards(folder, 1, run)
    others = list(descendants(run.pid))
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == status
    assert "run the same command to resume" in err
    assert "Traceback" not in err
    assert ended(others, seconds=10)
    assert not (tmp_path / "out.txt").exists()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster of one host, as `ray start --head` makes it, on the loopback address."""
    place = f"/tmp/heedful-cluster-{os.getpid()}"  # short: the names of sockets may not be long
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid4().hex, "OMP_NUM_THREADS": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    port = random.randrange(20_000, 30_000)
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2"]
    words += ["--port", str(port), "--include-dashboard", "false", "--temp-dir", place]
    words += ["--object-store-memory", str(100 << 20)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        time.sleep(12)
        others = list(descendants(head.pid))
        yield f"127.0.0.1:{port}"
        head.terminate()
    assert ended(others)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_ray_existing_cluster_is_used(
    quick_model: Path, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = many_lines(tmp_path / "in.txt", 9000)
    words = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    assert run_heedful(*words, "-o", tmp_path / "plain.txt").status == 0
    done = run_heedful(*words, "-o", tmp_path / "out.txt", "--ray", cluster, *SHARD)
    assert done.status == 0, done.err
    assert "for 2 workers" in done.err
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "plain.txt").read_bytes()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    stranger = run_heedful(*words, "-o", tmp_path / "x.txt", "--ray", cluster, *SHARD)
    assert stranger.status == 1
    assert "set RAY_AUTH_MODE=token" in stranger.err


def test_ray_unreachable_cluster_raises(quick_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("The dog is tired.\n")
    for address in ("127.0.0.1:1", "nonsense"):
        done = run_heedful("translate", quick_model, "-i", source, "-o", tmp_path / "x", "--ray", address)
        assert done.status == 1
        assert f"cannot start or reach Ray ({address})" in done.err


@pytest.mark.slow
def test_ray_random_kills_keep_output_identical(quick_model: Path, tmp_path: Path) -> None:
    """At any moment, the command or a worker; every translation that ends is the same to the byte."""
    seed = int(os.environ.get("HEEDFUL_SEED", "7"))
    chance = random.Random(seed)
    source = many_lines(tmp_path / "in.txt", 24_000)
    words = ["translate", quick_model, "-i", source, *RAY_ENGINE]
    assert run_heedful(*words, "-o", tmp_path / "plain.txt").status == 0
    plain = (tmp_path / "plain.txt").read_bytes()
    words += ["--ray", "local", "-o", tmp_path / "out.txt", *SHARD]
    count: Counter[str] = Counter()
    while count["command"] + count["worker"] < KILLS:
        count["commands begun"] += 1
        if one_run(words, tmp_path / "out.txt.shards", chance, count):
            count["translations ended"] += 1
            assert (tmp_path / "out.txt").read_bytes() == plain
            assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "plain.txt", "out.txt"}
            (tmp_path / "out.txt").unlink()
    last = run_heedful(*words)
    assert last.status == 0, last.err
    assert (tmp_path / "out.txt").read_bytes() == plain
    print(f"seed {seed}: {dict(count)}")


MOMENTS = {
    # Share of the commands, shards that must be finished first, and at most so many seconds between kills.
    "starting": (0.2, None, 10.0),
    "translating": (0.5, 0, 4.0),
    "ending": (0.3, 11, 0.5),  # of 12: joining them is a matter of an instant
}


def one_run(words: list[str | Path], folder: Path, chance: random.Random, count: Counter[str]) -> bool:
    """The command, with a kill or some; whether it ended by itself."""
    run = begun(words)
    shares = [share for share, _, _ in MOMENTS.values()]
    name = chance.choices(list(MOMENTS), shares)[0]
    _, shards, longest = MOMENTS[name]
    if shards is not None:
        wait_for_workers(run, folder, shards)
    while True:
        try:
            _, err = run.communicate(timeout=chance.uniform(0, longest))
        except subprocess.TimeoutExpired:
            workers = workers_of(run.pid)
            finished, under_way = (len(list(folder.glob(each))) for each in ("0*.json", "incomplete/*"))
            kind = "worker" if workers and chance.random() < 0.6 else "command"
            count[kind] += 1
            count["with shards under way"] += under_way > 0
            print(f"{kind} killed {name}: {finished} shards finished, {under_way} under way", flush=True)
            if kind == "worker":
                os.kill(chance.choice(workers), signal.SIGKILL)
                continue
            run.kill()
            run.communicate()
            return False
        assert run.returncode == 0, err
        return True


def wait_for_workers(run: "subprocess.Popen[str]", folder: Path, finished: int) -> None:
    """Wait until so many shards are finished (for 0: until somebody translates), or the command has ended."""
    least, name = (finished, "0*.json") if finished else (1, "incomplete/*")
    while run.poll() is None and len(list(folder.glob(name))) < least:
        time.sleep(0.02)
