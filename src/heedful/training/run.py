"""A whole training: from the user's files to a model folder, in one sitting or several.

MODEL/                 the bundle, once training has ended
MODEL/training/        run.json, data/, arithmetic.json, metrics.jsonl, checkpoints/, snapshots/
"""

import errno
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.bundle import WEIGHTS, Bundle, BundleConfig, load_parameters, named_parameters, read_tensors
from heedful.config import Settings
from heedful.corpora.filters import CleaningConfig, cleaned_pairs
from heedful.corpora.lines import STANDARD_INPUT
from heedful.corpora.parts import Direction, Part
from heedful.corpora.reading import ReadingConfig
from heedful.errors import DiskError, HeedfulError, UnfinishedError
from heedful.files import disk_error, locked, read_json, write_json, writing
from heedful.model.config import PLAIN, TREE_POSITIONS
from heedful.model.family import new_model
from heedful.model.predictor import Predictor
from heedful.progress import Reporter, counted
from heedful.text.sentences import split_sentences
from heedful.text.tags import without_tags
from heedful.training.arithmetic import arithmetic_of
from heedful.training.card import model_card
from heedful.training.checkpoint import averaged_weights, checkpoints, whole
from heedful.training.config import TrainingConfig
from heedful.training.corpus import first_shard
from heedful.training.devices import available_cores, chosen_device
from heedful.training.group import Group
from heedful.training.initial_embeddings import checking_vectors, start_from_vectors
from heedful.training.initial_encoder import start_from_encoder, starting_tokenizer
from heedful.training.loop import Run, start_run, train_to_end
from heedful.training.preparation import PREPARED, Choice, Inputs, Prepared, prepare
from heedful.training.preparation_config import PreparationConfig
from heedful.training.starting_model import start_from_model
from heedful.training.stopping import stopping_at_once
from heedful.training.taught import keep_links
from heedful.training.tuned import REPORT, finish_tuning
from heedful.training.validation import direction_lines, validate, validate_each

FINAL_BLEU_SENTENCES = 1000
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
NO_TIME_LEFT = 0.8
"""Share of the time after which a training that has not begun had better not begin."""
MOST_THREADS = 10_000
"""A run.json that says more is damaged."""
SHORTEST_LONGEST = 24
"""Tokens up to which a sentence is never split, even if the corpus has only shorter ones."""
SEVERAL_SENTENCES = 0.05
"""Share of sources with more than one sentence from which a model is taken to know what to do with them."""


class Begun(NamedTuple):
    """What was written down at the start."""

    inputs: Inputs
    settings: Settings
    told: Settings
    threads: int


class Together(NamedTuple):
    """Who trains in this sitting."""

    group: Group
    """Processes that are there already, by torchrun; or this one alone."""
    processes: int = 0
    """Asked for on this machine, whatever the recipe says; 0: as it says."""


@contextmanager
def begun(folder: Path, inputs: Inputs, settings: Settings, told: Settings) -> Iterator[None]:
    """Write down what is to be done, so that it can be taken up again after anything, and keep others out.

    ``told`` are the settings that the user gave; others came with the task. A run that fails before it has
    learned anything is removed, so that the corrected command can be given; for a full disk it can go on.
    """
    _check_new(folder)  # before the folder is touched
    with locked(folder / "training"):
        _check_new(folder)  # another start may have come and gone since
        _clear(folder / "training", keeps_data=_is_same(folder, inputs, settings, told))
        try:
            _write_down(folder, inputs, settings, told)
            yield
        except UnfinishedError:
            raise
        except HeedfulError:
            _forget_unlearned(folder)
            raise


def _check_new(folder: Path) -> None:
    """An error if something is there that a start must not touch."""
    ours = ("training", "distillation")  # the second is where `heedful distill` keeps what a teacher wrote
    try:
        others = [path for path in folder.iterdir() if path.name not in ours]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        file = next((path for path in (folder, *folder.parents) if path.is_file()), folder)
        raise HeedfulError(f"{file} is a file", hint="name a folder (-o)") from None
    learned = [path for path in checkpoints(folder / "training" / "checkpoints") if int(path.name)]
    if others or learned:
        raise HeedfulError(f"{folder} exists already", hint=_instead(folder, bool(learned)))


