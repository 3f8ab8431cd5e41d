"""A small disk of a test's own, which can be full, read-only or gone."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MEGABYTES = 64
APART = "HEEDFUL_TESTED_APART"


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"

    def mount(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(self.folder))

    def fill(self, leave: int = 0) -> None:
        """Take all the room but so many bytes."""
        found = os.statvfs(self.folder)
        free = found.f_bavail * found.f_frsize
        with self.ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(free - leave, 1))

    def free(self) -> None:
        """Give it back."""
        self.ballast.unlink()

    def make_read_only(self) -> None:
        """As the system does after an error of the disk: even for who has files open on it."""
        _run("mount", "--bind", str(self.folder), str(self.folder))
        _run("mount", "-o", "remount,bind,ro", str(self.folder))

    def make_writable(self) -> None:
        _run("umount", str(self.folder))

    @property
    def is_mounted(self) -> bool:
        return os.path.ismount(self.folder)

    def vanish(self) -> None:
        """Unmounted although it is in use; who has a file open keeps it."""
        _run("umount", "--lazy", str(self.folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """Where nobody may mount, the test runs in a name space of its own; if there is none, it is skipped.

    But never by `.ci/run`.
    """
    made = Disk(tmp_path / "disk")
    try:
        made.mount()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(_run_apart(request.node.nodeid))
    try:
        yield made
    finally:
        while made.is_mounted:  # a read-only one lies on top of it
            made.vanish()


def _run_apart(test: str) -> str:
    """Run one test where we may mount what nobody else sees; returns why it needs not run here."""
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    possible = not os.environ.get(APART) and shutil.which(words[0])
    if possible and not subprocess.run([*words, "true"], capture_output=True).returncode:
        words += [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", test]
        root = Path(__file__).parents[2]
        done = subprocess.run(words, cwd=root, capture_output=True, env={**os.environ, APART: "yes"})
        assert done.returncode == 0, done.stdout.decode()
        return "passed in a name space of its own, where it may mount a disk"
    assert not os.environ.get("HEEDFUL_TOOLS_REQUIRED"), "no disk can be mounted here"
    return "no disk can be mounted here: run the tests as root, or where unshare may make name spaces"
