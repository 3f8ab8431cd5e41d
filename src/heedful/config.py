"""Typed settings: frozen pydantic models, read from TOML, overridden by ``--set section.name=value``.

A misspelled setting is an error that suggests the right name; no setting is silently ignored.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from heedful.errors import HeedfulError

Settings = dict[str, Any]
"""Nested settings as read from TOML, not validated yet."""

MAX_SETTING_DEPTH = 20
"""Maximum nesting of a setting name in an override; real settings have depth two."""

MAX_SHOWN_CHARACTERS = 200
"""Characters of an invalid value that an error message repeats."""


class Config(BaseModel):
    """Base of all settings: frozen, unknown keys forbidden, attribute docstrings are the descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Validate settings; a HeedfulError names the first invalid one."""
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise _to_heedful_error(error, cls) from None


def read_toml(path: Path) -> Settings:
    """Read the settings of a TOML recipe."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise HeedfulError(f"cannot read recipe {path}: {error.strerror}", hint="check the path") from None
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, or nested too deeply
        raise HeedfulError(
            f"recipe {path} is not valid TOML: {error}", hint='write a [section] line, then one name = "value" per line'
        ) from None


def merge_settings(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Merge ``overrides`` into ``base``, section by section.

    >>> merge_settings({"model": {"d_model": 512, "heads": 8}}, {"model": {"heads": 4}})
    {'model': {'d_model': 512, 'heads': 4}}
    """
    result = dict(base)
    for key, value in overrides.items():
        existing = result.get(key)
        if isinstance(existing, Mapping) and isinstance(value, Mapping):
            value = merge_settings(existing, value)
        result[key] = value
    return result


def parse_overrides(assignments: Iterable[str]) -> Settings:
    """Parse ``section.name=value`` arguments; a value is JSON or else a plain string.

    >>> parse_overrides(["model.d_model=128", "tokenizer.model_type=bpe"])
    {'model': {'d_model': 128}, 'tokenizer': {'model_type': 'bpe'}}
    """
    settings: Settings = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path) or len(path) > MAX_SETTING_DEPTH:
            raise HeedfulError(
                f"cannot parse setting {_shorten(assignment)}",
                hint="write section.name=value, for example model.d_model=256",
            )
        nested: Any = _parse_value(text.strip())
        for key in reversed(path):
            nested = {key: nested}
        settings = merge_settings(settings, nested)
    return settings


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or too large: validation reports it
        return {"True": True, "False": False, "None": None}.get(text, text)


def _to_heedful_error(error: ValidationError, config: type[Config]) -> HeedfulError:
    """Convert the first validation error to a problem and a hint."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return HeedfulError(f"unknown setting {_shorten(name)}", hint=_suggest_setting(first["loc"], config))
    if first["type"] == "value_error":  # our validators raise "problem\nhint"
        problem, _, hint = str(first["ctx"]["error"]).partition("\n")
        return HeedfulError(problem, hint=hint)
    message = f"{_shorten(first['input'])} should be {first['msg'].removeprefix('Input should be ')}"
    field = None
    if first["loc"]:  # empty for a key that is not a string
        field = _find_section(first["loc"][:-1], config).model_fields.get(str(first["loc"][-1]))
    return HeedfulError(
        f"setting {name!r}: {'missing' if first['type'] == 'missing' else message}",
        hint=(field.description or "") if field else "",
    )


def _shorten(value: object) -> str:
    """repr, truncated."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def _suggest_setting(location: tuple[int | str, ...], config: type[Config]) -> str:
    known = list(_find_section(location[:-1], config).model_fields)
    wrong = str(location[-1])
    other_sections = [  # the right name, but no section or the wrong one
        f"{section}.{wrong}"
        for section, field in config.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, Config)
        and wrong in field.annotation.model_fields
    ]
    if other_sections:
        return f"did you mean {other_sections[0]!r}?"
    close_matches = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    if close_matches:
        return f"did you mean {'.'.join([*map(str, location[:-1]), close_matches[0]])!r}?"
    return f"known here: {', '.join(known)}"


def _find_section(location: tuple[int | str, ...], config: type[Config]) -> type[Config]:
    for part in location:
        field = config.model_fields.get(str(part))
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            break
        config = annotation
    return config


def drop_unset(**values: Any) -> Settings:
    """The options that the user gave: overrides for a config.

    >>> drop_unset(beam_size=4, n_best=None)
    {'beam_size': 4}
    """
    return {name: value for name, value in values.items() if value is not None}


def extract_section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one section of the settings; any other section is an error because it would be ignored."""
    unexpected = [key for key in settings if key != name]
    if unexpected:
        raise HeedfulError(f"setting {unexpected[0]!r} has no effect here", hint=f"only {name}.* settings do")
    section = settings.get(name, {})
    if not isinstance(section, dict):
        raise HeedfulError(f"{name!r} is a section, not a setting", hint=f"write {name}.name=value")
    return section
