"""The door of the server: what every request passes before and after its own work.

It gives each an id, bounds its body, refuses what is too much, cancels the work of a client that has gone,
and turns every error into JSON.
"""

import asyncio
import logging
import re
import secrets
import time
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.server.rates import RateLimit
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server

LOG = logging.getLogger("heedful.server")
ALWAYS_OPEN = {"/health", "/ready", "/metrics"}
"""Answered whatever the load and the phase."""
FILE_ROUTE = "/translate_file"
ENVELOPE = 65_536
"""Bytes of a multipart form around its file."""
DISCARDED = 8
"""Times the limit that are read and thrown away, so that an honest client sees the 413 and not a reset.

Of more, the connection is closed."""
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ClientGoneError(Exception):
    """The client hung up: there is nobody to answer."""


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server
        self.rates = RateLimit(server.config.requests_a_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(scope, send)
        busy = scope["path"] not in ALWAYS_OPEN
        try:
            if busy:
                self._let_in(scope)
            self.server.in_flight += busy
            try:
                await self._serve(visit, receive)
            finally:
                self.server.in_flight -= busy
        except ClientGoneError:
            self.server.statistics.disconnected += 1
        except asyncio.CancelledError:  # the time to drain is over
            await visit.fail(RefusedError(503, "the server is stopping", retry_after=1))
        except RefusedError as refused:
            await visit.fail(refused)
        except Exception:
            LOG.exception("request %s failed", visit.request_id)
            await visit.fail(RefusedError(500, "internal error"))
        if visit.status:
            self.server.statistics.add(visit.route, visit.status, time.monotonic() - visit.begun)

    def _let_in(self, scope: Scope) -> None:
        """Refuse what is too much before its body is read."""
        if self.server.phase != "ready":
            raise RefusedError(503, f"the server is {self.server.phase}", retry_after=1)
        client = scope["client"][0] if scope.get("client") else ""
        if seconds := self.rates.wait(client, time.monotonic()):
            raise RefusedError(429, "too many requests", retry_after=seconds)
        if self.server.in_flight >= self.server.config.max_requests:
            raise RefusedError(503, "the server is busy", retry_after=1)

    async def _serve(self, visit: "_Visit", receive: Receive) -> None:
        config, scope = self.server.config, visit.scope
        is_file = scope["path"] == FILE_ROUTE
        seconds = config.file_seconds if is_file else config.deadline_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        scope.setdefault("state", {}).update(deadline=deadline, request_id=visit.request_id)
        if scope["path"] in ALWAYS_OPEN:  # whatever comes with the question is not read
            await self.app(scope, _no_body, visit.send)
            return
        self.server.check_key_before_body(Request(scope))
        try:
            async with asyncio.timeout(min(seconds, config.body_seconds)):
                limit = config.file_bytes + ENVELOPE if is_file else config.max_body_bytes
                body = await _body(scope, receive, limit)
        except TimeoutError:
            raise RefusedError(408, "the request took too long to arrive", final=True) from None
        scope["state"]["body_bytes"] = len(body)
        await _while_connected(self.app, visit, body, receive)


class _Visit:
    """One request and what has been answered so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self._send = scope, send
        self.status = 0
        self.complete = False
        self.begun = time.monotonic()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        self.request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)

    @property
    def route(self) -> str:
        """The route's pattern: a path as it came could hold anything."""
        return str(getattr(self.scope.get("route"), "path", "none"))

    async def send(self, message: Message) -> None:
        """Answer, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {
                **message,
                "headers": [*message["headers"], (b"x-request-id", self.request_id.encode())],
            }
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)

    async def fail(self, refused: RefusedError) -> None:
        """Answer with an error, unless an answer has begun."""
        if not self.status:
            path, identity = self.scope["path"], self.request_id
            await error_response(refused, path, identity)(self.scope, _nothing, self.send)


def error_response(refused: RefusedError, path: str, request_id: str = "") -> JSONResponse:
    """An error as JSON; DeepL's clients look for it under another name."""
    message = refused.message.encode("utf-8", "replace").decode()  # it may repeat what no UTF-8 can hold
    content: dict[str, Any] = {"error": message}
    if path.startswith("/v2/"):
        content["message"] = message
    if refused.status >= 500 and request_id:
        content["request_id"] = request_id
    headers = {} if refused.retry_after is None else {"Retry-After": str(refused.retry_after)}
    if refused.final:
        headers["Connection"] = "close"
    return JSONResponse(content, refused.status, headers)


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, if it is not too large."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise malformed("Content-Length is not a number of bytes")
    if int(length) > DISCARDED * limit:
        raise _too_large(limit, final=True)
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > DISCARDED * limit:
            raise _too_large(limit, final=True)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size > limit:
        raise _too_large(limit)
    return b"".join(chunks)


def _too_large(limit: int, *, final: bool = False) -> RefusedError:
    return RefusedError(413, f"the body is larger than {limit} bytes", final=final)


async def _while_connected(app: ASGIApp, visit: _Visit, body: bytes, receive: Receive) -> None:
    """Run the app with a body that has been read; cancel it when the client hangs up."""
    gone = asyncio.Event()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        for message in messages:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        await app(visit.scope, replay, visit.send)

    async def watch() -> None:
        await receive()  # after the whole body only a disconnect can come, or the end of the answer

    work, watching = asyncio.create_task(run()), asyncio.create_task(watch())
    try:
        await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not visit.complete:
            gone.set()
            work.cancel()
            await asyncio.wait({work})
            raise ClientGoneError
        await work
    finally:
        for task in (work, watching):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
