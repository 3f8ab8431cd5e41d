"""Alternatives at a position of a translation: what else could come next, and where each would lead."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictStr

from heedful.config import Config
from heedful.engines.base import Continuation
from heedful.server.documentation import WORK_ERRORS, model_schema
from heedful.server.parameters import check_amount, checked_body, well_formed
from heedful.server.refusal import malformed
from heedful.server.state import Server, deadline_of
from heedful.server.texts import in_thread_if_long
from heedful.server.translating import AUTO, Wish, detect_sources, search_of

PREFIX_CHARACTERS = 1_000
COUNT = 20


class AlternativesRequest(Config):
    """The body of POST /api/alternatives."""

    model_config = ConfigDict(strict=True)

    text: StrictStr
    """One sentence."""
    target: StrictStr
    """Language to translate into."""
    source: StrictStr = AUTO
    """Language to translate from, or auto."""
    prefix: StrictStr = Field("", max_length=PREFIX_CHARACTERS)
    """What the translation begins with; after a space at its end a new word begins."""
    count: int = Field(8, ge=1, le=COUNT)
    """Alternatives to give, likeliest first."""


class OneAlternative(Config):
    """A way to go on, and the translation that it leads to."""

    piece: str
    """The next token as it stands in the vocabulary; </s> is the end."""
    word: str
    """The whole word that it belongs to; empty at the end."""
    probability: float
    """Of the token among all that could come next."""
    text: str
    """The best translation that goes on so."""
    score: float
    """Its log-probability over the length penalty."""


class AlternativesAnswer(Config):
    """The answer of POST /api/alternatives."""

    alternatives: list[OneAlternative]
    """Likeliest first; none for a text without words, or one in the target language already."""


def alternatives_routes(server: Server) -> APIRouter:
    """The route /api/alternatives."""
    routes = APIRouter(prefix="/api", tags=["Heedful"])
    content = {"application/json": {"schema": model_schema(AlternativesRequest)}}
    answer = {"application/json": {"schema": model_schema(AlternativesAnswer)}}

    @routes.post(
        "/alternatives",
        openapi_extra={"requestBody": {"required": True, "content": content}},
        responses={200: {"content": answer}, **WORK_ERRORS},
        response_class=Response,
    )
    async def alternatives(request: Request) -> Response:
        """What could come next in the translation of one sentence, and where each would lead."""
        server.check_key(request)
        asked = _checked(await request.body())
        check_amount([asked.text, asked.prefix], server.config)
        found = await _continuations(server, asked, deadline_of(request))
        return JSONResponse({"alternatives": [_described(each) for each in found]})

    return routes


def _checked(body: bytes) -> AlternativesRequest:
    asked = checked_body(AlternativesRequest, body)
    told = {"text": well_formed(asked.text), "prefix": well_formed(asked.prefix)}
    return asked.model_copy(update=told)


async def _continuations(server: Server, asked: AlternativesRequest, deadline: float) -> list[Continuation]:
    source = AUTO if asked.source == AUTO else server.directions.language(asked.source)
    wish = Wish(source, server.directions.language(asked.target), deadline=deadline)
    [detection] = await detect_sources(server, [asked.text], wish)
    if detection.language == wish.target:
        return []
    direction = server.directions.find(detection.language, wish.target)
    batcher = direction.batcher
    segments = await in_thread_if_long(lambda: batcher.engine.segments(asked.text), [asked.text])
    if sum(bool(segment.text) for segment in segments) > 1:  # before it waits for a worker in vain
        raise malformed("alternatives are for one sentence; send each by itself")
    search = search_of(direction, wish, server.config)
    work = partial(batcher.engine.continuations, asked.text, asked.prefix, search, asked.count)
    # Each alternative is a translation: the queue counts them all.
    return await batcher.run(work, batcher.count(asked.text) * asked.count, deadline)


def _described(found: Continuation) -> dict[str, Any]:
    return OneAlternative(
        piece=found.piece,
        word=found.word,
        probability=found.probability,
        text=found.translation.text,
        score=found.translation.score,
    ).model_dump()
