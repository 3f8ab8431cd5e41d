"""One real server for all tests that only ask it things, and what its model says offline."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful
from heedful.engines.segmented import SegmentedEngine
from tests.server.serving import serve_process


@pytest.fixture(scope="session")
def engine(quick_model: Path) -> SegmentedEngine:
    """The model of the server, offline."""
    return heedful.load(quick_model, engine="pytorch", device="cpu")


@pytest.fixture(scope="session")
def address(quick_model: Path) -> Iterator[str]:
    """A real server's address."""
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output
