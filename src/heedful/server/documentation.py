"""Pieces of the OpenAPI description for routes that read their parameters themselves."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
TEXT = {"type": "string"}
FILE = {"type": "string", "format": "binary"}
ERROR = {
    "type": "object",
    "properties": {"error": TEXT},
    "required": ["error"],
}
_FORMS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
_MEANINGS = {
    400: "The request cannot be understood",
    403: "No valid API key",
    413: "Too large",
    429: "Too many requests; see Retry-After",
    500: "The translation failed",
    503: "No room now; see Retry-After",
}


def one_of(words: Iterable[str]) -> dict[str, Any]:
    """One of a few words, such as the languages that are served."""
    return {"type": "string", "enum": list(words)}


def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model with its parts in place: references would not be found where it stands."""
    schema = model.model_json_schema()
    return dict(_resolved(schema, schema.pop("$defs", {})))


def _resolved(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _resolved(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {name: _resolved(value, parts) for name, value in schema.items()}


def body(
    properties: dict[str, Any], required: list[str], media_types: tuple[str, ...] = _FORMS
) -> dict[str, Any]:
    """What a route reads: the same names in every encoding."""
    schema = {"type": "object", "properties": properties, "required": required}
    content = {kind: {"schema": schema} for kind in media_types}
    return {"requestBody": {"required": True, "content": content}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route refuses."""
    return {
        status: {"description": _MEANINGS[status], "content": {"application/json": {"schema": ERROR}}}
        for status in statuses
    }


WORK_ERRORS = errors(400, 403, 413, 429, 500, 503)
