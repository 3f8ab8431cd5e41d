"""The model folder: written by train, read by everything else. No pickle.

config.json          format, languages, tokenizer, model, generation, maximum source length
weights.safetensors  one tensor per parameter, shared ones once
tokenizer.json       of Hugging Face tokenizers; target_tokenizer.json if the vocabularies differ
vocab.json           and source.spm, target.spm in place of it: the vocabulary of an imported MarianMT model
README.md            the model card

PyTorch is imported only when weights are loaded: CTranslate2 needs neither.
"""

import errno
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from safetensors import SafetensorError, deserialize

from heedful.config import Config
from heedful.data.glossary import Term, insert_inline_terms
from heedful.errors import HeedfulError
from heedful.files import sync_folder, wrap_write_errors, write_text
from heedful.generation.config import GenerationConfig
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES, RECURRENT_ARCHITECTURES, RELATIVE_POSITIONS, ModelConfig
from heedful.tokenization.dependency_trees import SentenceIds, append_heads, encode_sources
from heedful.tokenization.languages import resolve_language
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.pair_tokenizer import TARGET_TOKENIZER_FILE, TOKENIZER_FILES, PairTokenizer
from heedful.tokenization.special_tokens import add_tags
from heedful.tokenization.tokenizer import TokenizerConfig

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from heedful.models.base import AutoregressiveModel, Model, Seq2SeqModel

FORMAT_VERSION = 3

WEIGHTS_FILE = "weights.safetensors"

WEIGHTS_MISMATCH_HINT = "config.json and weights are from different models: copy the model folder again"

FLOAT_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""NumPy's names of the types of safetensors that weights may have."""

MAX_SIZE_RATIO = 8
"""A config.json that describes more than this many times the stored parameters is not built at all."""


class ModelFolderConfig(Config):
    """Contents of config.json."""

    format: int = FORMAT_VERSION
    """Format version of the model folder."""
    languages: tuple[str, str] | None = None
    """Language codes of source and target, if known."""
    target_languages: tuple[str, ...] = ()
    """Target languages of a multilingual model, selected by a tag; empty for a single one."""
    source_languages: tuple[str, ...] = ()
    """Source languages of a multilingual model, if known."""
    directions: tuple[tuple[str, str], ...] = ()
    """Directions in the training data of a multilingual model, if known."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Settings of the tokenizer; its vocabulary has its own file, or two if it is not joint."""
    sentencepiece: tuple[str, str] | None = None
    """SHA-256 of source.spm and target.spm, of an imported model."""
    model: ModelConfig
    """Shape of the model."""
    generation: GenerationConfig = GenerationConfig()
    """Default generation settings."""
    max_source_length: int = 256
    """Maximum source tokens per segment; longer text is split."""
    split_sentences: bool = True
    """Always split text into sentences, because the model was trained on single sentences."""
    unicode_normalization: Literal["none", "nfc"] = "nfc"
    """Unicode normalization of the training text."""
    inline_terms: bool = False
    """Whether the model was trained with inline terms (data/glossary.py)."""
    guided_head: tuple[int, int] | None = None
    """Encoder layer and head, from 1, trained with guided attention."""

    @property
    def source_language(self) -> str:
        """The language of the source text, whose rules split it into sentences; empty if unknown."""
        return self.languages[0] if self.languages else ""

    @property
    def supported_directions(self) -> tuple[tuple[str, str], ...]:
        """All directions of a multilingual model: trained ones first, then zero-shot ones."""
        source_languages = self.source_languages or (self.languages or ())[:1]
        pairs = [
            (source, target) for source in source_languages for target in self.target_languages if source != target
        ]
        return tuple(dict.fromkeys((*self.directions, *pairs)))

    def is_zero_shot(self, source: str, target: str) -> bool:
        """Whether the training data lacks this direction."""
        return bool(self.directions) and (source, target) not in self.directions


