"""Two hosts, simulated by network namespaces with a virtual link: disconnected, killed and restarted.

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
from tests.training.test_distributed import STORE

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29_517
TIMEOUT_SECONDS = 12
UPDATES = 900
RESTART_LOOP = 'until "$@"; do sleep 1; done'
"""As in docs/distributed.md: torchrun itself exits when hosts are lost during the rendezvous."""
GROUP_MESSAGE = "2 processes"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Host:
    """A network namespace with its own address, connected only to the other host."""

    def __init__(self, number: int) -> None:
        self.name, self.interface = f"heedful-{os.getpid()}-{number}", f"hf{number}-{os.getpid()}"
        self.address = ADDRESSES[number]
        self.is_rendezvous_host = int(number == 0)  # the rendezvous; torchrun cannot tell from the address
        self.process: subprocess.Popen[bytes] | None = None

    def torchrun(self, args: list[str], log: Path, endpoint: str) -> None:
        """Start one process that trains together with the other host, if it is there."""
        command = [
            *("ip", "netns", "exec", self.name, "bash", "-c", RESTART_LOOP, "until"),
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "20"),
            *("--rdzv-backend", "c10d", "--rdzv-id", "two-hosts", "--rdzv-endpoint", endpoint),
            *(
                "--rdzv-conf",
                f"join_timeout=120,last_call_timeout=5,keep_alive_interval=2,is_host={self.is_rendezvous_host}",
            ),
            *("--local-addr", self.address, "-m", "heedful", *args),
        ]
        with log.open("ab") as file:
            environment = os.environ | STORE | {"OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)

    def pids(self) -> list[int]:
        result = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in result.stdout.split()]

    def kill(self) -> None:
        """Kill all processes of the host."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(120)

    def set_link(self, up: bool) -> None:
        """Connect or disconnect the host."""
        ip("-n", self.name, "link", "set", self.interface, "up" if up else "down")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    hosts = Host(0), Host(1)
    try:
        for host in hosts:
            ip("netns", "add", host.name)
            ip("-n", host.name, "link", "set", "lo", "up")
        one, other = hosts
        ip("link", "add", one.interface, "type", "veth", "peer", "name", other.interface)
        for host in hosts:
            ip("link", "set", host.interface, "netns", host.name)
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            host.set_link(True)
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def read_last_update(folder: Path) -> int:
    """The update of the last line of metrics.jsonl."""
    try:
        lines = (folder / "training" / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["update"]) if lines else 0
    except (OSError, ValueError):
        return 0


def wait_for_update(update: int, folder: Path, hosts: tuple[Host, Host], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while read_last_update(folder) < update and time.monotonic() < deadline:
        running = [host.process for host in hosts if host.process is not None]
        if all(process.poll() is not None for process in running):
            break
        time.sleep(0.05)
    assert read_last_update(folder) >= update


def wait_for_group(count: int, log: Path, folder: Path, seconds: float = 600) -> None:
    """Wait until the hosts have formed a group so many times."""
    deadline = time.monotonic() + seconds
    while log.read_text(errors="replace").count(GROUP_MESSAGE) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert log.read_text(errors="replace").count(GROUP_MESSAGE) >= count, read_last_update(folder)


def read_last_loss(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()]
    return float([line["validation_loss"] for line in lines if "validation_loss" in line][-1])


def test_hosts_disconnected_and_killed_resume(tmp_path: Path) -> None:
    pairs, single_process_folder, folder = tmp_path / "pairs.tsv", tmp_path / "alone", tmp_path / "hosts"
    write_tsv([(pair.source, pair.target) for pair in generate_pairs(2000)], pairs)
    options = [
        *("--set", f"training.max_updates={UPDATES}", "--set", "training.validate_every=200"),
        *("--set", f"training.timeout_seconds={TIMEOUT_SECONDS}", "--set", "model.dropout=0"),
        *("--set", "model.attention_bias=false"),
    ]
    assert run_heedful(*quick_train_args(pairs, single_process_folder), *options).status == 0
    args, logs = [*quick_train_args(pairs, folder), *options], [tmp_path / "one.log", tmp_path / "other.log"]
    with two_hosts() as hosts:
        one, other = hosts
        endpoint = f"{one.address}:{PORT}"
        one.torchrun(args, logs[0], endpoint)
        other.torchrun(args, logs[1], endpoint)
        wait_for_group(1, logs[0], folder)
        wait_for_update(60, folder, hosts)
        other.set_link(False)  # after a timeout, the first host continues alone
        wait_for_update(read_last_update(folder) + 30, folder, hosts)
        other.kill()  # a rebooted host starts again
        other.set_link(True)
        other.torchrun(args, logs[1], endpoint)
        wait_for_group(2, logs[0], folder)
        wait_for_update(read_last_update(folder) + 30, folder, hosts)
        other.kill()  # in the middle of training
        wait_for_update(read_last_update(folder) + 30, folder, hosts)
        other.torchrun(args, logs[1], endpoint)
        assert one.process is not None
        assert one.process.wait(900) == 0, logs[0].read_text()[-3000:]
    log = logs[0].read_text()
    assert "lost a process" in log
    assert log.count("resuming from update") >= 2
    assert int(list_checkpoints(folder / "training" / "checkpoints")[-1].name) == UPDATES
    numbers = [
        json.loads(line)["update"]
        for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()
        if "tokens" in line
    ]
    assert numbers == sorted(numbers)
    assert read_last_loss(folder) == pytest.approx(read_last_loss(single_process_folder), rel=1e-3)
