"""``heedful inspect`` (figures, page or trace of a sentence; alignments; heads) and ``heedful explain``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import DeviceOption, ModelArgument, QuietOption, TargetLanguageOption, print_lines
from heedful.errors import HeedfulError, check_extras
from heedful.progress import Reporter

InspectOutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder for figures, page.html for a page, trace.safetensors for all tensors; a file for --alignments.",
    ),
]


ALLOWED_OPTIONS = {
    "a sentence": {"--output", "--target", "--to", "--format", "--subwords", "--kind", "--layer", "--head", "--word"},
    "--alignments": {"--output", "--to", "--gold", "--layer", "--head", "--shifted"},
    "--heads": {"--to"},
    "--grammar": set[str](),
}
"""Options of each task."""

FILE_SUFFIXES = (".html", ".safetensors")
"""Outputs that are one file (a page, a trace); any other output is a folder of figures."""


def _check_task(requested: Mapping[str, bool], options: Mapping[str, object]) -> None:
    """Raise unless one task is requested, without options of other tasks."""
    tasks = [name for name, is_requested in requested.items() if is_requested]
    if len(tasks) != 1:
        problem = f"{' and '.join(tasks)} cannot be combined" if tasks else "nothing to inspect"
        raise HeedfulError(problem, hint=f"give one of: {', '.join(requested)}")
    for name in sorted(options.keys() - ALLOWED_OPTIONS[tasks[0]]):
        if options[name] not in (None, False):
            raise HeedfulError(f"{name} has no effect with {tasks[0]}", hint="remove it")


def explain(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(metavar="TOPIC|MODEL", help="A topic of the list, or a model folder.")
    ] = None,
    sentence: Annotated[str | None, typer.Argument(help="The source sentence.")] = None,
    layer: Annotated[int | None, typer.Option(help="Counted from 1; default 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Counted from 1; default 1.")] = None,
    word: Annotated[str | None, typer.Option(help="Query word: the word, a subword, or its number from 1.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Key word whose products are shown; default: the largest weight.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="encoder (default), decoder or cross.")] = None,
    target: Annotated[str | None, typer.Option(help="A translation to use instead of the model's.")] = None,
    target_language: TargetLanguageOption = None,
    vectors: Annotated[Path | None, typer.Option(help="Word vectors for the topic glove.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw a .png or .svg: thinking-machines, mask, positions, schedule.")
    ] = None,
    digits: Annotated[int | None, typer.Option(min=1, max=15, help="Decimals; default 4.")] = None,
    all_channels: Annotated[bool, typer.Option("--all", help="Show all channels of d_model-sized vectors.")] = False,
    steps: Annotated[str | None, typer.Option(help="Only these steps, such as 4-6 or 1,5.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help='All digits, as JSON; -inf is "-inf".')] = False,
) -> None:
    """Print the arithmetic of attention step by step, with formulas.

    A topic of the lecture, or a word in a trained model: heedful explain MODEL "A sentence." --word sentence

    \b
    thinking-machines  two scores to two weights, and why scores are divided by sqrt(d_k)
    numerical          three inputs through one head, from X to the output
    mask               the causal mask, printed numbers against exact ones
    positions          sines and cosines of positions
    layer              matrix product, feed-forward, residual sum, LayerNorm
    schedule           the learning rate of every step
    text               one-hot, bag of words, TF-IDF
    glove              ten heads and one over GloVe word vectors (needs --vectors FILE)
    """
    options = (sentence, layer, head, word, key, kind, target, target_language, vectors, figure, digits, steps)
    if subject is None:
        if as_json or all_channels or any(option is not None for option in options):
            raise HeedfulError("nothing to explain", hint="give a topic or a model folder first")
        print(context.get_help())
        return
    check_extras("explain", *(("figures",) if figure else ()), "train")
    from heedful.interpret.explain import ExplainOptions, explain_subject

    explain_options = ExplainOptions(
        subject,
        sentence,
        kind,
        layer,
        head,
        word,
        key,
        target,
        vectors,
        figure,
        digits,
        as_json,
        all_channels,
        steps,
        target_language,
    )
    print(explain_subject(explain_options), end="")


def inspect(
    model: ModelArgument,
    sentence: Annotated[str | None, typer.Argument(help="The source sentence.")] = None,
    output: InspectOutputOption = None,
    target: Annotated[str | None, typer.Option(help="A translation to use instead of the model's.")] = None,
    target_language: TargetLanguageOption = None,
    output_format: Annotated[str | None, typer.Option("--format", help="png, svg or both (default).")] = None,
    subwords: Annotated[bool, typer.Option("--subwords", help="Show subwords instead of words.")] = False,
    kind: Annotated[str | None, typer.Option(help="Only encoder, decoder or cross attention.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, from 1.")] = None,
    word: Annotated[str | None, typer.Option(help="Show what this word (or its number) attends to.")] = None,
    alignments: Annotated[
        list[Path] | None,
        typer.Option(help="Align the words of these pairs: one file, or two parallel files (option twice)."),
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="Gold alignments (1-1 2p3 ...) to compute the error rate.")] = None,
    shifted: Annotated[bool, typer.Option("--shifted", help="Align by the row that reads a word (Shift-Att).")] = False,
    heads: Annotated[
        list[Path] | None, typer.Option(help="Report the attention pattern of each head on these pairs.")
    ] = None,
    grammar: Annotated[
        bool, typer.Option("--grammar", help='Find the head of a demo model that resolves "it".')
    ] = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Draw the attention of a sentence, align words, or report what each head does.

    \b
    heedful inspect MODEL "A sentence." -o figures
    heedful inspect MODEL "A sentence." -o page.html
    heedful inspect MODEL --alignments pairs.tsv -o pairs.align
    heedful inspect MODEL --heads pairs.tsv
    heedful inspect demo/model --grammar
    """
    options = {
        "--output": output,
        "--target": target,
        "--to": target_language,
        "--format": output_format,
        "--subwords": subwords,
        "--kind": kind,
        "--layer": layer,
        "--head": head,
        "--word": word,
        "--gold": gold,
        "--shifted": shifted,
    }
    requested = {
        "a sentence": sentence is not None,
        "--alignments": bool(alignments),
        "--heads": bool(heads),
        "--grammar": grammar,
    }
    _check_task(requested, options)
    draws_figures = sentence is not None and output is not None and output.suffix.lower() not in FILE_SUFFIXES
    check_extras("inspect", *(("figures",) if draws_figures else ()), "train")
    report, language = Reporter(quiet=quiet), target_language or ""
    if alignments:
        from heedful.interpret.alignment import align_files

        lines = align_files(
            model,
            alignments,
            output,
            gold,
            (layer, head),
            shifted=shifted,
            target_language=language,
            device=device,
            report=report,
        )
    elif heads or grammar:
        from heedful.interpret.head_report import report_grammar, report_heads
        from heedful.interpret.tables import can_style, render_text, terminal_width

        explanation = (
            report_heads(model, heads, target_language=language, device=device, report=report)
            if heads
            else report_grammar(model, device=device, report=report)
        )
        lines = iter([render_text(explanation, width=terminal_width(), use_style=can_style()).rstrip("\n")])
    elif output is None or sentence is None:
        raise HeedfulError("no folder for the figures", hint="choose one: -o figures")
    elif output.suffix.lower() in FILE_SUFFIXES:
        from heedful.web.standalone import TraceExportOptions, export_trace

        if output_format is not None:
            raise HeedfulError("--format has no effect on a file", hint="use it with figures: -o FOLDER")
        page_view = {"kind": kind, "layer": layer, "head": head, "word": word, "subwords": subwords}
        lines = export_trace(TraceExportOptions(model, sentence, output, target, device, page_view, language), report)
    else:
        from heedful.interpret.attention_report import FigureOptions, write_attention_report

        image_format = output_format or "both"
        figure_options = FigureOptions(
            model, sentence, output, target, image_format, subwords, kind, layer, head, word, device, language
        )
        lines = write_attention_report(figure_options, report)
    print_lines(lines)
