"""Import a Hugging Face MarianMT model (Helsinki-NLP/opus-mt) from a folder or a zip of one.

The imported model gives the same numbers; unsupported settings are errors. Files are untrusted: a zip yields
only files of known names and bounded sizes, and pickled weights need ``allow_bin`` and a reader that runs no
code.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import torch
from torch import Tensor

from heedful.convert.marian.mapping import (
    DEFAULT_MAX_LENGTH,
    OUTPUT_BIAS,
    VocabularyPermutations,
    check_is_marian,
    generation_settings,
    model_settings,
    reject_setting,
    select_embeddings,
    to_heedful_weights,
)
from heedful.errors import HeedfulError
from heedful.files import ZIP_ERRORS
from heedful.model_folder import ModelFolder, ModelFolderConfig, model_from_tensors, read_tensors
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.sentencepiece import SentencePieceTokenizer, SentencePieceVocabulary
from heedful.tokenization.special_tokens import SPECIALS
from heedful.tokenization.tokenizer import TokenizerConfig
from heedful.tokenization.vocabulary import Vocabulary

CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE = ("config.json", "generation_config.json", "tokenizer_config.json")

WEIGHTS_FILE, BIN_WEIGHTS_FILE, CARD_FILE = "model.safetensors", "pytorch_model.bin", "README.md"

VOCABULARY_FILE, TARGET_VOCABULARY_FILE = "vocab.json", "target_vocab.json"

MEGABYTE = 1 << 20

MAX_FILE_SIZES = {
    **dict.fromkeys((CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE, CARD_FILE), 4 * MEGABYTE),
    **dict.fromkeys((VOCABULARY_FILE, TARGET_VOCABULARY_FILE, "source.spm", "target.spm"), 64 * MEGABYTE),
    **dict.fromkeys((WEIGHTS_FILE, BIN_WEIGHTS_FILE), 16 << 30),
}
"""The files that are read, with their maximum size in bytes."""

REQUIRED_IDS = {"pad_token_id": "<pad>", "decoder_start_token_id": "<pad>", "eos_token_id": "</s>"}
"""Special ids of config.json that must match the vocabulary; decoding starts with <pad>."""

DOWNLOAD_HINT = "download the complete model again"


@contextmanager
def open_marian_folder(path: Path) -> Iterator[Path]:
    """Yield the folder of the model; a zip is extracted to a temporary folder."""
    if path.is_dir():
        yield path
        return
    if not path.exists():
        raise HeedfulError(
            f"no such file or folder: {path}", hint="name the folder of a MarianMT model, or a zip of it"
        )
    with tempfile.TemporaryDirectory(prefix="heedful-") as temporary:
        _extract_zip(path, Path(temporary))
        yield Path(temporary)


def _extract_zip(path: Path, folder: Path) -> None:
    """Extract only the known files beside config.json."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {PurePosixPath(entry.filename): entry for entry in archive.infolist()}
            model_folders = [name.parent for name in entries if name.name == CONFIG_FILE]
            if not model_folders:
                raise HeedfulError(f"{path} has no {CONFIG_FILE}", hint="is it a zip of a MarianMT model?")
            model_folder = min(model_folders, key=lambda parent: len(parent.parts))
            for name, max_bytes in MAX_FILE_SIZES.items():
                if entry := entries.get(model_folder / name):
                    if entry.file_size > max_bytes:  # zipfile never extracts more than this
                        raise HeedfulError(
                            f"{entry.filename} has {entry.file_size:,} bytes, more than the limit of {max_bytes:,}"
                        )
                    with archive.open(entry) as source, (folder / name).open("wb") as file:
                        shutil.copyfileobj(source, file)
    except ZIP_ERRORS as error:
        raise HeedfulError(f"{path} is not a readable zip file: {error}", hint=DOWNLOAD_HINT) from None


