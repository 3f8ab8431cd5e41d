"""Models of plain text at the server: going on with a text, and filling in its blanks.

The work is done by the worker that looks inside, one request at a time, and refused when too many wait.
"""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictStr

from heedful.bundle import Bundle
from heedful.config import Config
from heedful.engines.plain_text import continued, filled, sampling
from heedful.inspection.asked import LONGEST
from heedful.server.documentation import NUMBER, TEXT, WORK_ERRORS, answer, list_of, model_schema, record
from heedful.server.parameters import check_amount, checked_body, well_formed
from heedful.server.refusal import malformed
from heedful.server.state import Server, deadline_of
from heedful.server.trace import NAME_CHARACTERS

MOST_GUESSES = 1000
_TEXTS = record({"texts": list_of(TEXT)})
_BLANKS = record({"blanks": list_of(list_of(record({"text": TEXT, "probability": NUMBER})))})
DRAWING = {"n_best", "temperature", "top_k", "top_p", "seed"}


class PlainRequest(Config):
    """What all requests to a model of plain text have."""

    model_config = ConfigDict(strict=True)

    model: StrictStr = Field("", max_length=NAME_CHARACTERS)
    """Which model; the first that does this if not given."""


class GenerateRequest(PlainRequest):
    """The body of POST /api/generate."""

    text: StrictStr = ""
    """The beginning of the texts; may be empty."""
    n_best: int = Field(1, ge=1)
    """Texts to write."""
    longest: int = Field(100, ge=1, le=LONGEST)
    """Tokens of a text at most, its beginning included."""
    temperature: float | None = None
    """Below 1 bolder words, above 1 rarer ones."""
    top_k: int | None = None
    """Only among the k likeliest words."""
    top_p: float | None = None
    """Only among the likeliest words that together reach this probability."""
    seed: int | None = None
    """The same seed writes the same texts; 0 if not given."""


class FillRequest(PlainRequest):
    """The body of POST /api/fill."""

    text: StrictStr
    """A text with blanks, written __."""
    top: int = Field(5, ge=1, le=MOST_GUESSES)
    """Guesses for each blank, likeliest first."""


def plain_text_routes(server: Server) -> APIRouter:
    """The routes of models that do not translate."""
    routes = APIRouter(prefix="/api", tags=["Plain text"])

    @routes.post(
        "/generate",
        openapi_extra=_body(GenerateRequest),
        responses={**answer(_TEXTS), **WORK_ERRORS},
        response_class=Response,
    )
    async def generate(request: Request) -> JSONResponse:
        """Go on with a text, word by word at random (a language model)."""
        server.check_key(request)
        asked = checked_body(GenerateRequest, await request.body())
        check_amount([asked.text], server.config)
        if asked.n_best > server.config.max_alternatives + 1:
            raise malformed(f"n_best must be at most {server.config.max_alternatives + 1}")
        bundle = _model(server, asked.model, "language")
        told = asked.model_dump(include=DRAWING, exclude_none=True)
        text = well_formed(asked.text)

        def work() -> list[str]:
            return continued(bundle, text, sampling(bundle, told), asked.longest)

        return JSONResponse({"texts": await server.inspector.run(work, deadline_of(request))})

    @routes.post(
        "/fill",
        openapi_extra=_body(FillRequest),
        responses={**answer(_BLANKS), **WORK_ERRORS},
        response_class=Response,
    )
    async def fill(request: Request) -> JSONResponse:
        """Guess what stands in the blanks of a text (a masked model)."""
        server.check_key(request)
        asked = checked_body(FillRequest, await request.body())
        check_amount([asked.text], server.config)
        bundle = _model(server, asked.model, "mask")
        text = well_formed(asked.text)
        blanks = await server.inspector.run(lambda: filled(bundle, text, asked.top), deadline_of(request))
        return JSONResponse({"blanks": [[asdict(guess) for guess in blank] for blank in blanks]})

    return routes


def _body(request: type[PlainRequest]) -> dict[str, Any]:
    content = {"application/json": {"schema": model_schema(request)}}
    return {"requestBody": {"required": True, "content": content}}


def _model(server: Server, name: str, task: str) -> Bundle:
    """The model that a request means, if it does such work."""
    found = {model.name: model.bundle for model in server.directions.plain if model.task == task}
    if not found:
        does = "goes on with a text" if task == "language" else "fills in blanks"
        raise malformed(f"no model of this server {does}; train one: heedful train --task {task} texts.txt")
    if name and name not in found:
        raise malformed(f"there is no such model {name}; there are: {', '.join(found)}")
    return found[name] if name else next(iter(found.values()))