def _clear(training: Path, *, keeps_data: bool) -> None:
    """What a start has left that learned nothing; but for the lock, which is ours.

    What the same command has prepared of the corpus is kept; whether files have changed since is looked into.
    """
    (training / "data" / PREPARED).unlink(missing_ok=True)
    for path in training.iterdir():
        if path.is_dir() and not (keeps_data and path.name == "data"):
            shutil.rmtree(path)
        elif path.is_file() and path.name != "lock":
            path.unlink()


def _is_same(folder: Path, inputs: Inputs, settings: Settings, told: Settings) -> bool:
    """Whether this was begun before; what can be read only once may hold something else now."""
    with suppress(HeedfulError):
        return all(path.is_file() for path in inputs.paths) and is_begun(folder, inputs, settings, told)
    return False


def _write_down(folder: Path, inputs: Inputs, settings: Settings, told: Settings) -> None:
    training = folder / "training"
    with writing(training):
        keep_links(settings, training)
    write_json(training / "run.json", _description(inputs, settings, told))


def _description(inputs: Inputs, settings: Settings, told: Settings) -> dict[str, Any]:
    return {
        "training": [_lasting(path) for path in inputs.training],
        "validation": [_lasting(path) for path in inputs.validation],
        "languages": inputs.languages,
        "parts": [_lasting_part(part) for part in inputs.parts],
        "examined": [_lasting_part(part) for part in inputs.examined],
        "remembered": [_lasting_part(part) for part in inputs.remembered],
        "settings": settings,
        "told": told,
        "threads": TrainingConfig.checked(settings.get("training", {})).threads or available_cores(),
    }


def is_begun(folder: Path, inputs: Inputs, settings: Settings, told: Settings) -> bool:
    """Whether this very training was begun before: torchrun and schedulers give the first command again."""
    path = folder / "training" / "run.json"
    if not path.is_file():
        return False
    wanted = json.loads(json.dumps(_description(inputs, settings, told)))
    found = read_json(path, "delete the folder and train anew")
    return bool(wanted | {"threads": 0} == found | {"threads": 0})


def is_finished(folder: Path) -> bool:
    """Whether a model was written: its config.json comes last."""
    return (folder / "config.json").exists()


def _instead(folder: Path, learned: bool) -> str:
    if is_finished(folder):
        return "a finished model is there: name another folder (-o)"
    if not learned:
        return "name another folder (-o)"
    return f"go on with it: heedful train --resume {folder}; for other files or settings name another (-o)"


def _forget_unlearned(folder: Path) -> None:
    if not checkpoints(folder / "training" / "checkpoints"):
        shutil.rmtree(folder / "training", ignore_errors=True)
        with suppress(OSError):  # not ours alone after all
            folder.rmdir()


def read_run(folder: Path) -> Begun:
    """What was begun in a folder."""
    path = folder / "training" / "run.json"
    if not path.is_file():
        raise HeedfulError(
            f"there is no training to go on with in {folder}", hint="start one: heedful train FILES -o FOLDER"
        )
    hint = "its training cannot go on: delete the folder and train anew"
    run = read_json(path, hint)
    try:
        languages = (run["languages"][0], run["languages"][1]) if run["languages"] else None
        settings = dict(run["settings"])
        told = dict(run.get("told", settings))  # an older Heedful did not tell them apart
        plain = settings.get("model", {}).get("family") in PLAIN
        training, validation = (tuple(map(Path, run[name])) for name in ("training", "validation"))
        trees = settings.get("model", {}).get("positions") in TREE_POSITIONS
        reading = ReadingConfig.checked(settings.get("reading", {}))
        parts = (  # an older Heedful had none
            tuple(map(Part.from_json, run.get(name, ()))) for name in ("parts", "examined", "remembered")
        )
        inputs = Inputs(training, validation, languages, plain, trees, reading, *parts)
        threads = int(run["threads"])
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"{threads} threads")
        return Begun(inputs, settings, told, threads)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise HeedfulError(f"{path} is damaged: {error}", hint=hint) from None


