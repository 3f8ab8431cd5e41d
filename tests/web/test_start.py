"""How users reach the page: the demo serves it on a terminal, and prints the command otherwise."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Result, run_heedful
from tests.server.server_process import ask

SECONDS = 300
"""How long to wait for the demo server."""


@pytest.mark.long
def test_demo_on_terminal_serves_page(demo: tuple[Path, Result]) -> None:
    folder, _ = demo
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "heedful", "demo", "-o", str(folder)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "COLUMNS": "200", "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        start_new_session=True,
    )
    os.close(terminal)
    try:
        match = re.search(r"serving on (http://127\.0\.0\.1:\d+);", read_until(controller, "Ctrl-C to stop"))
        assert match is not None
        wait_until_ready(match[1])
        page = ask(match[1], "/")
        assert page.status == 200
        assert b'<div id="heedful">' in page.body
        process.send_signal(signal.SIGINT)
        read_until(controller, "stopped")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_demo_without_terminal_prints_serve_command(demo: tuple[Path, Result]) -> None:
    folder, result = demo
    assert f"serve {folder / 'model'} --open" in result.out
    assert run_heedful("demo", "-o", folder, "--no-page").out == result.out


def read_until(controller: int, until: str) -> str:
    """The output of the terminal, up to a text."""
    deadline, output = time.monotonic() + SECONDS, ""
    while until not in output:
        assert time.monotonic() < deadline, output
        if select.select([controller], [], [], 0.2)[0]:
            output += os.read(controller, 65536).decode(errors="replace")
    return output


def wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if ask(address, "/ready").status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
