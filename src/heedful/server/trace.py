"""What the page asks: which models there are, one pass with everything in it, tensors, single cells.

Whatever takes long, squeezing answers included, is done in the inspector's worker.
"""

import asyncio
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from heedful.bundle import Bundle
from heedful.inspection.asked import Asked
from heedful.inspection.continuing import MOST, continuations
from heedful.inspection.record import model_facts
from heedful.inspection.snapshots import snapshots
from heedful.inspection.tables import as_data
from heedful.inspection.trace import Kind
from heedful.inspection.word import explain_word
from heedful.page.packing import rounded
from heedful.server.documentation import WORK_ERRORS, answer, model_schema
from heedful.server.inspecting import told
from heedful.server.models import Direction, Served, short_name
from heedful.server.packing import packing_routes
from heedful.server.parameters import check_amount, checked, read_json, well_formed
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server, deadline_of
from heedful.server.texts import in_thread_if_long
from heedful.server.trace_schemas import ALTERNATIVES, CELL, MODELS, TRACE, TRACE_ERRORS, file_of
from heedful.text.sentences import Segment, split_sentences

MOST_BYTES = 64_000_000
"""Of the tensors of one answer."""
NAME_CHARACTERS = 520
"""Of a model's name in a question: languages, or the names of a folder and the one it is in."""
NOT_ON_THE_PAGE = {"w_key", "w_value", "w_output"}
"""Values of a cell that nobody looks at there, and that are most of its bytes."""
SMALL = 1000
"""Bytes that are not worth squeezing."""


class TraceRequest(Asked):
    """The body of POST /api/trace: a text, of which one sentence is looked into."""

    model_config = ConfigDict(strict=True)

    model: str = Field("", max_length=NAME_CHARACTERS)
    """Which model, such as en-fr; the first if not given."""
    segment: int = Field(0, ge=0)
    """Which sentence of the text, from 0; if it has no words, the first that has."""
    checkpoint: int | None = Field(None, ge=0)
    """Look at the weights after so many updates; the finished model's if not given."""


def trace_routes(server: Server) -> APIRouter:
    """The routes of the page's data."""
    routes = APIRouter(prefix="/api", tags=["Seeing inside"])

    @routes.get("/models", responses={**answer(MODELS), **WORK_ERRORS})
    async def models(request: Request) -> JSONResponse:
        """The models that can be looked into."""
        server.check_key(request)
        found = server.directions.models.values()
        return JSONResponse(await asyncio.to_thread(lambda: list(map(_model, found))))

    content = {"application/json": {"schema": model_schema(TraceRequest)}}

    @routes.post(
        "/trace",
        openapi_extra={"requestBody": {"required": True, "content": content}},
        responses={**answer(TRACE), **WORK_ERRORS},
    )
    async def trace(request: Request) -> Response:
        """One pass of a model with everything recorded: words, steps, search, heads, an index of tensors."""
        server.check_key(request)
        asked = _checked(await request.body())
        check_amount([asked.source, asked.prefix, asked.target or ""], server.config)
        model = model_named(server, asked.model)
        segments = await in_thread_if_long(lambda: model.segments(asked.source), [asked.source])
        chosen = _chosen(segments, asked.segment)
        question = asked.model_dump(exclude={"model", "segment", "checkpoint"})
        question["source"] = segments[chosen].text
        deadline = deadline_of(request)
        kept = await server.inspector.record(model, Asked(**question), asked.checkpoint, deadline)

        def body() -> bytes:
            parts = [[segment.text, segment.separator] for segment in segments]
            found = told(kept)
            notes = [*found["notes"], *_cut(model.bundle, asked.source, segments)]
            return _json({**found, "notes": notes, "segments": parts, "segment": chosen})

        return await _squeezed(server, request, body, "application/json")

    routes.include_router(_trace_routes(server))
    routes.include_router(packing_routes(server))
    return routes


