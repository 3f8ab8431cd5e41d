"""What several verbs share: settings of one section, search settings, one line for each line."""

from collections.abc import Mapping, Sequence
from typing import Any

from heedful.config import merged, parsed_overrides
from heedful.corpora.reading import ReadingConfig
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.loading import ENGINES, EngineName


def search_settings(base: SearchConfig, options: Mapping[str, Any], settings: Sequence[str]) -> SearchConfig:
    """The model's own search settings with the command line's on top."""
    told = merged(only_section(parsed_overrides(settings), "search"), options)
    wanted = told.get("n_best")
    if isinstance(wanted, int) and wanted > base.beam:
        told.setdefault("beam", wanted)
    return SearchConfig.checked(merged(base.model_dump(), told))


def reading_settings(settings: Sequence[str]) -> tuple[ReadingConfig, list[str]]:
    """The section ``reading``, and the settings that are not of it."""
    own = [each for each in settings if each.lstrip().startswith("reading")]
    config = ReadingConfig.checked(only_section(parsed_overrides(own), "reading"))
    return config, [each for each in settings if each not in own]


def only_section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The one section that matters here; others would be accepted and ignored, so they are refused."""
    other = [key for key in settings if key != name]
    if other:
        raise HeedfulError(f"setting {other[0]!r} has no effect here", hint=f"only {name}.* settings do")
    section = settings.get(name, {})
    if not isinstance(section, dict):
        raise HeedfulError(f"{name!r} is a section, not a setting", hint=f"write {name}.name=value")
    return section


def one_line(text: str) -> str:
    """A model may write a line break; the output keeps one line for each line."""
    return " ".join(text.split("\n")).replace("\r", " ").replace("\t", " ")


def engine_name(name: str) -> EngineName:
    """The name of an engine, checked."""
    for known in ENGINES:
        if known == name:
            return known
    raise HeedfulError(f"there is no engine {name!r}", hint=f"engines: {', '.join(ENGINES)}")
