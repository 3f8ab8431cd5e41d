"""The library in a few calls: train, resume, load. ``import heedful`` offers them directly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from heedful.bundle import Bundle
from heedful.choosing import chooser, possible
from heedful.config import Settings, merged
from heedful.corpora.formats import check_inputs, check_room_for_heads, check_texts, languages_of
from heedful.corpora.lines import STANDARD_INPUT
from heedful.corpora.parts import Part, check_shares
from heedful.corpora.reading import ReadingConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.loading import load
from heedful.model.config import PLAIN, TREE_POSITIONS
from heedful.progress import Reporter
from heedful.training.config import TrainingConfig
from heedful.training.devices import available_cores, chosen_device
from heedful.training.follower import follow
from heedful.training.group import Group, group_of_torchrun, under_torchrun
from heedful.training.initial_embeddings import check_vectors, with_lasting_vectors
from heedful.training.initial_encoder import with_encoder_settings
from heedful.training.preparation import Inputs
from heedful.training.run import Together, begun, carry_on, is_begun, is_finished, read_run, taken_up
from heedful.training.starting_model import inputs_to_tune, languages_to_tune, start_of, with_model_settings
from heedful.training.stopping import left_to_the_leader
from heedful.training.tasks import TASKS
from heedful.training.taught import check_links
from heedful.training.terms import check_glossary

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
    reading = ReadingConfig.checked(settings.get("reading", {}))
    languages = languages or languages_to_tune(start, training) or languages_of(training, reading)
    given = Inputs(training, _paths(validation), languages, False, trees, reading, tuple(mix), (), remembered)
    inputs = inputs_to_tune(start, given) if start and training else given
    _check_files(inputs)
    return NativeEngine(_trained(inputs, Path(folder), settings, report or Reporter()))


def train_directions(
    directions: Sequence[Part],
    folder: str | Path,
    *,
    both_ways: bool = False,
    validation: Sequence[Part] = (),
    settings: Settings | None = None,
    report: Reporter | None = None,
) -> NativeEngine:
    """Train one model for several directions: parts whose tag is the target, ``Part(paths, (s, t), (t,))``.

    With ``both_ways`` it learns the reverse of each too. Without ``validation`` pairs are held out of each.
    """
    parts, examined = (_ways(given, both_ways) for given in (directions, validation))
    if not parts:
        raise HeedfulError("no directions to learn", hint="--direction en-fr=pairs.tsv --direction en-de=...")
    reading = ReadingConfig.checked((settings or {}).get("reading", {}))
    inputs = Inputs((), languages=parts[0].languages, reading=reading, parts=parts, examined=examined)
    _check_directions(inputs)
    _check_files(inputs)
    return NativeEngine(_trained(inputs, Path(folder), settings or {}, report or Reporter()))


def _ways(parts: Sequence[Part], both: bool) -> tuple[Part, ...]:
    """The parts, and behind each its reverse if both ways are wanted."""
    turned = [
        replace(part, languages=part.languages[::-1], tags=part.languages[:1], reverse=True)
        for part in parts
        if part.languages
    ]
    return tuple(each for pair in zip(parts, turned, strict=True) for each in pair[: 1 + both])


def _check_directions(inputs: Inputs) -> None:
    """Each is of two languages; only what can be translated is validated."""
    languages = [set(side) for side in zip(*inputs.directions, strict=True)]
    for part in (*inputs.corpus, *inputs.examination):
        source, target = part.direction or ("", "")
        if source == target:
            raise HeedfulError(f"{part.name} is of no two languages", hint="a direction is such as en-de")
    for part in inputs.examination:
        source, target = part.direction or ("", "")
        if source not in languages[0] or target not in languages[1]:
            raise HeedfulError(
                f"{source}-{target} cannot be validated: no direction reads {source} or none writes {target}",
                hint=f"directions: {', '.join(map('-'.join, inputs.directions))}",
            )


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
    check_glossary(settings)
    with _group(settings) as group:
        if group.rank:
            return _followed(group, folder, settings)
        if under_torchrun() and is_begun(folder, inputs, settings, told):
            if is_finished(folder):
                report.say(f"the model in {folder} is finished")
                return Bundle.load(folder)
            with taken_up(folder):
                return carry_on(folder, choose, report, Together(group))
        with begun(folder, inputs, settings, told):
            report.say(f"training a model into the folder {folder}; Ctrl-C stops it without loss")
            if not (inputs.plain or inputs.languages):
                report.say("its languages are not known; --languages en-de (source-target) names them")
            return carry_on(folder, choose, report, Together(group))


@contextmanager
def _group(settings: Settings) -> Iterator[Group]:
    """Those that torchrun has started, or this process alone; a device that is not there is an error now."""
    told = TrainingConfig.checked(settings.get("training", {}))
    with group_of_torchrun(chosen_device(told.device), told.silence) as group:
        yield group


def _followed(group: Group, folder: Path, settings: Settings) -> Bundle:
    """Train with the leader, who writes the model."""
    told = TrainingConfig.checked(settings.get("training", {}))
    torch.set_num_threads(max(1, (told.threads or available_cores()) // group.neighbours))
    with left_to_the_leader():
        follow(group, folder / "training", told.device)
    if not is_finished(folder):
        raise SystemExit(1)  # the leader has said why
    return Bundle.load(folder)


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


def resume(folder: str | Path, *, processes: int = 0, report: Reporter | None = None) -> NativeEngine:
    """Go on with a training that was interrupted, as if it had not been.

    With another number of ``processes`` it goes on at the same pair, and rounds sums otherwise.
    """
    return NativeEngine(resume_any(folder, processes=processes, report=report))


def resume_any(folder: str | Path, *, processes: int = 0, report: Reporter | None = None) -> Bundle:
    """The same for a model of any task."""
    folder = Path(folder)
    with _group(read_run(folder).settings) as group:
        if group.rank:
            return _followed(group, folder, read_run(folder).settings)
        with taken_up(folder) as run:
            choose = chooser(run.settings, run.told)
            return carry_on(folder, choose, report or Reporter(), Together(group, processes))


def _paths(paths: Paths) -> tuple[Path, ...]:
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))