class LazyModel:
    """Weights of a folder, loaded at first use; an error if the file has changed since opening."""

    def __init__(self, folder: Path, config: ModelConfig, device: "str | torch.device") -> None:
        self.folder, self.config, self.device = folder, config, device
        self._initial_file_state = self._file_state()
        self._model: Model | None = None
        self._lock = threading.Lock()

    def load(self) -> "Model":
        """Load the model once; thread-safe."""
        with self._lock:
            if self._model is None:
                tensors = read_tensors(self.folder / WEIGHTS_FILE)
                self._check_unchanged()
                self._model = model_from_tensors(self.config, tensors, self.folder).to(self.device).eval()
            return self._model

    def read_arrays(self) -> "dict[str, np.ndarray]":
        """The weights as NumPy arrays, without PyTorch."""
        arrays = read_arrays(self.folder / WEIGHTS_FILE)
        self._check_unchanged()
        return arrays

    def _check_unchanged(self) -> None:
        if self._file_state() != self._initial_file_state:
            raise HeedfulError(f"the weights of {self.folder} changed after it was opened", hint="restart the command")

    def _file_state(self) -> tuple[int, int, int]:
        stat = _check_weights_file(self.folder / WEIGHTS_FILE).stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model with its tokenizer, settings and card."""

    config: ModelFolderConfig
    tokenizer: PairTokenizer
    weights: "Model | LazyModel" = field(repr=False)
    card: str = field(default="", repr=False)

    @property
    def translation_model(self) -> "Seq2SeqModel":
        """The model; an error if it does not translate."""
        self.check_translates()
        return cast("Seq2SeqModel", self.model)

    @property
    def autoregressive_model(self) -> "AutoregressiveModel":
        """The model; an error if it cannot generate text."""
        if self.config.model.architecture == "masked_lm":
            raise HeedfulError(
                "this is a masked language model, which cannot generate text", hint="use heedful fill MODEL TEXT"
            )
        return cast("AutoregressiveModel", self.model)

    def check_translates(self) -> None:
        """Raise an error that names the right command if this is a language model."""
        architecture = self.config.model.architecture
        if architecture in LANGUAGE_MODEL_ARCHITECTURES:
            kind, verb = ("language", "generate") if architecture == "causal_lm" else ("masked language", "fill")
            raise HeedfulError(
                f"this is a {kind} model, which does not translate", hint=f"use heedful {verb} MODEL TEXT"
            )

    @property
    def model(self) -> "Model":
        """The model, loaded if necessary."""
        weights = self.weights
        return weights.load() if isinstance(weights, LazyModel) else weights

    def read_arrays(self) -> "dict[str, np.ndarray]":
        """The weights by name as NumPy arrays, shared ones once; those of a folder are read without PyTorch."""
        weights = self.weights
        if isinstance(weights, LazyModel):
            return weights.read_arrays()
        return {name: tensor.float().cpu().numpy() for name, tensor in named_parameters(weights).items()}

    def source_ids(self, text: str, language: str = "", terms: Sequence[Term] = ()) -> SentenceIds:
        """Source ids, without END, to translate a text into ``language``.

        A >>tag<< in the text takes precedence over ``language`` (MarianMT). With dependency positions, the
        heads of the words follow a tab. ``terms``, found in the cleaned text, are inserted inline.
        """
        sentence, heads = self.source_parts(text)
        source = clean_sentence(sentence, self.config.unicode_normalization)
        tag = "" if self.tokenizer.source.leading_tag(source) else self.language_tag(language)
        if terms:
            source = insert_inline_terms(source, terms)
        if tag and source:
            source = add_tags(source, tag)
        if heads:
            return encode_sources(self.tokenizer.source, [append_heads(source, heads)])[0]
        return self.tokenizer.source.encode(source)

    def target_ids(self, text: str) -> list[int]:
        """The ids of a target text, without END."""
        return self.tokenizer.target.encode(clean_sentence(text, self.config.unicode_normalization))

    def language_tag(self, language: str = "") -> str:
        """The tag of a target language, empty if none is needed; an error if it is not supported."""
        target_languages, default_language = self.config.target_languages, (self.config.languages or ("", ""))[1]
        if not language:
            candidates = (self.config.generation.target_language, default_language, *target_languages[:1])
            return next((candidate for candidate in candidates if candidate in target_languages), "")
        if language in target_languages:
            return language
        if match := resolve_language(language, target_languages):  # fr for fra, zh-TW for zh-Hant
            return match
        if target_languages or resolve_language(language, [default_language]) is None:
            supported = ", ".join(target_languages) or default_language or "an unnamed language"
            raise HeedfulError(
                f"this model does not translate into {language!r}", hint=f"it translates into {supported}"
            )
        return ""

    def for_language(self, language: str, source: str = "") -> "ModelFolder":
        """A copy whose default direction is from ``source`` into this language."""
        if not language:
            return self
        language, config = self.language_tag(language) or language, self.config
        sources = [origin for origin, target in config.supported_directions if target == language]
        source_languages = sources or (config.languages or ())[:1]
        if source and source_languages and source not in source_languages:
            raise HeedfulError(
                f"this model does not translate {source!r} into {language!r}",
                hint=f"into {language} it translates from {', '.join(source_languages)}",
            )
        source_language = source or "".join(source_languages[:1])
        updates = {
            "languages": (source_language, language) if source_language else None,
            "generation": config.generation.model_copy(update={"target_language": language}),
        }
        return replace(self, config=config.model_copy(update=updates))

    def source_parts(self, text: str) -> tuple[str, str]:
        """Split a text into the sentence and, with dependency positions, the heads of its words."""
        sentence, _, heads = text.partition("\t") if self.config.model.uses_dependency_trees else (text, "", "")
        return sentence, " ".join(heads.split())

    def load_weights(self) -> "ModelFolder":
        """A copy with its weights in memory, independent of the folder."""
        return replace(self, weights=self.model)

    def save(self, folder: Path) -> None:
        """Write the folder atomically file by file, config.json last: without it, a folder is not a model."""
        with wrap_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS_FILE, named_parameters(self.model))
        self.tokenizer.save(folder)
        write_text(folder / "README.md", self.card)
        sync_folder(folder)
        joint_vocabulary = not self.tokenizer.has_target_vocabulary
        tokenizer = self.config.tokenizer.model_copy(update={"joint_vocabulary": joint_vocabulary})
        changes = {"tokenizer": tokenizer, "sentencepiece": self.tokenizer.sentencepiece_digests}
        config = self.config.model_copy(update=changes)
        write_text(folder / "config.json", config.model_dump_json(indent=2) + "\n")
        sync_folder(folder)

    @classmethod
    def load(cls, folder: Path | str, device: "str | torch.device" = "cpu") -> "ModelFolder":
        """Read a model folder with its weights."""
        return cls.open(folder, device).load_weights()

    @classmethod
    def open(cls, folder: Path | str, device: "str | torch.device" = "cpu") -> "ModelFolder":
        """Read a model folder; its weights are loaded at first use."""
        folder = Path(folder)
        config = _read_config(folder)
        tokenizer = PairTokenizer.load(folder)
        if config.tokenizer.joint_vocabulary == tokenizer.has_target_vocabulary:
            found = "two vocabularies" if tokenizer.has_target_vocabulary else "one vocabulary"
            joint = config.tokenizer.joint_vocabulary
            raise HeedfulError(
                f"{folder} has {found}, but its config.json says joint_vocabulary={joint}",
                hint=f"copy the model folder again, with or without {TARGET_TOKENIZER_FILE} as in the original",
            )
        if config.sentencepiece != tokenizer.sentencepiece_digests:
            raise HeedfulError(
                f"source.spm or target.spm of {folder} does not match config.json: the checksum differs",
                hint="copy the model folder again",
            )
        sizes = (tokenizer.source.vocab_size, tokenizer.target.vocab_size)
        if sizes != (config.model.source_vocab_size, config.model.target_vocab_size):
            raise HeedfulError(
                f"the tokenizer of {folder} has {sizes[0]} and {sizes[1]} entries, but config.json says "
                f"{config.model.source_vocab_size} and {config.model.target_vocab_size}",
                hint="copy the model folder again",
            )
        card_path = folder / "README.md"
        card_text = card_path.read_text(encoding="utf-8", errors="replace") if card_path.is_file() else ""
        return cls(config, tokenizer, LazyModel(folder, config.model, device), card_text)


def list_model_files(folder: Path) -> list[Path]:
    """The files that determine translations."""
    optional = [folder / name for name in TOKENIZER_FILES]
    return [folder / "config.json", *filter(Path.is_file, optional), folder / WEIGHTS_FILE]


def _read_config(folder: Path) -> ModelFolderConfig:
    path = folder / "config.json"
    if not folder.exists():
        raise HeedfulError(
            f"no such folder: {folder}", hint="name a model folder that heedful train wrote, before texts and files"
        )
    if not path.is_file():
        hint = "name a folder that heedful train wrote"
        if (folder / "training").is_dir():
            hint = f"its training is incomplete: heedful train --resume {folder}"
        raise HeedfulError(f"{folder} is not a model folder: it has no config.json", hint=hint)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HeedfulError(f"{path} is corrupt: {error}", hint="copy the model folder again") from None
    version = settings.get("format") if isinstance(settings, dict) else None
    if not isinstance(version, int):
        raise HeedfulError(f"{path} is not from a Heedful model: it has no format number")
    if version != FORMAT_VERSION:
        newer = "install a newer Heedful: pip install --upgrade heedful"
        raise HeedfulError(
            f"{folder} has format {version}; this version of Heedful reads format {FORMAT_VERSION}",
            hint=newer if version > FORMAT_VERSION else "train or import the model again",
        )
    return ModelFolderConfig.from_settings(settings)


def named_parameters(model: "Model") -> "dict[str, Tensor]":
    """Trained tensors by name; shared ones once, under their first name."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def model_from_tensors(config: ModelConfig, tensors: "Mapping[str, Tensor]", origin: Path) -> "Model":
    """Build a model with these weights; a shape far too large for them is an error before it uses memory."""
    from heedful.models.factory import new_model

    parameter_count = sum(tensor.numel() for tensor in tensors.values())
    if _max_parameter_count(config) > MAX_SIZE_RATIO * parameter_count:
        problem = f"weights of {origin}: {parameter_count:,} parameters are too few for its config.json"
        raise HeedfulError(problem, hint=WEIGHTS_MISMATCH_HINT)
    model = new_model(config)
    load_parameters(model, tensors, origin)
    return model


