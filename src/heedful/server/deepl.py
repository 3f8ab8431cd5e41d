"""DeepL's interface, as far as translation tools use it: texts in, translations out."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from heedful.server.documentation import TEXTS, WORK_ERRORS, body, errors, one_of
from heedful.server.parameters import Parameters, check_amount, read_parameters
from heedful.server.refusal import malformed
from heedful.server.state import Server, deadline_of
from heedful.server.translating import AUTO, Wish, translate_wish
from heedful.text.languages import language_name


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
    }

    @routes.post("/translate", openapi_extra=body(asked, ["text", "target_lang"]), responses=WORK_ERRORS)
    async def translate(request: Request) -> JSONResponse:
        """Translate one or several texts."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        texts = parameters.texts("text")
        many = texts if isinstance(texts, list) else [texts]
        check_amount(many, server.config)
        results = await translate_wish(server, many, _wish(parameters, server, deadline_of(request)))
        return JSONResponse(
            {
                "translations": [
                    {"detected_source_language": result.detection.language.upper(), "text": result.text}
                    for result in results
                ]
            }
        )

    @routes.get("/languages", responses=errors(400, 403, 429))
    async def languages(request: Request) -> JSONResponse:
        """Languages to translate from, or with type=target to translate into."""
        parameters = await read_parameters(request, server.config)
        server.check_key(request, parameters)
        codes = sources if parameters.choice("type", "source", "target") == "source" else targets
        return JSONResponse([{"language": code, "name": language_name(code)} for code in codes])

    return routes


def _wish(parameters: Parameters, server: Server, deadline: float) -> Wish:
    if parameters.values.get("glossary_id") is not None:
        raise malformed("there is no glossary_id here; POST /api/translate takes a glossary")
    source = parameters.word("source_lang", "")
    return Wish(
        source=server.directions.language(source) if source else AUTO,
        target=server.directions.language(parameters.word("target_lang")),
        markup=parameters.choice("tag_handling", "", "html", "xml"),
        deadline=deadline,
    )
