"""LibreTranslate's HTTP interface (1.9), which its clients find unchanged; errors are JSON throughout."""

import asyncio
import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from heedful.server.documentation import FILE, TEXT, TEXTS, WORK_ERRORS, body, errors, one_of
from heedful.server.files import StoredFile
from heedful.server.parameters import Parameters, check_amount, read_parameters
from heedful.server.refusal import RefusedError, malformed
from heedful.server.state import Server, deadline_of
from heedful.server.translating import AUTO, Result, Wish, translate_document, translate_wish
from heedful.text.languages import Detection, detect, language_name

MEDIA_TYPES = {".txt": "text/plain; charset=utf-8", ".html": "text/html; charset=utf-8"}
_DOWNLOAD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}, "text/html": {}}},
    404: {"description": "No such file, or no longer"},
}


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

    @routes.get("/languages")
    async def languages() -> JSONResponse:
        """Languages, and into which each is translated."""
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": server.directions.targets(code)}
                for code in server.directions.languages
            ]
        )

    @routes.post("/translate", openapi_extra=body(asked, ["q", "source", "target"]), responses=WORK_ERRORS)
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
        "/detect", openapi_extra=body({"q": TEXTS, "api_key": TEXT}, ["q"]), responses=errors(400, 403, 429)
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

    @routes.get("/frontend/settings")
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
        responses=WORK_ERRORS,
    )
    async def translate_file(request: Request) -> JSONResponse:
        """Translate a .txt or .html file; the answer says where to fetch it."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        name = await _translated_file(parameters, server, deadline_of(request))
        return JSONResponse({"translatedFileUrl": str(request.url_for("download_file", name=name))})

    @routes.get("/download_file/{name}", response_class=Response, responses=_DOWNLOAD)
    async def download_file(name: str) -> Response:
        """A translated file."""
        found = server.files.get(name)
        if found is None:
            raise RefusedError(404, "no such file, or no longer")
        return _download(found)

    return routes


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
    answer: dict[str, Any] = {"translatedText": result.text}
    if wish.source == AUTO:
        answer["detectedLanguage"] = _as_json(result.detection)
    if wish.count > 1:
        answer["alternatives"] = result.others
    return answer


def _as_json(detection: Detection) -> dict[str, Any]:
    return {"confidence": detection.confidence, "language": detection.language}


def _of_list(answers: list[dict[str, Any]], wish: Wish) -> dict[str, Any]:
    """The answers of a list: each name once, with a list of values."""
    names = [
        "translatedText",
        *(["detectedLanguage"] if wish.source == AUTO else []),
        *(["alternatives"] if wish.count > 1 else []),
    ]
    return {name: [answer[name] for answer in answers] for name in names}


def _frontend(server: Server) -> dict[str, Any]:
    first = next(iter(server.directions))
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
