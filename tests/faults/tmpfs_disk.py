"""A small file system in memory for one test, which can be full, read-only or unmounted."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MEGABYTES = 64
IN_NAMESPACE = "HEEDFUL_IN_NAMESPACE"


class Disk:
    """A file system in memory (tmpfs)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"

    def mount(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(self.folder))

    def fill(self, spare_bytes: int = 0) -> None:
        """Use all free space except for some bytes."""
        statistics = os.statvfs(self.folder)
        free = statistics.f_bavail * statistics.f_frsize
        with self.ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(free - spare_bytes, 1))

    def free(self) -> None:
        """Free the space that `fill` used."""
        self.ballast.unlink()

    def make_read_only(self) -> None:
        """As the kernel does after a disk error: also for files that are open."""
        _run("mount", "--bind", str(self.folder), str(self.folder))
        _run("mount", "-o", "remount,bind,ro", str(self.folder))

    def make_writable(self) -> None:
        _run("umount", str(self.folder))

    @property
    def is_mounted(self) -> bool:
        return os.path.ismount(self.folder)

    def vanish(self) -> None:
        """Unmount it while it is in use; open files stay open."""
        _run("umount", "--lazy", str(self.folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """Without permission to mount, the test runs in a namespace of its own; without namespaces, it is skipped.

    `.ci/run` sets HEEDFUL_TOOLS_REQUIRED, which makes the latter a failure.
    """
    disk_under_test = Disk(tmp_path / "disk")
    try:
        disk_under_test.mount()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(_run_in_namespace(request.node.nodeid))
    try:
        yield disk_under_test
    finally:
        while disk_under_test.is_mounted:  # the read-only mount is on top of the other
            disk_under_test.vanish()


def _run_in_namespace(test: str) -> str:
    """Run one test in a mount namespace; returns the reason to skip it here."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    is_possible = not os.environ.get(IN_NAMESPACE) and shutil.which(command[0])
    if is_possible and not subprocess.run([*command, "true"], capture_output=True).returncode:
        command += [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", test]
        root = Path(__file__).parents[2]
        result = subprocess.run(command, cwd=root, capture_output=True, env={**os.environ, IN_NAMESPACE: "yes"})
        assert result.returncode == 0, result.stdout.decode()
        return "passed in a separate namespace, where mounting is allowed"
    assert not os.environ.get("HEEDFUL_TOOLS_REQUIRED"), "no disk can be mounted here"
    return "no disk can be mounted here: run the tests as root, or where unshare can create namespaces"
