"""LibreTranslate's API (1.9), so that its clients work unchanged; every error is JSON."""

import asyncio
import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NotRequired

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from typing_extensions import TypedDict

from heedful.server.api_errors import APIError, bad_request
from heedful.server.parameters import Parameters, check_text_limits
from heedful.server.schemas import (
    FILE,
    TEXT,
    TEXTS,
    TRANSLATION_ERRORS,
    Count,
    describe_choice,
    describe_errors,
    describe_form_body,
    describe_json,
)
from heedful.server.state import ServerState, get_deadline
from heedful.server.translation_service import AUTO, TranslationRequest, translate_document, translate_request
from heedful.tokenization.languages import detect_languages, language_name

MEDIA_TYPES = {".txt": "text/plain; charset=utf-8", ".html": "text/html; charset=utf-8"}

_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)


class _Detection(TypedDict):
    confidence: float
    language: str


class _LanguageName(TypedDict):
    code: str
    name: str


class _Language(TypedDict):
    code: str
    name: str
    targets: list[str]


class _FileUrl(TypedDict):
    translatedFileUrl: str


class _OneTranslation(TypedDict):
    translatedText: str
    detectedLanguage: NotRequired[_Detection]
    alternatives: NotRequired[list[str]]


class _ManyTranslations(TypedDict):
    translatedText: list[str]
    detectedLanguage: NotRequired[list[_Detection]]
    alternatives: NotRequired[list[list[str]]]


class _LanguagePair(TypedDict):
    source: _LanguageName
    target: _LanguageName


class _FrontendSettings(TypedDict):
    apiKeys: bool
    charLimit: Count
    filesTranslation: bool
    frontendTimeout: Count
    keyRequired: bool
    language: _LanguagePair
    suggestions: bool
    supportedFilesFormat: list[str]


