"""Read and check the parameters of a request: JSON, form, multipart form, or the query string of a POST.

The body overrides the query string. A value of the wrong type is a client error (400).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import Request

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.server.api_errors import bad_request
from heedful.server.config import ServerConfig

Body = TypeVar("Body", bound=Config)

MAX_MODEL_NAME_CHARACTERS = 520
"""A model name is a language pair, or the names of a folder and its parent."""

JSON_HINT = 'a JSON body needs the header "Content-Type: application/json"'


@dataclass(frozen=True, slots=True)
class Parameters:
    """Values by name: JSON values, or the strings of a form (a list if a name is repeated)."""

    values: Mapping[str, Any]
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    """Name and content of each uploaded file."""

    def get_texts(self, name: str) -> list[str]:
        """Return a list of texts; a single text is a list of one."""
        value = self._get_required_value(name)
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise bad_request(f"{name} must be a string or a list of strings")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise bad_request(f"{name}[{index}] must be a string")
        return value

    def get_string(self, name: str, default: str | None = None) -> str:
        """Return a string, such as a language code."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        value = self._get_required_value(name)
        if not isinstance(value, str):
            raise bad_request(f"{name} must be a string")
        if not value and default is None:
            raise bad_request(f"{name} is empty")
        return value or str(default)

    def get_choice(self, name: str, default: str, *other_choices: str) -> str:
        """Return one of some allowed strings."""
        value = self.get_string(name, default)
        if value not in (default, *other_choices):
            raise bad_request(f"{name} must be one of {', '.join(filter(None, (default, *other_choices)))}")
        return value

    def get_integer(self, name: str, default: int, maximum: int) -> int:
        """Return an integer from 0; a form has it as digits."""
        value = self.values.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise bad_request(f"{name} must be a non-negative integer")
        if value > maximum:
            raise bad_request(f"{name} must be at most {maximum}")
        return value

    def get_file(self, name: str) -> tuple[str, bytes]:
        """Return the name and content of an uploaded file."""
        if name not in self.files:
            raise bad_request(f"missing {name}: send it as multipart/form-data")
        return self.files[name]

    def _get_required_value(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            hint = f"; {JSON_HINT}" if any(key.lstrip().startswith("{") for key in self.values) else ""
            raise bad_request(f"missing {name} parameter{hint}")
        return value


async def read_parameters(request: Request, config: ServerConfig) -> Parameters:
    """Read the parameters of a request."""
    max_fields = config.max_texts + 64
    query = parse_form(request.scope["query_string"], max_fields)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        max_part_size = int(request.scope["state"]["body_bytes"]) + 1
        async with request.form(max_files=1, max_fields=max_fields, max_part_size=max_part_size) as form:
            items = form.multi_items()
            uploads = [(name, value) for name, value in items if isinstance(value, UploadFile)]
            files = {name: (upload.filename or "", await upload.read()) for name, upload in uploads}
        values = _clean_strings(_group_values((name, value) for name, value in items if isinstance(value, str)))
        return Parameters({**query, **values}, files)
    body = await request.body()
    if not body:
        return Parameters(query)
    if media_type == "application/json" or media_type.endswith("+json"):
        return Parameters({**query, **read_json(body)})
    if media_type == "application/x-www-form-urlencoded":
        return Parameters({**query, **parse_form(body, max_fields)})
    raise bad_request(f"unsupported Content-Type {media_type or '(none)'}; send JSON or a form")


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON body, which must be an object; lone surrogates are replaced in all strings."""
    try:
        value = json.loads(body)
        if any(mark in body for mark in (b"\\u", b"\xed", b"\0")):  # an escape, or encoded as UTF-8 or UTF-16
            value = _clean_strings(value)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_request(f"the body is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise bad_request("the JSON body must be an object")
    return value


def parse_body(config_class: type[Body], body: bytes) -> Body:
    """Parse and validate a JSON body; an unknown name or an invalid value is a client error."""
    try:
        return config_class.from_settings(read_json(body))
    except HeedfulError as error:
        raise bad_request(str(error)) from None


def parse_form(text: bytes, max_fields: int) -> dict[str, Any]:
    """Parse a form or a query string; a repeated name becomes a list."""
    try:
        items = parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=max_fields)
    except ValueError:
        raise bad_request(f"more than {max_fields} parameters") from None
    return _group_values(items)


def _group_values(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    groups: dict[str, list[str]] = {}
    for name, value in items:
        groups.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in groups.items()}


def _clean_strings(value: Any) -> Any:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list):
        return [_clean_strings(item) for item in value]
    if isinstance(value, dict):
        return {_clean_strings(name): _clean_strings(item) for name, item in value.items()}
    return value


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates: some clients cut an emoji in half."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check_text_limits(texts: list[str], config: ServerConfig) -> None:
    """Reject a request with too many texts or characters."""
    if len(texts) > config.max_texts:
        raise bad_request(f"{len(texts)} texts, the maximum is {config.max_texts} per request")
    characters = sum(map(len, texts))
    if characters > config.max_characters:
        raise bad_request(f"{characters} characters, the maximum is {config.max_characters} per request")
