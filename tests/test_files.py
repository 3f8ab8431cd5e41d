"""Files and progress: whole or absent; said on standard error alone."""

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

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heedful.files.os.fsync", full)
    with pytest.raises(DiskError, match="no space left on the disk for"):
        write_bytes(path, b"new")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_progress_without_a_terminal_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    monkeypatch.setattr("heedful.progress.SECONDS_BETWEEN_LINES", 0.0)
    assert list(Reporter().track("abc", "reading", 3, "letters")) == ["a", "b", "c"]
    lines = told.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[2] == "reading: 3 of 3 letters, 0:00 left"
    assert list(Reporter(quiet=True).track("abc", "reading")) == ["a", "b", "c"]
    assert len(told.getvalue().splitlines()) == 3


def build(wanted: Path, *, broken: bool = False, meanwhile: bool = False) -> None:
    """A folder with one file."""
    with atomic_create(wanted) as path:
        path.mkdir()
        (path / "file").write_text("ours")
        assert not wanted.exists()
        if broken:
            raise RuntimeError
        if meanwhile:
            wanted.write_text("somebody else's")


def test_atomic_create_is_complete_or_absent(tmp_path: Path) -> None:
    wanted = tmp_path / "out"
    with pytest.raises(RuntimeError):
        build(wanted, broken=True)
    assert not list(tmp_path.iterdir())
    build(wanted)
    assert [each.name for each in wanted.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [wanted]


def test_atomic_create_does_not_overwrite(tmp_path: Path) -> None:
    wanted = tmp_path / "out"
    for _ in range(2):  # it appears meanwhile; then it is there from the beginning
        with pytest.raises(HeedfulError, match="already exists"):
            build(wanted, meanwhile=True)
        assert wanted.read_text() == "somebody else's"
        assert list(tmp_path.iterdir()) == [wanted]
    with pytest.raises(HeedfulError, match="no such folder"):
        build(tmp_path / "no" / "out")
