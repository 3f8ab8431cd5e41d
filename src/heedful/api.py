"""The library in a few calls: train, resume, load. ``import heedful`` offers them directly."""

from collections.abc import Sequence
from pathlib import Path

from heedful.choosing import chooser, possible
from heedful.config import Settings
from heedful.corpora.formats import check_inputs, languages_of
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.loading import load
from heedful.progress import Reporter
from heedful.training.devices import chosen_device
from heedful.training.initial_embeddings import check_vectors, with_lasting_vectors
from heedful.training.preparation import Inputs
from heedful.training.run import begin, carry_on, forget_unprepared, read_run
from heedful.training.taught import check_links

__all__ = ["load", "resume", "train"]

Paths = str | Path | Sequence[str | Path]


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
    check_vectors(possible(settings))
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


def _paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))
