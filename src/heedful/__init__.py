"""Heedful: train a Transformer on your own sentence pairs, translate with it, inspect it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heedful.devices import configure_process
from heedful.errors import HeedfulError, StoppedError, check_extras
from heedful.version import __version__

if TYPE_CHECKING:
    from heedful.inference.loading import load
    from heedful.interpret.trace import trace
    from heedful.web.notebook import show
    from heedful.workflows.train import resume, train

__all__ = ["HeedfulError", "StoppedError", "__version__", "load", "resume", "show", "trace", "train"]
_LAZY_MODULES = {
    "load": "heedful.inference.loading",
    "resume": "heedful.workflows.train",
    "show": "heedful.web.notebook",
    "trace": "heedful.interpret.trace",
    "train": "heedful.workflows.train",
}

configure_process()  # before torch is imported, which happens when the API is first used


def __getattr__(name: str) -> Any:
    """Import the API at first use: `import heedful` and `heedful --help` stay instant."""
    if name in _LAZY_MODULES:
        if name != "load":
            check_extras(f"heedful.{name}", "train")
        return getattr(import_module(_LAZY_MODULES[name]), name)
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")
