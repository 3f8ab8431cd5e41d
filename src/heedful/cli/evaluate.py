"""``heedful evaluate`` and ``heedful compare``: scores of models and of recipes."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import (
    DeviceOption,
    EngineOption,
    EnsembleOption,
    GlossaryOption,
    LanguagesOption,
    ModelArgument,
    PairsArgument,
    QuietOption,
    SettingsOption,
    TargetLanguageOption,
    parse_languages,
    print_lines,
)
from heedful.errors import HeedfulError, check_extras


def evaluate(
    model: ModelArgument,
    pairs: PairsArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the translations here, one per line.")
    ] = None,
    sentence_scores: Annotated[
        Path | None, typer.Option(help="Write source, reference, translation and log-probabilities of both as TSV.")
    ] = None,
    to: TargetLanguageOption = None,
    source_language: Annotated[str, typer.Option("--from", help="Source language; default: from the file names.")] = "",
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy.")] = None,
    languages: LanguagesOption = None,
    engine: EngineOption = "exact",
    ensemble_models: EnsembleOption = [],  # noqa: B006
    glossary: GlossaryOption = None,
    settings: SettingsOption = [],  # noqa: B006
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Translate the source side and score it against the target side: BLEU, chrF, TER, loss.

    For a language model (`train --task`), give plain text: the report shows how well the model predicts it.
    """
    from heedful.config import drop_unset
    from heedful.inference.loading import is_language_model
    from heedful.progress import Reporter
    from heedful.workflows.evaluate import EvaluateOptions, evaluate_language_model, evaluate_model

    report = Reporter(quiet=quiet)
    options = EvaluateOptions(
        models=(model, *ensemble_models),
        pairs=tuple(pairs),
        output=output,
        sentence_scores=sentence_scores,
        generation_overrides=drop_unset(target_language=to, beam_size=beam),
        settings=tuple(settings),
        source_language=source_language,
        languages=parse_languages(languages),
        engine=engine,
        device=device,
        glossary=glossary,
    )
    if not is_language_model(model):
        print_lines(evaluate_model(options, report))
        return
    if options != EvaluateOptions(models=(model,), pairs=tuple(pairs), device=device):
        raise HeedfulError(
            f"{model} is a language model: only --device and --quiet apply", hint="omit the other options"
        )
    print_lines(evaluate_language_model(model, pairs, device, report))


def compare(
    pairs: PairsArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for models, table and curves.")],
    validation: Annotated[
        list[Path] | None, typer.Option("--validation", "-v", help="Pairs to validate on: one file, or -v twice.")
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option("--test", help="Pairs to score on, like -v; default: validation.")
    ] = None,
    question: Annotated[
        str, typer.Option(help="Questions of the paper: recurrence, heads, positions, ablations; comma-separated.")
    ] = "",
    recipe: Annotated[list[str] | None, typer.Option(help="NAME=FILE.toml: settings to compare. Repeatable.")] = None,
    preset: Annotated[str, typer.Option(help="The common base: demo, tiny, small, base.")] = "tiny",
    updates: Annotated[int | None, typer.Option(min=1, help="Budget per recipe in updates.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget per recipe in target tokens.")] = None,
    time: Annotated[str | None, typer.Option(help="Budget per recipe in time: 10m, 1h.")] = None,
    languages: LanguagesOption = None,
    settings: SettingsOption = [],  # noqa: B006
    quiet: QuietOption = False,
) -> None:
    """Train several recipes on the same pairs with the same budget; write a table and curves."""
    check_extras("compare", "figures", "train")
    from heedful.progress import Reporter
    from heedful.workflows.compare import CompareOptions, compare_recipes

    options = CompareOptions(
        pairs=pairs,
        folder=output,
        validation=validation or (),
        test=test or (),
        questions=[name.strip() for name in question.split(",") if name.strip()],
        recipes=recipe or (),
        preset=preset,
        updates=updates,
        tokens=tokens,
        time=time,
        settings=settings,
        languages=parse_languages(languages),
    )
    print_lines(compare_recipes(options, Reporter(quiet=quiet)))
