"""How people come to the page: the demo ends there on a terminal, and serve says where it is."""

import gzip
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

SECONDS = 120


@pytest.mark.long
def test_demo_ends_at_the_page_on_a_terminal(demo: tuple[Path, Result]) -> None:
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
        found = re.search(r"serving on (http://127\.0\.0\.1:\d+);", _read(controller, "Ctrl-C to stop"))
        assert found is not None
        _wait_until_ready(found[1])
        page = ask(found[1], "/")
        assert page.status == 200
        assert b'<div id="heedful">' in page.body
        process.send_signal(signal.SIGINT)
        _read(controller, "stopped")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_demo_without_a_terminal_says_how(demo: tuple[Path, Result]) -> None:
    folder, done = demo
    assert f"serve {folder / 'model'} --open" in done.out
    assert run_heedful("demo", "-o", folder, "--no-page").out == done.out


def test_page_files_are_compressed(address: str) -> None:
    plain = ask(address, "/page/styles/base.css")
    squeezed = ask(address, "/page/styles/base.css", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(squeezed.body) == plain.body
    assert len(squeezed.body) < len(plain.body) / 2
    assert ask(address, "/page/../__init__.py").status == 404


def _read(controller: int, until: str) -> str:
    """What the terminal shows, up to some words."""
    ends, shown = time.monotonic() + SECONDS, ""
    while until not in shown:
        assert time.monotonic() < ends, shown
        if select.select([controller], [], [], 0.2)[0]:
            shown += os.read(controller, 65536).decode(errors="replace")
    return shown


def _wait_until_ready(address: str) -> None:
    ends = time.monotonic() + SECONDS
    while True:
        try:
            if ask(address, "/ready").status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < ends
        time.sleep(0.05)
