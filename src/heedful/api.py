"""The library in a few calls: train, resume, load. ``import heedful`` offers them directly."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from heedful.bundle import Bundle
from heedful.choosing import chooser
from heedful.config import Settings
from heedful.corpora.formats import check_inputs, languages_of
from heedful.engines.ctranslate2 import CTranslate2Engine
from heedful.engines.native import NativeEngine
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.interop import ctranslate2
from heedful.interop.ctranslate2 import Precision
from heedful.progress import Reporter
from heedful.training.devices import available_cores, chosen_device
from heedful.training.initial_embeddings import check_vectors, with_lasting_vectors
from heedful.training.preparation import CorpusSize, Inputs
from heedful.training.run import begin, carry_on, forget_unprepared, read_run
from heedful.training.taught import check_links

Paths = str | Path | Sequence[str | Path]
EngineName = Literal["auto", "exact", "pytorch", "ctranslate2", "ctranslate2-int8"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
_SIZES = [CorpusSize(pairs, 100 * pairs, 100) for pairs in (1_000, 1_000_000)]
"""Of a small and a large corpus: the widths that a preset may choose."""


def train(
    pairs: Paths,
    folder: str | Path,
    *,
    validation: Paths = (),
    languages: tuple[str, str] | None = None,
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> NativeEngine:
    """Train a model on files of sentence pairs, write it to ``folder``, and return it ready to translate."""
    settings = with_lasting_vectors(settings or {})
    choose = chooser(settings)
    check_vectors([choose(size)[0] for size in _SIZES])
    check_links(settings)
    chosen_device(settings.get("training", {}).get("device", "auto"))  # an error now, not after the corpus
    training = _paths(pairs)
    inputs = Inputs(training, _paths(validation), languages or languages_of(training))
    check_inputs(inputs.training)
    if inputs.validation:
        check_inputs(inputs.validation)
    folder, report = Path(folder), report or Reporter()
    begin(folder, inputs, settings)
    report.say(f"training a model into the folder {folder}; Ctrl-C stops it without loss")
    try:
        return NativeEngine(carry_on(folder, choose, report))
    except HeedfulError:
        forget_unprepared(folder)
        raise


def resume(folder: str | Path, *, report: Reporter | None = None) -> NativeEngine:
    """Go on with a training that was interrupted, as if it had not been."""
    folder = Path(folder)
    _, settings, _ = read_run(folder)
    return NativeEngine(carry_on(folder, chooser(settings), report or Reporter()))


def load(
    folder: str | Path, *, device: str = "auto", engine: EngineName = "auto", workers: int = 0
) -> SegmentedEngine:
    """The model in ``folder``, ready to translate.

    ``engine`` is "pytorch", "ctranslate2" (the same results, quicker), "ctranslate2-int8" (8-bit weights,
    quicker still, nearly the same results), "auto" (the quickest there is) or "exact" (the quickest with the
    same results). ``workers`` are the cores that CTranslate2 may use; 0 for all.
    """
    if engine not in ENGINES:
        raise HeedfulError(f"there is no engine {engine!r}", hint=f"engines: {', '.join(ENGINES)}")
    place = chosen_device(device)
    bundle = Bundle.load(folder, place)
    precision: Precision = "float32" if engine in ("exact", "ctranslate2") else "int8"
    free = engine in ("auto", "exact")  # to stay with PyTorch
    reason = _why_not_quicker(Path(folder), bundle, place.type, precision) if free else ""
    if engine == "pytorch" or reason:
        native = NativeEngine(bundle)
        native.name += f" ({reason})" if reason else ""
        return native
    if place.type != "cpu":
        raise HeedfulError(f"the engine {engine} runs on the CPU here, not on {place}", hint="--device cpu")
    return _quick_engine(Path(folder), bundle, precision, workers or max(1, available_cores()))


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
    if not ctranslate2.is_ready(folder, precision) and not os.access(folder, os.W_OK):
        return "the model folder cannot be written to"
    return ctranslate2.why_not(bundle.config.model)


def _paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))
