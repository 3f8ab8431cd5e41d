"""Load a model folder with the backend that suits it. PyTorch is imported only if that backend needs it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from heedful.convert.compatibility import ctranslate2_incompatibility
from heedful.convert.ctranslate2.cache import Precision, open_conversion
from heedful.devices import available_cores
from heedful.errors import HeedfulError, check_extras, has_extra
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.models.config import LANGUAGE_MODEL_ARCHITECTURES

if TYPE_CHECKING:
    from heedful.generation.ensemble import EnsembleMean

FolderPaths = str | Path | Sequence[str | Path]

EngineName = Literal["auto", "exact", "pytorch", "ctranslate2", "ctranslate2-int8"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)

GPU_DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")
"""Files of GPU drivers on Linux: NVIDIA (two), Jetson, AMD, WSL."""


def load(
    folder: FolderPaths,
    *,
    device: str = "auto",
    engine: EngineName = "auto",
    workers: int = 0,
    mean: "EnsembleMean" = "probabilities",
) -> Translator:
    """Load the model in ``folder``; several folders make an ensemble.

    ``engine`` is "pytorch", "ctranslate2" (same results, faster), "ctranslate2-int8" (8-bit weights, faster
    still, nearly the same results), "auto" (the fastest available) or "exact" (the fastest with the same
    results). ``workers`` limits the CPU cores of CTranslate2; 0 uses all. An ensemble runs in PyTorch and
    averages ``mean``: the "probabilities" of its models, or their "logs".
    """
    engine = parse_engine_name(engine)
    torch_device = _resolve_device(device)
    if not isinstance(folder, (str, Path)):
        if len(folder) != 1:
            return _load_ensemble(folder, torch_device, engine, mean)
        folder = folder[0]
    folder = Path(folder)
    model_folder = ModelFolder.open(folder, torch_device)
    model_folder.check_translates()
    reason = ""
    if engine in ("auto", "exact"):
        on_gpu = f"the model is on {torch_device}" if torch_device != "cpu" else ""
        reason = on_gpu or ctranslate2_incompatibility(model_folder.config.model)
    if engine == "pytorch" or reason:
        check_extras(f"this model ({reason})" if reason else "the engine pytorch", "train")
        translator = Translator.with_pytorch(model_folder)
        translator.name += f" ({reason})" if reason else ""
        return translator
    if torch_device != "cpu":
        raise HeedfulError(f"the engine {engine} does not run on {torch_device}", hint="use --device cpu")
    precision: Precision = "float32" if engine in ("exact", "ctranslate2") else "int8"
    workers = workers or max(1, available_cores())
    with open_conversion(folder, model_folder, precision) as (conversion, problem):
        backend = CTranslate2Backend(model_folder, conversion, precision=precision, workers=workers)
    return Translator(backend, f"{backend.name} (not cached: {problem})" if problem else "")


def parse_engine_name(name: str) -> EngineName:
    """The name of an engine, checked."""
    if name not in ENGINES:
        raise HeedfulError(f"unknown engine {name!r}", hint=f"engines: {', '.join(ENGINES)}")
    return name


def _load_ensemble(
    folders: Sequence[str | Path], torch_device: str, engine: EngineName, mean: "EnsembleMean"
) -> Translator:
    if not folders:
        raise HeedfulError("no model to translate with", hint="name one or more model folders")
    if engine not in ("auto", "exact", "pytorch"):
        raise HeedfulError(
            f"the engine {engine} does not support ensembles", hint="omit --engine, or use --engine pytorch"
        )
    check_extras("an ensemble", "train")
    from heedful.inference.pytorch_backend import EnsembleBackend

    model_folders = [ModelFolder.open(folder, torch_device) for folder in folders]
    for model_folder in model_folders:
        model_folder.check_translates()
    return Translator(EnsembleBackend(model_folders, mean, folders))


def is_language_model(model: Path) -> bool:
    """Whether a model folder holds a language model."""
    return ModelFolder.open(model).config.model.architecture in LANGUAGE_MODEL_ARCHITECTURES


def load_language_model(folder: str | Path, device: str = "auto") -> ModelFolder | None:
    """The model in ``folder`` with its weights if it is a language model; None if it translates."""
    model_folder = ModelFolder.open(folder, _resolve_device(device))
    if model_folder.config.model.architecture not in LANGUAGE_MODEL_ARCHITECTURES:
        return None
    check_extras("a language model", "train")
    return model_folder.load_weights()


def _resolve_device(device: str) -> str:
    """The device to compute on; importing PyTorch takes a second, so only where a GPU is possible."""
    # Only Linux shows without PyTorch that there is no GPU.
    has_no_gpu = sys.platform == "linux" and not any(Path(path).exists() for path in GPU_DRIVERS)
    if device == "cpu" or (device == "auto" and (has_no_gpu or not has_extra("train"))):
        return "cpu"
    check_extras(f"--device {device}", "train")
    from heedful.devices import select_device

    torch_device = select_device(device)
    return "cpu" if torch_device.type == "cpu" else str(torch_device)
