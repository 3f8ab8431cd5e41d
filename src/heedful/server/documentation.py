"""Pieces of the OpenAPI description for routes that read their parameters themselves."""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
TEXT = {"type": "string"}
FILE = {"type": "string", "format": "binary"}
NUMBER = {"type": "number"}
COUNT = {"type": "integer", "minimum": 0}
YES_OR_NO = {"type": "boolean"}
ERROR = {
    "type": "object",
    "properties": {"error": TEXT, "message": TEXT, "request_id": TEXT},
    "required": ["error"],
    "additionalProperties": False,
}
Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]
_FORMS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
_MEANINGS = {
    400: "The request cannot be understood",
    403: "No valid API key",
    404: "No such file, or no longer",
    408: "The body did not arrive in time",
    413: "Too large",
    429: "Too many requests; see Retry-After",
    500: "The translation failed",
    503: "No room now; see Retry-After",
}


def one_of(words: Iterable[str]) -> dict[str, Any]:
    """One of a few words, such as the languages that are served; any word if there are none."""
    known = list(words)
    return {"type": "string", "enum": known} if known else TEXT


def list_of(schema: Schema) -> Schema:
    """Any number of these."""
    return {"type": "array", "items": schema}


def or_null(schema: Schema) -> Schema:
    """This, or nothing."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(properties: dict[str, Schema], *, optional: Sequence[str] = ()) -> Schema:
    """An object with these names and no others; all are there but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


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
    properties: dict[str, Any],
    required: list[str],
    media_types: tuple[str, ...] = _FORMS,
    *,
    others: bool = True,
) -> dict[str, Any]:
    """What a route reads: the same names in every encoding, and whether it overlooks ``others``."""
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if not others:
        schema["additionalProperties"] = False
    content = {kind: {"schema": schema} for kind in media_types}
    return {"requestBody": {"required": True, "content": content}}


def answer(schema: Schema) -> Responses:
    """What a route gives."""
    content = {"application/json": {"schema": schema}}
    return {200: {"description": "The answer", "content": content}}


def errors(*statuses: int) -> Responses:
    """How a route refuses."""
    return {
        status: {"description": _MEANINGS[status], "content": {"application/json": {"schema": ERROR}}}
        for status in statuses
    }


WORK_ERRORS = errors(400, 403, 408, 413, 429, 500, 503)
