"""Our own interface: all that the model knows about a translation, and translations as they are written."""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field, StrictStr

from heedful.config import Config
from heedful.engines.base import Alternative
from heedful.server.config import ServerConfig
from heedful.server.documentation import (
    COUNT,
    NUMBER,
    TEXT,
    WORK_ERRORS,
    YES_OR_NO,
    Schema,
    list_of,
    model_schema,
    one_of,
    or_null,
    record,
)
from heedful.server.parameters import check_amount, checked_body, well_formed
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server, deadline_of
from heedful.server.texts import stream_text
from heedful.server.translating import AUTO, Result, Version, Wish, detect_sources, search_of, translate_wish
from heedful.text.languages import Detection

Texts = StrictStr | list[StrictStr]
PREFIX_CHARACTERS = 1_000
TERMS = 500
TERM_CHARACTERS = 200


_VERSION = {
    "text": TEXT,
    "score": or_null(NUMBER),
    "log_probability": or_null(NUMBER),
    "confidence": or_null(NUMBER),
    "alignment": list_of({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}),
    "tokens": or_null(list_of(TEXT)),
    "token_log_probabilities": or_null(list_of(NUMBER)),
}
_ON_DEMAND = ("alignment", "tokens", "token_log_probabilities", "alternatives")
_RESULT = record(
    {
        "source": TEXT,
        "complete": YES_OR_NO,
        "segments": COUNT,
        **_VERSION,
        "alternatives": list_of(record(_VERSION, optional=_ON_DEMAND)),
    },
    optional=_ON_DEMAND,
)
_EVENT = record(
    {
        "event": one_of(["message", "done", "error"]),
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    optional=["event"],
)
_ANSWER: dict[str, dict[str, Schema]] = {
    "application/json": {"schema": record({"translations": list_of(_RESULT)})},
    "text/event-stream": {"schema": _EVENT},
}


class OwnSearch(Config):
    """Settings of search that a request may choose; those left out are the model's."""

    model_config = ConfigDict(strict=True)

    method: Literal["beam", "sample"] | None = None
    """Look for the likeliest translation, or draw at random."""
    beam: int | None = None
    """Hypotheses kept side by side; 1 is greedy."""
    length_penalty: float | None = None
    """Higher favours longer translations."""
    temperature: float | None = None
    """Of sampling."""
    top_k: int | None = None
    """Of sampling: only among the likeliest words."""
    top_p: float | None = None
    """Of sampling: only among the likeliest words of this probability."""
    seed: int | None = None
    """Of sampling."""


class OwnRequest(Config):
    """The body of POST /api/translate."""

    model_config = ConfigDict(strict=True)

    text: Texts
    """A text, or a list of texts."""
    target: StrictStr
    """Language to translate into."""
    source: StrictStr = AUTO
    """Language to translate from, or auto."""
    format: Literal["text", "html"] = "text"
    """Plain text, or HTML whose tags are kept."""
    n_best: int = Field(1, ge=1)
    """Translations of each text, best first."""
    prefix: Texts | None = None
    """What the translation (or each of them) must start with: at most 1,000 characters."""
    search: OwnSearch = OwnSearch()
    """Settings of search."""
    alignments: bool = False
    """Say which word comes from which."""
    tokens: bool = False
    """Give the pieces that were written, with their log-probabilities."""
    glossary: dict[str, str] = Field(default_factory=dict)
    """Terms and what each must become: at most 500, of 200 characters."""
    do_not_translate: list[str] = Field(default_factory=list)
    """Terms that stay as they are: at most 500, of 200 characters."""
    stream: bool = False
    """Answer with server-sent events, as the (greedy or sampled) translation is written."""


def own_routes(server: Server) -> APIRouter:
    """The routes under /api."""
    routes = APIRouter(prefix="/api", tags=["Heedful"])
    content = {"application/json": {"schema": model_schema(OwnRequest)}}

    @routes.post(
        "/translate",
        openapi_extra={"requestBody": {"required": True, "content": content}},
        responses={200: {"description": "The answer", "content": _ANSWER}, **WORK_ERRORS},
        response_class=Response,
    )
    async def translate(request: Request) -> Response:
        """Translate, and say how sure the model is, which word comes from which, and what else it found."""
        server.check_key(request)
        asked = checked_body(OwnRequest, await request.body())
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        texts = [well_formed(text) for text in texts]
        check_amount(texts, server.config)
        wish = _wish(asked, server, texts, deadline_of(request))
        if asked.stream:
            return await _streamed(server, texts, asked, wish)
        results = await translate_wish(server, texts, wish)
        return JSONResponse({"translations": [_described(result, asked) for result in results]})

    return routes


def _wish(asked: OwnRequest, server: Server, texts: list[str], deadline: float) -> Wish:
    source = asked.source
    prefixes = [asked.prefix] * len(texts) if isinstance(asked.prefix, str) else asked.prefix or []
    if prefixes and len(prefixes) != len(texts):
        raise malformed(f"{len(prefixes)} prefixes for {len(texts)} texts")
    if prefixes and (asked.format == "html" or asked.glossary or asked.do_not_translate):
        raise malformed("a prefix is only for plain text, without glossary or terms to keep")
    _check_prefixes(prefixes, texts, server.config)
    _check_terms("glossary", [*asked.glossary], [*asked.glossary.values()])
    _check_terms("do_not_translate", asked.do_not_translate)
    return Wish(
        source=AUTO if source == AUTO else server.directions.language(source),
        target=server.directions.language(asked.target),
        markup="html" if asked.format == "html" else "",
        count=_count(asked, server.config),
        deadline=deadline,
        prefixes=tuple(well_formed(prefix) for prefix in prefixes),
        search=_told(asked.search),
        details=asked.alignments or asked.tokens,
        glossary={well_formed(term): well_formed(word) for term, word in asked.glossary.items()},
        kept=tuple(well_formed(term) for term in asked.do_not_translate),
    )


def _check_prefixes(prefixes: list[str], texts: list[str], config: ServerConfig) -> None:
    if any(len(prefix) > PREFIX_CHARACTERS for prefix in prefixes):
        raise malformed(f"a prefix has at most {PREFIX_CHARACTERS} characters")
    characters = sum(map(len, [*texts, *prefixes]))
    if characters > config.max_characters:
        raise malformed(
            f"{characters} characters with the prefixes, at most {config.max_characters} are taken at once"
        )


def _check_terms(name: str, *columns: list[str]) -> None:
    if any(len(terms) > TERMS for terms in columns):
        raise malformed(f"{name} has at most {TERMS} terms")
    if any(len(term) > TERM_CHARACTERS for terms in columns for term in terms):
        raise malformed(f"a term of {name} has at most {TERM_CHARACTERS} characters")


def _count(asked: OwnRequest, config: ServerConfig) -> int:
    if asked.n_best > config.max_alternatives + 1:
        raise malformed(f"n_best must be at most {config.max_alternatives + 1}")
    return asked.n_best


def _told(search: OwnSearch) -> dict[str, Any]:
    return {name: value for name, value in search.model_dump().items() if value is not None}


def _described(result: Result, asked: OwnRequest) -> dict[str, Any]:
    versions = [_version(version, asked) for version in result.versions]
    return {
        "source": result.detection.language,
        "complete": result.complete,
        "segments": result.segments,
        **versions[0],
        **({"alternatives": versions[1:]} if asked.n_best > 1 else {}),
    }


def _version(version: Version, asked: OwnRequest) -> dict[str, Any]:
    found = version.alternative
    answer: dict[str, Any] = {
        "text": version.text,
        "score": found and found.score,
        "log_probability": found and found.log_probability,
        "confidence": found and confidence(found),
    }
    if asked.alignments:
        answer["alignment"] = version.alignment
    if asked.tokens:
        answer["tokens"] = found and found.tokens
        answer["token_log_probabilities"] = found and found.token_log_probabilities
    return answer


def confidence(found: Alternative) -> float:
    """The probability of a token on (geometric) average, from 0 to 1."""
    steps = len(found.token_log_probabilities) or len(found.tokens) + 1
    return math.exp(found.log_probability / steps)


# ---- streams


async def _streamed(server: Server, texts: list[str], asked: OwnRequest, wish: Wish) -> Response:
    """Server-sent events; what can be refused is refused before the first."""
    if len(texts) != 1 or wish.markup or wish.count > 1 or wish.glossary or wish.kept or wish.details:
        raise malformed("a stream is the one plain translation of one plain text")
    if asked.search.beam not in (None, 1):
        raise malformed("a stream is greedy or sampled: leave out beam")
    [detection] = await detect_sources(server, texts, wish)
    parts = _parts(server, texts[0], detection.language, wish)
    try:
        first = await anext(parts)
    except BaseException:
        await parts.aclose()
        raise
    return StreamingResponse(
        _events(first, parts, detection),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


async def _parts(server: Server, text: str, source: str, wish: Wish) -> AsyncGenerator[str, None]:
    """The translation bit by bit; never nothing at all."""
    if source == wish.target:
        yield text
        return
    direction = server.directions.find(source, wish.target)
    search = search_of(direction, replace(wish, search={**wish.search, "beam": 1}), server.config)
    prefix = wish.prefixes[0] if wish.prefixes else ""
    stream = stream_text(direction.batcher, text, search, prefix, wish.deadline)
    async with aclosing(stream):
        async for part in stream:
            yield part


async def _events(first: str, parts: AsyncGenerator[str, None], detection: Detection) -> AsyncIterator[str]:
    """``data: {"delta": ...}`` for each bit, and at the end an event ``done`` with the whole text."""
    whole = first
    try:
        async with aclosing(parts):
            yield _event({"delta": first})
            async for part in parts:
                whole += part
                if part:
                    yield _event({"delta": part})
        yield _event({"text": whole, "source": detection.language}, "done")
    except RefusedError as refused:  # too late for a status
        yield _event({"error": refused.message}, "error")


def _event(data: dict[str, Any], name: str = "") -> str:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
