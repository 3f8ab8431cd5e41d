"""The page as one file: styles, scripts, and a record inside; it works from disk with the network off.

Relative imports do not resolve in data: URLs, so every module imports by a bare name (heedful/...) that the
import map leads to the module's own text. The policy in the file forbids every request.
"""

import base64
import hashlib
import json
import re
from typing import Any

from heedful.page.assets import assets
from heedful.page.packing import Packed
from heedful.page.place import fitted

START = 'import "heedful/main.js";'


def standalone(packed: Packed, url: str = "", *, base: str = "") -> str:
    """A page with this record that opens at ``url`` (what follows # at the server).

    ``base`` is what # is relative to where the page has no address of its own.
    """
    html = assets()["index.html"].content.decode()
    modules = _import_map()
    record = {
        "manifest": packed.manifest,
        "tensors": packed.tensors,
        "cells": packed.cells,
        "view": fitted(url, packed.manifest),
    }
    scripts = (
        f'<script type="application/json" id="heedful-record">{_json(record)}</script>\n'
        f'<script type="module">{START}</script>'
    )
    policy = _policy(modules, START)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    if base:
        head += f'\n<base href="{base}">'
    for pattern, text in (
        (r'<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}'),
        (r'<script type="importmap">.*?</script>', f'<script type="importmap">{modules}</script>'),
        (r'<script type="module" src="/page/main.js"></script>', scripts),
        (r"<noscript>.*?</noscript>", "<noscript>This page is drawn by scripts inside it.</noscript>"),
    ):
        html = _replaced(pattern, text, html)
    return re.sub(r'<link rel="stylesheet" href="/page/([^"]+)">', _style, html)


def script_hash(text: str) -> str:
    """How a Content-Security-Policy names an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _policy(*scripts: str) -> str:
    hashes = " ".join(map(script_hash, scripts))
    return (
        f"default-src 'none'; script-src {hashes} data:; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'"
    )


def _import_map() -> str:
    """Every module by its bare name, as a data: URL."""
    modules = {
        f"heedful/{name}": f"data:text/javascript;base64,{base64.b64encode(asset.content).decode()}"
        for name, asset in sorted(assets().items())
        if name.endswith(".js")
    }
    return _json({"imports": modules})


def _json(value: Any) -> str:
    """JSON in which no text can end the script that holds it: </script> and <!-- cannot appear."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _style(link: re.Match[str]) -> str:
    return f"<style>\n{assets()[link[1]].content.decode()}</style>"


def _replaced(pattern: str, text: str, html: str) -> str:
    found, count = re.subn(pattern, lambda _: text, html, flags=re.DOTALL)
    assert count == 1, f"index.html has {count} times {pattern}"
    return found
