"""Being told to stop: by Ctrl-C (SIGINT), a scheduler (SIGTERM) or a terminal that is closed (SIGHUP)."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType

from heedful.errors import StoppedError

SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__
)
PATIENCE = 25.0
"""Seconds; torchrun itself waits for 30."""
DEAF = 3.0
"""Seconds after which work that does not hear a signal (a tokenizer in training) is ended all the same."""


@contextmanager
def signals_noted(*, patient: bool = False) -> Iterator[list[int]]:
    """Signals are noted, to be obeyed between updates; a second one is obeyed at once, unless ``patient``.

    Under torchrun Ctrl-C comes twice: from the terminal, and from torchrun.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted and not patient:
            raise KeyboardInterrupt
        noted.append(number)

    with _handled(note):
        yield noted


@contextmanager
def left_to_the_leader() -> Iterator[None]:
    """Signals are another's to obey; should it not end this process soon after one, that ends by itself."""

    def wait(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(PATIENCE, os._exit, [128 + number])
        timer.daemon = True
        timer.start()

    with _handled(wait):
        yield


@contextmanager
def stopping_at_once(hint: str) -> Iterator[None]:
    """A signal raises StoppedError, whatever is being done; ``hint`` says how to go on."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError(number, hint)

    told, telling = socket.socketpair()
    telling.setblocking(False)
    left = threading.Event()
    # Before the handlers: a signal in the middle of its start would leave half a thread.
    threading.Thread(target=_end_the_deaf, args=(told, left, hint), daemon=True).start()
    with closing(telling), _handled(stop) as ours:
        if ours:
            signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            left.set()
            if ours:
                signal.set_wakeup_fd(-1)


def _end_the_deaf(told: socket.socket, left: threading.Event, hint: str) -> None:
    """Python hears no signal while it waits for a library; every file is whole, so the process may end."""
    with told:
        while heard := told.recv(1):
            number = heard[0]
            # Who presses Ctrl-C can wait, or send another signal; a notebook must not end by it.
            if number not in SIGNALS or number == signal.SIGINT or left.wait(DEAF):
                continue
            with suppress(OSError):  # a terminal that is gone
                print(f"{StoppedError(number)}\n  hint: {hint}", file=sys.stderr, flush=True)
            os._exit(128 + number)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[bool]:
    """Signals come to ``handler`` in this block: True, if this is the main thread, which alone may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield False  # then the caller's rule
        return
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    heard = [number for number in SIGNALS if number not in ignored or number.name != "SIGHUP"]  # nohup
    before = {number: signal.signal(number, handler) for number in heard}
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield True
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, old in before.items():
            signal.signal(number, old)
