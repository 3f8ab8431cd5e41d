"""The command line of ``heedful translate``."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli_corpus import Set
from heedful.cli_family import Device, Engine, Glossary, Model, Quiet, To, With

Source = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="A file: a text a line, or PO, TMX, XLIFF.")
]
Ray = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Many workers, by Ray: local (this machine), auto (the cluster it is of), or HOST:PORT. "
        "Then -i may be a folder or several files, and -o a folder.",
    ),
]
ShardLines = Annotated[
    int, typer.Option(min=0, help="With --ray: lines that a worker takes at a time, in windows of 2048.")
]
Alignments = Annotated[
    bool, typer.Option("--alignments", help="TSV with a last column of word links, 0-0 1-2 ...")
]
Again = Annotated[
    str, typer.Option(help="Of PO, TMX, XLIFF translate anew also: drafts (not reviewed), or all.")
]
Mark = Annotated[
    str,
    typer.Option(help="PO, TMX, XLIFF: fuzzy (if not given; to be reviewed) or comment (used at once)."),
]
Languages = Annotated[
    str, typer.Option(help="PO, TMX, XLIFF: the model's, as the file calls them, such as en-de.")
]


def translate(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; else --input, else stdin.")] = None,
    source: Source = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write.")] = None,
    form: Annotated[str, typer.Option("--format", help="text, tsv (line, rank, score, text) or jsonl.")] = "",
    to: To = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations for each text.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of sampling.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    prefix: Annotated[str, typer.Option(help="What each translation must start with.")] = "",
    stream: Annotated[bool, typer.Option("--stream", help="Print word by word (greedy).")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="As TSV: line, rank, score, text.")] = False,
    alignments: Alignments = False,
    again: Again = "",
    mark: Mark = "",
    languages: Languages = "",
    engine: Engine = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Cores for CTranslate2, or --ray; 0 for all.")] = 0,
    ray: Ray = "",
    shard_lines: ShardLines = 0,
    glossary: Glossary = None,
    glossary_mode: Annotated[str | None, typer.Option(help="auto, inline, constrain or split.")] = None,
    others: With = [],  # noqa: B006
    settings: Set = [],  # noqa: B006
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Translate texts, a file, or standard input, line by line; or fill a PO, TMX or XLIFF file.

    \b
    heedful translate MODEL "A sentence."
    heedful translate MODEL -i in.txt -o out.txt
    heedful translate MODEL -i messages.po -o messages.de.po
    heedful translate MODEL -i big.txt -o out.txt --ray local
    """
    from heedful.commands.bulk import BulkOptions, translate_files
    from heedful.commands.documents import DocumentOptions
    from heedful.commands.translate import TranslateOptions
    from heedful.progress import Reporter

    search = _told(
        language=to, glossary_mode=glossary_mode, beam=beam, n_best=n_best, temperature=temperature, seed=seed
    )
    if sample:
        search["method"] = "sample"
    options = TranslateOptions(
        model,
        tuple(texts or ()),
        None,
        None,
        form,
        prefix,
        stream,
        device,
        search,
        tuple(settings),
        engine,
        workers,
        scores,
        alignments,
        DocumentOptions(again, mark, languages),
        glossary,
        tuple(others),
    )
    files = BulkOptions(tuple(source or ()), output, ray, options, shard_lines)
    translate_files(files, Reporter(quiet=quiet))


def _told(**given: object) -> dict[str, object]:
    return {name: value for name, value in given.items() if value is not None}
