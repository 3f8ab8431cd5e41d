"""The model folder: what train writes and translate, serve, inspect and export read. No pickle anywhere.

config.json          format, languages, model, search, longest sentences seen
weights.safetensors  one tensor a parameter, shared ones once
tokenizer.json       both sides' vocabularies
README.md            the model card
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from heedful.config import Config
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.files import write_bytes, write_text
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PairTokenizer

FORMAT = 1
PARTS = ("config.json", "tokenizer.json", "weights.safetensors")
"""Files of the folder that decide what becomes of a text."""


class BundleConfig(Config):
    """What stands in config.json."""

    format: int = FORMAT
    """Version of the folder's layout; a newer one is refused."""
    languages: tuple[str, str] | None = None
    """Codes of source and target, when known."""
    model: ModelConfig
    """Size and shape of the Transformer."""
    search: SearchConfig = SearchConfig()
    """How it translates unless told otherwise."""
    longest_source: int = 256
    """Source tokens of the longest sentence it should be given at once; longer text is split."""
    by_sentence: bool = True
    """Whether text is always split into sentences: so if it has learned from single sentences only."""
    normalize: Literal["none", "nfc"] = "nfc"
    """Unicode form of the text it has learned from."""
    taught_head: tuple[int, int] | None = None
    """Encoder layer and head, from 1, that an extra loss has shown where to look; all others are untaught."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A model with all it needs to translate."""

    config: BundleConfig
    tokenizer: PairTokenizer
    model: Transformer
    card: str = field(default="", repr=False)

    def save(self, folder: Path) -> None:
        """Write the folder; every file is replaced whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / "weights.safetensors", named_parameters(self.model))
        self.tokenizer.save(folder / "tokenizer.json")
        write_text(folder / "README.md", self.card)
        write_text(folder / "config.json", self.config.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> "Bundle":
        """Read a folder that ``save`` wrote."""
        folder = Path(folder)
        config = _read_config(folder)
        tokenizer = PairTokenizer.load(folder / "tokenizer.json")
        sizes = (tokenizer.source.size, tokenizer.target.size)
        if sizes != (config.model.source_vocabulary, config.model.target_vocabulary):
            raise HeedfulError(
                f"the tokenizer of {folder} has {sizes[0]} and {sizes[1]} entries, its config.json says "
                f"{config.model.source_vocabulary} and {config.model.target_vocabulary}",
                hint="copy the model folder again",
            )
        model = Transformer(config.model)
        load_parameters(model, read_tensors(folder / "weights.safetensors"), folder)
        card = folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return cls(config, tokenizer, model.to(device).eval(), text)


def _read_config(folder: Path) -> BundleConfig:
    path = folder / "config.json"
    if not folder.exists():
        raise HeedfulError(
            f"there is no folder {folder}", hint="the model folder comes first, then the text or files"
        )
    if not path.is_file():
        unfinished = (folder / "training").is_dir()
        raise HeedfulError(
            f"{folder} is not a model folder: it has no config.json",
            hint=f"its training has not ended: heedful train --resume {folder}"
            if unfinished
            else "give the folder that `heedful train` wrote",
        )
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HeedfulError(f"{path} is damaged: {error}", hint="copy the model folder again") from None
    found = settings.get("format") if isinstance(settings, dict) else None
    if not isinstance(found, int):
        raise HeedfulError(f"{path} is not a Heedful model's: it has no format number")
    if found > FORMAT:
        raise HeedfulError(
            f"{folder} has format {found}, and this Heedful reads up to {FORMAT}",
            hint="install a newer Heedful: pip install --upgrade heedful",
        )
    return BundleConfig.checked(settings)


def named_parameters(model: Transformer) -> dict[str, Tensor]:
    """Every trained tensor once, under its first name."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def load_parameters(model: Transformer, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Put the tensors in, each in its place and shape; anything missing or extra is an error."""
    wanted = dict(model.named_parameters())
    damaged = "the weights do not belong to this config.json: copy the model folder again"
    odd = sorted(wanted.keys() ^ tensors.keys())
    if odd:
        raise HeedfulError(f"weights of {origin}: {odd[0]!r} is missing or too much", hint=damaged)
    with torch.no_grad():
        for name, parameter in wanted.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{list(tensors[name].shape)}, not {list(parameter.shape)}"
                raise HeedfulError(f"weights of {origin}: {name!r} has shape {shapes}", hint=damaged)
            parameter.copy_(tensors[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise HeedfulError(f"no such file: {path}", hint="the model folder is not complete")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise HeedfulError(
            f"{path} is damaged or cut short ({error})", hint="copy the model folder again"
        ) from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, whole or not at all."""
    write_bytes(path, save({name: tensor.cpu() for name, tensor in tensors.items()}))
