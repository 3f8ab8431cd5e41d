"""LibreTranslate's HTTP interface (1.9), which its clients find unchanged; errors are JSON throughout."""

import asyncio
import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from heedful.server.documentation import (
    COUNT,
    FILE,
    NUMBER,
    TEXT,
    TEXTS,
    WORK_ERRORS,
    YES_OR_NO,
    Responses,
    answer,
    body,
    errors,
    list_of,
    one_of,
    record,
)
from heedful.server.files import StoredFile
from heedful.server.parameters import Parameters, check_amount, read_parameters
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server, deadline_of
from heedful.server.translating import AUTO, Result, Wish, translate_document, translate_wish
from heedful.text.languages import Detection, detect, language_name

MEDIA_TYPES = {".txt": "text/plain; charset=utf-8", ".html": "text/html; charset=utf-8"}
_DOWNLOAD: Responses = {
    200: {"content": {"text/plain": {"schema": TEXT}, "text/html": {"schema": TEXT}}},
    **errors(404, 429, 503),
}
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?", re.ASCII)
_DETECTION = record({"confidence": NUMBER, "language": TEXT})
_NAMED = record({"code": TEXT, "name": TEXT})
_LANGUAGE = record({"code": TEXT, "name": TEXT, "targets": list_of(TEXT)})
_ONE = {"translatedText": TEXT, "detectedLanguage": _DETECTION, "alternatives": list_of(TEXT)}
_TRANSLATED = {
    "oneOf": [
        record(names, optional=["detectedLanguage", "alternatives"])
        for names in (_ONE, {name: list_of(schema) for name, schema in _ONE.items()})
    ]
}
_SETTINGS = record(
    {
        "apiKeys": YES_OR_NO,
        "charLimit": COUNT,
        "filesTranslation": YES_OR_NO,
        "frontendTimeout": COUNT,
        "keyRequired": YES_OR_NO,
        "language": record({"source": _NAMED, "target": _NAMED}),
        "suggestions": YES_OR_NO,
        "supportedFilesFormat": list_of(TEXT),
    }
)


def libretranslate_routes(server: Server) -> APIRouter:
    """The routes that translate, detect and list languages."""
    routes = APIRouter(tags=["LibreTranslate"])
    asked = {
        "q": TEXTS,
        **_languages(server),
        "format": one_of(["text", "html"]),
        "alternatives": {"type": "integer", "minimum": 0, "maximum": server.config.max_alternatives},
        "api_key": TEXT,
    }

    @routes.get("/languages", responses={**answer(list_of(_LANGUAGE)), **errors(429, 503)})
    async def languages() -> JSONResponse:
        """Languages, and into which each is translated."""
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": server.directions.targets(code)}
                for code in server.directions.languages
            ]
        )

    @routes.post(
        "/translate",
        openapi_extra=body(asked, ["q", "source", "target"]),
        responses={**answer(_TRANSLATED), **WORK_ERRORS},
    )
    async def translate(request: Request) -> JSONResponse:
        """Translate a text or a list of texts."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        texts = parameters.texts("q")
        many = texts if isinstance(texts, list) else [texts]
        check_amount(many, server.config)
        wish = _wish(parameters, server, deadline_of(request))
        answers = [_answer(result, wish) for result in await translate_wish(server, many, wish)]
        return JSONResponse(_of_list(answers, wish) if isinstance(texts, list) else answers[0])

    @routes.post(
        "/detect",
        openapi_extra=body({"q": TEXTS, "api_key": TEXT}, ["q"]),
        responses={**answer(list_of(_DETECTION)), **WORK_ERRORS},
    )
    async def detect_language(request: Request) -> JSONResponse:
        """Guess the language of a text."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        texts = parameters.texts("q")
        many = texts if isinstance(texts, list) else [texts]
        check_amount(many, server.config)
        found = await asyncio.to_thread(detect, "\n".join(many), server.directions.languages)
        return JSONResponse([_as_json(each) for each in found])

    @routes.get("/frontend/settings", responses={**answer(_SETTINGS), **errors(400, 429, 503)})
    async def settings() -> JSONResponse:
        """What a page in front of the server should know."""
        return JSONResponse(_frontend(server))

    return routes


