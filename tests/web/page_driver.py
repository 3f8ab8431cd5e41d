"""Traces of sentences from the server and recomputed in NumPy, and functions that read the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
from playwright.sync_api import Locator, expect
from safetensors.numpy import load

from tests.web.numpy_model import NumpyModel

MINUS = "\u2212"


@dataclass(frozen=True)
class TracedSentence:
    """The trace of a sentence from the server, and the same values recomputed in NumPy."""

    address: str
    text: str
    manifest: dict[str, Any]
    numpy: NumpyModel

    def url(self, view: str, **selection: object) -> str:
        """The URL of a view of this sentence; numbers count from 1."""
        return self.address + self.hash(view, **selection)

    def hash(self, view: str, **selection: object) -> str:
        """The same without the address of the server."""
        return f"/#/{view}?text={quote(self.text)}" + "".join(f"&{name}={value}" for name, value in selection.items())

    def tensor(self, name: str) -> Any:
        """A tensor as the server sends it to the page."""
        return tensor(self.address, self.manifest["id"], name)

    def sides(self, kind: str) -> tuple[list[str], list[str]]:
        """The subwords of the queries and of the keys."""
        sides = self.manifest["sides"]
        names = {
            "encoder": ("source", "source"),
            "decoder": ("decoder_input", "decoder_input"),
            "cross": ("target", "source"),
        }
        rows, columns = names[kind]
        return sides[rows]["subwords"], sides[columns]["subwords"]


def request_manifest(address: str, text: str) -> dict[str, Any]:
    """The manifest of a sentence's trace."""
    body = json.dumps({"source": text}).encode()
    with urlopen(Request(f"{address}/api/trace", body, {"Content-Type": "application/json"})) as response:
        manifest: dict[str, Any] = json.load(response)
    return manifest


def tensor(address: str, trace: str, name: str) -> Any:
    """A tensor of a trace, as the server sends it to the page."""
    with urlopen(f"{address}/api/trace/{trace}/tensors?names={name}") as response:
        return load(response.read())[name].astype(np.float64)


def trace_sentence(address: str, folder: Path, text: str) -> TracedSentence:
    """Request a trace, and recompute it in NumPy."""
    manifest = request_manifest(address, text)
    sides = manifest["sides"]
    numpy = NumpyModel(folder, manifest["model"]["heads"], sides["source"]["ids"], sides["decoder_input"]["ids"])
    return TracedSentence(address, text, manifest, numpy)


def parse_number(text: str) -> float:
    """Parse a number that the page prints."""
    return float(text.strip().replace(MINUS, "-"))


def open_table(figure: Locator) -> None:
    """Show the table of a figure, once it is drawn: drawing would move the button away."""
    expect(figure.locator("[aria-rowcount]")).to_be_attached()
    figure.get_by_text("Show as table").click()


def cells(table: Locator) -> list[list[str]]:
    """The rows of a table with their names, header first."""
    rows: list[list[str]] = table.evaluate(
        "table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    return rows
