"""What the tests of faults share."""

import signal
from collections.abc import Callable, Iterator

import pytest

from heedful.config import Settings, merged, parsed_overrides
from heedful.progress import Reporter
from tests.conftest import QUICK_SETTINGS
from tests.faults.disks import disk

__all__ = ["disk"]

QUICK: Settings = parsed_overrides(QUICK_SETTINGS)
"""What `quick_model` was trained with."""


class Moments(Reporter):
    """A reporter that remembers what was said, and does something when a certain text is."""

    def __init__(self, text: str = "", then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.text, self.then, self.told = text, then, ""

    def say(self, text: str) -> None:
        self.told += text + "\n"
        if self.text and self.text in text:
            self.text = ""
            self.then()

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


@pytest.fixture
def quick() -> Settings:
    """The settings of the quick model, to be changed at will."""
    return merged(QUICK, {})


@pytest.fixture(autouse=True)
def hears_of_a_closed_terminal() -> Iterator[None]:
    """Also where the tests themselves were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
