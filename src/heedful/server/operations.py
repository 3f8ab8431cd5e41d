"""What those who run the server ask it: is it alive, is it ready, how is it doing, what can it do."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from heedful.server.documentation import Schema, answer, errors, one_of, record
from heedful.server.state import Server
from heedful.server.statistics import exposition


def _status(*words: str) -> Schema:
    return record({"status": one_of(words)})


_NOT_READY = {
    "description": "Starting or draining",
    "content": {"application/json": {"schema": _status("starting", "draining")}},
}


def operations_routes(server: Server) -> APIRouter:
    """Health, readiness, metrics and the description of the interface."""
    routes = APIRouter(tags=["Operations"])

    @routes.get("/health", responses=answer(_status("ok")))
    async def health() -> JSONResponse:
        """Whether the process is alive."""
        return JSONResponse({"status": "ok"})

    @routes.get("/ready", responses={**answer(_status("ready")), 503: _NOT_READY})
    async def ready() -> JSONResponse:
        """Whether requests are welcome."""
        return JSONResponse({"status": server.phase}, 200 if server.phase == "ready" else 503)

    @routes.get("/metrics", response_class=PlainTextResponse, responses=errors(403))
    async def metrics(request: Request) -> PlainTextResponse:
        """Counts and times, for Prometheus."""
        server.check_key(request)
        return PlainTextResponse(
            exposition(_numbers(server)), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @routes.get("/spec", responses={**answer({"type": "object"}), **errors(429, 503)})
    async def spec(request: Request) -> JSONResponse:
        """The same as /openapi.json."""
        return JSONResponse(request.app.openapi())

    return routes


def _numbers(server: Server) -> Iterator[tuple[str, str, str]]:
    yield "ready", "gauge", f"heedful_ready {int(server.phase == 'ready')}"
    yield from server.statistics.lines(server.in_flight)
    for direction, *_ in server.directions.by_model:  # a model of several counts under its first
        batcher = direction.batcher
        yield from batcher.statistics.lines(direction.name, batcher.waiting_tokens)
