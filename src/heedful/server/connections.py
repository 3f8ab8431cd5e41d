"""A client's connection: how long it may keep the server waiting, and how many there may be.

uvicorn only bounds the time between two requests. Here also a request's head must come in time, and an answer
must be read: else a few slow clients, meant or not, would hold all the connections that a process can have.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from heedful.server.config import ServerConfig

_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedConnection(H11Protocol):
    """uvicorn's connection with two clocks."""

    def __init__(self, *told: Any, limits: ServerConfig, **named: Any) -> None:
        super().__init__(*told, **named)
        self.limits = limits
        self.silence = _Clock(self.loop)
        """Runs while a request is awaited."""
        self.deafness = _Clock(self.loop)
        """Runs while the client does not read its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; if there is no room, whoever has been silent for longest must go."""
        super().connection_made(transport)
        self._watch_for_request()
        if len(self.connections) > self.limits.max_connections:
            everyone = [each for each in self.connections if isinstance(each, BoundedConnection)]
            min(everyone, key=lambda each: each.silence.due).hang_up()  # this one itself, if all are at work

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or a whole one."""
        super().data_received(data)
        self._watch_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self.silence.stop()
        self.deafness.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has not read what it was sent."""
        super().pause_writing()
        self.deafness.start(self.limits.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has now."""
        self.deafness.stop()
        super().resume_writing()

    def hang_up(self) -> None:
        """End a connection that has no request under way."""
        if self.cycle is None and self.conn.trailing_data[0]:  # half a head has come
            self.transport.write(_LATE)
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # to close would wait for a client that does not read
        else:
            self.transport.close()

    def _watch_for_request(self) -> None:
        """Let the clock run from the first wait for a request until its head is there.

        The rest of a body that was refused before it was read is such a wait too.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.silence.stop()
        elif not self.transport.is_closing():
            self.silence.start(self.limits.head_seconds, self.hang_up)


class _Clock:
    """Does something after a while, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float:
        """When it will happen, in the event loop's time."""
        return self._timer.when() if self._timer else float("inf")

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        """Let it run, if it does not run already."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, action)

    def stop(self) -> None:
        """Let nothing happen."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def bounded(limits: ServerConfig) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection."""
    return cast("type[asyncio.Protocol]", partial(BoundedConnection, limits=limits))  # it is only called
