"""Processes that stop themselves (SIGSTOP) at a chosen point, where a test injects a fault.

A test that waits for a file or a message and then acts races the process. Here the process waits for the test:
it stops right before a chosen call until the test continues it (SIGCONT) or kills it, on fast and slow machines.
"""

import functools
import itertools
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

TIMEOUT = 600.0
"""Seconds after which a process that has not reached its stop point fails the test."""


@dataclass(frozen=True)
class StopPoint:
    """Before certain calls of a function."""

    function: str
    """``module:function`` or ``module:Class.method``, in the module that looks it up."""
    calls: Collection[int] = (1,)
    """Numbers of the calls, from 1."""
    text: str = ""
    """Count only calls with this text in a positional argument."""

    def program(self) -> tuple[str, ...]:
        """``python -m heedful``, stopping here."""
        calls = ",".join(map(str, self.calls))
        return (sys.executable, "-P", __file__, self.function, calls, self.text)

    def install(self) -> None:
        """Make this process stop here."""
        name, _, attribute = self.function.replace(":", ".").rpartition(".")
        owner = pkgutil.resolve_name(name)
        original, number = getattr(owner, attribute), itertools.count(1)

        @functools.wraps(original)
        def stop_and_call(*args: object, **options: object) -> object:
            if (not self.text or any(self.text in str(arg) for arg in args)) and next(number) in self.calls:
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # stops all threads
            return original(*args, **options)

        setattr(owner, attribute, stop_and_call)


def stop_at_message(text: str) -> StopPoint:
    """Before a message with this text is printed."""
    return StopPoint("heedful.progress:Reporter.info", text=text)


def wait_until_stopped(pid: int) -> None:
    """Wait until a child process has reached its stop point."""
    deadline = time.monotonic() + TIMEOUT
    while not has_stopped(pid):
        assert time.monotonic() < deadline, "the process did not reach its stop point"
        time.sleep(0.01)


def has_stopped(pid: int) -> bool:
    """Whether a child process is stopped; fails the test if the process has exited."""
    status = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert status is None or status.si_code == os.CLD_STOPPED, f"the process exited with {status.si_status}"
    return status is not None


def main() -> None:
    """Run ``heedful`` with the arguments after those of the stop point."""
    function, calls, text = sys.argv[1:4]
    StopPoint(function, [int(number) for number in calls.split(",")], text).install()
    sys.argv[:] = ["heedful", *sys.argv[4:]]
    runpy.run_module("heedful", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
