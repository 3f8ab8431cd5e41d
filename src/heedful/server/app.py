"""The application: all routes behind one door."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import heedful
from heedful.server.alternatives import alternatives_routes
from heedful.server.config import ServerConfig
from heedful.server.deepl import deepl_routes
from heedful.server.guard import Guard, error_response
from heedful.server.libretranslate import file_routes, libretranslate_routes
from heedful.server.models import Directions
from heedful.server.operations import operations_routes
from heedful.server.own import own_routes
from heedful.server.page import page_routes
from heedful.server.plain_text import plain_text_routes
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server
from heedful.server.trace import trace_routes
from heedful.server.training import training_routes

LOG = logging.getLogger("heedful.server")


def new_app(directions: Directions, config: ServerConfig) -> FastAPI:
    """A server of these models; its state is ``app.state.server``."""
    server = Server(directions, config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(server.start())
        yield
        await starting
        await server.stop()

    app = FastAPI(
        title="Heedful",
        version=heedful.__version__,
        summary="Translation, as LibreTranslate, as DeepL, and with all that the model knows.",
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = server
    for routes in (
        libretranslate_routes,
        file_routes,
        deepl_routes,
        own_routes,
        alternatives_routes,
        plain_text_routes,
        trace_routes,
        training_routes,
        page_routes,
        operations_routes,
    ):
        app.include_router(routes(server))
    _answer_errors_as_json(app)
    _describe_own_errors(app)
    app.add_middleware(Guard, server=server)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
    return app


def _answer_errors_as_json(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> JSONResponse:
        request_id = request.scope["state"]["request_id"]
        if error.status == 500:
            LOG.error("request %s: %s", request_id, error.message)
        return error_response(error, request.url.path, request_id)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        response = error_response(RefusedError(error.status_code, str(error.detail)), request.url.path)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return error_response(malformed(f"{first['loc'][-1]}: {first['msg']}"), request.url.path)


def _describe_own_errors(app: FastAPI) -> None:
    """FastAPI describes a 422 wherever it checks a parameter; here that is a 400."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        found = described()
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        found.pop("components", None)  # nothing but the 422
        return found

    app.openapi = openapi  # type: ignore[method-assign]
