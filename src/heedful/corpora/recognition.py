"""Which format a file has: by its first bytes where they tell, else by its name."""

import re
from pathlib import Path

from heedful.corpora.gettext_catalogs import MAGIC
from heedful.corpora.safe_xml import decoded_head, root_of

ENDINGS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tmx": "tmx",
    ".po": "po",
    ".pot": "po",
    ".mo": "mo",
    ".gmo": "mo",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".sdlxliff": "xliff",
    ".mxliff": "xliff",
    ".mqxliff": "xliff",
    ".zip": "zip",
}
"""Formats by the ending of a name, before any ``.gz``."""
_LINES = ("tsv", "jsonl", "csv")
"""Formats of which the first bytes could be anything."""


def bare_name(name: str) -> str:
    """A name without the ending that says it is packed."""
    return name[:-3] if name.lower().endswith(".gz") else name


def ending(name: str) -> str:
    """The ending of a name, before any ``.gz``.

    >>> ending("corpus/Train.TSV.gz")
    '.tsv'
    """
    return Path(bare_name(name)).suffix.lower()


def recognized(head: bytes, ending: str = "") -> str:
    """The format, as ENDINGS has them; empty if neither bytes nor name tell.

    >>> recognized(b'<?xml version="1.0"?><tmx version="1.4">', ".xml")
    'tmx'
    """
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(MAGIC):
        return "mo"
    named = ENDINGS.get(ending, "")
    return named if named in _LINES else _by_content(head) or named


def _by_content(head: bytes) -> str:
    text = decoded_head(head)
    if text.lstrip().startswith("<"):
        return {"tmx": "tmx", "xliff": "xliff"}.get(root_of(text), "")
    starts = re.match(r'#|msgid\s+"|msgctxt\s+"|domain\s+"', text.lstrip())
    if starts and re.search(r'^(?:#~ )?msgid\s+"', text, re.MULTILINE):
        return "po"
    return ""
