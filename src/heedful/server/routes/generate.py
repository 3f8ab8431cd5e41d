"""Language models: generate text from a prompt, fill in blanks. Both run in the trace worker."""

from dataclasses import asdict
from functools import partial

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictStr
from typing_extensions import TypedDict

from heedful.config import Config
from heedful.inference.text_generation import fill_blanks, generate_text, make_sampling_config
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS
from heedful.model_folder import ModelFolder
from heedful.server.api_errors import bad_request
from heedful.server.parameters import MAX_MODEL_NAME_CHARACTERS, check_text_limits, parse_body
from heedful.server.schemas import TRANSLATION_ERRORS, describe_json, describe_json_body
from heedful.server.state import ServerState, get_deadline

MAX_GUESSES = 1000


class _GenerateResponse(TypedDict):
    texts: list[str]


class _BlankGuess(TypedDict):
    text: str
    probability: float


class _FillResponse(TypedDict):
    blanks: list[list[_BlankGuess]]


SAMPLING_FIELDS = {"n_best", "temperature", "top_k", "top_p", "seed"}


class LanguageModelRequestBody(Config):
    """Fields of every request to a language model."""

    model_config = ConfigDict(strict=True)

    model: StrictStr = Field("", max_length=MAX_MODEL_NAME_CHARACTERS)
    """Name of the model; default: the first that supports the task."""


class GenerateRequestBody(LanguageModelRequestBody):
    """The body of POST /api/generate."""

    text: StrictStr = ""
    """Prompt; may be empty."""
    n_best: int = Field(1, ge=1)
    """Number of texts."""
    max_length: int = Field(100, ge=1, le=MAX_TRACE_TOKENS)
    """Maximum tokens per text, including the prompt."""
    temperature: float | None = None
    """Below 1 more deterministic, above 1 more random."""
    top_k: int | None = None
    """Sample only from the k most probable tokens."""
    top_p: float | None = None
    """Sample only from the most probable tokens that together reach this probability."""
    seed: int | None = None
    """The same seed generates the same texts; default: 0."""


class FillRequestBody(LanguageModelRequestBody):
    """The body of POST /api/fill."""

    text: StrictStr
    """Text with blanks, written as __."""
    top: int = Field(5, ge=1, le=MAX_GUESSES)
    """Number of guesses per blank."""


def build_generate_router(server: ServerState) -> APIRouter:
    """Build the routes of language models."""
    router = APIRouter(prefix="/api", tags=["Language models"], dependencies=[Depends(server.require_key)])

    @router.post(
        "/generate",
        openapi_extra=describe_json_body(GenerateRequestBody),
        responses=describe_json(_GenerateResponse, *TRANSLATION_ERRORS),
    )
    async def generate(request: Request) -> JSONResponse:
        """Generate text from a prompt (a causal language model)."""
        body = parse_body(GenerateRequestBody, await request.body())
        check_text_limits([body.text], server.config)
        if body.n_best > server.config.max_alternatives + 1:
            raise bad_request(f"n_best must be at most {server.config.max_alternatives + 1}")
        model_folder = _find_model(server, body.model, "causal_lm")
        overrides = body.model_dump(include=SAMPLING_FIELDS, exclude_none=True)

        def generate_texts() -> list[str]:
            sampling_config = make_sampling_config(model_folder, overrides)
            return generate_text(model_folder, body.text, sampling_config, body.max_length)

        return JSONResponse({"texts": await server.trace_worker.run(generate_texts, get_deadline(request))})

    @router.post(
        "/fill",
        openapi_extra=describe_json_body(FillRequestBody),
        responses=describe_json(_FillResponse, *TRANSLATION_ERRORS),
    )
    async def fill(request: Request) -> JSONResponse:
        """Fill in the blanks of a text (a masked language model)."""
        body = parse_body(FillRequestBody, await request.body())
        check_text_limits([body.text], server.config)
        model_folder = _find_model(server, body.model, "masked_lm")
        fill_all = partial(fill_blanks, model_folder, body.text, body.top)
        blanks = await server.trace_worker.run(fill_all, get_deadline(request))
        return JSONResponse({"blanks": [[asdict(guess) for guess in blank] for blank in blanks]})

    return router


def _find_model(server: ServerState, name: str, task: str) -> ModelFolder:
    """Return the requested model, or the first that supports the task."""
    models = {model.name: model.model_folder for model in server.registry.language_models if model.task == task}
    if not models:
        description = "generates text" if task == "causal_lm" else "fills in blanks"
        raise bad_request(f"no model of this server {description}; train one: heedful train --task {task} texts.txt")
    if name and name not in models:
        raise bad_request(f"model {name!r} does not support this or does not exist; use one of {', '.join(models)}")
    return models[name] if name else next(iter(models.values()))