def _trace_routes(server: Server) -> APIRouter:
    """A closer look at a trace: its tensors, one of its weights, one of its steps."""
    routes = APIRouter(responses=TRACE_ERRORS)

    @routes.get(
        "/trace/{name}/tensors", response_class=Response, responses=file_of("application/octet-stream")
    )
    async def tensors(
        request: Request, name: str, names: Annotated[str, Query(max_length=20_000)]
    ) -> Response:
        """Some tensors, separated by commas, as the bytes of one safetensors file."""
        server.check_key(request)
        found = server.inspector.find(name).record.tensors
        wanted = list(dict.fromkeys(names.split(",")))
        if found.size(wanted) > MOST_BYTES:
            raise RefusedError(413, f"more than {MOST_BYTES} bytes: ask for fewer tensors at once")
        return await _squeezed(server, request, lambda: found.to_bytes(wanted), "application/octet-stream")

    @routes.get("/trace/{name}/cell", responses=answer(CELL))
    async def cell(
        request: Request,
        name: str,
        kind: Kind,
        layer: Annotated[int, Query(ge=0)],
        head: Annotated[int, Query(ge=0)],
        row: Annotated[int, Query(ge=0)],
        key: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """The whole arithmetic of one weight, as tables whose numbers add up."""
        server.check_key(request)
        kept = server.inspector.find(name).record

        def body() -> bytes:
            found = explain_word(kept.bundle, kept.seen, kind, layer, head, row, key)
            values = {name: each for name, each in found.values.items() if name not in NOT_ON_THE_PAGE}
            return _json(rounded(as_data(replace(found, values=values))))

        return await _squeezed(server, request, body, "application/json")

    @routes.get("/trace/{name}/alternatives", responses=answer(ALTERNATIVES))
    async def alternatives(
        request: Request,
        name: str,
        step: Annotated[int, Query(ge=0)],
        count: Annotated[int, Query(ge=1, le=MOST)] = 8,
    ) -> JSONResponse:
        """What else could have been written at a step, each with the rest of the translation rewritten."""
        server.check_key(request)
        kept = server.inspector.find(name).record
        found = await server.inspector.run(lambda: continuations(kept, step, count), deadline_of(request))
        return JSONResponse({"step": step, "alternatives": [asdict(each) for each in found]})

    return routes


def _checked(body: bytes) -> TraceRequest:
    told = {
        name: tuple(value) if isinstance(value, list) else value for name, value in read_json(body).items()
    }
    asked = checked(TraceRequest, told)
    return asked.model_copy(
        update={
            "source": well_formed(asked.source),
            "prefix": well_formed(asked.prefix),
            "target": None if asked.target is None else well_formed(asked.target),
        }
    )


def _chosen(segments: Sequence[Segment], wanted: int) -> int:
    """The number of the sentence that is meant."""
    spoken = [number for number, segment in enumerate(segments) if segment.text.strip()]
    if not spoken:
        raise malformed("the text is empty: write a sentence")
    if wanted >= len(segments):
        raise malformed(f"there is no segment {wanted}: the text has {len(segments)}, from 0")
    return wanted if wanted in spoken else spoken[0]


def model_named(server: Server, name: str) -> Served:
    """The model that a request means; the first if it names none."""
    found = server.directions.models
    if not name:
        return next(iter(found.values()))
    if name not in found:
        raise malformed(f"there is no model {name}; there are: {', '.join(found)}")
    return found[name]


def _model(model: Served) -> dict[str, Any]:
    source, target = (model.source, model.target) if isinstance(model, Direction) else ("", "")
    return {
        **model_facts(model.bundle),
        "name": model.name,
        "source": source,
        "target": target,
        "zero_shot": isinstance(model, Direction) and model.zero_shot,
        "folder": short_name(model.folder),
        "engine": model.engine_name,
        "checkpoints": list(snapshots(model.folder)),
    }


def _cut(bundle: Bundle, text: str, segments: Sequence[Segment]) -> list[str]:
    """A remark if a sentence was too long for the model and had to be cut."""
    whole = len(split_sentences(text.strip())) if bundle.config.by_sentence else 1
    if sum(bool(segment.text.strip()) for segment in segments) <= whole:
        return []
    most = bundle.config.longest_source
    return [f"A sentence has more pieces than this model reads at once ({most}), and was cut into parts."]


def _json(answer: Any) -> bytes:
    return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def _squeezed(server: Server, request: Request, make: Callable[[], bytes], media_type: str) -> Response:
    """The answer, made in the worker, and squeezed if the client can read that."""
    squeezes = "gzip" in request.headers.get("accept-encoding", "")

    def made() -> tuple[bytes, dict[str, str]]:
        body = make()
        if not squeezes or len(body) < SMALL:
            return body, {}
        return gzip.compress(body, 5, mtime=0), {"Content-Encoding": "gzip"}

    body, headers = await server.inspector.run(made, deadline_of(request))
    return Response(body, media_type=media_type, headers={**headers, "Vary": "Accept-Encoding"})
