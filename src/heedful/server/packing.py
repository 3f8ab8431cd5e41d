"""A trace to take along: as a page that needs no server, and as a file of tensors."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from heedful.inspection.record_file import manifest_alone, record_bytes
from heedful.page.packing import packed
from heedful.page.standalone import standalone
from heedful.server.inspecting import Kept
from heedful.server.refusal import RefusedError
from heedful.server.state import Server, deadline_of
from heedful.server.trace_schemas import TRACE_ERRORS, file_of

MOST_BYTES = 256_000_000
"""Of the tensors of one file."""


def packing_routes(server: Server) -> APIRouter:
    """The routes of a trace's files."""
    routes = APIRouter(responses=TRACE_ERRORS)

    @routes.get("/trace/{name}/page", response_class=Response, responses=file_of("text/html"))
    async def page(
        request: Request, name: str, view: Annotated[str, Query(max_length=20_000)] = ""
    ) -> Response:
        """The page of a trace as one HTML file; ``view`` is the part of the page's address from # on."""
        server.check_key(request)
        kept = server.inspector.find(name)
        text = await server.inspector.run(lambda: _page(kept, view), deadline_of(request))
        return _download(text.encode(), "text/html; charset=utf-8", "heedful.html")

    @routes.get(
        "/trace/{name}/record", response_class=Response, responses=file_of("application/octet-stream")
    )
    async def record(request: Request, name: str) -> Response:
        """The whole trace as one safetensors file: every tensor, and the manifest in its metadata."""
        server.check_key(request)
        kept = server.inspector.find(name)
        tensors = kept.record.tensors
        if tensors.size(tensors.entries) > MOST_BYTES:
            raise RefusedError(413, f"more than {MOST_BYTES} bytes: ask for tensors by name")
        body = await server.inspector.run(lambda: _record(kept), deadline_of(request))
        return _download(body, "application/octet-stream", "heedful.safetensors")

    return routes


def _page(kept: Kept, view: str) -> str:
    found = packed(kept.record, view, name=kept.model.name, checkpoint=kept.checkpoint)
    return standalone(found, view)


def _record(kept: Kept) -> bytes:
    manifest = manifest_alone(kept.record, name=kept.model.name, checkpoint=kept.checkpoint)
    return record_bytes(kept.record, manifest)


def _download(body: bytes, media_type: str, name: str) -> Response:
    """A file to keep; it is not shown here, where it would be a page of this server."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(body, media_type=media_type, headers=headers)
