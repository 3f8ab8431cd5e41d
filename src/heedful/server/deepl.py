"""DeepL's interface, as far as translation tools use it: texts in, translations out.

An option is honoured, or harmless to overlook, or refused by name; none is dropped in silence.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from heedful.server.documentation import (
    COUNT,
    TEXT,
    TEXTS,
    WORK_ERRORS,
    YES_OR_NO,
    answer,
    body,
    errors,
    list_of,
    one_of,
    record,
)
from heedful.server.parameters import Parameters, check_amount, read_parameters
from heedful.server.refusal import malformed
from heedful.server.state import Server, deadline_of
from heedful.server.translating import AUTO, Result, Wish, translate_wish
from heedful.text.languages import language_name

HONOURED = {
    "text",
    "source_lang",
    "target_lang",
    "tag_handling",
    "ignore_tags",
    "show_billed_characters",
    "auth_key",
    "api_key",
}
HARMLESS: dict[str, tuple[str, ...]] = {
    "context": (),
    "preserve_formatting": (),
    "model_type": (),
    "tag_handling_version": (),
    "enable_beta_languages": (),
    "formality": ("default", "prefer_more", "prefer_less"),
    "split_sentences": ("0", "1"),
    "outline_detection": ("1",),
}
"""What may be said without effect, by its values (none for any): hints, and what is done anyway.

``split_sentences`` 0 comes from tools whose texts are sentences already.
"""
_TRANSLATED = record(
    {
        "translations": list_of(
            record(
                {"detected_source_language": TEXT, "text": TEXT, "billed_characters": COUNT},
                optional=["billed_characters"],
            )
        )
    }
)
_LANGUAGES = list_of(record({"language": TEXT, "name": TEXT}))


def deepl_routes(server: Server) -> APIRouter:
    """The routes under /v2."""
    routes = APIRouter(prefix="/v2", tags=["DeepL"])
    sources = [code.upper() for code in server.directions.sources]
    targets = sorted({direction.target.upper() for direction in server.directions})
    asked = {
        "text": TEXTS,
        "source_lang": one_of(sources),
        "target_lang": one_of(targets),
        "tag_handling": one_of(["html", "xml"]),
        "ignore_tags": TEXTS,
        "show_billed_characters": YES_OR_NO,
        **{name: one_of(values) if values else {} for name, values in HARMLESS.items()},
    }

    @routes.post(
        "/translate",
        openapi_extra=body(asked, ["text", "target_lang"], others=False),
        responses={**answer(_TRANSLATED), **WORK_ERRORS},
    )
    async def translate(request: Request) -> JSONResponse:
        """Translate one or several texts."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        _check_options(parameters)
        texts = parameters.texts("text")
        many = texts if isinstance(texts, list) else [texts]
        check_amount(many, server.config)
        results = await translate_wish(server, many, _wish(parameters, server, deadline_of(request)))
        billed = _plain(parameters.values.get("show_billed_characters")) == "1"
        pairs = zip(many, results, strict=True)
        return JSONResponse({"translations": [_translated(*pair, billed=billed) for pair in pairs]})

    @routes.get("/languages", responses={**answer(_LANGUAGES), **errors(400, 403, 408, 413, 429, 503)})
    async def languages(request: Request) -> JSONResponse:
        """Languages to translate from, or with type=target to translate into."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        codes = sources if parameters.choice("type", "source", "target") == "source" else targets
        return JSONResponse([{"language": code, "name": language_name(code)} for code in codes])

    return routes


def _check_options(parameters: Parameters) -> None:
    """Refuse what would be another translation, were it honoured."""
    for name, value in parameters.values.items():
        if name in HONOURED or value in (None, "", []):
            continue
        if name not in HARMLESS:
            hint = "; POST /api/translate takes a glossary" if name == "glossary_id" else ""
            raise malformed(f"{name} is not supported here{hint}")
        allowed = HARMLESS[name]
        if allowed and _plain(value) not in allowed:
            raise malformed(f"{name} can only be {' or '.join(allowed)} here")


def _plain(value: Any) -> str:
    """A value as a form has it: clients send true, "true" or "1"."""
    word = str(value).lower()
    return {"true": "1", "false": "0"}.get(word, word)


def _wish(parameters: Parameters, server: Server, deadline: float) -> Wish:
    source = parameters.word("source_lang", "")
    return Wish(
        source=server.directions.language(source) if source else AUTO,
        target=server.directions.language(parameters.word("target_lang")),
        markup=parameters.choice("tag_handling", "", "html", "xml"),
        kept_tags=_ignored(parameters),
        deadline=deadline,
    )


def _ignored(parameters: Parameters) -> frozenset[str]:
    """The tags whose content stays as it is: a list, or with commas between them."""
    if parameters.values.get("ignore_tags") is None:
        return frozenset()
    found = parameters.texts("ignore_tags")
    names = found if isinstance(found, list) else [found]
    return frozenset(tag.strip().lower() for name in names for tag in name.split(",") if tag.strip())


def _translated(text: str, result: Result, *, billed: bool) -> dict[str, Any]:
    told = {"detected_source_language": result.detection.language.upper(), "text": result.text}
    return {**told, "billed_characters": len(text)} if billed else told