def _max_parameter_count(config: ModelConfig) -> int:
    """Upper bound of the parameters of a model, at most about four times too high."""
    rows = config.source_vocab_size + 2 * config.target_vocab_size + 2 * config.max_length * config.has_max_length
    layer = 12 * config.d_model * config.d_model
    if config.architecture not in RECURRENT_ARCHITECTURES:
        layer += 3 * config.d_model * config.d_ff
    if config.encoder_attention == "linformer":
        layer += config.max_length * config.projected_length
    if config.positions in RELATIVE_POSITIONS:
        layer += 4 * config.max_relative_distance * config.d_model
    layers = config.encoder_layers * (config.architecture != "causal_lm")
    layers += config.decoder_layers * (config.architecture != "masked_lm")
    return rows * config.d_model + layers * layer


def load_parameters(model: "Model", tensors: "Mapping[str, Tensor]", origin: Path) -> None:
    """Copy tensors into the parameters; a missing, unknown or misshapen tensor is an error."""
    import torch

    parameters = dict(model.named_parameters())
    if mismatches := sorted(parameters.keys() ^ tensors.keys()):
        problem = f"weights of {origin}: {mismatches[0]!r} is missing or unexpected"
        raise HeedfulError(problem, hint=WEIGHTS_MISMATCH_HINT)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{list(tensors[name].shape)}, not {list(parameter.shape)}"
                raise HeedfulError(f"weights of {origin}: {name!r} has shape {shapes}", hint=WEIGHTS_MISMATCH_HINT)
            parameter.copy_(tensors[name])


