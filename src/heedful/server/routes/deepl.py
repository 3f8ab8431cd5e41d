"""The part of DeepL's API that translation tools use.

Every option is supported, harmless to ignore, or rejected by name; none is dropped silently.
"""

from typing import Any, NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from heedful.server.api_errors import bad_request
from heedful.server.parameters import Parameters, check_text_limits
from heedful.server.schemas import (
    TEXTS,
    TRANSLATION_ERRORS,
    Count,
    describe_choice,
    describe_form_body,
    describe_json,
    describe_type,
)
from heedful.server.state import ServerState, get_deadline
from heedful.server.translation_service import AUTO, TranslationRequest, translate_request
from heedful.tokenization.languages import language_name

SUPPORTED_OPTIONS = {
    "text",
    "source_lang",
    "target_lang",
    "tag_handling",
    "ignore_tags",
    "show_billed_characters",
    "auth_key",
    "api_key",
}

IGNORED_OPTIONS: dict[str, tuple[str, ...]] = {
    "context": (),
    "preserve_formatting": (),
    "model_type": (),
    "tag_handling_version": (),
    "enable_beta_languages": (),
    "formality": ("default", "prefer_more", "prefer_less"),
    "split_sentences": ("0", "1"),
    "outline_detection": ("1",),
}
"""Options that are accepted without effect, with the allowed values (empty for any).

``split_sentences`` 0 comes from tools whose texts are single sentences.
"""


class _DeepLTranslation(TypedDict):
    detected_source_language: str
    text: str
    billed_characters: NotRequired[Count]


class _TranslateResponse(TypedDict):
    translations: list[_DeepLTranslation]


class _LanguageName(TypedDict):
    language: str
    name: str


def build_deepl_router(server: ServerState) -> APIRouter:
    """Build the routes under /v2."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    sources = [code.upper() for code in server.registry.source_languages]
    targets = sorted({direction.target.upper() for direction in server.registry})
    request_fields = {
        "text": TEXTS,
        "source_lang": describe_choice(sources),
        "target_lang": describe_choice(targets),
        "tag_handling": describe_choice(["html", "xml"]),
        "ignore_tags": TEXTS,
        "show_billed_characters": describe_type(bool),
        **{name: describe_choice(values) if values else {} for name, values in IGNORED_OPTIONS.items()},
    }

    @router.post(
        "/translate",
        openapi_extra=describe_form_body(request_fields, ["text", "target_lang"], allow_extra=False),
        responses=describe_json(_TranslateResponse, *TRANSLATION_ERRORS),
    )
    async def translate(request: Request) -> JSONResponse:
        """Translate one or several texts."""
        parameters = await server.read_parameters(request)
        _check_options(parameters)
        texts = parameters.get_texts("text")
        check_text_limits(texts, server.config)
        source = parameters.get_string("source_lang", "")
        ignored_tags = [] if parameters.values.get("ignore_tags") is None else parameters.get_texts("ignore_tags")
        translation_request = TranslationRequest(
            source=server.registry.resolve_language(source) if source else AUTO,
            target=server.registry.resolve_language(parameters.get_string("target_lang")),
            markup=parameters.get_choice("tag_handling", "", "html", "xml"),
            ignored_tags=frozenset(
                tag.strip().lower() for tags in ignored_tags for tag in tags.split(",") if tag.strip()
            ),
            deadline=get_deadline(request),
        )
        results = await translate_request(server, texts, translation_request)
        show_billed = _normalize_value(parameters.values.get("show_billed_characters")) == "1"
        return JSONResponse(
            {
                "translations": [
                    {
                        "detected_source_language": detection.language.upper(),
                        "text": translation.text,
                        **({"billed_characters": len(text)} if show_billed else {}),
                    }
                    for text, (detection, translation) in zip(texts, results, strict=True)
                ]
            }
        )

    @router.get("/languages", responses=describe_json(list[_LanguageName], 400, 403, 408, 413, 429, 503))
    async def languages(request: Request) -> JSONResponse:
        """List source languages, or with type=target the target languages."""
        parameters = await server.read_parameters(request)
        codes = sources if parameters.get_choice("type", "source", "target") == "source" else targets
        return JSONResponse([{"language": code, "name": language_name(code)} for code in codes])

    return router


def _check_options(parameters: Parameters) -> None:
    """Reject options that would change the translation if they were supported."""
    for name, value in parameters.values.items():
        if name in SUPPORTED_OPTIONS or value in (None, "", []):
            continue
        if name not in IGNORED_OPTIONS:
            hint = "; POST /api/translate takes a glossary" if name == "glossary_id" else ""
            raise bad_request(f"{name} is not supported{hint}")
        allowed = IGNORED_OPTIONS[name]
        if allowed and _normalize_value(value) not in allowed:
            raise bad_request(f"{name} must be {' or '.join(allowed)}")


def _normalize_value(value: Any) -> str:
    """Return a value as a form has it: clients send true, "true" or "1"."""
    word = str(value).lower()
    return {"true": "1", "false": "0"}.get(word, word)
