"""A model folder as a CTranslate2 model: the same weights in the quickest engine's own layout.

Converted files are kept beside the model (MODEL/ctranslate2/) and made again when the weights change. To find
them takes no PyTorch; to make them does.
"""

import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from heedful.bundle import PARTS, Bundle
from heedful.errors import HeedfulError
from heedful.files import locked, write_json
from heedful.interop import expressible
from heedful.model.config import ModelConfig

Precision = Literal["float32", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)
"""How CTranslate2 can store weights."""
Tokens = Literal["ids", "pieces"]
"""What tokens are called in a converted model: by number, for us, or as people read them, for others."""
LAYOUT = 3
"""Grows when the conversion changes, so that old files are made again."""
CHOICES: dict[str, tuple[str | bool, ...]] = {
    "family": ("transformer",),
    "positions": ("sinusoidal", "learned", "relative", "rotary", "none"),  # alibi: only for decoders
    "encoder_attention": ("full",),
    "decoder_attention": ("full",),
    "residuals": (True,),
    "norm": ("post", "pre"),
    "normalization": ("layer", "rms"),
    "activation": ("relu", "gelu", "silu"),
}
"""Settings of a model of which only these values can be expressed."""
EXPRESSED = expressible.WITHOUT_EFFECT | frozenset(
    {
        "width",
        "heads",
        "encoder_layers",
        "decoder_layers",
        "feed_forward_width",
        "longest",
        "relative_distance",
        "gated",
        "scaled_attention",
        "attention_bias",
        "source_vocabulary",
        "target_vocabulary",
        "output_bias",
        "scale_embeddings",
        "tie_output",  # the output layer and the embeddings are written out, shared or not
        "joint",
    }
)
"""Settings of which every value can be expressed."""
LONGEST_TABLE = 100_000


def is_installed() -> bool:
    """Whether the CTranslate2 package is there."""
    return find_spec("ctranslate2") is not None


def require() -> None:
    """An error with the command to install it, if it is missing."""
    if not is_installed():
        raise HeedfulError(
            "CTranslate2 is not installed", hint="pip install 'heedful[ctranslate2]', or use --engine pytorch"
        )


def why_not(config: ModelConfig) -> str:
    """Why a model cannot be expressed; empty if it can. What is not known here is refused."""
    reason = expressible.why_not("CTranslate2", config, CHOICES, EXPRESSED)
    if reason:
        return reason
    if config.positions == "learned" and config.longest > LONGEST_TABLE:
        return f"its table of learned positions has more than {LONGEST_TABLE:,} rows"
    return ""


def check_expressible(config: ModelConfig) -> None:
    """An error with the reason, if a model cannot be expressed."""
    reason = why_not(config)
    if reason:
        raise HeedfulError(f"this cannot be a CTranslate2 model: {reason}", hint="use --engine pytorch")


def converted(folder: Path, bundle: Bundle, precision: Precision) -> Path:
    """The CTranslate2 model of a model folder: the one kept beside it, or a new one if there is none.

    Where the folder cannot be written, the error says so.
    """
    check_expressible(bundle.config.model)
    require()
    kept = folder / "ctranslate2"
    result = kept / precision
    wanted = _wanted(folder, precision)
    if _is_current(result, wanted):
        return result
    kept.mkdir(exist_ok=True)
    with locked(kept, wait=True):  # two processes may start together
        if not _is_current(result, wanted):
            shutil.rmtree(result, ignore_errors=True)
            export(bundle, result, precision)
            write_json(result / "heedful.json", {**wanted, "files": _digests(result)})
    return result


def is_ready(folder: Path, precision: Precision) -> bool:
    """Whether a conversion of these very weights is there."""
    return _is_current(folder / "ctranslate2" / precision, _wanted(folder, precision))


def forget(folder: Path, precision: Precision) -> None:
    """Remove a conversion that turned out to be damaged."""
    shutil.rmtree(folder / "ctranslate2" / precision, ignore_errors=True)


def export(bundle: Bundle, folder: Path, precision: str = "float32", tokens: Tokens = "ids") -> None:
    """Write a CTranslate2 model: model.bin, config.json and both vocabularies.

    One whose tokens are pieces adds the end of a sentence itself; with ids, sources come with their end.
    """
    check_expressible(bundle.config.model)
    require()
    from heedful.interop.ctranslate2_weights import new_specification  # needs PyTorch

    specification = new_specification(bundle, tokens)
    specification.validate()
    specification.optimize(quantization=None if precision == "float32" else precision)
    folder.mkdir(parents=True, exist_ok=True)
    specification.save(str(folder))


def _wanted(folder: Path, precision: Precision) -> dict[str, Any]:
    """What a conversion must have been made of."""
    return {"layout": LAYOUT, "weights": _fingerprint(folder), "precision": precision}


def _is_current(folder: Path, wanted: dict[str, Any]) -> bool:
    try:
        told = json.loads((folder / "heedful.json").read_text(encoding="utf-8"))
        # The library trusts its files, so damaged ones must not come before it.
        return bool(told == {**wanted, "files": _digests(folder)})
    except (OSError, ValueError, RecursionError):  # none, or damaged: made again
        return False


def _digests(folder: Path) -> dict[str, str]:
    """Of every file of a conversion, by its name."""
    return {
        path.name: _digest(path).hex() for path in sorted(folder.iterdir()) if path.name != "heedful.json"
    }


def _fingerprint(folder: Path) -> str:
    """Of what the conversion depends on: the weights, their shape, the vocabularies."""
    digest = hashlib.blake2b(digest_size=16)
    for name in PARTS:
        digest.update(_digest(folder / name))
    return digest.hexdigest()


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
