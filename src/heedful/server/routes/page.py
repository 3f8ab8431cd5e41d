"""Serve the page from package data; it makes no external requests."""

import gzip
import re
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from heedful.server.api_errors import APIError
from heedful.server.state import ServerState
from heedful.web.standalone import hash_script, load_assets


@cache
def build_headers() -> dict[str, str]:
    """Return the headers of the page's files: the page may only load its own."""
    index = load_assets()["index.html"].content.decode()
    script_hashes = " ".join(map(hash_script, re.findall(r'<script type="importmap">(.*?)</script>', index)))
    return {
        "Cache-Control": "no-cache",  # a new version of the package is effective at once
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self' {script_hashes}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }


def build_page_router(server: ServerState) -> APIRouter:
    """Build the routes of the page: / and its files under /page/."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index(request: Request) -> Response:
        return await asset(request, "index.html")

    @router.get("/page/{name:path}")
    async def asset(request: Request, name: str) -> Response:
        file = load_assets().get(name)
        if file is None:
            raise APIError(404, "Not Found")
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(file.content, media_type=file.media_type, headers=build_headers())
        gzip_headers = {**build_headers(), "Content-Encoding": "gzip"}
        return Response(_compress_asset(name), media_type=file.media_type, headers=gzip_headers)

    return router


@cache
def _compress_asset(name: str) -> bytes:
    return gzip.compress(load_assets()[name].content, mtime=0)
