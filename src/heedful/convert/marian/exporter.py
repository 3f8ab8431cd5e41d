"""Export to a Hugging Face MarianMT folder, for ``transformers`` and CTranslate2's converter.

Import followed by export is the identity. Other models need the layers of MarianMT: those of the paper, with
sinusoidal positions, biases and LayerNorm.
"""

from pathlib import Path

from heedful.convert.marian import importer as marian
from heedful.convert.marian.importer import marian_subwords, marian_token_ids
from heedful.convert.marian.mapping import (
    VocabularyPermutations,
    marian_config,
    marian_generation_config,
    to_marian_weights,
)
from heedful.errors import HeedfulError
from heedful.files import check_not_exists, write_bytes, write_json, write_text
from heedful.model_folder import ModelFolder, named_parameters, write_tensors
from heedful.tokenization.pair_tokenizer import SENTENCEPIECE_FILES
from heedful.tokenization.sentencepiece import SentencePieceTokenizer, build_sentencepiece_model, segmentation_warning

REQUIRED_SETTINGS: dict[str, object] = {
    "architecture": "transformer",
    "positions": "sinusoidal",
    "encoder_attention": "full",
    "decoder_attention": "full",
    "residuals": True,
    "norm_placement": "post",
    "norm": "layernorm",
    "gated_feed_forward": False,
    "scale_attention": True,
    "attention_bias": True,
}
"""Settings of which MarianMT supports only this value."""


def marian_incompatibility(model_folder: ModelFolder) -> str:
    """Why a model cannot be a MarianMT model, or an empty string."""
    config = model_folder.config.model
    for name, value in REQUIRED_SETTINGS.items():
        if getattr(config, name) != value:
            return f"MarianMT needs model.{name} = {value!r}, not {getattr(config, name)!r}"
    warning = segmentation_warning(model_folder.tokenizer.source) or segmentation_warning(model_folder.tokenizer.target)
    return f"with SentencePiece, {warning}" if warning else ""


def export_marian(model_folder: ModelFolder, folder: Path) -> None:
    """Write a new folder."""
    if reason := marian_incompatibility(model_folder):
        raise HeedfulError(
            f"cannot convert to a MarianMT model: {reason}",
            hint="train with that setting, or export --to ctranslate2, argos or onnx",
        )
    check_not_exists(folder)
    folder.mkdir()
    tokenizer, model = model_folder.tokenizer, model_folder.config.model
    sides = (tokenizer.source, tokenizer.target)
    sizes = {side.vocab_size for side in sides}
    pad_id = min(sizes) - 1 if len(sizes) > 1 else None  # <pad> has the same id in both
    vocabularies = [marian_subwords(side.vocabulary, pad_id) for side in sides]
    permutations = VocabularyPermutations(
        *(marian_token_ids(subwords, side.vocabulary) for subwords, side in zip(vocabularies, sides, strict=True))
    )
    pad, end = permutations.target[:2]
    write_json(folder / marian.CONFIG_FILE, marian_config(model, pad, end))
    write_json(folder / marian.GENERATION_FILE, marian_generation_config(model_folder.config.generation, pad, end))
    source_language, target_language = model_folder.config.languages or (None, None)
    tokenizer_config = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source_language,
        "target_lang": target_language,
        "separate_vocabs": not tokenizer.joint,
        "model_max_length": model_folder.config.max_source_length,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / marian.TOKENIZER_FILE, tokenizer_config)
    names = (marian.VOCABULARY_FILE, marian.TARGET_VOCABULARY_FILE)
    for name, subwords in zip(names[: 1 if tokenizer.joint else 2], vocabularies, strict=False):
        write_json(folder / name, {subword: token_id for token_id, subword in enumerate(subwords)})
    for name, side in zip(SENTENCEPIECE_FILES, sides, strict=True):
        if isinstance(side, SentencePieceTokenizer):  # the original model
            write_bytes(folder / name, side.model)
        else:
            write_bytes(folder / name, build_sentencepiece_model(side.vocabulary, remove_extra_whitespace=True))
    parameters = {name: tensor.cpu() for name, tensor in named_parameters(model_folder.model).items()}
    write_tensors(folder / marian.WEIGHTS_FILE, to_marian_weights(parameters, model, permutations), {"format": "pt"})
    write_text(folder / marian.CARD_FILE, model_folder.card)
