"""The one error a user meets: what was found, and what to do about it."""

import signal


class HeedfulError(Exception):
    """A mistake of the user's or of the world's (a full disk), never one of ours.

    >>> print(HeedfulError("no such file: pairs.tsv", hint="check the path"))
    no such file: pairs.tsv (check the path)
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem} ({hint})" if hint else problem)
        self.problem = problem
        self.hint = hint


class UnfinishedError(HeedfulError):
    """Work was cut short by the machine, not by the user's mistake: what was begun can go on."""


class DiskError(UnfinishedError):
    """Something cannot be written: no room, a disk that is read-only or gone. What was complete is whole."""


class StoppedError(Exception):
    """The user (Ctrl-C) or the system (SIGTERM, SIGHUP) asked to stop; ``hint`` says how to go on."""

    def __init__(self, signal_number: int, hint: str = "") -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {'Ctrl-C' if signal_number == signal.SIGINT else name}")
        self.signal_number = signal_number
        self.hint = hint
