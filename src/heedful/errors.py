"""Errors for users: what is wrong, and a hint that says what to do."""

import signal


class HeedfulError(Exception):
    """An error in user input or the environment, never a bug.

    >>> print(HeedfulError("no such file: pairs.tsv", hint="check the path"))
    no such file: pairs.tsv (check the path)
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem} ({hint})" if hint else problem)
        self.problem = problem
        self.hint = hint


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
