"""Two hosts, as network namespaces of this machine with a cable between them: cut, killed and brought back.

They share the file system, as hosts that train together share a folder. Needs root, for the namespaces.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from heedful.training.checkpoint import list_checkpoints
from tests.conftest import quick_train_args, run_heedful

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29_517
SILENCE = 12
UPDATES = 900
UNTIL = 'until "$@"; do sleep 1; done'
"""As docs/distributed.md says: torchrun itself ends when hosts are lost while they meet."""
TOGETHER = "2 processes"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Host:
    """One end of the cable: an address of its own, and no other network."""

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"heedful-{os.getpid()}-{number}", f"hf{number}-{os.getpid()}"
        self.address = ADDRESSES[number]
        self.hosts = int(number == 0)  # the meeting point; by its names torchrun could not tell
        self.running: subprocess.Popen[bytes] | None = None

    def torchrun(self, words: list[str], log: Path, endpoint: str) -> None:
        """Start one process that trains with those of the other hosts, as many as there are."""
        command = [
            *("ip", "netns", "exec", self.name, "bash", "-c", UNTIL, "until"),
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "20"),
            *("--rdzv-backend", "c10d", "--rdzv-id", "two-hosts", "--rdzv-endpoint", endpoint),
            *("--rdzv-conf", f"join_timeout=120,last_call_timeout=5,keep_alive_interval=2,is_host={self.hosts}"),
            *("--local-addr", self.address, "-m", "heedful", *words),
        ]
        with log.open("ab") as file:
            self.running = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def pids(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]

    def kill(self) -> None:
        """Pull the plug: everything that runs on it ends at once."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.running is not None:
            self.running.wait(30)

    def plugged(self, up: bool) -> None:
        """The cable, in or out."""
        ip("-n", self.name, "link", "set", self.cable, "up" if up else "down")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    hosts = Host(0), Host(1)
    try:
        for host in hosts:
            ip("netns", "add", host.name)
            ip("-n", host.name, "link", "set", "lo", "up")
        one, other = hosts
        ip("link", "add", one.cable, "type", "veth", "peer", "name", other.cable)
        for host in hosts:
            ip("link", "set", host.cable, "netns", host.name)
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.cable)
            host.plugged(True)
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def updates_done(folder: Path) -> int:
    """As the newest line of its metrics says."""
    try:
        lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["update"]) if lines else 0
    except (OSError, ValueError):
        return 0


def wait_until(reached: int, folder: Path, hosts: tuple[Host, Host], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while updates_done(folder) < reached and time.monotonic() < until:
        running = [host.running for host in hosts if host.running is not None]
        if all(process.poll() is not None for process in running):
            break
        time.sleep(0.05)
    assert updates_done(folder) >= reached


def wait_for_both(times: int, log: Path, folder: Path, seconds: float = 120) -> None:
    """Until the hosts have come together so many times."""
    until = time.monotonic() + seconds
    while log.read_text(errors="replace").count(TOGETHER) < times and time.monotonic() < until:
        time.sleep(0.05)
    assert log.read_text(errors="replace").count(TOGETHER) >= times, updates_done(folder)


def last_loss(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()]
    return float([line["validation_loss"] for line in lines if "validation_loss" in line][-1])


def test_hosts_disconnected_and_killed_resume(tmp_path: Path) -> None:
    pairs, alone, folder = tmp_path / "pairs.tsv", tmp_path / "alone", tmp_path / "hosts"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(2000)], pairs)
    told = [
        *("--set", f"training.max_updates={UPDATES}", "--set", "training.validate_every=200"),
        *("--set", f"training.timeout_seconds={SILENCE}", "--set", "model.dropout=0"),
        *("--set", "model.attention_bias=false"),
    ]
    assert run_heedful(*quick_train_args(pairs, alone), *told).status == 0
    words, logs = [*quick_train_args(pairs, folder), *told], [tmp_path / "one.log", tmp_path / "other.log"]
    with two_hosts() as hosts:
        one, other = hosts
        endpoint = f"{one.address}:{PORT}"
        one.torchrun(words, logs[0], endpoint)
        other.torchrun(words, logs[1], endpoint)
        wait_for_both(1, logs[0], folder)
        wait_until(60, folder, hosts)
        other.plugged(False)  # the first host goes on alone when it has waited for long enough
        wait_until(updates_done(folder) + 30, folder, hosts)
        other.kill()  # it could not reach anybody; as after a restart, it begins anew
        other.plugged(True)
        other.torchrun(words, logs[1], endpoint)
        wait_for_both(2, logs[0], folder)
        wait_until(updates_done(folder) + 30, folder, hosts)
        other.kill()  # in the middle of training
        wait_until(updates_done(folder) + 30, folder, hosts)
        other.torchrun(words, logs[1], endpoint)
        assert one.running is not None
        assert one.running.wait(300) == 0, logs[0].read_text()[-3000:]
    told_so = logs[0].read_text()
    assert "lost a process" in told_so
    assert told_so.count("resuming from update") >= 2
    assert int(list_checkpoints(folder / "training" / "checkpoints")[-1].name) == UPDATES
    numbers = [
        json.loads(line)["update"]
        for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()
        if "tokens" in line
    ]
    assert numbers == sorted(numbers)
    assert last_loss(folder) == pytest.approx(last_loss(alone), rel=1e-3)
