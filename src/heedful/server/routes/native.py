"""Native API: translations with scores, alignments and tokens, streaming, and alternatives at a position."""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, NotRequired

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field, StrictStr
from typing_extensions import TypedDict

from heedful.config import Config
from heedful.inference.translation import Alternative, Translation
from heedful.server.api_errors import APIError, bad_request
from heedful.server.parameters import check_text_limits, parse_body
from heedful.server.schemas import (
    TRANSLATION_ERRORS,
    Count,
    Schema,
    TokenAlternativesResponse,
    describe_errors,
    describe_json,
    describe_json_body,
    describe_type,
    format_token_alternatives,
)
from heedful.server.state import ServerState, get_deadline
from heedful.server.translation_service import (
    AUTO,
    TranslationRequest,
    detect_source_languages,
    resolve_generation_config,
    run_in_thread_if_long,
    stream_translation,
    translate_request,
)
from heedful.tokenization.languages import Detection

TextOrTexts = StrictStr | list[StrictStr]

MAX_PREFIX_CHARACTERS = 1_000

MAX_TOKEN_ALTERNATIVES = 20

MAX_TERMS = 500

MAX_TERM_CHARACTERS = 200


class _Candidate(TypedDict):
    text: str
    score: float | None
    log_probability: float | None
    confidence: float | None
    alignment: NotRequired[list[tuple[Count, Count]]]
    tokens: NotRequired[list[str] | None]
    token_log_probabilities: NotRequired[list[float] | None]


class _TranslationResult(_Candidate):
    source: str
    complete: bool
    segments: Count
    alternatives: NotRequired[list[_Candidate]]


class _TranslateResponse(TypedDict):
    translations: list[_TranslationResult]


_EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["message", "done", "error"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["data"],
    "additionalProperties": False,
}

_TRANSLATE_RESPONSES: dict[str, dict[str, Schema]] = {
    "application/json": {"schema": describe_type(_TranslateResponse)},
    "text/event-stream": {"schema": _EVENT_SCHEMA},
}


class GenerationOverrides(Config):
    """Generation settings that a request may override; the others are the model's."""

    model_config = ConfigDict(strict=True)

    method: Literal["beam", "sample"] | None = None
    """Beam search, or sampling."""
    beam_size: int | None = None
    """Hypotheses of beam search; 1 is greedy."""
    length_penalty: float | None = None
    """Higher values favor longer translations."""
    temperature: float | None = None
    """Sampling: below 1 more deterministic, above 1 more random."""
    top_k: int | None = None
    """Sampling: only the k most probable tokens."""
    top_p: float | None = None
    """Sampling: only the most probable tokens that together reach this probability."""
    seed: int | None = None
    """Sampling: the same seed gives the same translation."""


class TranslateRequestBody(Config):
    """The body of POST /api/translate."""

    model_config = ConfigDict(strict=True)

    text: TextOrTexts
    """A text, or a list of texts."""
    target: StrictStr
    """Language to translate into."""
    source: StrictStr = AUTO
    """Language to translate from, or auto."""
    format: Literal["text", "html"] = "text"
    """Plain text, or HTML whose tags are preserved."""
    n_best: int = Field(1, ge=1)
    """Translations per text, best first."""
    prefix: TextOrTexts | None = None
    """What the translation of each text must start with: at most 1,000 characters."""
    generation: GenerationOverrides = GenerationOverrides()
    """Generation settings."""
    alignments: bool = False
    """Include word alignments."""
    tokens: bool = False
    """Include the subwords of the translation with their log-probabilities."""
    glossary: dict[str, str] = Field(default_factory=dict)
    """Terms and their translations: at most 500, of 200 characters each."""
    do_not_translate: list[str] = Field(default_factory=list)
    """Terms that are not translated: at most 500, of 200 characters each."""
    stream: bool = False
    """Stream the (greedy or sampled) translation as server-sent events."""