def build_libretranslate_router(server: ServerState) -> APIRouter:
    """Build the routes that translate texts and files, detect and list languages."""
    router = APIRouter(tags=["LibreTranslate"])
    registry, config = server.registry, server.config
    language_fields = {
        "source": describe_choice([AUTO, *registry.source_languages]),
        "target": describe_choice(sorted({direction.target for direction in registry})),
    }
    text_fields = {
        "q": TEXTS,
        **language_fields,
        "format": describe_choice(["text", "html"]),
        "alternatives": {"type": "integer", "minimum": 0, "maximum": config.max_alternatives},
        "api_key": TEXT,
    }

    @router.get("/languages", responses=describe_json(list[_Language], 429, 503))
    async def languages() -> JSONResponse:
        """List languages and the targets of each."""
        codes = registry.languages
        return JSONResponse(
            [{**_name_language(code), "targets": registry.get_target_languages(code)} for code in codes]
        )

    @router.post(
        "/translate",
        openapi_extra=describe_form_body(text_fields, ["q", "source", "target"]),
        responses=describe_json(_OneTranslation | _ManyTranslations, *TRANSLATION_ERRORS),
    )
    async def translate(request: Request) -> JSONResponse:
        """Translate a text or a list of texts."""
        parameters = await server.read_parameters(request)
        texts = parameters.get_texts("q")
        check_text_limits(texts, config)
        translation_request = _parse_translation_request(parameters, server, get_deadline(request))
        results = await translate_request(server, texts, translation_request)
        response: dict[str, list[Any]] = {"translatedText": [translation.text for _, translation in results]}
        if translation_request.source == AUTO:
            response["detectedLanguage"] = [detection._asdict() for detection, _ in results]
        if translation_request.n_best > 1:
            response["alternatives"] = [
                [alternative.text for alternative in translation.alternatives[1:]] for _, translation in results
            ]
        is_list = isinstance(parameters.values["q"], list)
        return JSONResponse(response if is_list else {name: values[0] for name, values in response.items()})

    @router.post(
        "/detect",
        openapi_extra=describe_form_body({"q": TEXTS, "api_key": TEXT}, ["q"]),
        responses=describe_json(list[_Detection], *TRANSLATION_ERRORS),
    )
    async def detect_language(request: Request) -> JSONResponse:
        """Detect the language of a text."""
        texts = (await server.read_parameters(request)).get_texts("q")
        check_text_limits(texts, config)
        detections = await asyncio.to_thread(detect_languages, "\n".join(texts), registry.languages)
        return JSONResponse([detection._asdict() for detection in detections])

    @router.get("/frontend/settings", responses=describe_json(_FrontendSettings, 400, 429, 503))
    async def settings() -> JSONResponse:
        """Return the settings that a web frontend needs."""
        direction = registry.first_direction
        return JSONResponse(
            {
                "apiKeys": bool(config.api_keys),
                "charLimit": config.max_characters,
                "filesTranslation": True,
                "frontendTimeout": 500,
                "keyRequired": bool(config.api_keys),
                "language": {"source": _name_language(direction.source), "target": _name_language(direction.target)},
                "suggestions": False,
                "supportedFilesFormat": list(MEDIA_TYPES),
            }
        )

    @router.post(
        "/translate_file",
        openapi_extra=describe_form_body(
            {"file": FILE, **language_fields, "api_key": TEXT}, ["file", "source", "target"], ("multipart/form-data",)
        ),
        responses=describe_json(_FileUrl, *TRANSLATION_ERRORS),
    )
    async def translate_file(request: Request) -> JSONResponse:
        """Translate a .txt or .html file; the response has the URL of the result."""
        parameters = await server.read_parameters(request)
        base_url = config.public_url
        if not base_url:  # the address that the client used; only a host and a port may get into a link
            host = request.headers.get("host", "")
            if not _HOST.fullmatch(host):
                raise bad_request("the Host header is not a valid host")
            base_url = f"{request.scope['scheme']}://{host}"
        name = await _translate_upload(parameters, server, get_deadline(request))
        return JSONResponse({"translatedFileUrl": f"{base_url}/download_file/{name}"})

    @router.get(
        "/download_file/{name}",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": TEXT}, "text/html": {"schema": TEXT}}},
            **describe_errors(404, 429, 503),
        },
    )
    async def download_file(name: str) -> Response:
        """Download a translated file."""
        file = server.files.get(name)
        if file is None:
            raise APIError(404, "this file does not exist or has expired")
        safe_name = re.sub(r"[^A-Za-z0-9._-]", "_", file.download_name)
        headers = {
            "Content-Disposition": f'attachment; filename="{safe_name}"',
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
        }
        return Response(file.content, media_type=file.media_type, headers=headers)

    return router


def _name_language(code: str) -> dict[str, Any]:
    return {"code": code, "name": language_name(code)}


def _parse_translation_request(parameters: Parameters, server: ServerState, deadline: float) -> TranslationRequest:
    target = server.registry.resolve_language(parameters.get_string("target"))
    source = parameters.get_string("source")
    return TranslationRequest(
        source=AUTO if source == AUTO else server.registry.resolve_language(source),
        target=target,
        markup="html" if parameters.get_choice("format", "text", "html") == "html" else "",
        n_best=parameters.get_integer("alternatives", 0, server.config.max_alternatives) + 1,
        deadline=deadline,
    )


async def _translate_upload(parameters: Parameters, server: ServerState, deadline: float) -> str:
    """Translate the uploaded file and return the name of the result."""
    file_name, content = parameters.get_file("file")
    path = PurePath(file_name.replace("\\", "/"))
    suffix = {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())
    if suffix not in MEDIA_TYPES:
        raise bad_request(f"unsupported file type {suffix or '(none)'}; send one of {', '.join(MEDIA_TYPES)}")
    if len(content) > server.config.max_file_bytes:
        raise APIError(413, f"the file is larger than {server.config.max_file_bytes} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad_request("the file is not valid UTF-8") from None
    if len(text) > server.config.max_file_characters:
        raise APIError(413, f"the file has more than {server.config.max_file_characters} characters")
    translation_request = _parse_translation_request(parameters, server, deadline)
    translation_request = replace(translation_request, markup="html" if suffix == ".html" else "")
    translated = (await translate_document(server, text, translation_request)).encode()
    download_name = f"{path.stem}_{translation_request.target}{suffix}"
    return server.files.put(translated, MEDIA_TYPES[suffix], download_name, suffix)
