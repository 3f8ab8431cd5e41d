"""A model folder ready to translate, in the engine that suits. PyTorch is imported only if that needs it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from heedful.bundle import Bundle
from heedful.engines.ctranslate2 import CTranslate2Engine
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.interop import ctranslate2
from heedful.interop.ctranslate2 import Precision
from heedful.model.config import PLAIN
from heedful.training.devices import available_cores

if TYPE_CHECKING:
    from heedful.decoding.ensemble import Mean

Folders = str | Path | Sequence[str | Path]
EngineName = Literal["auto", "exact", "pytorch", "ctranslate2", "ctranslate2-int8"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
GPU_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")
"""Signs of a driver on Linux: NVIDIA's (two), its small boards', AMD's, and that of Windows underneath."""


def load(
    folder: Folders,
    *,
    device: str = "auto",
    engine: EngineName = "auto",
    workers: int = 0,
    mean: "Mean" = "probabilities",
) -> SegmentedEngine:
    """The model in ``folder``, ready to translate; several folders make an ensemble.

    ``engine`` is "pytorch", "ctranslate2" (the same results, quicker), "ctranslate2-int8" (8-bit weights,
    quicker still, nearly the same results), "auto" (the quickest there is) or "exact" (the quickest with the
    same results). ``workers`` are the cores that CTranslate2 may use; 0 for all. An ensemble runs in PyTorch
    and averages ``mean``: the "probabilities" of its members, or their "logs".
    """
    if engine not in ENGINES:
        raise HeedfulError(f"there is no engine {engine!r}", hint=f"engines: {', '.join(ENGINES)}")
    place = _place(device)
    if not isinstance(folder, (str, Path)):
        if len(folder) != 1:
            return _together(folder, place, engine, mean)
        folder = folder[0]
    bundle = Bundle.open(folder, place)
    bundle.check_translates()
    precision: Precision = "float32" if engine in ("exact", "ctranslate2") else "int8"
    free = engine in ("auto", "exact")  # to stay with PyTorch
    reason = _why_not_quicker(Path(folder), bundle, place, precision) if free else ""
    if engine == "pytorch" or reason:
        from heedful.engines.native import NativeEngine

        native = NativeEngine(bundle)
        native.name += f" ({reason})" if reason else ""
        return native
    if place != "cpu":
        raise HeedfulError(f"the engine {engine} runs on the CPU here, not on {place}", hint="--device cpu")
    return _quick_engine(Path(folder), bundle, precision, workers or max(1, available_cores()))


def _together(folders: Sequence[str | Path], place: str, engine: EngineName, mean: "Mean") -> SegmentedEngine:
    """An ensemble: CTranslate2 cannot average what several models predict."""
    if not folders:
        raise HeedfulError("no model to translate with", hint="name a model folder, or several")
    if engine not in ("auto", "exact", "pytorch"):
        raise HeedfulError(
            f"the engine {engine} cannot run several models together", hint="leave out --engine"
        )
    from heedful.engines.ensemble import EnsembleEngine

    bundles = [Bundle.open(folder, place) for folder in folders]
    for bundle in bundles:
        bundle.check_translates()
    found = EnsembleEngine(bundles, mean, folders)
    found.name += "" if engine == "pytorch" else " (CTranslate2 cannot average models)"
    return found


def load_plain(folder: str | Path, device: str = "auto") -> Bundle | None:
    """The model in ``folder`` if it is one of plain text, which does not translate; else None."""
    bundle = Bundle.open(folder, _place(device))
    return bundle.read() if bundle.config.model.family in PLAIN else None


def _place(device: str) -> str:
    """The device to compute on. PyTorch, whose import takes a second, is asked only if it may be another."""
    if device == "cpu" or (device == "auto" and _is_only_cpu()):
        return "cpu"
    from heedful.training.devices import chosen_device

    found = chosen_device(device)
    return "cpu" if found.type == "cpu" else str(found)


def _is_only_cpu() -> bool:
    """Whether this is surely a computer without a GPU; elsewhere than on Linux nobody can tell so quickly."""
    return sys.platform == "linux" and not any(Path(path).exists() for path in GPU_DRIVERS)


def _quick_engine(folder: Path, bundle: Bundle, precision: Precision, workers: int) -> CTranslate2Engine:
    """The CTranslate2 engine; a conversion that cannot be read (a power cut, a full disk) is made again."""
    converted = ctranslate2.converted(folder, bundle, precision)
    try:
        return CTranslate2Engine(bundle, converted, precision=precision, workers=workers)
    except RuntimeError:
        ctranslate2.forget(folder, precision)
    converted = ctranslate2.converted(folder, bundle, precision)
    return CTranslate2Engine(bundle, converted, precision=precision, workers=workers)


def _why_not_quicker(folder: Path, bundle: Bundle, device: str, precision: Precision) -> str:
    """Why it stays with PyTorch; empty if it need not."""
    if device != "cpu":
        return f"the model is on {device}"
    if not ctranslate2.is_installed():
        return "CTranslate2 is not installed"
    if not os.access(folder, os.W_OK) and not ctranslate2.is_ready(folder, precision):
        return "the model folder cannot be written to"
    return ctranslate2.why_not(bundle.config.model)
