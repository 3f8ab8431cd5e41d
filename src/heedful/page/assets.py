"""The page's files, read from the package; nothing else can be asked for."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    name: str
    """Its path within the page, such as views/map.js."""
    content: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """All files of the page by name."""
    found: dict[str, Asset] = {}

    def walk(folder: Traversable, before: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{before}{item.name}/")
            elif (media_type := MEDIA_TYPES.get(item.name.rpartition(".")[2])) is not None:
                found[before + item.name] = Asset(before + item.name, item.read_bytes(), media_type)

    walk(files("heedful.page") / "static", "")
    return found
