"""Routes for operators: health, readiness, metrics, OpenAPI schema."""

from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from typing_extensions import TypedDict

from heedful.server.schemas import describe_errors, describe_json, describe_type
from heedful.server.state import ServerState


class _Health(TypedDict):
    status: Literal["ok"]


class _Ready(TypedDict):
    status: Literal["ready"]


class _NotReady(TypedDict):
    status: Literal["starting", "draining"]


_NOT_READY_RESPONSE = {
    "description": "Starting or draining",
    "content": {"application/json": {"schema": describe_type(_NotReady)}},
}


def build_ops_router(server: ServerState) -> APIRouter:
    """Build the operator routes."""
    router = APIRouter(tags=["Operations"])

    @router.get("/health", responses=describe_json(_Health))
    async def health() -> JSONResponse:
        """Report that the process is alive."""
        return JSONResponse({"status": "ok"})

    @router.get("/ready", responses={**describe_json(_Ready), 503: _NOT_READY_RESPONSE})
    async def ready() -> JSONResponse:
        """Report whether the server accepts requests."""
        return JSONResponse({"status": server.phase}, 200 if server.phase == "ready" else 503)

    @router.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=describe_errors(403),
        dependencies=[Depends(server.require_key)],
    )
    async def metrics() -> PlainTextResponse:
        """Return metrics for Prometheus."""
        return PlainTextResponse(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/spec", responses=describe_json(dict[str, Any], 429, 503))
    async def spec(request: Request) -> JSONResponse:
        """Return the OpenAPI schema, as /openapi.json does."""
        return JSONResponse(request.app.openapi())

    return router
