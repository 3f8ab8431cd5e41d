"""``heedful translate``, ``generate`` and ``fill``."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import (
    DeviceOption,
    EngineOption,
    EnsembleOption,
    GlossaryOption,
    ModelArgument,
    QuietOption,
    SettingsOption,
    TargetLanguageOption,
    print_lines,
)
from heedful.errors import HeedfulError, check_extras

InputOption = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="A text file, one text per line, or a PO, TMX or XLIFF file.")
]
RayOption = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Translate with many workers: local (this machine), auto (the current cluster) or HOST:PORT. "
        "Then -i may be a folder or repeated, and -o a folder.",
    ),
]
ShardLinesOption = Annotated[
    int, typer.Option(min=0, help="With --ray: lines per shard, rounded up to a multiple of 2048.")
]
RetranslateOption = Annotated[str, typer.Option(help="PO, TMX, XLIFF: also retranslate drafts (not reviewed), or all.")]
MarkOption = Annotated[
    str, typer.Option(help="PO, TMX, XLIFF: mark translations as fuzzy (default; to review) or by a comment.")
]
DocumentLanguagesOption = Annotated[
    str, typer.Option(help="PO, TMX, XLIFF: the model's languages as the file names them, such as en-de.")
]


def translate(
    model: ModelArgument,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; default: --input, or stdin.")] = None,
    inputs: InputOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="text, tsv (line, rank, score, text) or jsonl.")] = "",
    target_language: TargetLanguageOption = None,
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations per text.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of beam search.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling.")] = None,
    prefix: Annotated[str, typer.Option(help="Start of every translation.")] = "",
    stream: Annotated[bool, typer.Option("--stream", help="Print word by word (greedy).")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Write TSV: line, rank, score, text.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Write TSV with word alignments, 0-0 1-2 ..., as last column.")
    ] = False,
    retranslate: RetranslateOption = "",
    mark: MarkOption = "",
    languages: DocumentLanguagesOption = "",
    engine: EngineOption = "auto",
    workers: Annotated[int, typer.Option(min=0, help="CPU cores for CTranslate2 or --ray; 0: all.")] = 0,
    ray_address: RayOption = "",
    shard_lines: ShardLinesOption = 0,
    glossary: GlossaryOption = None,
    glossary_mode: Annotated[str | None, typer.Option(help="auto, inline, constrained or split.")] = None,
    ensemble_models: EnsembleOption = [],  # noqa: B006
    settings: SettingsOption = [],  # noqa: B006
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Translate texts, a file or standard input line by line, or fill in a PO, TMX or XLIFF file.

    \b
    heedful translate MODEL "A sentence."
    heedful translate MODEL -i in.txt -o out.txt
    heedful translate MODEL -i messages.po -o messages.de.po
    heedful translate MODEL -i big.txt -o out.txt --ray local
    """
    from heedful.config import drop_unset
    from heedful.inference.bulk import TranslateOptions, translate_inputs
    from heedful.progress import Reporter

    options = TranslateOptions(
        models=(model, *ensemble_models),
        texts=tuple(texts or ()),
        inputs=tuple(inputs or ()),
        output=output,
        output_format=output_format,
        scores=scores,
        alignments=alignments,
        prefix=prefix,
        stream=stream,
        glossary=glossary,
        generation_overrides=drop_unset(
            target_language=target_language,
            glossary_mode=glossary_mode,
            beam_size=beam,
            n_best=n_best,
            temperature=temperature,
            seed=seed,
            method="sample" if sample else None,
        ),
        settings=tuple(settings),
        engine=engine,
        device=device,
        workers=workers,
        ray_address=ray_address,
        shard_lines=shard_lines,
    )
    report = Reporter(quiet=quiet)
    has_document_options = bool(retranslate or mark or languages)
    if ray_address:
        from heedful.documents.translate import detect_document
        from heedful.inference.ray_bulk import list_input_files, translate_with_ray

        if has_document_options:
            raise HeedfulError("--retranslate, --mark and --languages do not work with --ray", hint="omit them")
        files = list_input_files(options)
        if not output_format and (document := next(filter(detect_document, files), None)):
            raise HeedfulError(
                f"{document} is a localization file, which cannot be split into lines",
                hint="omit --ray, or translate it as lines: --format text",
            )
        translate_with_ray(options, files, report)
        return
    if len(options.inputs) == 1 and not output_format:  # with --format, a document is translated as lines
        from heedful.documents.translate import DocumentOptions, detect_document, translate_document

        if detect_document(options.inputs[0]):
            document_options = DocumentOptions(retranslate=retranslate, mark=mark, languages=languages)
            translate_document(options, document_options, report)
            return
    if has_document_options:
        raise HeedfulError(
            "--retranslate, --mark and --languages require a PO, TMX or XLIFF file",
            hint="name one with --input, or omit them",
        )
    translate_inputs(options, report)


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="Start of the texts; may be empty.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="Number of texts.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="Below 1 more deterministic, above 1 more random.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens; 0: all.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that reach this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; default 0.")] = None,
    max_length: Annotated[int, typer.Option(min=1, help="Maximum tokens of a text.")] = 100,
    device: DeviceOption = "auto",
) -> None:
    """Generate text from a prompt (with a model of `train --task causal_lm`)."""
    check_extras("a language model", "train")
    from heedful.config import drop_unset
    from heedful.devices import select_device
    from heedful.inference.text_generation import generate_text, make_sampling_config
    from heedful.model_folder import ModelFolder

    model_folder = ModelFolder.load(model, select_device(device))
    overrides = drop_unset(n_best=count, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    print_lines(generate_text(model_folder, prompt, make_sampling_config(model_folder, overrides), max_length))


def fill(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="A text with blanks, written __.")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="Candidates per blank.")] = 5,
    device: DeviceOption = "auto",
) -> None:
    """Predict the tokens of blanks in a text (with a model of `train --task masked_lm`)."""
    check_extras("a language model", "train")
    from heedful.devices import select_device
    from heedful.inference.text_generation import fill_blanks
    from heedful.model_folder import ModelFolder

    for number, candidates in enumerate(
        fill_blanks(ModelFolder.load(model, select_device(device)), text, top), start=1
    ):
        print_lines(f"{number}\t{candidate.probability:.4f}\t{candidate.text}" for candidate in candidates)
