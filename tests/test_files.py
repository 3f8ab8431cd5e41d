"""Atomic file writes, and progress on standard error."""

import io
import sys
from pathlib import Path

import pytest

from heedful.errors import DiskError, HeedfulError
from heedful.files import atomic_create, write_bytes, write_json
from heedful.progress import Reporter


def test_atomic_write_failure_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ключ": "значение"})
    before = path.read_bytes()
    assert "ключ" in before.decode()

    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heedful.files.os.fsync", raise_disk_full)
    with pytest.raises(DiskError, match="no space left on the disk for"):
        write_bytes(path, b"new")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_progress_without_a_terminal_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("heedful.progress.SECONDS_BETWEEN_LINES", 0.0)
    assert list(Reporter().track("abc", "reading", 3, "letters")) == ["a", "b", "c"]
    lines = stderr.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[2] == "reading: 3 of 3 letters, 0:00 left"
    assert list(Reporter(quiet=True).track("abc", "reading")) == ["a", "b", "c"]
    assert len(stderr.getvalue().splitlines()) == 3


def build(target: Path, *, fail: bool = False, create_target: bool = False) -> None:
    """Create a folder with one file."""
    with atomic_create(target) as path:
        path.mkdir()
        (path / "file").write_text("ours")
        assert not target.exists()
        if fail:
            raise RuntimeError
        if create_target:
            target.write_text("other content")


def test_atomic_create_is_complete_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError):
        build(target, fail=True)
    assert not list(tmp_path.iterdir())
    build(target)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [target]


def test_atomic_create_does_not_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for _ in range(2):  # first it appears during the write, then it exists from the start
        with pytest.raises(HeedfulError, match="already exists"):
            build(target, create_target=True)
        assert target.read_text() == "other content"
        assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(HeedfulError, match="no such folder"):
        build(tmp_path / "no" / "out")
