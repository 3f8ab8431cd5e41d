"""``heedful compare``: train several recipes on one corpus with the same budget; table and curves.

``QUESTIONS`` holds the questions of the paper; recipes can be any settings. Run again with the same folder,
finished models are reused and an interrupted one is resumed.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from heedful.config import Settings, merge_settings, read_toml
from heedful.data.cleaning import Pair
from heedful.data.config import CleaningConfig, ReadingConfig
from heedful.data.formats.base import ReadOptions
from heedful.data.reader import check_inputs, detect_languages
from heedful.errors import HeedfulError, StoppedError
from heedful.evaluation.metrics import corpus_scores
from heedful.files import read_json, write_text
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.models.config import DEPENDENCY_POSITIONS
from heedful.progress import Reporter
from heedful.tokenization.languages import LanguagePair
from heedful.training.config import PRESETS, RunConfig, build_run_settings
from heedful.training.metrics_log import metrics_path, read_metrics
from heedful.training.preparation import CorpusSize
from heedful.training.run import make_config_chooser
from heedful.training.validation import compute_loss
from heedful.workflows.evaluate import read_usable_pairs
from heedful.workflows.train import resume, train

BASELINE = "baseline"

MAX_TEST_SENTENCES = 1000
"""Test sentences that are scored and timed."""


@dataclass(frozen=True, slots=True)
class Question:
    """Recipes that differ in one respect."""

    text: str
    paper_finding: str
    """What the paper found."""
    recipes: dict[str, Settings]


NO_POSITIONS: dict[str, Settings] = {"no-positions": {"model": {"positions": "none"}}}

QUESTIONS = {
    "recurrence": Question(
        "Is attention all you need?",
        "better than recurrent models at a fraction of the training cost (table 2)",
        {BASELINE: {}, "gru": {"model": {"architecture": "gru"}}, "lstm": {"model": {"architecture": "lstm"}}},
    ),
    "heads": Question(
        "How many heads, at the same cost?",
        "one head is 0.9 BLEU worse than the best; too many also lose (table 3, rows A)",
        {f"heads-{count}": {"model": {"heads": count}} for count in (1, 2, 4, 8)},
    ),
    "positions": Question(
        "Which positional encoding?",
        "sines and learned vectors are nearly identical (table 3, row E)",
        {
            BASELINE: {},
            **{name: {"model": {"positions": name}} for name in ("learned", "relative", "rotary", "alibi")},
            **NO_POSITIONS,
        },
    ),
    "ablations": Question(
        "What does each part contribute?",
        "dropout avoids over-fitting, label smoothing costs perplexity but gains BLEU (rows D); "
        "scaling keeps the softmax from where its gradient vanishes (section 3.2.1)",
        {
            BASELINE: {},
            "no-label-smoothing": {"training": {"label_smoothing": 0.0}},
            "no-dropout": {"model": {"dropout": 0.0}},
            "no-scaling": {"model": {"scale_attention": False}},
            **NO_POSITIONS,
            "no-residuals": {"model": {"residuals": False}},
        },
    ),
}
"""The paper's questions at a small scale. A recipe name means the same in every question."""


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """Scores, speed and size of one trained recipe."""

    name: str
    parameters: int
    updates: int
    tokens: int
    """Target tokens trained on."""
    minutes: float
    tokens_per_second: float
    loss: float
    """On the test set, nats per token."""
    bleu: float
    sentences_per_second: float
    """Greedy search with PyTorch, which runs every architecture."""


