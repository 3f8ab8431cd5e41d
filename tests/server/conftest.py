"""One real server for all tests that only send requests, and the translator of its model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful
from heedful.inference.translator import Translator
from tests.server.server_process import serve_process


@pytest.fixture(scope="session")
def engine(quick_model: Path) -> Translator:
    """The model of the server, offline."""
    return heedful.load(quick_model, engine="pytorch", device="cpu")


@pytest.fixture(scope="session")
def address(quick_model: Path) -> Iterator[str]:
    """The address of a real server."""
    with serve_process(quick_model, "--engine", "pytorch", "--device", "cpu") as process:
        yield process.address
        assert "ERROR" not in process.output, process.output
