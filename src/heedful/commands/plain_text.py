"""`heedful generate` and `heedful fill`: what models of plain text do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.config import merged
from heedful.decoding.config import SearchConfig
from heedful.engines.plain_text import continued, filled
from heedful.training.devices import chosen_device


def generate_command(
    model: Path, prompt: str, longest: int, search: Mapping[str, Any], device: str
) -> list[str]:
    """Texts that go on from the prompt."""
    bundle = Bundle.load(model, chosen_device(device))
    own = merged(bundle.config.search.model_dump(), {"method": "sample", **search})
    return continued(bundle, prompt, SearchConfig.checked(own), longest)


def fill_command(model: Path, text: str, top: int, device: str) -> list[str]:
    """The likeliest pieces for each blank, a line each: number of the blank, probability, piece."""
    blanks = filled(Bundle.load(model, chosen_device(device)), text, top)
    return [
        f"{number}\t{guess.probability:.4f}\t{guess.text}"
        for number, guesses in enumerate(blanks, start=1)
        for guess in guesses
    ]