_RESULT_ADAPTER = TypeAdapter(RecipeResult)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What ``heedful compare`` compares."""

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
    languages: LanguagePair | None = None


def get_result(
    options: CompareOptions, name: str, settings: Settings, test: Sequence[Pair], report: Reporter
) -> RecipeResult:
    """Train and score a recipe, or load its stored result."""
    folder, result_path = options.folder / name, options.folder / f"{name}.json"
    if result_path.is_file():
        hint = "delete it to measure again"
        stored = read_json(result_path, hint)
        if stored.get("settings") != settings:
            raise HeedfulError(
                f"{options.folder} holds a model {name} with different settings",
                hint="choose another output folder, or delete that one",
            )
        try:
            return _RESULT_ADAPTER.validate_python(stored.get("result"))
        except ValueError as error:
            raise HeedfulError(f"{result_path} is corrupt: {error}", hint=hint) from None
    if not (folder / "config.json").is_file():
        if (folder / "training").is_dir():
            resume(folder, report=report)
        else:
            files, validation, languages = list(options.pairs), list(options.validation), options.languages
            train(files, folder, validation=validation, languages=languages, settings=settings, report=report)
    engine = load(folder, device="cpu", engine="pytorch")
    model_folder, model = engine.model_folder, engine.model_folder.translation_model
    last = [entry for entry in read_metrics(metrics_path(folder)) if "tokens_per_second" in entry][-1]
    if not model_folder.config.model.uses_dependency_trees:
        test = [pair._replace(heads="") for pair in test]
    greedy_config = model_folder.config.generation.model_copy(update={"beam_size": 1, "method": "beam"})
    bleu, speed = measure_bleu_and_speed(engine, test, greedy_config)
    result = RecipeResult(
        name=name,
        parameters=model.parameter_count(),
        updates=last["update"],
        tokens=last["tokens"],
        minutes=last["seconds"] / 60,
        tokens_per_second=last["tokens"] / max(last["seconds"], 1e-9),
        loss=compute_loss(model, model_folder.tokenizer, test),
        bleu=bleu,
        sentences_per_second=speed,
    )
    write_text(result_path, json.dumps({"settings": settings, "result": asdict(result)}, indent=1) + "\n")
    return result


def measure_bleu_and_speed(
    engine: Translator, test: Sequence[Pair], generation_config: GenerationConfig
) -> tuple[float, float]:
    """BLEU and sentences per second."""
    sources = [pair.source_with_heads for pair in test]
    engine.translate(sources[:1], generation_config)  # warm-up
    started_at = time.perf_counter()
    texts = [translation.text for translation in engine.translate(sources, generation_config)]
    seconds = time.perf_counter() - started_at
    languages = engine.model_folder.config.languages
    language = languages[1] if languages else ""
    score = corpus_scores(texts, [pair.target for pair in test], ("BLEU",), language)["BLEU"]
    return score.value, len(texts) / seconds


COLUMNS: dict[str, Callable[[RecipeResult], str]] = {
    "recipe": lambda result: result.name,
    "parameters": lambda result: f"{result.parameters:,}",
    "updates": lambda result: f"{result.updates:,}",
    "tokens": lambda result: f"{result.tokens:,}",
    "minutes": lambda result: f"{result.minutes:.2f}",
    "tokens/s": lambda result: f"{result.tokens_per_second:,.0f}",
    "loss": lambda result: f"{result.loss:.3f}",
    "BLEU": lambda result: f"{result.bleu:.2f}",
    "sentences/s": lambda result: f"{result.sentences_per_second:.1f}",
}


def format_table(results: Sequence[RecipeResult]) -> str:
    """All results as a Markdown table.

    >>> print(format_table([RecipeResult("gru", 1000, 10, 500, 2.0, 4.2, 3.5, 12.25, 8.0)]).splitlines()[2])
    | gru | 1,000 | 10 | 500 | 2.00 | 4 | 3.500 | 12.25 | 8.0 |
    """
    cells = [[cell(result) for cell in COLUMNS.values()] for result in results]
    rows = [COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 1)], *cells]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def collect_measures(results: Sequence[RecipeResult]) -> dict[str, dict[str, float]]:
    """The values of the bar charts, by title and recipe."""
    fields = {
        "BLEU (test, greedy)": "bleu",
        "parameters": "parameters",
        "training tokens/s": "tokens_per_second",
        "translation sentences/s": "sentences_per_second",
    }
    return {title: {result.name: getattr(result, name) for result in results} for title, name in fields.items()}


def compare_recipes(options: CompareOptions, report: Reporter) -> list[str]:
    """Train every recipe; write comparison.md and comparison.png; returns the lines to print."""
    settings = _build_settings(options)
    recipes, notes = _deduplicate_recipes(_load_recipes(options), settings)
    for note in notes:
        report.info(note)
    check_inputs(options.pairs)
    uses_trees = any(
        recipe.get("model", {}).get("positions") in DEPENDENCY_POSITIONS for recipe in (settings, *recipes.values())
    )
    test_paths = options.test or options.validation
    if not test_paths:
        raise HeedfulError("no test pairs", hint="add --test or -v with sentence pairs")
    check_inputs(test_paths)
    reading_config = ReadingConfig.from_settings(settings.get("reading", {}))
    reading = ReadOptions(options.languages or detect_languages(test_paths, reading_config), reading_config)
    unicode_normalization = CleaningConfig().unicode_normalization
    test = read_usable_pairs(test_paths, reading, unicode_normalization, report, trees=uses_trees)[:MAX_TEST_SENTENCES]
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for number, (name, recipe) in enumerate(recipes.items(), start=1):
            report.info(f"{number} of {len(recipes)}: {name}")
            results.append(get_result(options, name, merge_settings(settings, recipe), test, report))
            report.info("  " + ", ".join(f"{name} {cell(results[-1])}" for name, cell in list(COLUMNS.items())[1:]))
    except StoppedError as stopped:
        raise StoppedError(stopped.signal_number, hint="run the same command again to resume") from None
    questions = [f"{QUESTIONS[name].text} The paper: {QUESTIONS[name].paper_finding}." for name in options.questions]
    budget = f"{options.time} of time"
    if options.time is None:
        budget = f"{options.updates:,} updates" if options.updates is not None else f"{options.tokens:,} tokens"
    files = " and ".join(path.name for path in options.pairs)
    conditions = f"All: {', '.join((files, f'preset {options.preset}', *options.settings))}; {budget} each."
    text = "\n".join([format_table(results), "", *(f"- {line}" for line in (*questions, *notes, conditions))])
    write_text(options.folder / "comparison.md", text + "\n")
    runs = {name: read_metrics(metrics_path(options.folder / name)) for name in recipes}
    from heedful.interpret.figures.style import save_figure  # distillation imports this module, but draws nothing
    from heedful.interpret.figures.training_curves import comparison_figure

    save_figure(comparison_figure(runs, collect_measures(results)), options.folder / "comparison.png")
    return [text, f"table and curves: {options.folder / 'comparison.md'}, {options.folder / 'comparison.png'}"]


def _build_settings(options: CompareOptions) -> Settings:
    """The preset with the common budget."""
    budgets = [name for name in ("updates", "tokens", "time") if getattr(options, name) is not None]
    if len(budgets) != 1:
        raise HeedfulError(
            "a budget is required" if not budgets else f"only one budget is allowed, not {' and '.join(budgets)}",
            hint="use one of --updates 2000, --tokens 5000000, --time 10m",
        )
    if options.preset not in PRESETS:
        raise HeedfulError(f"unknown preset {options.preset!r}", hint=f"presets: {', '.join(PRESETS)}")
    settings = build_run_settings(None, options.preset, options.time, options.settings)
    if options.time is None:
        batch_tokens = settings.get("batching", {}).get("max_tokens", PRESETS[options.preset]().batching.max_tokens)
        updates = options.updates or max(1, round((options.tokens or 0) / batch_tokens))
        settings = merge_settings({"training": {"max_updates": updates, "patience": 0}}, settings)
    return settings


def _load_recipes(options: CompareOptions) -> dict[str, Settings]:
    """The recipes of the questions, then those of the user."""
    recipes: dict[str, Settings] = {}
    for name in options.questions:
        if name not in QUESTIONS:
            raise HeedfulError(
                f"unknown question {name!r}", hint=f"questions: {', '.join(QUESTIONS)}; or --recipe NAME=FILE"
            )
        recipes |= QUESTIONS[name].recipes
    for text in options.recipes:
        name, _, path = text.partition("=")
        if not name or not path or not name.replace("-", "").replace("_", "").isalnum():
            raise HeedfulError(
                f"{text!r} is not a recipe",
                hint="write --recipe NAME=settings.toml; names consist of letters, digits, - and _",
            )
        if name in recipes:
            raise HeedfulError(f"two recipes are named {name}", hint="rename one of them")
        recipes[name] = read_toml(Path(path))
    if not recipes:
        raise HeedfulError("nothing to compare", hint=f"use --question ({', '.join(QUESTIONS)}) or --recipe NAME=FILE")
    if len(recipes) == 1 and BASELINE not in recipes:
        recipes = {BASELINE: {}, **recipes}
    return recipes


def _deduplicate_recipes(recipes: Mapping[str, Settings], settings: Settings) -> tuple[dict[str, Settings], list[str]]:
    """The distinct recipes, and notes about duplicates; checks all recipes before training the first."""
    distinct: dict[str, Settings] = {}
    names_by_config: dict[RunConfig, str] = {}
    notes = []
    for name, overrides in recipes.items():
        try:
            config, _ = make_config_chooser(merge_settings(settings, overrides))(CorpusSize(50_000, 5_000_000, 100))
        except HeedfulError as error:
            raise HeedfulError(f"recipe {name}: {error.problem}", hint=error.hint) from None
        first_name = names_by_config.setdefault(config, name)
        if first_name == name:
            distinct[name] = overrides
        else:
            notes.append(f"{name} is the same as {first_name}; trained once")
    return distinct, notes
