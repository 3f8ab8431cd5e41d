"""A small disk of a test's own, which can be full, read-only or gone."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MEGABYTES = 64
HINT = "run the tests as root, or: unshare --user --map-root-user --mount make test"


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
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Skipped where nobody may mount, but never by `.ci/run`."""
    made = Disk(tmp_path / "disk")
    try:
        made.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true" or os.environ.get("HEEDFUL_TOOLS_REQUIRED"):
            raise
        pytest.skip(f"no disk can be mounted here ({error}); {HINT}")
    try:
        yield made
    finally:
        while made.is_mounted:  # a read-only one lies on top of it
            made.vanish()