class AlternativesRequestBody(Config):
    """The body of POST /api/alternatives."""

    model_config = ConfigDict(strict=True)

    text: StrictStr
    """One sentence."""
    target: StrictStr
    """Language to translate into."""
    source: StrictStr = AUTO
    """Language to translate from, or auto."""
    prefix: StrictStr = Field("", max_length=MAX_PREFIX_CHARACTERS)
    """Start of the translation; if it ends with a space, the next token starts a new word."""
    count: int = Field(8, ge=1, le=MAX_TOKEN_ALTERNATIVES)
    """Number of alternatives."""


def build_native_router(server: ServerState) -> APIRouter:
    """Build the routes /api/translate and /api/alternatives."""
    router = APIRouter(prefix="/api", tags=["Native"], dependencies=[Depends(server.require_key)])
    registry, config = server.registry, server.config

    @router.post(
        "/translate",
        openapi_extra=describe_json_body(TranslateRequestBody),
        responses={
            200: {"description": "Translations", "content": _TRANSLATE_RESPONSES},
            **describe_errors(*TRANSLATION_ERRORS),
        },
        response_class=Response,
    )
    async def translate(request: Request) -> Response:
        """Translate texts, with scores, alternatives, word alignments and tokens."""
        body = parse_body(TranslateRequestBody, await request.body())
        texts = [body.text] if isinstance(body.text, str) else body.text
        check_text_limits(texts, config)
        translation_request = _parse_translation_request(body, server, texts, get_deadline(request))
        if body.stream:
            return await _stream_response(server, texts, body, translation_request)
        results = await translate_request(server, texts, translation_request)
        return JSONResponse(
            {"translations": [_format_translation(detection, translation, body) for detection, translation in results]}
        )

    @router.post(
        "/alternatives",
        openapi_extra=describe_json_body(AlternativesRequestBody),
        responses=describe_json(TokenAlternativesResponse, *TRANSLATION_ERRORS),
    )
    async def alternatives(request: Request) -> JSONResponse:
        """Return the most probable next tokens of a translation, each with the translation it leads to."""
        body = parse_body(AlternativesRequestBody, await request.body())
        check_text_limits([body.text, body.prefix], config)
        source = AUTO if body.source == AUTO else registry.resolve_language(body.source)
        translation_request = TranslationRequest(source, registry.resolve_language(body.target))
        [detection] = await detect_source_languages(server, [body.text], translation_request)
        if detection.language == translation_request.target:
            return JSONResponse({"alternatives": []})
        direction = registry.find_direction(detection.language, translation_request.target)
        segments = await run_in_thread_if_long(lambda: direction.split_segments(body.text), [body.text])
        if sum(bool(segment.text) for segment in segments) > 1:  # reject it before it waits for a worker
            raise bad_request("alternatives are for one sentence; send one request per sentence")
        generation_config = resolve_generation_config(direction, translation_request, config)
        tokens = max(len(segment.ids) + 1 for segment in segments)
        compute = partial(
            direction.batcher.translator.alternatives, body.text, body.prefix, generation_config, body.count
        )
        # Each alternative is a translation and counts in the queue.
        results = await direction.batcher.run(compute, tokens * body.count, get_deadline(request))
        return JSONResponse(format_token_alternatives(results))

    return router


