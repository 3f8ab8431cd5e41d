"""What every request passes before and after its route: ids, limits, API keys, cancellation, errors."""

import asyncio
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.server.api_errors import APIError, bad_request, error_response
from heedful.server.state import ServerState

LOG = logging.getLogger("heedful.server")

MAX_CLIENTS = 10_000
"""Addresses that the rate limiter tracks; it drops the one unseen for longest: its bucket is fullest."""

UNTHROTTLED_PATHS = {"/health", "/ready", "/metrics"}
"""Answered whatever the load and the phase."""

FILE_UPLOAD_PATH = "/translate_file"

MULTIPART_OVERHEAD_BYTES = 65_536
"""Bytes of a multipart form besides its file."""

MAX_DISCARD_FACTOR = 8
"""A body of up to this many times the limit is read and discarded, so that the client sees the 413 and not a
reset. For a larger one the connection is closed."""

_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class RateLimiter:
    """A token bucket per client: so many requests per minute, at once or spread; 0 disables it."""

    def __init__(self, requests_per_minute: int) -> None:
        self.requests_per_minute = requests_per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, as of when

    def acquire(self, client: str, now: float) -> int:
        """Count a request and return 0; or return the seconds to wait if the client has none left."""
        if not self.requests_per_minute:
            return 0
        requests_per_second = self.requests_per_minute / 60
        available, updated_at = self._buckets.get(client, (float(self.requests_per_minute), now))
        available = min(self.requests_per_minute, available + (now - updated_at) * requests_per_second)
        if available < 1:
            return math.ceil((1 - available) / requests_per_second)
        self._buckets[client] = (available - 1, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0


class ClientDisconnectedError(Exception):
    """The client disconnected: no response can be sent."""


class RequestMiddleware:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self.app, self.server = app, server
        self.rate_limiter = RateLimiter(server.config.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = _RequestContext(scope, send)
        throttled = scope["path"] not in UNTHROTTLED_PATHS
        try:
            if throttled:
                self._check_admission(scope)
            self.server.in_flight += throttled
            try:
                await self._serve(context, receive)
            finally:
                self.server.in_flight -= throttled
        except ClientDisconnectedError:
            self.server.metrics.disconnected.inc()
        except asyncio.CancelledError:  # the time to drain is over
            await context.send_error(APIError(503, "the server is stopping", retry_after=1))
        except APIError as error:
            await context.send_error(error)
        except Exception:
            LOG.exception("request %s failed", context.request_id)
            await context.send_error(APIError(500, "internal server error"))
        if context.status:
            route = str(getattr(scope.get("route"), "path", "none"))  # not the raw path: few labels
            self.server.metrics.requests.labels(route, context.status).inc()
            self.server.metrics.request_seconds.observe(time.monotonic() - context.started_at)

    def _check_admission(self, scope: Scope) -> None:
        """Reject a request that exceeds a limit before its body is read."""
        if self.server.phase != "ready":
            raise APIError(503, f"the server is {self.server.phase}", retry_after=1)
        client = scope["client"][0] if scope.get("client") else ""
        if seconds := self.rate_limiter.acquire(client, time.monotonic()):
            raise APIError(429, "too many requests", retry_after=seconds)
        if self.server.in_flight >= self.server.config.max_requests:
            raise APIError(503, "the server is busy", retry_after=1)

    async def _serve(self, context: "_RequestContext", receive: Receive) -> None:
        config, scope = self.server.config, context.scope
        is_file = scope["path"] == FILE_UPLOAD_PATH
        seconds = config.file_timeout_seconds if is_file else config.request_timeout_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        scope.setdefault("state", {}).update(deadline=deadline, request_id=context.request_id)
        if scope["path"] in UNTHROTTLED_PATHS:  # the body is not read
            await self.app(scope, _receive_disconnect, context.send)
            return
        self.server.check_key_before_body(Request(scope))
        try:
            async with asyncio.timeout(min(seconds, config.body_timeout_seconds)):
                limit = config.max_file_bytes + MULTIPART_OVERHEAD_BYTES if is_file else config.max_body_bytes
                body = await _read_body(scope, receive, limit)
        except TimeoutError:
            raise APIError(408, "the body did not arrive in time", close_connection=True) from None
        scope["state"]["body_bytes"] = len(body)
        await _run_until_disconnect(self.app, context, body, receive)


class _RequestContext:
    """One request and the state of its response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self._send = scope, send
        self.status = 0
        self.complete = False
        self.started_at = time.monotonic()
        client_request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        self.request_id = client_request_id if _REQUEST_ID.fullmatch(client_request_id) else secrets.token_hex(8)

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the request id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], (b"x-request-id", self.request_id.encode())]}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)

    async def send_error(self, error: APIError) -> None:
        """Send an error, unless the response has started."""
        if not self.status:
            response = error_response(error, self.scope["path"], self.request_id)
            await response(self.scope, _receive_disconnect, self.send)


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the body, unless it is too large."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise bad_request("Content-Length is not a valid number of bytes")
    chunks, size, more_body = [], 0, int(length) <= MAX_DISCARD_FACTOR * limit
    while more_body and size <= MAX_DISCARD_FACTOR * limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk, more_body = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
    if max(size, int(length)) > limit:
        close = max(size, int(length)) > MAX_DISCARD_FACTOR * limit
        raise APIError(413, f"the body is larger than {limit} bytes", close_connection=close)
    return b"".join(chunks)


async def _run_until_disconnect(app: ASGIApp, context: _RequestContext, body: bytes, receive: Receive) -> None:
    """Run the app with a body that was read; cancel it when the client disconnects."""
    disconnected = asyncio.Event()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay_body() -> Message:
        for message in messages:
            return message
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def run_app() -> None:
        await app(context.scope, replay_body, context.send)

    app_task = asyncio.create_task(run_app())
    # After the body only a disconnect can follow, or the end of the response.
    disconnect_task = asyncio.ensure_future(receive())
    try:
        await asyncio.wait([app_task, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
        if not app_task.done() and not context.complete:
            disconnected.set()
            app_task.cancel()
            await asyncio.wait({app_task})
            raise ClientDisconnectedError
        await app_task
    finally:
        for task in (app_task, disconnect_task):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}
