"""Errors for users: what is wrong, and a hint that says what to do."""

import signal
from importlib.util import find_spec

EXTRAS = {
    "figures": ("matplotlib",),
    "marian": ("sentencepiece",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "serve": ("fastapi", "prometheus_client", "py3langid", "python_multipart", "uvicorn"),
    "train": ("torch",),
}
"""Modules that each extra of pyproject.toml installs."""


class HeedfulError(Exception):
    """An error in user input or the environment, never a bug.

    >>> print(HeedfulError("no such file: pairs.tsv", hint="check the path"))
    no such file: pairs.tsv (check the path)
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem} ({hint})" if hint else problem)
        self.problem = problem
        self.hint = hint


class MissingExtraError(HeedfulError):
    """A package of an extra of pyproject.toml is not installed; the hint is the pip command."""


class ResumableError(HeedfulError):
    """The environment interrupted the work; it can be resumed."""


class DiskError(ResumableError):
    """A path cannot be written; complete files are intact."""


class StoppedError(Exception):
    """Stopped by Ctrl-C, SIGTERM or SIGHUP; ``hint`` says how to resume."""

    def __init__(self, signal_number: int, hint: str = "") -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {'Ctrl-C' if signal_number == signal.SIGINT else name}")
        self.signal_number = signal_number
        self.hint = hint


def has_extra(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    return not _missing_packages(extra)


def check_extras(purpose: str, *extras: str) -> None:
    """Raise an error with the pip command if packages of these extras are missing; it imports none of them."""
    missing = {extra: packages for extra in extras if (packages := _missing_packages(extra))}
    if missing:
        packages = [package for packages in missing.values() for package in packages]
        raise MissingExtraError(
            f"{purpose} needs {', '.join(packages)}", hint=f"pip install 'heedful[{','.join(missing)}]'"
        )


def _missing_packages(extra: str) -> list[str]:
    return [package for package in EXTRAS[extra] if find_spec(package) is None]