def _parse_translation_request(
    body: TranslateRequestBody, server: ServerState, texts: list[str], deadline: float
) -> TranslationRequest:
    registry, config = server.registry, server.config
    prefixes = [body.prefix] * len(texts) if isinstance(body.prefix, str) else body.prefix or []
    if prefixes and len(prefixes) != len(texts):
        raise bad_request(f"{len(prefixes)} prefixes for {len(texts)} texts; send one per text")
    if prefixes and (body.format == "html" or body.glossary or body.do_not_translate):
        raise bad_request("a prefix requires plain text without glossary and do_not_translate")
    if any(len(prefix) > MAX_PREFIX_CHARACTERS for prefix in prefixes):
        raise bad_request(f"a prefix may have at most {MAX_PREFIX_CHARACTERS} characters")
    characters = sum(map(len, [*texts, *prefixes]))
    if characters > config.max_characters:
        raise bad_request(f"{characters} characters with prefixes, the maximum is {config.max_characters} per request")
    for name, terms, words in (
        ("glossary", body.glossary, [*body.glossary, *body.glossary.values()]),
        ("do_not_translate", body.do_not_translate, body.do_not_translate),
    ):
        if len(terms) > MAX_TERMS:
            raise bad_request(f"{name} may have at most {MAX_TERMS} terms")
        if any(len(word) > MAX_TERM_CHARACTERS for word in words):
            raise bad_request(f"a term of {name} may have at most {MAX_TERM_CHARACTERS} characters")
    source = AUTO if body.source == AUTO else registry.resolve_language(body.source)
    target = registry.resolve_language(body.target)
    if body.n_best > config.max_alternatives + 1:
        raise bad_request(f"n_best must be at most {config.max_alternatives + 1}")
    return TranslationRequest(
        source=source,
        target=target,
        markup="html" if body.format == "html" else "",
        n_best=body.n_best,
        deadline=deadline,
        prefixes=tuple(prefixes),
        generation_overrides=body.generation.model_dump(exclude_none=True),
        details=body.alignments or body.tokens,
        glossary=body.glossary,
        do_not_translate=tuple(body.do_not_translate),
    )


def _format_translation(detection: Detection, translation: Translation, body: TranslateRequestBody) -> dict[str, Any]:
    alternatives = [_format_alternative(alternative, body) for alternative in translation.alternatives]
    return {
        "source": detection.language,
        "complete": translation.complete,
        "segments": translation.segments,
        **alternatives[0],
        **({"alternatives": alternatives[1:]} if body.n_best > 1 else {}),
    }


def _format_alternative(alternative: Alternative, body: TranslateRequestBody) -> dict[str, Any]:
    has_scores = alternative.steps > 0
    response: dict[str, Any] = {
        "text": alternative.text,
        "score": alternative.score if has_scores else None,
        "log_probability": alternative.log_probability if has_scores else None,
        # Geometric mean of the token probabilities.
        "confidence": math.exp(alternative.log_probability / alternative.steps) if has_scores else None,
    }
    if body.alignments:
        response["alignment"] = alternative.alignment
    if body.tokens:
        response["tokens"] = alternative.tokens if has_scores else None
        response["token_log_probabilities"] = alternative.token_log_probabilities if has_scores else None
    return response


async def _stream_response(
    server: ServerState, texts: list[str], body: TranslateRequestBody, translation_request: TranslationRequest
) -> Response:
    """Return server-sent events; an error before the first chunk is a regular error response."""
    if (
        len(texts) != 1
        or translation_request.markup
        or translation_request.n_best > 1
        or translation_request.glossary
        or translation_request.do_not_translate
        or translation_request.details
    ):
        raise bad_request("streaming supports one plain text without n_best, alignments, tokens and terms")
    if body.generation.beam_size not in (None, 1):
        raise bad_request("streaming is greedy or sampled: omit beam_size")
    [detection] = await detect_source_languages(server, texts, translation_request)
    chunks = stream_translation(server, texts[0], detection.language, translation_request)
    try:
        first_chunk = await anext(chunks)
    except BaseException:
        await chunks.aclose()
        raise
    return StreamingResponse(
        _stream_events(first_chunk, chunks, detection),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


async def _stream_events(
    first_chunk: str, chunks: AsyncGenerator[str, None], detection: Detection
) -> AsyncIterator[str]:
    """Yield ``data: {"delta": ...}`` for each chunk, then an event ``done`` with the whole text."""
    text = first_chunk
    try:
        async with aclosing(chunks):
            yield _format_event({"delta": first_chunk})
            async for chunk in chunks:
                text += chunk
                if chunk:
                    yield _format_event({"delta": chunk})
        yield _format_event({"text": text, "source": detection.language}, "done")
    except APIError as error:  # too late for a status code
        yield _format_event({"error": error.message}, "error")


def _format_event(data: dict[str, Any], name: str = "") -> str:
    event_line = f"event: {name}\n" if name else ""
    return f"{event_line}data: {json.dumps(data, ensure_ascii=False)}\n\n"
