"""The library in a few calls: train, resume, load. ``import heedful`` offers them directly."""

from collections.abc import Sequence
from pathlib import Path

from heedful.bundle import Bundle
from heedful.choosing import chooser, possible
from heedful.config import Settings, merged
from heedful.corpora.formats import check_inputs, check_room_for_heads, check_texts, languages_of
from heedful.corpora.reading import ReadingConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.loading import load
from heedful.model.config import PLAIN, TREE_POSITIONS
from heedful.progress import Reporter
from heedful.training.devices import chosen_device
from heedful.training.initial_embeddings import check_vectors, with_lasting_vectors
from heedful.training.initial_encoder import with_encoder_settings
from heedful.training.preparation import Inputs
from heedful.training.run import begin, carry_on, forget_unlearned, read_run
from heedful.training.tasks import TASKS
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
    if (settings or {}).get("model", {}).get("family") in PLAIN:
        raise HeedfulError(
            "this family learns from plain text, not from pairs", hint="--task language or mask"
        )
    training = _paths(pairs)
    trees = (settings or {}).get("model", {}).get("positions") in TREE_POSITIONS
    reading = ReadingConfig.checked((settings or {}).get("reading", {}))
    known = languages or languages_of(training, reading)
    inputs = Inputs(training, _paths(validation), known, trees=trees, reading=reading)
    for paths in (inputs.training, inputs.validation):
        if paths or paths is inputs.training:
            check_inputs(paths)
    if trees:
        check_room_for_heads(inputs.training)
        check_room_for_heads(inputs.validation)
    return NativeEngine(_trained(inputs, Path(folder), settings or {}, report or Reporter()))


def train_on_texts(
    texts: Paths,
    folder: str | Path,
    *,
    task: str,
    validation: Paths = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> Bundle:
    """Train a model of plain text, ``task`` "language" or "mask", and write it to ``folder``."""
    inputs = Inputs(_paths(texts), _paths(validation), plain=True)
    check_texts(inputs.training)
    if inputs.validation:
        check_texts(inputs.validation)
    return _trained(inputs, Path(folder), settings or {}, report or Reporter(), task)


def _trained(
    inputs: Inputs, folder: Path, told: Settings, report: Reporter, task: str = "translate"
) -> Bundle:
    settings = with_encoder_settings(with_lasting_vectors(merged(TASKS[task], told)))
    choose = chooser(settings, told)
    check_vectors(possible(settings))
    check_links(settings)
    chosen_device(settings.get("training", {}).get("device", "auto"))  # an error now, not after the corpus
    begin(folder, inputs, settings, told)
    report.say(f"training a model into the folder {folder}; Ctrl-C stops it without loss")
    if not (inputs.plain or inputs.languages):
        report.say("its languages are not known; --languages en-de (source-target) names them")
    try:
        return carry_on(folder, choose, report)
    except HeedfulError:
        forget_unlearned(folder)
        raise


def resume(folder: str | Path, *, report: Reporter | None = None) -> NativeEngine:
    """Go on with a training that was interrupted, as if it had not been."""
    return NativeEngine(resume_any(folder, report=report))


def resume_any(folder: str | Path, *, report: Reporter | None = None) -> Bundle:
    """The same for a model of any task."""
    folder = Path(folder)
    run = read_run(folder)
    return carry_on(folder, chooser(run.settings, run.told), report or Reporter())


def _paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))