def file_routes(server: Server) -> APIRouter:
    """The routes that translate files."""
    routes = APIRouter(tags=["LibreTranslate"])

    @routes.post(
        "/translate_file",
        openapi_extra=body(
            {"file": FILE, **_languages(server), "api_key": TEXT},
            ["file", "source", "target"],
            ("multipart/form-data",),
        ),
        responses={**answer(record({"translatedFileUrl": TEXT})), **WORK_ERRORS},
    )
    async def translate_file(request: Request) -> JSONResponse:
        """Translate a .txt or .html file; the answer says where to fetch it."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        base = server.config.public_url or _own_address(request)
        name = await _translated_file(parameters, server, deadline_of(request))
        return JSONResponse({"translatedFileUrl": f"{base}/download_file/{name}"})

    @routes.get("/download_file/{name}", response_class=Response, responses=_DOWNLOAD)
    async def download_file(name: str) -> Response:
        """A translated file."""
        found = server.files.get(name)
        if found is None:
            raise RefusedError(404, "no such file, or no longer")
        return _download(found)

    return routes


def _own_address(request: Request) -> str:
    """Where the client says that it found the server; only a host and a port may get into a link."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise malformed("the Host header is not a host")
    return f"{request.scope['scheme']}://{host}"


def _languages(server: Server) -> dict[str, Any]:
    """How source and target are described."""
    directions = server.directions
    return {
        "source": one_of([AUTO, *directions.sources]),
        "target": one_of(sorted({direction.target for direction in directions})),
    }


def _wish(parameters: Parameters, server: Server, deadline: float) -> Wish:
    target = server.directions.language(parameters.word("target"))
    source = parameters.word("source")
    most = server.config.max_alternatives
    return Wish(
        source=AUTO if source == AUTO else server.directions.language(source),
        target=target,
        markup="html" if parameters.choice("format", "text", "html") == "html" else "",
        count=parameters.number("alternatives", 0, most) + 1,
        deadline=deadline,
    )


def _answer(result: Result, wish: Wish) -> dict[str, Any]:
    told: dict[str, Any] = {"translatedText": result.text}
    if wish.source == AUTO:
        told["detectedLanguage"] = _as_json(result.detection)
    if wish.count > 1:
        told["alternatives"] = result.others
    return told


def _as_json(detection: Detection) -> dict[str, Any]:
    return {"confidence": detection.confidence, "language": detection.language}


def _of_list(answers: list[dict[str, Any]], wish: Wish) -> dict[str, Any]:
    """The answers of a list: each name once, with a list of values."""
    names = [
        "translatedText",
        *(["detectedLanguage"] if wish.source == AUTO else []),
        *(["alternatives"] if wish.count > 1 else []),
    ]
    return {name: [each[name] for each in answers] for name in names}


def _frontend(server: Server) -> dict[str, Any]:
    first = server.directions.first
    return {
        "apiKeys": bool(server.config.api_keys),
        "charLimit": server.config.max_characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": bool(server.config.api_keys),
        "language": {
            "source": {"code": first.source, "name": language_name(first.source)},
            "target": {"code": first.target, "name": language_name(first.target)},
        },
        "suggestions": False,
        "supportedFilesFormat": list(MEDIA_TYPES),
    }


async def _translated_file(parameters: Parameters, server: Server, deadline: float) -> str:
    """Translate the uploaded file; the name of the result."""
    file = parameters.file("file")
    path = PurePath(file.name.replace("\\", "/"))
    suffix = {".htm": ".html"}.get(path.suffix.lower(), path.suffix.lower())
    if suffix not in MEDIA_TYPES:
        raise malformed(f"cannot read {suffix or 'such'} files, only {', '.join(MEDIA_TYPES)}")
    if len(file.content) > server.config.file_bytes:
        raise RefusedError(413, f"the file is larger than {server.config.file_bytes} bytes")
    try:
        text = file.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise malformed("the file is not UTF-8 text") from None
    if len(text) > server.config.file_characters:
        raise RefusedError(413, f"the file has more than {server.config.file_characters} characters")
    wish = _wish(parameters, server, deadline)
    wish = replace(wish, markup="html" if suffix == ".html" else "")
    content = (await translate_document(server, text, wish)).encode()
    return server.files.put(content, MEDIA_TYPES[suffix], f"{path.stem}_{wish.target}{suffix}", suffix)


def _download(file: StoredFile) -> Response:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.download_name)
    return Response(
        file.content,
        media_type=file.media_type,
        headers={
            "Content-Disposition": f'attachment; filename="{plain}"',
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
        },
    )
