"""What tests of the page ask the server beside the browser, and how they read the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
from playwright.sync_api import Locator, expect
from safetensors.numpy import load

from tests.web.recomputed_values import Recomputed

MINUS = "\u2212"


@dataclass(frozen=True)
class Pass:
    """A sentence as the server sees it, and the same recomputed."""

    address: str
    text: str
    manifest: dict[str, Any]
    numpy: Recomputed

    def url(self, view: str, **place: object) -> str:
        """A view of this sentence; numbers count from 1, as people do."""
        return self.address + self.hash(view, **place)

    def hash(self, view: str, **place: object) -> str:
        """The same without the address."""
        return f"/#/{view}?text={quote(self.text)}" + "".join(f"&{name}={value}" for name, value in place.items())

    def tensor(self, name: str) -> Any:
        """A tensor as the page gets it."""
        return tensor(self.address, self.manifest["id"], name)

    def sides(self, kind: str) -> tuple[list[str], list[str]]:
        """Pieces that look, and pieces that are looked at."""
        sides = self.manifest["sides"]
        names = {
            "encoder": ("source", "source"),
            "decoder": ("decoder_input", "decoder_input"),
            "cross": ("target", "source"),
        }
        rows, columns = names[kind]
        return sides[rows]["subwords"], sides[columns]["subwords"]


def asked(address: str, text: str) -> dict[str, Any]:
    """The manifest of a sentence's trace."""
    body = json.dumps({"source": text}).encode()
    with urlopen(Request(f"{address}/api/trace", body, {"Content-Type": "application/json"})) as answer:
        manifest: dict[str, Any] = json.load(answer)
    return manifest


def tensor(address: str, trace: str, name: str) -> Any:
    """A tensor of a trace, as the page gets it."""
    with urlopen(f"{address}/api/trace/{trace}/tensors?names={name}") as answer:
        return load(answer.read())[name].astype(np.float64)


def passed(address: str, folder: Path, text: str) -> Pass:
    """Ask for a trace, and compute the same in NumPy."""
    manifest = asked(address, text)
    sides = manifest["sides"]
    numpy = Recomputed(folder, manifest["model"]["heads"], sides["source"]["ids"], sides["decoder_input"]["ids"])
    return Pass(address, text, manifest, numpy)


def number(text: str) -> float:
    """A number as the page prints it."""
    return float(text.strip().replace(MINUS, "-"))


def open_table(figure: Locator) -> None:
    """Let a figure show its numbers; not before it is drawn, or it moves away under the pointer."""
    expect(figure.locator("[aria-rowcount]")).to_be_attached()
    figure.get_by_text("Show as table").click()


def cells(table: Locator) -> list[list[str]]:
    """The rows of a table with their names, header first."""
    rows: list[list[str]] = table.evaluate(
        "table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
    return rows
