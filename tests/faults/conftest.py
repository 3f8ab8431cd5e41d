"""Fixtures of the fault tests."""

import signal
from collections.abc import Callable, Iterator

import pytest

from heedful.config import Settings, merge_settings, parse_overrides
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS
from tests.faults.tmpfs_disk import disk

__all__ = ["disk"]

QUICK: Settings = parse_overrides(QUICK_SETTINGS)
"""The settings of `quick_model`."""


class TriggerReporter(Reporter):
    """A reporter that records all messages and calls a function at the first one that contains a text."""

    def __init__(self, text: str = "", action: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.text, self.action, self.messages = text, action, ""

    def info(self, text: str) -> None:
        self.messages += text + "\n"
        if self.text and self.text in text:
            self.text = ""
            self.action()

    def warning(self, text: str) -> None:
        self.info(f"warning: {text}")


@pytest.fixture
def quick() -> Settings:
    """The settings of the quick model, as a copy that tests may change."""
    return merge_settings(QUICK, {})


@pytest.fixture(autouse=True)
def enable_sighup() -> Iterator[None]:
    """Do not ignore SIGHUP, even if pytest was started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
