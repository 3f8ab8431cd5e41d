"""The library in a few calls: train, resume, load. ``import heedful`` offers them directly."""

from collections.abc import Sequence
from pathlib import Path

from heedful.bundle import Bundle
from heedful.choosing import chooser, possible
from heedful.config import Settings, merged
from heedful.corpora.formats import check_inputs, check_room_for_heads, check_texts, languages_of
from heedful.corpora.lines import STANDARD_INPUT
from heedful.corpora.parts import Part, check_shares
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
from heedful.training.starting_model import inputs_to_tune, start_of, with_model_settings
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
    mix: Sequence[Part] = (),
    start_from: str | Path | None = None,
    old_validation: Paths = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> NativeEngine:
    """Train a model on files of sentence pairs, write it to ``folder``, and return it ready to translate.

    ``mix`` are more pairs to learn from, each part with its share of an epoch. ``start_from`` is a model to
    tune: training goes on from its weights, and ``old_validation`` are pairs to see by what it forgets.
    """
    settings = settings or {}
    if start_from is not None:
        settings = merged(settings, {"tuning": {"start_from": str(start_from)}})
    start = start_of(settings)
    if settings.get("model", {}).get("family") in PLAIN:
        raise HeedfulError(
            "this family learns from plain text, not from pairs", hint="--task language or mask"
        )
    training = _paths(pairs)
    trees = settings.get("model", {}).get("positions") in TREE_POSITIONS
    remembered = (Part(old, languages),) if (old := _paths(old_validation)) else ()
    if remembered and start is None:
        raise HeedfulError("only a model that is tuned has old pairs", hint="name the model: --from MODEL")
    languages = languages or languages_of(training)
    given = Inputs(training, _paths(validation), languages, False, trees, tuple(mix), (), remembered)
    inputs = inputs_to_tune(start, given) if start and training else given
    _check_files(inputs)
    return NativeEngine(_trained(inputs, Path(folder), settings, report or Reporter()))


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
    settings = with_encoder_settings(with_lasting_vectors(merged(TASKS[task], with_model_settings(told))))
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


def _check_files(inputs: Inputs) -> None:
    """An error now, not after the corpus was read."""
    check_shares(inputs.corpus)
    parts = (*inputs.corpus, *inputs.examination, *inputs.remembered)
    if not inputs.corpus or sum(STANDARD_INPUT in part.paths for part in parts) > 1:
        check_inputs([STANDARD_INPUT] * 2 if inputs.corpus else ())  # which says what is wrong
    for part in parts:
        check_inputs(part.paths)
        if inputs.trees:
            check_room_for_heads(part.paths)


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
