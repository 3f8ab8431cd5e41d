"""The model folder: what train writes and translate, serve, inspect and export read. No pickle anywhere.

config.json          format, languages, model, search, longest sentences seen
weights.safetensors  one tensor a parameter, shared ones once
tokenizer.json       both sides' vocabularies
source.spm           and target.spm: their SentencePiece models, if it comes from another program
README.md            the model card

PyTorch is imported where weights are touched, and not before: a quick engine needs neither.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from safetensors import SafetensorError

from heedful.config import Config
from heedful.corpora.filters import clean_sentence
from heedful.corpora.language_codes import canonical
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.files import sync_folder, write_bytes, write_text, writing
from heedful.model.config import INNER_POSITIONS, PLAIN, RECURRENT, ModelConfig
from heedful.text.glossary import Term, with_inline_terms
from heedful.text.tags import tagged
from heedful.text.tokenizer import PairTokenizer
from heedful.text.trees import encoded_sources, with_heads

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from heedful.model.predictor import Predictor
    from heedful.model.translator import Translator

FORMAT = 1
WEIGHTS = "weights.safetensors"
FOREIGN_WEIGHTS = "the weights do not belong to this config.json: copy the model folder again"
SUSPICIOUS = 8
"""Times as many numbers as a file of weights has: no config.json that asks for more can belong to it."""
PARTS = ("config.json", "tokenizer.json", WEIGHTS)
"""Files of the folder that decide what becomes of a text."""


class BundleConfig(Config):
    """What stands in config.json."""

    format: int = FORMAT
    """Version of the folder's layout; a newer one is refused."""
    languages: tuple[str, str] | None = None
    """Codes of source and target, when known."""
    targets: tuple[str, ...] = ()
    """Languages that it writes, each asked for by a tag; none if it knows a single one."""
    sources: tuple[str, ...] = ()
    """Languages that it reads, if it writes several and they are known."""
    directions: tuple[tuple[str, str], ...] = ()
    """Source and target of what it learned from, if it writes several; empty if nobody has said them."""
    model: ModelConfig
    """Size and shape of the model."""
    search: SearchConfig = SearchConfig()
    """How it translates unless told otherwise."""
    longest_source: int = 256
    """Source tokens of the longest sentence it should be given at once; longer text is split."""
    by_sentence: bool = True
    """Whether text is always split into sentences: so if it has learned from single sentences only."""
    normalize: Literal["none", "nfc"] = "nfc"
    """Unicode form of the text it has learned from."""
    inline_terms: bool = False
    """Whether it has learned to read terms with their translations inside a source (glossary.py)."""
    taught_head: tuple[int, int] | None = None
    """Encoder layer and head, from 1, that an extra loss has shown where to look; all others are untaught."""

    @property
    def offered(self) -> tuple[tuple[str, str], ...]:
        """All directions of a model that writes several languages: those learned, then the other pairs."""
        sources = self.sources or (self.languages or ())[:1]
        pairs = [(one, other) for one in sources for other in self.targets if one != other]
        return tuple(dict.fromkeys((*self.directions, *pairs)))

    def is_zero_shot(self, source: str, target: str) -> bool:
        """Whether it writes one and reads the other, but has never seen the two together."""
        return bool(self.directions) and (source, target) not in self.directions