@contextmanager
def taken_up(folder: Path) -> Iterator[Begun]:
    """What was begun in a folder, while others are kept out of it."""
    read_run(folder)  # an error before the folder is touched
    with locked(folder / "training"):
        yield read_run(folder)


def carry_on(folder: Path, choose: Choice, report: Reporter, together: Together) -> Bundle:
    """Do all that is still to do of the run in ``folder``, which others are kept out of; write the model."""
    started, command = time.monotonic(), f"go on with: heedful train --resume {folder}"
    try:
        with stopping_at_once(f"nothing is lost; {command}"):
            return _carried_on(folder, read_run(folder), choose, report, started, together)
    except DiskError as error:
        raise DiskError(error.problem, hint=_after_a_failure(folder, command)) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        problem = disk_error(error.filename or folder, error).problem
        raise DiskError(problem, hint=_after_a_failure(folder, command)) from None


def _after_a_failure(folder: Path, command: str) -> str:
    """What is left when something could not be written."""
    if not (folder / "training" / "run.json").is_file():
        return f"is {folder} still there?"
    saved = checkpoints(folder / "training" / "checkpoints")
    kept = f"the checkpoint of update {int(saved[-1].name):,} is whole" if saved else "nothing is learned yet"
    return f"{kept}; when there is room on the disk, {command}"


def _carried_on(
    folder: Path, begun: Begun, choose: Choice, report: Reporter, started: float, together: Together
) -> Bundle:
    inputs, settings, threads = begun.inputs, begun.settings, begun.threads
    torch.set_num_threads(threads)  # as when it began: another number rounds sums otherwise
    cleaning = CleaningConfig.checked(settings.get("cleaning", {}))
    data, chosen = folder / "training" / "data", checking_vectors(choose)
    scale = PreparationConfig.checked(settings.get("preparation", {}))
    scale = scale.model_copy(update={"processes": scale.processes or threads})
    prepared = prepare(inputs, data, cleaning, chosen, report, starting_tokenizer, scale)
    training = prepared.config.training
    device = chosen_device(training.device)
    torch.manual_seed(training.seed)
    model = new_predictor(prepared).to(device)
    report.say(f"{model.parameter_count():,} parameters on {device}, {counted(threads, 'thread')}")
    if not checkpoints(folder / "training" / "checkpoints"):
        start_from_vectors(model, prepared.tokenizer, training, report)
        if training.encoder_from:
            start_from_encoder(model, training.encoder_from, report)
        if prepared.start is not None:
            folder_before = Path(prepared.config.tuning.start_from)
            start_from_model(model, prepared.tokenizer, folder_before, report)
    run = start_run(folder / "training", prepared, model, report, started)
    if not run.state.update and run.budget.prepared >= NO_TIME_LEFT:
        raise HeedfulError(
            f"preparing took {run.budget.spent:.0f} s of the {run.budget.seconds:.0f} s there are for all",
            hint="train anew with more time (--time 30m), or with fewer pairs",
        )
    if run.ended:
        report.say("all updates were done already; writing the model again")
    else:
        group = together.group
        arithmetic = arithmetic_of(run.learner, group, threads, report, together.processes)
        if arithmetic.processes > 1:
            report.say(f"training in {arithmetic}")
        train_to_end(run, arithmetic, group)
    return _finished(run, folder)


def new_predictor(prepared: Prepared) -> Predictor:
    """The model that the recipe describes, with random weights."""
    return new_model(prepared.model)


def _finished(run: Run, folder: Path) -> Bundle:
    """Choose the weights, examine them once more, and write the model folder."""
    prepared = run.prepared
    training = prepared.config.training
    if run.tunes:
        sentences = training.bleu_sentences if training.minutes else FINAL_BLEU_SENTENCES
        tuned = finish_tuning(run, sentences)
        chosen, result, report = tuned.chosen, tuned.after.new, tuned.to_json(run)
        write_json(folder / REPORT, report)  # which the command prints
    else:
        sentences = 2 * training.bleu_sentences if training.minutes else FINAL_BLEU_SENTENCES
        chosen, report = _choose_weights(run), None
        run.report.say(chosen)
        examined = prepared.examined
        result = validate_each(run.model, prepared.tokenizer, prepared.validation, examined, sentences)
        for line in direction_lines(result, prepared.directions):
            run.report.say(line)
    card = model_card(run, result, chosen, report)
    bundle = Bundle(_bundle_config(run, folder), run.prepared.tokenizer, run.model.eval(), card)
    bundle.save(folder)
    return bundle