def _check_weights_file(path: Path) -> Path:
    if not path.is_file():
        raise HeedfulError(f"no such file: {path}", hint="the model folder is incomplete: copy it again")
    return path


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Read all tensors of a safetensors file."""
    from safetensors.torch import load_file

    try:
        return load_file(_check_weights_file(path))
    except SafetensorError as error:
        raise HeedfulError(f"{path} is corrupt or truncated ({error})", hint="copy the model folder again") from None


def read_arrays(path: Path) -> "dict[str, np.ndarray]":
    """Read all tensors of a safetensors file as float32 arrays, without PyTorch."""
    import numpy as np

    try:
        entries = deserialize(_check_weights_file(path).read_bytes())  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise HeedfulError(f"{path} is corrupt or truncated ({error})", hint="copy the model folder again") from None
    arrays = {}
    for name, entry in entries:
        data, dtype = entry["data"], FLOAT_TYPES.get(entry["dtype"])
        if dtype is None:
            raise HeedfulError(f"{path}: {name!r} has the type {entry['dtype']}, not a float type")
        values = np.frombuffer(data, dtype)
        if entry["dtype"] == "BF16":  # the upper half of a float32, which NumPy lacks
            values = (values.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = values.astype(np.float32).reshape(entry["shape"])
    return arrays


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically, without a copy of the tensors in memory."""
    from safetensors.torch import save_file

    partial = path.with_name(path.name + ".partial")
    with wrap_write_errors(path):
        try:
            with partial.open("wb"):
                mode = partial.stat().st_mode
            save_file({name: tensor.cpu() for name, tensor in tensors.items()}, partial, metadata)
            partial.chmod(mode)  # save_file writes a new file that only the user can read
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        finally:
            with suppress(OSError):  # a read-only disk is already being reported
                partial.unlink(missing_ok=True)
