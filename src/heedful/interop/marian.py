"""A Hugging Face MarianMT model (Helsinki-NLP/opus-mt and their kin) as one of ours, by our own reading.

The rule to remember: the imported model gives the same numbers. What we cannot express is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from heedful.bundle import Bundle, BundleConfig, model_of
from heedful.interop import marian_files as files
from heedful.interop.marian_settings import (
    LONGEST,
    check_architecture,
    model_settings,
    refuse,
    search_settings,
)
from heedful.interop.marian_tokens import marian_tokenizer, original_pieces, places_of
from heedful.interop.marian_weights import BIAS, Orders, marian_tables, our_weights
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PairTokenizer, TokenizerConfig


def import_marian(path: Path, languages: tuple[str, str] | None = None, *, allow_bin: bool = False) -> Bundle:
    """The model of a folder, or of a zip of one."""
    with files.marian_folder(path) as folder:
        config = files.read_object(folder, files.CONFIG)
        check_architecture(config)
        settings = files.read_object(folder, files.TOKENIZER, needed=False)
        search = search_settings(config, files.read_object(folder, files.GENERATION, needed=False))
        tokenizer = _tokenizer(folder, settings, languages or _languages(settings))
        _check_ids(config, tokenizer)
        model = _model(folder, config, tokenizer, allow_bin=allow_bin)
        card = folder / files.CARD
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    longest = settings.get("model_max_length", LONGEST)  # 1e30 for no limit
    if isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest >= 1:
        refuse("model_max_length", longest, "that is no number of tokens")
    return Bundle(
        BundleConfig(
            languages=tokenizer.languages,
            targets=tokenizer.source.vocabulary.languages,
            model=model.config,
            search=search,
            longest_source=int(min(longest, model.config.longest)),
            normalize="none",  # SentencePiece has its own
        ),
        tokenizer,
        model.eval(),
        _card(path, text),
    )


def _tokenizer(folder: Path, settings: Mapping[str, Any], languages: tuple[str, str] | None) -> PairTokenizer:
    ids = files.read_object(folder, files.VOCABULARY)
    separate = bool(settings.get("separate_vocabs", False))
    name = files.TARGET_VOCABULARY if separate else files.VOCABULARY
    target = files.read_object(folder, name) if separate else ids
    return PairTokenizer(
        marian_tokenizer(ids, files.read_bytes(folder, "source.spm"), files.VOCABULARY),
        marian_tokenizer(target, files.read_bytes(folder, "target.spm"), name),
        TokenizerConfig(kind="unigram", joint=not separate),
        languages,
    )


def _languages(settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """Codes of source and target, if the tokenizer's settings have them.

    >>> _languages({"source_lang": "en_GB", "target_lang": "zh_Hant"})
    ('en', 'zh-Hant')
    """
    codes = [settings.get("source_lang"), settings.get("target_lang")]
    parts = [code.replace("_", "-").split("-") for code in codes if isinstance(code, str) and code]
    if len(parts) != 2:
        return None
    one, other = parts
    if one[0] != other[0]:  # a region says nothing more; a script does
        one, other = ([code[0], *(part for part in code[1:] if len(part) == 4)] for code in parts)
    return "-".join(one), "-".join(other)


def _check_ids(config: Mapping[str, Any], tokenizer: PairTokenizer) -> None:
    """The ids of config.json are those of the vocabulary, and the decoder starts from <pad>."""
    pieces = original_pieces(tokenizer.target.vocabulary)
    wanted = {"pad_token_id": "<pad>", "decoder_start_token_id": "<pad>", "eos_token_id": "</s>"}
    for name, piece in wanted.items():
        identity = config.get(name, pieces.index(piece))
        if identity != pieces.index(piece):
            refuse(name, identity, f"{piece} has the id {pieces.index(piece)}")


def _model(
    folder: Path, config: Mapping[str, Any], tokenizer: PairTokenizer, *, allow_bin: bool
) -> Transformer:
    theirs = files.read_weights(folder, allow_bin=allow_bin)
    share, tie = (
        bool(config.get(name, True)) for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    )
    tables = marian_tables(theirs, share=share, tie=tie)
    settings = ModelConfig.checked(
        {
            **model_settings(config),
            "source_vocabulary": tokenizer.source.size,
            "target_vocabulary": tokenizer.target.size,
            "joint": tokenizer.joint and tables.joint,
            "tie_output": tie,
            "output_bias": BIAS in theirs and bool(theirs[BIAS].any()),
        }
    )
    sides = (tokenizer.source.vocabulary, tokenizer.target.vocabulary)
    orders = Orders(*(places_of(original_pieces(side), side) for side in sides))
    return cast("Transformer", model_of(settings, our_weights(theirs, tables, settings, orders), folder))


def _card(path: Path, text: str) -> str:
    name = path.resolve().name
    return (
        f"Taken over from the Hugging Face MarianMT model {name} by `heedful import`.\n\n{text}".strip()
        + "\n"
    )
