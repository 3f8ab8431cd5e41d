"""Serve the page from package data; it makes no external requests."""

import os
import re
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from heedful.web.assets import MEDIA_TYPES, hash_script, load_assets

MIN_COMPRESS_BYTES = 1000
"""Smaller files are not compressed."""


@cache
def build_headers() -> dict[str, str]:
    """Return the headers of the page's files: the page may only load its own."""
    index = load_assets()["index.html"].content.decode()
    script_hashes = " ".join(map(hash_script, re.findall(r'<script type="importmap">(.*?)</script>', index)))
    return {
        "Cache-Control": "no-cache",  # browsers revalidate: a new version of the package is effective at once
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'self' {script_hashes}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


class PageFiles(StaticFiles):
    """The page's files, with its headers: / is index.html, the others are under /page/."""

    def get_path(self, scope: Scope) -> str:
        """Return the name of the requested file."""
        return str(scope["path_params"].get("name", "index.html"))

    def file_response(self, full_path: PathLike, *args: Any, **kwargs: Any) -> Response:
        """Return a file, or 304 if the client has it."""
        response = super().file_response(full_path, *args, **kwargs)
        response.headers.update(build_headers())
        media_type = MEDIA_TYPES.get(os.fspath(full_path).rpartition(".")[2])
        if media_type is not None and response.status_code == 200:  # Windows may take .js for plain text
            response.headers["Content-Type"] = media_type
        return response


class PageRoute(Route):
    """A route that the metrics can name: FastAPI only reports its own."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request."""
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self} if match is Match.FULL else child_scope


def add_page_routes(app: FastAPI) -> None:
    """Add the page to an app."""
    page_files = GZipMiddleware(PageFiles(packages=[("heedful.web", "static")]), minimum_size=MIN_COMPRESS_BYTES)
    for path in ("/", "/page/{name:path}"):
        app.router.routes.append(PageRoute(path, page_files, include_in_schema=False))
