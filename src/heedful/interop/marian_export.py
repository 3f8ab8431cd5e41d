"""One of our models as a Hugging Face MarianMT folder, for ``transformers`` and CTranslate2's converter.

For a model that came from there this is the way back, to the bit. Our own need what MarianMT models are: the
paper's layers, with sines, biases and LayerNorm.
"""

from pathlib import Path

from heedful.bundle import Bundle, named_parameters, write_tensors
from heedful.errors import HeedfulError
from heedful.files import built_aside, write_bytes, write_json, write_text
from heedful.interop import marian_files as files
from heedful.interop.marian_settings import generation_config, marian_config
from heedful.interop.marian_tokens import original_pieces, places_of
from heedful.interop.marian_weights import Orders, marian_weights
from heedful.interop.sentencepiece_model import cut_otherwise, sentencepiece_model
from heedful.text.sentencepieces import SentencePieceTokenizer
from heedful.text.tokenizer import MODEL_FILES, Tokenizer

CHOICES: dict[str, object] = {
    "family": "transformer",
    "positions": "sinusoidal",
    "encoder_attention": "full",
    "decoder_attention": "full",
    "residuals": True,
    "norm": "post",
    "normalization": "layer",
    "gated": False,
    "scaled_attention": True,
    "attention_bias": True,
}
"""Settings of a model of which MarianMT knows this value alone."""


def why_not(bundle: Bundle) -> str:
    """Why a model cannot be a MarianMT model; empty if it can."""
    config = bundle.config.model
    for name, value in CHOICES.items():
        if getattr(config, name) != value:
            return f"MarianMT models have model.{name} = {value!r}, and this has {getattr(config, name)!r}"
    otherwise = cut_otherwise(bundle.tokenizer.source) or cut_otherwise(bundle.tokenizer.target)
    return f"by SentencePiece {otherwise}" if otherwise else ""


def export_marian(bundle: Bundle, folder: Path) -> None:
    """Write the folder, which appears whole or not at all."""
    reason = why_not(bundle)
    if reason:
        raise HeedfulError(
            f"this cannot be a MarianMT model: {reason}",
            hint="train it with that setting, or export --to ctranslate2, argos or onnx",
        )
    with built_aside(folder) as aside:
        aside.mkdir()
        _write(bundle, aside)


def _write(bundle: Bundle, folder: Path) -> None:
    tokenizer, model = bundle.tokenizer, bundle.config.model
    pieces = _pieces(bundle)
    source, target = (
        places_of(each, side.vocabulary)
        for each, side in zip(pieces, (tokenizer.source, tokenizer.target), strict=True)
    )
    pad, end = target[0], target[1]
    write_json(folder / files.CONFIG, marian_config(model, pad, end))
    write_json(folder / files.GENERATION, generation_config(bundle.config.search, pad, end))
    write_json(folder / files.TOKENIZER, _tokenizer_config(bundle))
    names = (files.VOCABULARY, files.TARGET_VOCABULARY)
    for name, each in zip(names, pieces[: 2 if _is_separate(bundle) else 1], strict=False):
        write_json(folder / name, {piece: place for place, piece in enumerate(each)})
    for name, side in zip(MODEL_FILES, (tokenizer.source, tokenizer.target), strict=True):
        write_bytes(folder / name, _cutter(side))
    parameters = {name: tensor.cpu() for name, tensor in named_parameters(bundle.predictor).items()}
    weights = marian_weights(parameters, model, Orders(source, target))
    write_tensors(folder / files.WEIGHTS, weights, {"format": "pt"})
    write_text(folder / files.CARD, bundle.card)


def _is_separate(bundle: Bundle) -> bool:
    return not bundle.tokenizer.joint


def _pieces(bundle: Bundle) -> tuple[list[str], list[str]]:
    """Both vocabularies in Marian's order. One id stands for padding on both sides, so it must be in both."""
    tokenizer = bundle.tokenizer
    sizes = {tokenizer.source.size, tokenizer.target.size}
    pad = min(sizes) - 1 if len(sizes) > 1 else None
    return (
        original_pieces(tokenizer.source.vocabulary, pad),
        original_pieces(tokenizer.target.vocabulary, pad),
    )


def _cutter(side: Tokenizer) -> bytes:
    """The SentencePiece model: as it came, or made of our vocabulary."""
    if isinstance(side, SentencePieceTokenizer):
        return side.model
    return sentencepiece_model(side.vocabulary, tidy=True)


def _tokenizer_config(bundle: Bundle) -> dict[str, object]:
    source, target = bundle.config.languages or (None, None)
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source,
        "target_lang": target,
        "separate_vocabs": _is_separate(bundle),
        "model_max_length": bundle.config.longest_source,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
    }
