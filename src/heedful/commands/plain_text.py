"""`heedful generate` and `heedful fill`: what models of plain text do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.engines.plain_text import continued, filled, sampling
from heedful.training.devices import chosen_device


def generate_command(
    model: Path, prompt: str, longest: int, search: Mapping[str, Any], device: str
) -> list[str]:
    """Texts that go on from the prompt."""
    bundle = Bundle.load(model, chosen_device(device))
    return continued(bundle, prompt, sampling(bundle, search), longest)


def fill_command(model: Path, text: str, top: int, device: str) -> list[str]:
    """The likeliest pieces for each blank, a line each: number of the blank, probability, piece."""
    blanks = filled(Bundle.load(model, chosen_device(device)), text, top)
    return [
        f"{number}\t{guess.probability:.4f}\t{guess.text}"
        for number, guesses in enumerate(blanks, start=1)
        for guess in guesses
    ]
