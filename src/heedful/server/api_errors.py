"""Errors of the API: one exception type, and every error response is JSON."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from heedful.errors import HeedfulError, MissingExtraError

LOG = logging.getLogger("heedful.server")


class APIError(Exception):
    """A request that gets an error response: a client error, or an overloaded server."""

    def __init__(
        self, status: int, message: str, *, retry_after: int | None = None, close_connection: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        """Seconds after which the client should retry."""
        self.close_connection = close_connection
        """Whether to close the connection, because more of the request would follow than the server reads."""


def bad_request(message: str) -> APIError:
    """Return the error of an invalid request: 400."""
    return APIError(400, f"Invalid request: {message}")


def to_api_error(error: Exception) -> APIError:
    """Turn a translator's exception into the client's error; internal errors are logged, not shown."""
    if isinstance(error, MissingExtraError):
        return APIError(501, str(error))
    if isinstance(error, HeedfulError):  # such as a prefix that the model cannot generate
        return bad_request(str(error))
    LOG.error("translation failed", exc_info=error)
    return APIError(500, "the translation failed")


def error_response(error: APIError, path: str, request_id: str = "") -> JSONResponse:
    """Return an error as JSON; DeepL clients read it from another key."""
    message = error.message.encode("utf-8", "replace").decode()  # may quote a lone surrogate
    content: dict[str, Any] = {"error": message}
    if path.startswith("/v2/"):
        content["message"] = message
    if error.status >= 500 and request_id:
        content["request_id"] = request_id
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.close_connection:
        headers["Connection"] = "close"
    return JSONResponse(content, error.status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception with JSON."""

    @app.exception_handler(APIError)
    async def handle_api_error(request: Request, error: APIError) -> JSONResponse:
        request_id = request.scope["state"]["request_id"]
        if error.status == 500:
            LOG.error("request %s: %s", request_id, error.message)
        return error_response(error, request.url.path, request_id)

    @app.exception_handler(MissingExtraError)
    async def handle_missing_extra(request: Request, error: MissingExtraError) -> JSONResponse:
        return error_response(to_api_error(error), request.url.path)

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> JSONResponse:
        response = error_response(APIError(error.status_code, str(error.detail)), request.url.path)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        first_error = error.errors()[0]
        return error_response(bad_request(f"{first_error['loc'][-1]}: {first_error['msg']}"), request.url.path)


def remove_validation_schemas(app: FastAPI) -> None:
    """Remove FastAPI's 422 responses from the OpenAPI schema: here an invalid parameter is a 400."""
    default_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        spec = default_openapi()
        for path in spec["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        spec.pop("components", None)  # only used by the 422
        return spec

    app.openapi = openapi  # type: ignore[method-assign]
