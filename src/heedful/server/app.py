"""The application and its process: routes, middleware, bounded connections, graceful shutdown."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.errors import has_extra
from heedful.progress import Reporter
from heedful.server.api_errors import add_error_handlers, remove_validation_schemas
from heedful.server.config import ServerConfig
from heedful.server.middleware import RequestMiddleware
from heedful.server.model_registry import ModelRegistry
from heedful.server.routes.deepl import build_deepl_router
from heedful.server.routes.libretranslate import build_libretranslate_router
from heedful.server.routes.native import build_native_router
from heedful.server.routes.ops import build_ops_router
from heedful.server.routes.page import add_page_routes
from heedful.server.routes.unavailable import build_unavailable_router
from heedful.server.state import ServerState
from heedful.version import __version__

TASK_DESCRIPTIONS = {"causal_lm": "generates text", "masked_lm": "fills in blanks"}

MAX_HEADER_BYTES = 512 * 1024
"""Some clients send the text in the query string."""

_REQUEST_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def create_app(registry: ModelRegistry, config: ServerConfig) -> FastAPI:
    """Build the application that serves these models; its state is ``app.state.server``."""
    server = ServerState(registry, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        startup_task = asyncio.create_task(server.start())
        yield
        await startup_task
        await server.stop()

    app = FastAPI(
        title="Heedful",
        version=__version__,
        summary="Translation API: LibreTranslate, DeepL, and a native API with scores and traces.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = server
    for build_router in (build_libretranslate_router, build_deepl_router, build_native_router, build_ops_router):
        app.include_router(build_router(server))
    if has_extra("train"):
        from heedful.server.routes.generate import build_generate_router
        from heedful.server.routes.trace import build_trace_router

        app.include_router(build_generate_router(server))
        app.include_router(build_trace_router(server))
    else:
        app.include_router(build_unavailable_router(server))
    add_page_routes(app)
    add_error_handlers(app)
    remove_validation_schemas(app)
    app.add_middleware(RequestMiddleware, server=server)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
    return app


class BoundedConnection(H11Protocol):
    """A connection that is closed if the client is slow to send a request or to read a response.

    uvicorn only limits the time between two requests: a few slow clients could occupy all connections.
    """

    def __init__(self, *args: Any, limits: ServerConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self.request_timer = _Timer(self.loop)
        """Runs while the server waits for a request."""
        self.write_timer = _Timer(self.loop)
        """Runs while the client does not read the response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the one that has been idle for longest."""
        super().connection_made(transport)
        self._update_request_timer()
        if len(self.connections) > self.limits.max_connections:
            connections = [item for item in self.connections if isinstance(item, BoundedConnection)]
            # The new one itself, if all others have a request in progress.
            min(connections, key=lambda connection: connection.request_timer.deadline).close_idle()

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request."""
        super().data_received(data)
        self._update_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self.request_timer.stop()
        self.write_timer.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer: the client does not read."""
        super().pause_writing()
        self.write_timer.start(self.limits.write_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        self.write_timer.stop()
        super().resume_writing()

    def close_idle(self) -> None:
        """Close a connection that has no request in progress."""
        if self.cycle is None and self.conn.trailing_data[0]:  # an incomplete header arrived
            self.transport.write(_REQUEST_TIMEOUT_RESPONSE)
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait for a client that does not read
        else:
            self.transport.close()

    def _update_request_timer(self) -> None:
        """Run the timer while a request's header is incomplete.

        It also runs while the rest of a body arrives that was rejected before it was read.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.request_timer.stop()
        elif not self.transport.is_closing():
            self.request_timer.start(self.limits.header_timeout_seconds, self.close_idle)


class _Timer:
    """Calls a function after some seconds, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def deadline(self) -> float:
        """When it fires, in the event loop's time."""
        return self._handle.when() if self._handle else float("inf")

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        """Start it, unless it runs."""
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, action)

    def stop(self) -> None:
        """Stop it."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None


def run_server(
    registry: ModelRegistry,
    config: ServerConfig,
    listening_socket: socket.socket,
    report: Reporter,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; ``on_ready`` is called with the page's address once it can be opened."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if has_extra("train"):
        import torch

        torch.set_num_threads(1)  # one worker per core: threads would only compete
    host, port = listening_socket.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    _report_startup(registry, config, address, report)
    server = create_server(create_app(registry, config), report)
    if on_ready is not None:
        server.on_ready = lambda: on_ready(address)
    server.run(sockets=[listening_socket])
    report.info("stopped")


def create_server(app: FastAPI, report: Reporter) -> "DrainingServer":
    """Wrap an application in a uvicorn server that drains on shutdown."""
    uvicorn_config = uvicorn.Config(
        app,
        loop="asyncio",
        http=cast("type[asyncio.Protocol]", partial(BoundedConnection, limits=app.state.server.config)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # query strings contain texts and keys
        proxy_headers=False,  # a client could forge its address
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=2,
    )
    return DrainingServer(uvicorn_config, app.state.server, report)


def _report_startup(registry: ModelRegistry, config: ServerConfig, address: str, report: Reporter) -> None:
    for model_directions in registry.directions_by_model:
        first = model_directions[0]
        trained = ", ".join(direction.name for direction in model_directions if not direction.is_zero_shot)
        zero_shot = ", ".join(direction.name for direction in model_directions if direction.is_zero_shot)
        report.info(f"{trained}: {first.folder}, {first.engine_name}")
        if zero_shot:
            report.info(f"  zero-shot directions (no training data): {zero_shot}")
        if first.is_unnamed:
            report.info(
                "  its languages are unknown: requests call them source and target; to name them: " + first.naming_hint
            )
    for model in registry.language_models:
        report.info(f"{model.name}: {model.folder}, {TASK_DESCRIPTIONS[model.task]}, {model.engine_name}")
    report.info(f"serving on {address}; press Ctrl-C to stop")
    report.info(
        "open that address in a browser to translate and to inspect the model"
        if has_extra("train")
        else "open that address in a browser to translate; to inspect the model: pip install 'heedful[train]'"
    )
    if not address.startswith(("http://127.0.0.1:", "http://[::1]:")) and not config.api_keys:
        report.warning("anyone who reaches this address can use the server; require a key with --api-key-file")


class DrainingServer(uvicorn.Server):
    """The first signal rejects new requests and finishes the others; the second one stops at once."""

    def __init__(self, uvicorn_config: uvicorn.Config, state: ServerState, report: Reporter) -> None:
        super().__init__(uvicorn_config)
        self.state, self.report = state, report
        self.shutdown_deadline: float | None = None
        self.on_ready: Callable[[], None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.shutdown_deadline is not None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # cancelled requests are expected
            self.should_exit = self.force_exit = True
            return
        self.state.phase = "draining"
        self.shutdown_deadline = time.monotonic() + self.state.config.shutdown_timeout_seconds
        self.report.info("stopping after the requests in progress; signal again to stop now")

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; returns whether to stop."""
        if self.on_ready is not None and self.state.phase == "ready":
            self.on_ready()
            self.on_ready = None
        drained = self.shutdown_deadline is not None and (
            not self.state.in_flight or time.monotonic() > self.shutdown_deadline
        )
        return await super().on_tick(counter) or drained
