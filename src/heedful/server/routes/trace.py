"""Traces and training curves: what the page shows of a model, and downloads of it.

Whatever takes long, compression included, runs in the trace worker.
"""

import asyncio
import gzip
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from heedful.errors import HeedfulError
from heedful.interpret.activations import AttentionKind
from heedful.interpret.alternatives import MAX_ALTERNATIVES, generate_alternatives
from heedful.interpret.attention_row import explain_row
from heedful.interpret.tables import round_floats, to_dict
from heedful.interpret.trace import describe_model, serialize_trace
from heedful.interpret.trace_schema import ModelFacts, TraceManifest, TraceRequest
from heedful.model_folder import ModelFolder
from heedful.server.api_errors import APIError, bad_request
from heedful.server.model_registry import ServedDirection, ServedModel, short_folder_name
from heedful.server.parameters import MAX_MODEL_NAME_CHARACTERS, check_text_limits, parse_body
from heedful.server.schemas import (
    TRANSLATION_ERRORS,
    Count,
    TokenAlternativesResponse,
    describe_errors,
    describe_file,
    describe_json,
    describe_json_body,
    format_token_alternatives,
)
from heedful.server.state import ServerState, get_deadline
from heedful.server.trace_worker import describe_trace
from heedful.tokenization.sentence_splitter import TextSegment, split_sentences
from heedful.training.checkpoint import list_saved_weights
from heedful.training.metrics_log import Metrics, metrics_path, read_metrics
from heedful.web.standalone import pack_trace, render_standalone_page

MAX_DOWNLOAD_BYTES = 256_000_000
"""Maximum size of the tensors of a downloaded trace."""

MAX_RESPONSE_BYTES = 64_000_000
"""Maximum size of the tensors of one response."""

MIN_COMPRESS_BYTES = 1000
"""Smaller responses are not compressed."""

OMITTED_CELL_VALUES = {"w_key", "w_value", "w_output"}
"""Values of a cell that the page does not show, and that are most of its bytes."""

MAX_POINTS = 1000
"""Points of a training curve, and as many of validation: more than a screen can show."""

IDLE_SECONDS = 60
"""A training run that has not logged for this long is not running."""

TRACE_ERRORS = describe_errors(404, *TRANSLATION_ERRORS)
"""Errors of routes about a trace, which may no longer be cached."""


class ServedModelFacts(ModelFacts):
    """A model in the response of /api/models."""

    source: str
    target: str
    zero_shot: bool
    folder: str
    engine: str
    checkpoints: list[Count]


class _FooterRow(TypedDict):
    row: str
    cells: list[float | str]


class _Table(TypedDict):
    title: str
    rows: list[str]
    columns: list[str]
    cells: list[list[float | str]]
    footer: list[_FooterRow]


class _Section(TypedDict):
    heading: str
    formula: str
    tables: list[_Table]
    notes: list[str]


class _CellResponse(TypedDict):
    title: str
    values: dict[str, Any]
    sections: list[_Section]


class _TrainingResponse(TypedDict):
    metrics: list[dict[str, float]]
    running: bool
    checkpoints: list[Count]


