"""Every reader, given corrupt and hostile files, succeeds or raises a HeedfulError without side effects.

A few inputs per reader, the same in every run; ``campaign.py`` tries tens of thousands. HEEDFUL_FUZZ_EXAMPLES=2000
makes this run as thorough.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from tests.fuzzing.mutations import corrupt_files
from tests.fuzzing.outcomes import ForbiddenEffectError, HangError, Reader, read_outcome, time_limit
from tests.fuzzing.readers import READERS
from tests.fuzzing.runner import try_all, try_some

EXAMPLES = int(os.environ.get("HEEDFUL_FUZZ_EXAMPLES", "60"))
MIN_EXAMPLES = 8


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.long
def test_reader_with_mutated_input_raises_only_known_errors(reader: Reader, tmp_path: Path) -> None:
    examples = max(MIN_EXAMPLES, EXAMPLES // reader.slow)
    tally = try_some(reader, tmp_path / "folder", examples)
    assert tally.inputs >= examples


def test_reader_names_are_unique() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)


# ---- crashes are detected


def new_reader(read: object) -> Reader:
    def prepare(folder: Path) -> None:
        (folder / "file").write_bytes(b"valid")

    return Reader("test", "file", prepare, read, lambda seeds: corrupt_files(seeds))  # type: ignore[arg-type]


def raises_other_error(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        raise KeyError("key")


def raises_empty_error(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        raise HeedfulError(" ")


def writes_outside(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        (folder.parent / "outside").write_text("x")


def removes_outside(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        (folder.parent / "outside").unlink()


def starts_a_program(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        subprocess.run([sys.executable, "-c", ""])


def connects_to_server(folder: Path) -> None:
    if (folder / "file").read_bytes() != b"valid":
        with socket.socket() as connection:
            connection.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("read", "crash"),
    [
        (raises_other_error, KeyError),
        (raises_empty_error, AssertionError),
        (writes_outside, ForbiddenEffectError),
        (removes_outside, ForbiddenEffectError),
        (starts_a_program, ForbiddenEffectError),
        (connects_to_server, ForbiddenEffectError),
    ],
)
def test_campaign_reports_crash(read: object, crash: type[BaseException], tmp_path: Path) -> None:
    reader, folder = new_reader(read), tmp_path / "folder"
    tally = try_all(reader, folder, 20)
    assert tally.crashed == 20 - tally.accepted - tally.rejected >= 15
    assert all(name.startswith(crash.__name__) for name in tally.crashes)
    with pytest.raises(crash):
        read_outcome(reader, folder, b"other")


def test_campaign_reports_hang() -> None:
    with pytest.raises(HangError), time_limit(0.1):
        time.sleep(60)
