"""Signals that stop training: Ctrl-C (SIGINT), a scheduler's (SIGTERM) and a closed terminal's (SIGHUP).

Between updates they are only collected, so that training ends with a checkpoint; elsewhere they raise StoppedError.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType

from heedful.errors import StoppedError

SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)

BLOCKED_GRACE_SECONDS = 3.0
"""How long native code that blocks Python's signal handlers (tokenizer training) may continue."""


@contextmanager
def collect_signals(*, ignore_repeats: bool = False) -> Iterator[list[int]]:
    """Collect signals, to be handled between updates; a second one interrupts at once.

    ``ignore_repeats`` is for torchrun, which may send several to its ranks.
    """
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if received and not ignore_repeats:
            raise KeyboardInterrupt
        received.append(number)

    with install_handler(record):
        yield received


@contextmanager
def raise_on_signal(hint: str) -> Iterator[None]:
    """A signal raises StoppedError immediately; ``hint`` says how to resume."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number, hint)

    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    finished = threading.Event()
    # Before the handlers: a signal during thread start would leave it half started.
    threading.Thread(target=_force_exit, args=(receiver, finished, hint), daemon=True).start()
    with closing(sender), install_handler(stop) as installed:
        if installed:
            signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            finished.set()
            if installed:
                signal.set_wakeup_fd(-1)


def _force_exit(receiver: socket.socket, finished: threading.Event, hint: str) -> None:
    """Exit although native code blocks Python's handlers: all files are complete at any time."""
    with receiver:
        while data := receiver.recv(1):
            number = data[0]
            # Not for Ctrl-C: the user can wait or send another signal, and a notebook must survive.
            if number not in SIGNALS or number == signal.SIGINT or finished.wait(BLOCKED_GRACE_SECONDS):
                continue
            with suppress(OSError):  # the terminal is closed
                print(f"{StoppedError(number)}\n  hint: {hint}", file=sys.stderr, flush=True)
            os._exit(128 + number)


@contextmanager
def install_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[bool]:
    """Install ``handler`` in this block; yields False outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield False  # then the caller's handlers apply
        return
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    handled = [number for number in SIGNALS if number not in ignored or number.name != "SIGHUP"]  # nohup
    previous_handlers = {number: signal.signal(number, handler) for number in handled}
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield True
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)