class UnreadModel:
    """The weights of a folder, read when they are first asked for; later ones are never taken for them."""

    def __init__(self, folder: Path, config: ModelConfig, device: "str | torch.device") -> None:
        self.folder, self.config, self.device = folder, config, device
        self._seen = self._state()
        self._read: Predictor | None = None
        self._lock = threading.Lock()

    def read(self) -> "Predictor":
        """The model; the same one for every caller, whatever its thread."""
        with self._lock:
            if self._read is None:
                self._read = self._new()
            return self._read

    def _new(self) -> "Predictor":
        tensors = read_tensors(self.folder / WEIGHTS)
        if self._state() != self._seen:
            raise HeedfulError(f"the weights of {self.folder} have changed meanwhile", hint="start again")
        return model_of(self.config, tensors, self.folder).to(self.device).eval()

    def _state(self) -> tuple[int, int, int]:
        found = _weights_file(self.folder / WEIGHTS).stat()
        return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Bundle:
    """A model with all it needs to translate."""

    config: BundleConfig
    tokenizer: PairTokenizer
    weights: "Predictor | UnreadModel" = field(repr=False)
    card: str = field(default="", repr=False)

    @property
    def model(self) -> "Translator":
        """The model, if it translates."""
        self.check_translates()
        return self.writer

    @property
    def writer(self) -> "Translator":
        """The model, if it writes from left to right: a translator, or a language model."""
        if self.config.model.family == "mask":
            raise HeedfulError(
                "this model fills in blanks and does not write", hint="heedful fill MODEL TEXT"
            )
        return cast("Translator", self.predictor)

    def check_translates(self) -> None:
        """An error that names the right command, if this is a model of plain text."""
        family = self.config.model.family
        if family in PLAIN:
            kind, verb = ("language", "generate") if family == "language" else ("masked language", "fill")
            raise HeedfulError(
                f"this is a {kind} model, which does not translate", hint=f"heedful {verb} MODEL TEXT"
            )

    @property
    def predictor(self) -> "Predictor":
        """The model itself, whatever it does, read now if it was not."""
        found = self.weights
        return found.read() if isinstance(found, UnreadModel) else found

    def source_ids(self, text: str, language: str = "", terms: Sequence[Term] = ()) -> list[int]:
        """What the model reads of a source text that is to be translated into ``language``, without END.

        A user may have typed another language before the text, if the model comes from where that is usual.
        After a tab a model of trees takes the heads of the words; for others a tab is a space. ``terms`` of a
        cleaned text are written inline.
        """
        sentence, heads = self.source_parts(text)
        cleaned = clean_sentence(sentence, self.config.normalize)
        asked = "" if self.tokenizer.source.typed_tag(cleaned) else self.language_tag(language)
        cleaned = with_inline_terms(cleaned, terms)
        given = with_heads(tagged(cleaned, asked) if cleaned else "", heads)
        return encoded_sources(self.tokenizer.source, [given])[0]

    def language_tag(self, language: str = "") -> str:
        """The tag that asks for a language, empty if none is needed; an error if it is not known."""
        targets, usual = self.config.targets, (self.config.languages or ("", ""))[1]
        if not language:
            wished = self.config.search.language
            return next((each for each in (wished, usual) if each in targets), "".join(targets[:1]))
        if language in targets:
            return language
        alike = [target for target in targets if canonical(target) == canonical(language)]
        if len(alike) == 1:  # fr, as people say, is fra, as the model does
            return alike[0]
        if targets or canonical(language) != canonical(usual):
            known = ", ".join(targets) or usual or "one that it does not name"
            raise HeedfulError(
                f"this model does not translate into {language!r}", hint=f"it translates into {known}"
            )
        return ""

    def writing(self, language: str, source: str = "") -> "Bundle":
        """The same model, which translates (from ``source``) into this language unless told otherwise."""
        if not language:
            return self
        language, config = self.language_tag(language) or language, self.config
        sources = [one for one, other in config.offered if other == language] or (config.languages or ())[:1]
        if source and sources and source not in sources:
            raise HeedfulError(
                f"this model does not translate {source!r} into {language!r}",
                hint=f"into {language} it translates {', '.join(sources)}",
            )
        known = source or "".join(sources[:1])
        told = {
            "languages": (known, language) if known else None,
            "search": config.search.model_copy(update={"language": language}),
        }
        return replace(self, config=config.model_copy(update=told))

    def source_parts(self, text: str) -> tuple[str, str]:
        """The sentence, and the heads of its words if the model reads trees and they are given."""
        sentence, _, heads = text.partition("\t") if self.config.model.trees else (text, "", "")
        return sentence, " ".join(heads.split())

    def read(self) -> "Bundle":
        """The same with its weights in memory, whatever becomes of its folder."""
        return replace(self, weights=self.predictor)

    def save(self, folder: Path) -> None:
        """Write the folder; every file is replaced whole or not at all, config.json last.

        So a new folder is no model until it is a whole one, whenever the power fails.
        """
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, named_parameters(self.predictor))
        self.tokenizer.save(folder / "tokenizer.json")
        write_text(folder / "README.md", self.card)
        sync_folder(folder)
        write_text(folder / "config.json", self.config.model_dump_json(indent=2) + "\n")
        sync_folder(folder)

    @classmethod
    def load(cls, folder: Path | str, device: "str | torch.device" = "cpu") -> "Bundle":
        """Read a folder that ``save`` wrote."""
        return cls.open(folder, device).read()

    @classmethod
    def open(cls, folder: Path | str, device: "str | torch.device" = "cpu") -> "Bundle":
        """Read all but the weights, which are read at first use."""
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
        unread = UnreadModel(folder, config.model, device)
        card = folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return cls(config, tokenizer, unread, text)


