"""The files of the page, from package data. Needs no PyTorch."""

import base64
import hashlib
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
class PageFile:
    """An asset of the page."""

    content: bytes
    media_type: str


@cache
def load_assets() -> dict[str, PageFile]:
    """All assets of the page by name: the path within the page, such as views/map.js."""
    page_files: dict[str, PageFile] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{prefix}{item.name}/")
            elif (media_type := MEDIA_TYPES.get(item.name.rpartition(".")[2])) is not None:
                page_files[prefix + item.name] = PageFile(item.read_bytes(), media_type)

    walk(files("heedful.web") / "static", "")
    return page_files


def hash_script(text: str) -> str:
    """The Content-Security-Policy source of an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