def read_bytes(folder: Path, name: str) -> bytes:
    """Read a required file."""
    path = folder / name
    if not path.is_file():
        raise HeedfulError(f"{name} is missing", hint=DOWNLOAD_HINT)
    if path.stat().st_size > MAX_FILE_SIZES[name]:
        raise HeedfulError(f"{name} is larger than the limit of {MAX_FILE_SIZES[name]:,} bytes", hint=DOWNLOAD_HINT)
    return path.read_bytes()


def read_json_object(folder: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object; an optional file that is missing gives an empty one."""
    if not required and not (folder / name).is_file():
        return {}
    try:
        value = json.loads(read_bytes(folder, name).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{name} is not valid JSON: {error}", hint=DOWNLOAD_HINT) from None
    if not isinstance(value, dict):
        raise HeedfulError(f"{name} is not a JSON object", hint=DOWNLOAD_HINT)
    return value


def read_weights(folder: Path, *, allow_bin: bool) -> dict[str, Tensor]:
    """Read all tensors, preferably from safetensors."""
    if (folder / WEIGHTS_FILE).is_file():
        return read_tensors(folder / WEIGHTS_FILE)
    if not (folder / BIN_WEIGHTS_FILE).is_file():
        split = (folder / f"{WEIGHTS_FILE}.index.json").is_file()
        problem = "weights in several files are not supported" if split else f"{WEIGHTS_FILE} is missing"
        raise HeedfulError(problem, hint=DOWNLOAD_HINT)
    if not allow_bin:
        raise HeedfulError(
            f"the weights are in {BIN_WEIGHTS_FILE}, a pickle format that can contain code",
            hint="use model.safetensors if there is one; --allow-bin reads only the tensors and runs no code",
        )
    try:
        tensors = torch.load(folder / BIN_WEIGHTS_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt or hostile file can raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeedfulError(f"cannot read tensors from {BIN_WEIGHTS_FILE}: {reason}", hint=DOWNLOAD_HINT) from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise HeedfulError(f"{BIN_WEIGHTS_FILE} does not contain named tensors", hint=DOWNLOAD_HINT)
    return tensors


# ---- Vocabularies
#
# Marian has ``</s>`` 0, ``<unk>`` 1 and usually ``<pad>`` last; Heedful starts with ``<pad>``, ``</s>``,
# ``<unk>`` and the language tags. All other subwords keep their order.


def marian_tokenizer(ids: Mapping[str, Any], spm: bytes, name: str) -> SentencePieceTokenizer:
    """Build the tokenizer of one side from vocabulary file ``name`` and its SentencePiece model."""
    try:
        return SentencePieceTokenizer.from_ids(ids, spm)
    except HeedfulError as error:
        raise HeedfulError(f"{name}: {error.problem}", hint=error.hint or DOWNLOAD_HINT) from None


def marian_subwords(vocabulary: Vocabulary, pad_id: int | None = None) -> list[str]:
    """Subwords in Marian's order: the original one, or </s>, <unk>, others, with <pad> at ``pad_id``."""
    if isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary.original_tokens()
    padding, end, unknown = SPECIALS
    others = [end, unknown, *vocabulary.tokens[len(SPECIALS) :]]
    pad_position = len(others) if pad_id is None else pad_id
    return [*others[:pad_position], padding, *others[pad_position:]]


def marian_token_ids(subwords: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """Marian's id of each of our ids."""
    ids_by_subword = {subword: token_id for token_id, subword in enumerate(subwords)}
    return [ids_by_subword[subword] for subword in vocabulary.tokens]


# ---- The model folder


def import_marian(path: Path, languages: tuple[str, str] | None = None, *, allow_bin: bool = False) -> ModelFolder:
    """Import the model of a folder or zip."""
    with open_marian_folder(path) as folder:
        config = read_json_object(folder, CONFIG_FILE)
        check_is_marian(config)
        settings = read_json_object(folder, TOKENIZER_FILE, required=False)
        generation = generation_settings(config, read_json_object(folder, GENERATION_FILE, required=False))
        tokenizer = _load_tokenizer(folder, settings)
        subwords = marian_subwords(tokenizer.target.vocabulary)
        for name, subword in REQUIRED_IDS.items():
            token_id = config.get(name, subwords.index(subword))
            if token_id != subwords.index(subword):
                reject_setting(name, token_id, f"the vocabulary has {subword} at {subwords.index(subword)}")
        model = _load_model(folder, config, tokenizer, allow_bin=allow_bin)
        card_path = folder / CARD_FILE
        card_text = card_path.read_text(encoding="utf-8", errors="replace") if card_path.is_file() else ""
    max_length = settings.get("model_max_length", DEFAULT_MAX_LENGTH)  # 1e30 for no limit
    if isinstance(max_length, bool) or not isinstance(max_length, (int, float)) or not max_length >= 1:
        reject_setting("model_max_length", max_length, "it must be a number of tokens")
    return ModelFolder(
        ModelFolderConfig(
            languages=languages or _parse_languages(settings),
            target_languages=tokenizer.source.vocabulary.languages,
            tokenizer=TokenizerConfig(model_type="unigram", joint_vocabulary=not tokenizer.has_target_vocabulary),
            sentencepiece=tokenizer.sentencepiece_digests,
            model=model.config,
            generation=generation,
            max_source_length=int(min(max_length, model.config.max_length)),
            unicode_normalization="none",  # SentencePiece normalizes
        ),
        tokenizer,
        model.eval(),
        f"Converted from the Hugging Face MarianMT model {path.resolve().name} by `heedful import`.\n\n"
        f"{card_text}".strip()
        + "\n",
    )


def _load_tokenizer(folder: Path, settings: Mapping[str, Any]) -> PairTokenizer:
    source_ids = read_json_object(folder, VOCABULARY_FILE)
    separate = bool(settings.get("separate_vocabs", False))
    name = TARGET_VOCABULARY_FILE if separate else VOCABULARY_FILE
    target_ids = read_json_object(folder, name) if separate else source_ids
    return PairTokenizer(
        marian_tokenizer(source_ids, read_bytes(folder, "source.spm"), VOCABULARY_FILE),
        marian_tokenizer(target_ids, read_bytes(folder, "target.spm"), name),
    )


def _parse_languages(settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """Language codes of source and target, if the tokenizer settings have them.

    >>> _parse_languages({"source_lang": "en_GB", "target_lang": "zh_Hant"})
    ('en', 'zh-Hant')
    """
    codes = [settings.get("source_lang"), settings.get("target_lang")]
    parts = [code.replace("_", "-").split("-") for code in codes if isinstance(code, str) and code]
    if len(parts) != 2:
        return None
    source, target = parts
    if source[0] != target[0]:  # drop regions, keep scripts
        source, target = ([code[0], *(part for part in code[1:] if len(part) == 4)] for code in parts)
    return "-".join(source), "-".join(target)


def _load_model(folder: Path, config: Mapping[str, Any], tokenizer: PairTokenizer, *, allow_bin: bool) -> Transformer:
    marian_tensors = read_weights(folder, allow_bin=allow_bin)
    share_embeddings, tie_embeddings = (
        bool(config.get(name, True)) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    )
    embeddings = select_embeddings(marian_tensors, share_embeddings=share_embeddings, tie_embeddings=tie_embeddings)
    settings = ModelConfig.from_settings(
        {
            **model_settings(config),
            "source_vocab_size": tokenizer.source.vocab_size,
            "target_vocab_size": tokenizer.target.vocab_size,
            "share_embeddings": tokenizer.joint and embeddings.is_shared,
            "tie_output_embeddings": tie_embeddings,
            "output_bias": OUTPUT_BIAS in marian_tensors and bool(marian_tensors[OUTPUT_BIAS].any()),
        }
    )
    vocabularies = (tokenizer.source.vocabulary, tokenizer.target.vocabulary)
    permutations = VocabularyPermutations(
        *(marian_token_ids(marian_subwords(vocabulary), vocabulary) for vocabulary in vocabularies)
    )
    tensors = to_heedful_weights(marian_tensors, embeddings, settings, permutations)
    return cast("Transformer", model_from_tensors(settings, tensors, folder))