def _read_config(folder: Path) -> BundleConfig:
    path = folder / "config.json"
    if not folder.exists():
        raise HeedfulError(
            f"there is no folder {folder}",
            hint="a model folder is wanted here, as train writes it; texts and files come after it",
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
    except (OSError, ValueError, RecursionError) as error:
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


def named_parameters(model: "Predictor") -> "dict[str, Tensor]":
    """Every trained tensor once, under its first name."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def model_of(config: ModelConfig, tensors: "Mapping[str, Tensor]", origin: Path) -> "Predictor":
    """The model of this shape with these weights; a shape that is far too large for them takes no memory."""
    from heedful.model.family import new_model

    wanted, found = _most_numbers(config), sum(tensor.numel() for tensor in tensors.values())
    if wanted > SUSPICIOUS * found:
        raise HeedfulError(
            f"weights of {origin}: {found:,} numbers are far fewer than its settings ask for",
            hint=FOREIGN_WEIGHTS,
        )
    model = new_model(config)
    load_parameters(model, tensors, origin)
    return model


def _most_numbers(config: ModelConfig) -> int:
    """As many as a model of this shape has, or up to some four times as many."""
    rows = config.source_vocabulary + 2 * config.target_vocabulary + 2 * config.longest * config.ends
    layer = 12 * config.width * config.width
    if config.family not in RECURRENT:
        layer += 3 * config.width * config.feed_forward_width
    if config.encoder_attention == "linformer":
        layer += config.longest * config.projected_length
    if config.positions in INNER_POSITIONS:
        layer += 4 * config.relative_distance * config.width
    layers = config.encoder_layers * (config.family != "language")
    layers += config.decoder_layers * (config.family != "mask")
    return rows * config.width + layers * layer


def load_parameters(model: "Predictor", tensors: "Mapping[str, Tensor]", origin: Path) -> None:
    """Put the tensors in, each in its place and shape; anything missing or extra is an error."""
    import torch

    wanted = dict(model.named_parameters())
    odd = sorted(wanted.keys() ^ tensors.keys())
    if odd:
        raise HeedfulError(f"weights of {origin}: {odd[0]!r} is missing or too much", hint=FOREIGN_WEIGHTS)
    with torch.no_grad():
        for name, parameter in wanted.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{list(tensors[name].shape)}, not {list(parameter.shape)}"
                raise HeedfulError(f"weights of {origin}: {name!r} has shape {shapes}", hint=FOREIGN_WEIGHTS)
            parameter.copy_(tensors[name])


def _weights_file(path: Path) -> Path:
    if not path.is_file():
        raise HeedfulError(f"no such file: {path}", hint="the model folder is not complete")
    return path


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """All tensors of a safetensors file."""
    from safetensors.torch import load_file

    try:
        return load_file(_weights_file(path))
    except SafetensorError as error:
        raise HeedfulError(
            f"{path} is damaged or cut short ({error})", hint="copy the model folder again"
        ) from None


def write_tensors(
    path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file, whole or not at all."""
    write_bytes(path, tensor_bytes(tensors, metadata))


def tensor_bytes(tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> bytes:
    """What stands in a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.cpu() for name, tensor in tensors.items()}, metadata)
