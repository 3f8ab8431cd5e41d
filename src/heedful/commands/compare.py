"""`heedful compare`: recipes to compare, by the paper's questions or from files; a table and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heedful.choosing import chooser
from heedful.commands.evaluate import usable_pairs
from heedful.commands.training import run_settings
from heedful.comparing import BASELINE, QUESTIONS, SENTENCES, Comparison, measures, table
from heedful.config import Settings, merged, read_toml
from heedful.corpora.filters import CleaningConfig, Pair
from heedful.corpora.formats import check_inputs, check_room_for_heads, languages_of
from heedful.corpora.reading import Languages, Reading, ReadingConfig
from heedful.errors import HeedfulError, StoppedError
from heedful.files import write_text
from heedful.inspection.figures.comparison import comparison_figure
from heedful.inspection.figures.style import save_figure
from heedful.inspection.metrics import metrics_path, read_metrics
from heedful.model.config import TREE_POSITIONS
from heedful.presets import PRESETS
from heedful.progress import Reporter
from heedful.training.config import RunConfig
from heedful.training.preparation import CorpusSize


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command line says."""

    pairs: Sequence[Path]
    folder: Path
    validation: Sequence[Path]
    test: Sequence[Path]
    questions: Sequence[str]
    recipes: Sequence[str]
    preset: str
    updates: int | None
    tokens: int | None
    time: str | None
    settings: Sequence[str]
    languages: Languages | None = None


def compare_command(options: CompareOptions, report: Reporter) -> list[str]:
    """Train every recipe, write comparison.md, comparison.json and comparison.png; returns what to print."""
    settings = _budget(options)
    recipes, notes = _distinct(_recipes(options), settings)
    for note in notes:
        report.say(note)
    check_inputs(options.pairs)
    trees = any(
        each.get("model", {}).get("positions") in TREE_POSITIONS for each in (settings, *recipes.values())
    )
    reading = Reading(options.languages, ReadingConfig.checked(settings.get("reading", {})))
    test = _test(options.test or options.validation, reading, report, trees=trees)
    comparison = Comparison(
        options.pairs, options.validation, test, settings, options.folder, options.languages
    )
    try:
        results = comparison.run(recipes, report)
    except StoppedError as stopped:
        raise StoppedError(stopped.signal_number, hint="the same command goes on where it stopped") from None
    asked = [f"{QUESTIONS[name].ask} The paper: {QUESTIONS[name].paper}." for name in options.questions]
    text = "\n".join([table(results), "", *(f"- {line}" for line in [*asked, *notes, _conditions(options)])])
    write_text(options.folder / "comparison.md", text + "\n")
    runs = {name: read_metrics(metrics_path(options.folder / name)) for name in recipes}
    save_figure(comparison_figure(runs, measures(results)), options.folder / "comparison.png")
    return [
        text,
        f"table and curves: {options.folder / 'comparison.md'}, {options.folder / 'comparison.png'}",
    ]


def _budget(options: CompareOptions) -> Settings:
    """The preset with the same budget for all."""
    given = [name for name in ("updates", "tokens", "time") if getattr(options, name) is not None]
    if len(given) != 1:
        raise HeedfulError(
            "one budget for all recipes is needed" if not given else f"{' and '.join(given)} are two budgets",
            hint="give --updates 2000, --tokens 5000000 or --time 10m",
        )
    if options.preset not in PRESETS:
        raise HeedfulError(
            f"there is no preset {options.preset!r} to compare with", hint=f"presets: {', '.join(PRESETS)}"
        )
    settings = run_settings(None, options.preset, options.time, options.settings)
    if options.time is None:
        batch = settings.get("batches", {}).get("tokens", PRESETS[options.preset]().batches.tokens)
        updates = options.updates or max(1, round((options.tokens or 0) / batch))
        settings = merged({"training": {"updates": updates, "patience": 0}}, settings)
    return settings


def _recipes(options: CompareOptions) -> dict[str, Settings]:
    """Those of the questions, then the user's own."""
    found: dict[str, Settings] = {}
    for name in options.questions:
        if name not in QUESTIONS:
            raise HeedfulError(
                f"there is no question {name!r}",
                hint=f"questions: {', '.join(QUESTIONS)}; or --recipe NAME=FILE",
            )
        found |= QUESTIONS[name].recipes
    for text in options.recipes:
        name, _, path = text.partition("=")
        if not name or not path or not name.replace("-", "").replace("_", "").isalnum():
            raise HeedfulError(
                f"{text!r} is not a recipe",
                hint="write --recipe NAME=settings.toml; a name has letters, digits, - and _",
            )
        if name in found:
            raise HeedfulError(f"there are two recipes {name}", hint="give one of them another name")
        found[name] = read_toml(Path(path))
    if not found:
        raise HeedfulError(
            "nothing to compare", hint=f"give --question ({', '.join(QUESTIONS)}) or --recipe NAME=FILE"
        )
    if len(found) == 1 and BASELINE not in found:
        found = {BASELINE: {}, **found}
    return found


def _distinct(recipes: Mapping[str, Settings], settings: Settings) -> tuple[dict[str, Settings], list[str]]:
    """The recipes that differ, and a word about the others; all are checked before the first trains."""
    kept: dict[str, Settings] = {}
    known: dict[RunConfig, str] = {}
    notes = []
    for name, own in recipes.items():
        try:
            config, _ = chooser(merged(settings, own))(CorpusSize(50_000, 5_000_000, 100))
        except HeedfulError as error:
            raise HeedfulError(f"recipe {name}: {error.problem}", hint=error.hint) from None
        same = known.setdefault(config, name)
        if same == name:
            kept[name] = own
        else:
            notes.append(f"{name} is the same as {same}, and trained once")
    return kept, notes


def _conditions(options: CompareOptions) -> str:
    """What all recipes had in common."""
    budget = next(
        f"{value:,} {name}" if isinstance(value, int) else f"{value} of {name}"
        for name, value in (("updates", options.updates), ("tokens", options.tokens), ("time", options.time))
        if value is not None
    )
    told = f", {', '.join(options.settings)}" if options.settings else ""
    names = " and ".join(path.name for path in options.pairs)
    return f"All: {names}, preset {options.preset}{told}; {budget} each."


def _test(paths: Sequence[Path], reading: Reading, report: Reporter, *, trees: bool) -> list[Pair]:
    """With the heads of words, if one of the models reads trees."""
    if not paths:
        raise HeedfulError("there is nothing to score on", hint="give --test or -v with sentence pairs")
    check_inputs(paths)
    if trees:
        check_room_for_heads(paths)
    known = replace(reading, languages=reading.languages or languages_of(paths, reading.config))
    return usable_pairs(paths, known, CleaningConfig().normalize, report, trees=trees)[:SENTENCES]
