"""Fixtures of the fault tests."""

import signal
from collections.abc import Callable, Iterator

import pytest

from heedful.config import Settings, merge_settings, parse_overrides
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS
from tests.faults.limited_disks import disk

__all__ = ["disk"]

QUICK: Settings = parse_overrides(QUICK_SETTINGS)
"""What `quick_model` was trained with."""


class Moments(Reporter):
    """A reporter that records all messages and calls a function at a certain one."""

    def __init__(self, text: str = "", then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.text, self.then, self.told = text, then, ""

    def info(self, text: str) -> None:
        self.told += text + "\n"
        if self.text and self.text in text:
            self.text = ""
            self.then()

    def warning(self, text: str) -> None:
        self.info(f"warning: {text}")


@pytest.fixture
def quick() -> Settings:
    """The settings of the quick model, to be changed at will."""
    return merge_settings(QUICK, {})


@pytest.fixture(autouse=True)
def hears_of_a_closed_terminal() -> Iterator[None]:
    """Also where the tests themselves were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