def _bundle_config(run: Run, folder: Path) -> BundleConfig:
    prepared, taught = run.prepared, run.prepared.config.taught
    longest = _longest_source(prepared)
    by_sentence = _single_sentences(first_shard(folder / "training" / "data"))
    start = prepared.start
    if start is not None:
        changes = {
            "model": run.model.config,
            "search": prepared.config.search,
            "longest_source": max(longest, start.longest_source),
            "by_sentence": start.by_sentence and by_sentence,
            "languages": start.languages or prepared.tokenizer.languages,
            "directions": _learned(start, prepared.directions),
        }
        return start.model_copy(update=changes)
    return BundleConfig(
        languages=prepared.tokenizer.languages,
        targets=tuple(dict.fromkeys(target for _, target in prepared.directions)),
        sources=tuple(dict.fromkeys(source for source, _ in prepared.directions)),
        directions=prepared.directions,
        model=run.model.config,
        search=prepared.config.search,
        longest_source=longest,
        by_sentence=by_sentence,
        normalize=prepared.config.cleaning.normalize,
        inline_terms=prepared.config.terms.share > 0,
        taught_head=(taught.layer, taught.head) if taught.links else None,
    )


def _learned(start: BundleConfig, new: Sequence[Direction]) -> tuple[Direction, ...]:
    """The directions of a model that says them, and those it was tuned on."""
    return tuple(dict.fromkeys((*start.directions, *new))) if start.directions else ()


def _choose_weights(run: Run) -> str:
    """The average of the last checkpoints or the best single one: whichever loses less on validation."""
    last = whole(run.regular_checkpoints()[-run.prepared.config.training.average :], run.report)
    best = [run.checkpoint_folder / f"{run.state.best_update:09}"]
    candidates = {}
    if len(last) > 1:
        candidates[f"the average of the last {len(last)} checkpoints"] = averaged_weights(last)
    if len(last) == 1:
        candidates[f"the checkpoint of update {int(last[0].name):,}"] = averaged_weights(last)
    if best[0].exists() and best != last and whole(best, run.report):
        candidates[f"the best checkpoint, of update {run.state.best_update:,}"] = read_tensors(
            best[0] / WEIGHTS
        )
    if not candidates:  # what the run went on from is whole, and is its end
        candidates[f"those of update {run.state.update:,}"] = named_parameters(run.model)
    losses = {}
    for name, weights in candidates.items():
        load_parameters(run.model, weights, run.folder)
        losses[name] = validate(run.model, run.prepared.tokenizer, run.prepared.validation, 0).loss
    winner = min(losses, key=lambda name: losses[name] if math.isfinite(losses[name]) else math.inf)
    load_parameters(run.model, candidates[winner], run.folder)
    return f"weights: {winner} (validation loss {losses[winner]:.4f})"


def _longest_source(prepared: Prepared) -> int:
    """Tokens, END included, of the longest source sentence that the model has learned to read."""
    longest = prepared.training.longest_source + 1
    return min(max(longest, SHORTEST_LONGEST), prepared.config.model.longest)


def _single_sentences(path: Path) -> bool:
    """Whether nearly all sources are one sentence: then the model cannot be trusted with two at once."""
    several = [
        len(split_sentences(without_tags(pair.source))) > 1 for pair in islice(cleaned_pairs(path), 10_000)
    ]
    return sum(several) < len(several) * SEVERAL_SENTENCES


def _lasting_part(part: Part) -> dict[str, Any]:
    return part.to_json() | {"paths": [_lasting(path) for path in part.paths]}


def _lasting(path: Path) -> str:
    return str(path) if path == STANDARD_INPUT else str(path.absolute())