class TraceRequestBody(TraceRequest):
    """The body of POST /api/trace: a text, of which one segment is traced."""

    model_config = ConfigDict(strict=True)

    model: str = Field("", max_length=MAX_MODEL_NAME_CHARACTERS)
    """Name of the model, such as en-fr; default: the first."""
    segment: int = Field(0, ge=0)
    """Index of the segment; if it has no words, the first one that has."""
    checkpoint: int | None = Field(None, ge=0)
    """Trace the weights after so many updates; default: the final model."""

    @model_validator(mode="before")
    @classmethod
    def _convert_lists(cls, values: Any) -> Any:
        """JSON has no tuples, and strict validation accepts nothing else."""
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def build_trace_router(server: ServerState) -> APIRouter:
    """Build the routes of models, traces, their details and downloads, and training curves."""
    router = APIRouter(prefix="/api", tags=["Traces"], dependencies=[Depends(server.require_key)])
    worker = server.trace_worker

    async def gzip_response(request: Request, build_body: Callable[[], bytes], media_type: str) -> Response:
        """Build a response in the worker, compressed if the client accepts it."""
        accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")

        def build_response() -> tuple[bytes, dict[str, str]]:
            body = build_body()
            if not accepts_gzip or len(body) < MIN_COMPRESS_BYTES:
                return body, {}
            return gzip.compress(body, 5, mtime=0), {"Content-Encoding": "gzip"}

        body, headers = await worker.run(build_response, get_deadline(request))
        return Response(body, media_type=media_type, headers={**headers, "Vary": "Accept-Encoding"})

    @router.get("/models", responses=describe_json(list[ServedModelFacts], *TRANSLATION_ERRORS))
    async def models() -> JSONResponse:
        """List the models."""
        served_models = server.registry.models_by_name.values()
        return JSONResponse(await asyncio.to_thread(lambda: list(map(_describe_model, served_models))))

    @router.post(
        "/trace",
        openapi_extra=describe_json_body(TraceRequestBody),
        responses=describe_json(TraceManifest, *TRANSLATION_ERRORS),
    )
    async def trace(request: Request) -> Response:
        """Trace one forward pass: tokens, decoding steps, beam search, heads, and an index of tensors."""
        body = parse_body(TraceRequestBody, await request.body())
        check_text_limits([body.source, body.prefix, body.target or ""], server.config)
        model = get_model(server, body.model)
        segments = await asyncio.to_thread(model.split_segments, body.source)
        segment_index = _select_segment(segments, body.segment)
        fields = body.model_dump(exclude={"model", "segment", "checkpoint"})
        trace_request = TraceRequest(**{**fields, "source": segments[segment_index].text})
        stored = await worker.get_or_create(model, trace_request, body.checkpoint, get_deadline(request))

        def build_body() -> bytes:
            segment_pairs = [[segment.text, segment.separator] for segment in segments]
            manifest = describe_trace(stored)
            notes = [*manifest["notes"], *_describe_truncation(model.model_folder, body.source, segments)]
            return _encode_json({**manifest, "notes": notes, "segments": segment_pairs, "segment": segment_index})

        return await gzip_response(request, build_body, "application/json")

    @router.get(
        "/trace/{name}/tensors",
        response_class=Response,
        responses={**describe_file("application/octet-stream"), **TRACE_ERRORS},
    )
    async def tensors(request: Request, name: str, names: Annotated[str, Query(max_length=20_000)]) -> Response:
        """Return the tensors with these names (separated by commas) as one safetensors file."""
        tensor_index = worker.get_trace(name).trace.tensors
        requested = list(dict.fromkeys(names.split(",")))
        if tensor_index.size(requested) > MAX_RESPONSE_BYTES:
            raise APIError(413, f"the tensors have more than {MAX_RESPONSE_BYTES} bytes: request fewer")
        return await gzip_response(request, lambda: tensor_index.to_bytes(requested), "application/octet-stream")

    @router.get("/trace/{name}/cell", responses={**describe_json(_CellResponse), **TRACE_ERRORS})
    async def cell(
        request: Request,
        name: str,
        kind: AttentionKind,
        layer: Annotated[int, Query(ge=0)],
        head: Annotated[int, Query(ge=0)],
        row: Annotated[int, Query(ge=0)],
        key: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """Return the arithmetic of one attention weight as tables whose numbers add up."""
        trace = worker.get_trace(name).trace

        def build_body() -> bytes:
            explanation = explain_row(trace.model_folder, trace.activations, kind, layer, head, row, key)
            values = {name: value for name, value in explanation.values.items() if name not in OMITTED_CELL_VALUES}
            return _encode_json(round_floats(to_dict(replace(explanation, values=values))))

        return await gzip_response(request, build_body, "application/json")

    @router.get("/trace/{name}/alternatives", responses={**describe_json(TokenAlternativesResponse), **TRACE_ERRORS})
    async def alternatives(
        request: Request,
        name: str,
        step: Annotated[int, Query(ge=0)],
        count: Annotated[int, Query(ge=1, le=MAX_ALTERNATIVES)] = 8,
    ) -> JSONResponse:
        """Return the most probable tokens at a decoding step, each with the translation it leads to."""
        trace = worker.get_trace(name).trace
        results = await worker.run(lambda: generate_alternatives(trace, step, count), get_deadline(request))
        return JSONResponse(format_token_alternatives(results))

    @router.get("/trace/{name}/page", response_class=Response, responses={**describe_file("text/html"), **TRACE_ERRORS})
    async def page(request: Request, name: str, view: Annotated[str, Query(max_length=20_000)] = "") -> Response:
        """Download the page of a trace as one HTML file; ``view`` is the fragment of the page's URL."""
        stored = worker.get_trace(name)

        def render_page() -> str:
            packed = pack_trace(stored.trace, view, name=stored.model.name, checkpoint=stored.checkpoint)
            return render_standalone_page(packed, view)

        text = await worker.run(render_page, get_deadline(request))
        return _download_response(text.encode(), "text/html; charset=utf-8", "heedful.html")

    @router.get(
        "/trace/{name}/record",
        response_class=Response,
        responses={**describe_file("application/octet-stream"), **TRACE_ERRORS},
    )
    async def trace_file(request: Request, name: str) -> Response:
        """Download a trace as one safetensors file: all tensors, and the manifest in its metadata."""
        stored = worker.get_trace(name)
        tensors = stored.trace.tensors
        if tensors.size(tensors.entries) > MAX_DOWNLOAD_BYTES:
            raise APIError(413, f"the trace has more than {MAX_DOWNLOAD_BYTES} bytes: request tensors by name")
        body = await worker.run(lambda: serialize_trace(stored.trace, describe_trace(stored)), get_deadline(request))
        return _download_response(body, "application/octet-stream", "heedful.safetensors")

    @router.get("/training", responses=describe_json(_TrainingResponse, 400, 403, 408, 413, 429, 503))
    async def training(model: Annotated[str, Query(max_length=MAX_MODEL_NAME_CHARACTERS)] = "") -> JSONResponse:
        """Return the training metrics of a model, live, and its checkpoints."""
        return JSONResponse(await asyncio.to_thread(_read_training, get_model(server, model).folder))

    return router


def _download_response(body: bytes, media_type: str, name: str) -> Response:
    """Return a file as an attachment: shown inline, it would run as a page of this server."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type=media_type, headers=headers)


def _select_segment(segments: Sequence[TextSegment], index: int) -> int:
    """Return the index of the requested segment, or of the first one with words."""
    non_empty = [number for number, segment in enumerate(segments) if segment.text.strip()]
    if not non_empty:
        raise bad_request("the text is empty")
    if index >= len(segments):
        raise bad_request(f"segment {index} does not exist: the text has {len(segments)}, counted from 0")
    return index if index in non_empty else non_empty[0]


def get_model(server: ServerState, name: str) -> ServedModel:
    """Return the requested model; default: the first."""
    models = server.registry.models_by_name
    if not name:
        return next(iter(models.values()))
    if name not in models:
        raise bad_request(f"model {name!r} does not exist; use one of {', '.join(models)}")
    return models[name]


def _describe_model(model: ServedModel) -> dict[str, Any]:
    source, target = (model.source, model.target) if isinstance(model, ServedDirection) else ("", "")
    return {
        **describe_model(model.model_folder, model.name).model_dump(mode="json"),
        "source": source,
        "target": target,
        "zero_shot": isinstance(model, ServedDirection) and model.is_zero_shot,
        "folder": short_folder_name(model.folder),
        "engine": model.engine_name,
        "checkpoints": list(list_saved_weights(model.folder)),
    }


def _describe_truncation(model_folder: ModelFolder, text: str, segments: Sequence[TextSegment]) -> list[str]:
    """Return a note if a sentence was too long for the model and was split."""
    config = model_folder.config
    sentence_count = len(split_sentences(text.strip(), config.source_language)) if config.split_sentences else 1
    if sum(bool(segment.text.strip()) for segment in segments) <= sentence_count:
        return []
    max_length = config.max_source_length
    return [f"A sentence has more tokens than this model can read at once ({max_length}) and was split."]


def _encode_json(response: Any) -> bytes:
    return json.dumps(response, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _read_training(folder: Path) -> dict[str, Any]:
    try:
        file_stat = metrics_path(folder).stat()
        metrics = _load_metrics(metrics_path(folder), file_stat.st_size, file_stat.st_mtime_ns)
    except (OSError, HeedfulError):  # an imported model, or one whose training/ was not copied
        metrics = []
    return {
        "metrics": metrics,
        "running": bool(metrics) and _is_training(folder),
        "checkpoints": list(list_saved_weights(folder)),
    }


@lru_cache(maxsize=8)
def _load_metrics(path: Path, size: int, modified_ns: int) -> Metrics:
    """Read a metrics file; cached by its size and time, since every open page polls it."""
    del size, modified_ns  # only part of the cache key
    metrics = [_filter_finite(values) for values in read_metrics(path)]
    return subsample_metrics([values for values in metrics if "update" in values])


def _filter_finite(values: dict[str, Any]) -> dict[str, float]:
    """Keep finite numbers: a diverged run logs NaN, which JSON does not support."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and abs(value) < math.inf and not isinstance(value, bool)
    }


def subsample_metrics(metrics: Metrics) -> Metrics:
    """Return at most MAX_POINTS evenly spaced entries of training and of validation, always the last."""
    indices: list[int] = []
    for is_validation in (False, True):
        selected = [index for index, values in enumerate(metrics) if ("validation_loss" in values) == is_validation]
        indices += selected[:: -max(1, math.ceil(len(selected) / MAX_POINTS))]
    return [metrics[selected_index] for selected_index in sorted(indices)]


def _is_training(folder: Path) -> bool:
    """Whether metrics were logged recently and no model was written since."""
    try:
        metrics_mtime = metrics_path(folder).stat().st_mtime
        weights_mtime = (folder / "weights.safetensors").stat().st_mtime
    except OSError:
        return False
    # abs: a clock that was set back leaves file times in the future.
    return metrics_mtime > weights_mtime and abs(time.time() - metrics_mtime) < IDLE_SECONDS
