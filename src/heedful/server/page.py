"""The page itself, from the package: no other host is ever asked for anything."""

import gzip
import re
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from heedful.page.assets import Asset, assets
from heedful.page.standalone import script_hash
from heedful.server.refusal import RefusedError
from heedful.server.state import Server


@cache
def headers() -> dict[str, str]:
    """What goes with every file of the page: it may use what is its own, and nothing else."""
    inline = re.findall(r'<script type="importmap">(.*?)</script>', assets()["index.html"].content.decode())
    scripts = " ".join(map(script_hash, inline))
    return {
        "Cache-Control": "no-cache",  # a new version of the package is seen at once
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }


def page_routes(server: Server) -> APIRouter:
    """The page at / and its files under /page/."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, assets()["index.html"])

    @routes.get("/page/{name:path}")
    async def file(request: Request, name: str) -> Response:
        found = assets().get(name)
        if found is None:
            raise RefusedError(404, "Not Found")
        return _answer(request, found)

    return routes


def _answer(request: Request, asset: Asset) -> Response:
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(asset.content, media_type=asset.media_type, headers=headers())
    squeezed = {**headers(), "Content-Encoding": "gzip"}
    return Response(_squeezed(asset.name), media_type=asset.media_type, headers=squeezed)


@cache
def _squeezed(name: str) -> bytes:
    return gzip.compress(assets()[name].content, mtime=0)
