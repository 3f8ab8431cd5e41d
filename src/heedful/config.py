"""Settings: frozen pydantic classes, TOML in, JSON out, ``--set section.name=value`` on top.

A misspelt setting is an error that suggests the right one; nothing is accepted and ignored.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from heedful.errors import HeedfulError

Settings = dict[str, Any]
"""Plain nested settings, as a TOML file gives them: not yet checked."""
DEEPEST = 20
"""Sections within sections that a setting may be said to stand in; there are two."""
LONGEST_SHOWN = 200
"""Characters of a wrong value that its error repeats."""


class Config(BaseModel):
    """Base of every section: frozen, no unknown keys, attribute docstrings as descriptions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def checked(cls, settings: Mapping[str, Any]) -> Self:
        """The config these settings describe, or a HeedfulError that names the wrong one."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise _explained(error, cls) from None


def read_toml(path: Path) -> Settings:
    """The settings in a recipe file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise HeedfulError(f"cannot read recipe {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too many digits, or nested too deeply
        raise HeedfulError(
            f"recipe {path} is not valid TOML: {error}",
            hint='write [section], then name = "value", a line each',
        ) from None


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """``base`` with the entries of ``over`` put in, section by section.

    >>> merged({"model": {"width": 512, "heads": 8}}, {"model": {"heads": 4}})
    {'model': {'width': 512, 'heads': 4}}
    """
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        result[key] = value
    return result


def parsed_overrides(assignments: Iterable[str]) -> Settings:
    """Settings from ``section.name=value`` words; a value is JSON, or else a plain string.

    >>> parsed_overrides(["model.width=128", "tokenizer.kind=bpe"])
    {'model': {'width': 128}, 'tokenizer': {'kind': 'bpe'}}
    """
    settings: Settings = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path) or len(path) > DEEPEST:
            raise HeedfulError(
                f"cannot read setting {_shown(assignment)}",
                hint="write section.name=value, such as model.width=256",
            )
        nested: Any = _value(text.strip())
        for key in reversed(path):
            nested = {key: nested}
        settings = merged(settings, nested)
    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # too many digits, or nested too deeply: whoever wants it will say so
        return {"True": True, "False": False, "None": None}.get(text, text)


def _explained(error: ValidationError, config: type[Config]) -> HeedfulError:
    """The first complaint of pydantic in our words."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return HeedfulError(f"unknown setting {_shown(name)}", hint=_suggestion(first["loc"], config))
    if first["type"] == "value_error":  # raised by our own validators: already in our words
        cause = first["ctx"]["error"]
        problem, _, hint = str(cause).partition("\n")
        return HeedfulError(problem, hint=hint)
    return HeedfulError(f"setting {name!r}: {_complaint(first)}", hint=_description(first["loc"], config))


def _complaint(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "missing"
    message = detail["msg"].removeprefix("Input should be ")
    return f"{_shown(detail['input'])} should be {message}"


def _shown(value: object) -> str:
    """As Python writes it, but not all of a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _suggestion(location: tuple[int | str, ...], config: type[Config]) -> str:
    known = list(_section(location[:-1], config).model_fields)
    wrong = str(location[-1])
    elsewhere = [  # the right name without its section, or in a wrong one
        f"{section}.{wrong}"
        for section, field in config.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, Config)
        and wrong in field.annotation.model_fields
    ]
    if elsewhere:
        return f"did you mean {elsewhere[0]!r}?"
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {'.'.join([*map(str, location[:-1]), close[0]])!r}?"
    return f"known here: {', '.join(known)}"


def _description(location: tuple[int | str, ...], config: type[Config]) -> str:
    if not location:  # a name that is no text
        return ""
    field = _section(location[:-1], config).model_fields.get(str(location[-1]))
    return (field.description or "") if field else ""


def _section(location: tuple[int | str, ...], config: type[Config]) -> type[Config]:
    for part in location:
        field = config.model_fields.get(str(part))
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            break
        config = annotation
    return config
