"""Routes that need PyTorch, on a server without it: each answers with the pip command."""

from typing import NoReturn

from fastapi import APIRouter, Depends

from heedful.errors import check_extras
from heedful.server.api_errors import APIError
from heedful.server.state import ServerState

PYTORCH_PATHS = ("/models", "/trace", "/trace/{path:path}", "/training", "/generate", "/fill")
"""Of routes/trace.py and routes/generate.py."""


def build_unavailable_router(server: ServerState) -> APIRouter:
    """Build the routes that need PyTorch; each answers 501."""
    router = APIRouter(prefix="/api", dependencies=[Depends(server.require_key)], include_in_schema=False)

    async def refuse() -> NoReturn:
        check_extras("inspecting a model", "train")
        raise APIError(503, "PyTorch was installed after the server started: restart it")

    for path in PYTORCH_PATHS:
        router.add_api_route(path, refuse, methods=["GET", "POST"], response_model=None)
    return router
