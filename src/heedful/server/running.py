"""A server as a process: it says where it listens, and ends without losing what it has accepted."""

import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import torch
import uvicorn
from fastapi import FastAPI

from heedful.progress import Reporter
from heedful.server.app import new_app
from heedful.server.config import ServerConfig
from heedful.server.connections import bounded
from heedful.server.models import Directions
from heedful.server.state import Server

DOES = {"language": "goes on with a text", "mask": "fills in blanks"}
LONGEST_HEAD = 512 * 1024
"""Bytes of a request's head: some clients send the text in the query string."""


def run(
    directions: Directions,
    config: ServerConfig,
    listening: socket.socket,
    report: Reporter,
    when_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; ``when_ready`` is told the page's address once it can be opened."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    torch.set_num_threads(1)  # a worker is a core: the threads of small batches would wait for each other
    address = _address(listening)
    _say(directions, config, address, report)
    server = new_server(new_app(directions, config), report)
    if when_ready is not None:
        server.when_ready = lambda: when_ready(address)
    server.run(sockets=[listening])
    report.say("stopped")


def new_server(app: FastAPI, report: Reporter) -> "DrainingServer":
    """The process around an app."""
    settings = uvicorn.Config(
        app,
        loop="asyncio",
        http=bounded(app.state.server.config),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # queries hold texts and keys
        proxy_headers=False,  # a client's address is what the socket says
        server_header=False,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=2,
    )
    return DrainingServer(settings, app.state.server, report)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _say(directions: Directions, config: ServerConfig, address: str, report: Reporter) -> None:
    for together in directions.by_model:
        direction, zero_shot = together[0], [each.name for each in together if each.zero_shot]
        learned = ", ".join(each.name for each in together if not each.zero_shot)
        report.say(f"{learned}: {direction.folder}, {direction.engine_name}")
        if zero_shot:
            report.say(f"  never learned from, but offered (zero-shot): {', '.join(zero_shot)}")
        if direction.unnamed:
            report.say(
                "  it does not say its languages, so requests call them source and target; to name them: "
                + direction.to_name_it
            )
    for model in directions.plain:
        report.say(f"{model.name}: {model.folder}, {DOES[model.task]}, {model.engine_name}")
    report.say(f"serving on {address}; Ctrl-C stops it")
    report.say("open that address in a browser to use it and to see inside")
    if not address.startswith(("http://127.0.0.1:", "http://[::1]:")) and not config.api_keys:
        report.warn("everybody who reaches this address can use the server: --api-key-file asks for a key")


class DrainingServer(uvicorn.Server):
    """On the first signal it turns new requests away and finishes the others; on the second it ends."""

    def __init__(self, settings: uvicorn.Config, state: Server, report: Reporter) -> None:
        super().__init__(settings)
        self.state, self.report = state, report
        self.ends: float | None = None
        self.when_ready: Callable[[], None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.ends is not None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut off is no surprise
            self.should_exit = self.force_exit = True
            return
        self.state.phase = "draining"
        self.ends = time.monotonic() + self.state.config.drain_seconds
        self.report.say("stopping: requests under way are finished; once more stops at once")

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self.when_ready is not None and self.state.phase == "ready":
            self.when_ready()
            self.when_ready = None
        drained = self.ends is not None and (not self.state.in_flight or time.monotonic() > self.ends)
        return await super().on_tick(counter) or drained
