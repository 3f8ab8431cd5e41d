"""One strict reader of a request's parameters, however its client sends them.

JSON, a form, a multipart form, or the query string of a POST; the body wins over the query string.
A value of the wrong type is the client's mistake (400), never ours.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import Request

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.server.config import ServerConfig
from heedful.server.refusal import malformed

Body = TypeVar("Body", bound=Config)
JSON_HINT = 'a JSON body needs the header "Content-Type: application/json"'


@dataclass(frozen=True, slots=True)
class File:
    """An uploaded file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Parameters:
    """Values by name: of JSON as they are, of forms as strings, or lists of them if repeated."""

    values: Mapping[str, Any]
    files: Mapping[str, File] = field(default_factory=dict)

    def texts(self, name: str) -> str | list[str]:
        """A text, or a list of texts."""
        value = self._required(name)
        if isinstance(value, str):
            return well_formed(value)
        if not isinstance(value, list):
            raise malformed(f"{name} must be a text or a list of texts")
        wrong = next((place for place, each in enumerate(value) if not isinstance(each, str)), None)
        if wrong is not None:
            raise malformed(f"{name}[{wrong}] must be a text")
        return [well_formed(each) for each in value]

    def word(self, name: str, default: str | None = None) -> str:
        """A short text, such as a language's code."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        value = self._required(name)
        if not isinstance(value, str):
            raise malformed(f"{name} must be a text")
        if not value and default is None:
            raise malformed(f"{name} is empty")
        return well_formed(value) or str(default)

    def choice(self, name: str, default: str, *others: str) -> str:
        """One of a few words."""
        value = self.word(name, default)
        if value not in (default, *others):
            raise malformed(f"{name} must be one of {', '.join(filter(None, (default, *others)))}")
        return value

    def number(self, name: str, default: int, most: int) -> int:
        """A whole number from 0; a form can only give its digits."""
        value = self.values.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise malformed(f"{name} must be a whole number from 0")
        if value > most:
            raise malformed(f"{name} must be at most {most}")
        return value

    def file(self, name: str) -> File:
        """An uploaded file."""
        if name not in self.files:
            raise malformed(f"missing {name}: send it as multipart/form-data")
        return self.files[name]

    def _required(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            hint = f"; {JSON_HINT}" if any(key.lstrip().startswith("{") for key in self.values) else ""
            raise malformed(f"missing {name} parameter{hint}")
        return value


async def read_parameters(request: Request, config: ServerConfig) -> Parameters:
    """The parameters of a request."""
    most = config.max_items + 64
    query = pairs(request.scope["query_string"], most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        values, files = await _multipart(request, most)
        return Parameters({**query, **values}, files)
    body = await request.body()
    if not body:
        return Parameters(query)
    if kind == "application/json" or kind.endswith("+json"):
        return Parameters({**query, **read_json(body)})
    if kind == "application/x-www-form-urlencoded":
        return Parameters({**query, **pairs(body, most)})
    raise malformed(f"cannot read a body of {kind or 'unknown type'}; send JSON or a form")


def read_json(body: bytes) -> dict[str, Any]:
    """The object in a JSON body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise malformed(f"the body is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise malformed("the JSON body must be an object")
    return value


def checked_body(kind: type[Body], body: bytes) -> Body:
    """The JSON body as what a route takes; names that it does not know are refused."""
    return checked(kind, read_json(body))


def checked(kind: type[Body], values: dict[str, Any]) -> Body:
    """Values as a config has them; what is wrong with them is the client's mistake."""
    try:
        return kind.checked(values)
    except HeedfulError as error:
        raise malformed(str(error)) from None


def pairs(text: bytes, most: int) -> dict[str, Any]:
    """The values of a form or a query string; a name that is repeated has a list."""
    try:
        found = parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=most)
    except ValueError:
        raise malformed(f"more than {most} parameters") from None
    return _gathered(found)


async def _multipart(request: Request, most: int) -> tuple[dict[str, Any], dict[str, File]]:
    size = int(request.scope["state"]["body_bytes"]) + 1
    async with request.form(max_files=1, max_fields=most, max_part_size=size) as form:
        items = form.multi_items()
        words = [(name, value) for name, value in items if isinstance(value, str)]
        files = {
            name: File(value.filename or "", await value.read())
            for name, value in items
            if isinstance(value, UploadFile)
        }
    return _gathered(words), files


def _gathered(items: list[tuple[str, str]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in items:
        if name not in values:
            values[name] = value
        elif isinstance(values[name], list):
            values[name].append(value)
        else:
            values[name] = [values[name], value]
    return values


def well_formed(text: str) -> str:
    """The text without halves of surrogate pairs, which a client makes by cutting an emoji in two."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check_amount(texts: list[str], config: ServerConfig) -> None:
    """Refuse more texts or characters than a request may have."""
    if len(texts) > config.max_items:
        raise malformed(f"{len(texts)} texts, at most {config.max_items} are taken at once")
    characters = sum(map(len, texts))
    if characters > config.max_characters:
        raise malformed(f"{characters} characters, at most {config.max_characters} are taken at once")
