"""Heedful: train a Transformer on your own sentence pairs, translate with it, see inside it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError, StoppedError
from heedful.process import prepare

if TYPE_CHECKING:
    from heedful.api import resume, train
    from heedful.loading import load
    from heedful.page.notebook import record, show

__version__ = "0.1.0"
__all__ = ["HeedfulError", "StoppedError", "load", "record", "resume", "show", "train"]
_HOMES = {
    "load": "heedful.loading",
    "record": "heedful.page.notebook",
    "resume": "heedful.api",
    "show": "heedful.page.notebook",
    "train": "heedful.api",
}

prepare()  # before torch is imported, which happens only when a name of the API is asked for


def __getattr__(name: str) -> Any:
    """Import the API at first use: `import heedful` and `heedful --help` stay instant."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")
