"""The command line: verbs only. Each parses, calls the library, prints; heavy imports happen inside."""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import heedful
from heedful.cli_corpus import LanguagePair, Pairs, Set, corpus_app, told_languages
from heedful.cli_exports import export
from heedful.cli_family import Device, Engine, Glossary, Model, Quiet, Seen, To, With, compare, fill, generate
from heedful.cli_import import import_model
from heedful.cli_monolingual import average, distill
from heedful.cli_training import train
from heedful.cli_translate import translate
from heedful.errors import HeedfulError, StoppedError

app = typer.Typer(
    name="heedful",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a Transformer on your own sentence pairs, translate with it, see inside it.",
)
app.add_typer(corpus_app, name="corpus")
for verb in (compare, generate, fill, average, distill, export):
    app.command()(verb)
app.command(name="import")(import_model)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"heedful {heedful.__version__}")
        raise typer.Exit


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where the demo is kept.")] = Path("demo"),
    again: Annotated[bool, typer.Option("--again", help="Train anew even if there is a model.")] = False,
    taught: Annotated[
        bool,
        typer.Option("--taught-head", help='Teach one head what "it" means, by an extra loss; labelled so.'),
    ] = False,
    page: Annotated[
        bool, typer.Option(help="End at the web page, if this is a terminal and the server is installed.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Train on the built-in English-French corpus in about a minute, translate, and see inside."""
    from heedful.demo import demo_model, run_demo
    from heedful.progress import Reporter

    report = Reporter(quiet=quiet)
    for line in run_demo(folder, again=again, taught=taught, report=report):
        print(line, flush=True)
    if page and sys.stdin.isatty() and sys.stdout.isatty():
        from heedful.commands.serve import ServeOptions, missing_package, serve_command

        if not missing_package():
            print(flush=True)
            told = {"port": 0}
            options = ServeOptions((str(demo_model(folder, taught)),), told=told, open_page=True)
            serve_command(options, report)


app.command()(train)


app.command()(translate)


@app.command()
def evaluate(
    model: Model,
    pairs: Pairs,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write translations here, one a line.")
    ] = None,
    each: Annotated[
        Path | None,
        typer.Option(help="Write source, reference, translation and log-probabilities of both as TSV."),
    ] = None,
    to: To = None,
    read: Annotated[str, typer.Option("--from", help="Language of the sources; else by the names.")] = "",
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    languages: LanguagePair = None,
    engine: Engine = "exact",
    others: With = [],  # noqa: B006
    glossary: Glossary = None,
    settings: Set = [],  # noqa: B006
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Translate the source side and score it against the target side: BLEU, chrF, TER, loss.

    A model of plain text (`train --task`) is given plain text: how well it predicts it.
    """
    from heedful.commands.evaluate import evaluate_command
    from heedful.commands.plain_text import evaluate_plain_command, is_plain
    from heedful.progress import Reporter

    given = {"language": to, "beam": beam}
    search = {name: value for name, value in given.items() if value is not None}
    if is_plain(model):
        if (
            output
            or each
            or search
            or settings
            or others
            or glossary
            or read
            or languages
            or engine != "exact"
        ):
            raise HeedfulError(
                f"{model} does not translate: only --device and --quiet go with it", hint="leave out the rest"
            )
        for line in evaluate_plain_command(model, pairs, device, Reporter(quiet=quiet)):
            print(line)
        return
    lines = evaluate_command(
        [model, *others],
        pairs,
        output,
        each,
        search,
        settings,
        read=read,
        languages=told_languages(languages),
        engine=engine,
        device=device,
        report=Reporter(quiet=quiet),
        glossary=glossary,
    )
    for line in lines:
        print(line)


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders; FOLDER=en-fr says a model's languages."),
    ],
    host: Annotated[str | None, typer.Option(help="Address; 127.0.0.1 if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="5000 if not given; 0 is any free one.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="Keys, one a line, of which a client needs one.")
    ] = None,
    engine: Engine = "auto",
    settings: Set = [],  # noqa: B006
    device: Device = "auto",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve models over HTTP: a web page, and the clients of LibreTranslate and DeepL and our own.

    \b
    heedful serve my-model --open
    heedful serve en-de-model de-en-model
    heedful serve my-model=en-fr --port 8080 --set server.queue_tokens=100000
    """
    from heedful.commands.serve import ServeOptions, serve_command
    from heedful.progress import Reporter

    address = {"host": host, "port": port}
    told = {name: value for name, value in address.items() if value is not None}
    options = ServeOptions(tuple(models), key_file, engine, device, told, tuple(settings), open_page)
    serve_command(options, Reporter(quiet=quiet))


@app.command()
def explain(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(metavar="TOPIC|MODEL", help="A topic of the list, or a model folder.")
    ] = None,
    sentence: Annotated[str | None, typer.Argument(help="What the model reads.")] = None,
    layer: Annotated[int | None, typer.Option(help="From 1; 1 if not given.")] = None,
    head: Annotated[int | None, typer.Option(help="From 1; 1 if not given.")] = None,
    word: Annotated[
        str | None, typer.Option(help="The word that looks: itself, a piece, or its number from 1.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The word looked at whose products are shown; else the heaviest.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="encoder (if not given), decoder or cross (decoder on source).")
    ] = None,
    target: Annotated[str | None, typer.Option(help="A translation instead of the model's own.")] = None,
    to: To = None,
    vectors: Annotated[Path | None, typer.Option(help="Word vectors, for the topic glove.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="Also draw a .png or .svg: thinking-machines, mask, positions, schedule."),
    ] = None,
    digits: Annotated[int | None, typer.Option(min=1, max=15, help="Decimals; 4 if not given.")] = None,
    whole: Annotated[
        bool, typer.Option("--all", help="All channels of vectors as wide as the model.")
    ] = False,
    steps: Annotated[str | None, typer.Option(help="Only these steps, such as 4-6 or 1,5.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help='All digits, as JSON; -inf is "-inf".')] = False,
) -> None:
    """Print the steps of attention, every number with its formula, to be checked by hand.

    A topic of the lecture, or a word in a trained model: heedful explain MODEL "A sentence." --word sentence

    \b
    thinking-machines  two scores to two weights, and why scores are divided by sqrt(d_k)
    numerical          three inputs through one head, from X to the output
    mask               the look-ahead mask, printed numbers against exact ones
    positions          sines and cosines of positions
    layer              matrix product, feed-forward, residual sum, LayerNorm
    schedule           the learning rate of every step
    text               one-hot, bag of words, TF-IDF
    glove              ten heads and one over GloVe word vectors (needs --vectors FILE)
    """
    options = (sentence, layer, head, word, key, kind, target, to, vectors, figure, digits, steps)
    if subject is None:
        if as_json or whole or any(option is not None for option in options):
            raise HeedfulError("nothing to explain", hint="give a topic or a model folder first")
        print(context.get_help())
        return
    from heedful.commands.explain import ExplainOptions, explain_command

    wanted = ExplainOptions(
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
        whole,
        steps,
        to,
    )
    print(explain_command(wanted), end="")


@app.command()
def inspect(
    model: Model,
    sentence: Annotated[str | None, typer.Argument(help="The sentence to look at.")] = None,
    output: Seen = None,
    target: Annotated[str | None, typer.Option(help="A translation; else the model's own.")] = None,
    to: To = None,
    form: Annotated[str | None, typer.Option("--format", help="png, svg or both (if not given).")] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show pieces of words, not words.")] = False,
    kind: Annotated[str | None, typer.Option(help="Only encoder, decoder or cross attention.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, from 1.")] = None,
    word: Annotated[str | None, typer.Option(help="Show where this word (or its number) looks.")] = None,
    alignments: Annotated[
        list[Path] | None,
        typer.Option(help="Align the words of these pairs: one file, or the option twice for two files."),
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(help="Right alignments (1-1 2p3 ...), to print the error rate.")
    ] = None,
    reads: Annotated[
        bool, typer.Option("--reads", help="Align by the row that reads a word, not the one that writes it.")
    ] = False,
    heads: Annotated[
        list[Path] | None, typer.Option(help="What each head mostly does, on these pairs.")
    ] = None,
    grammar: Annotated[
        bool, typer.Option("--grammar", help='Examine a demo model: which head knows what "it" means?')
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw where the model looks in a sentence; align words; see what each head does.

    \b
    heedful inspect MODEL "A sentence." -o pictures
    heedful inspect MODEL "A sentence." -o page.html
    heedful inspect MODEL --alignments pairs.tsv -o pairs.align
    heedful inspect MODEL --heads pairs.tsv
    heedful inspect demo/model --grammar
    """
    from heedful.commands.inspect import InspectCall, inspected
    from heedful.progress import Reporter

    call = InspectCall(
        model=model,
        sentence=sentence,
        output=output,
        target=target,
        to=to,
        form=form,
        pieces=pieces,
        kind=kind,
        layer=layer,
        head=head,
        word=word,
        alignments=tuple(alignments or ()),
        gold=gold,
        reads=reads,
        heads=tuple(heads or ()),
        grammar=grammar,
        device=device,
    )
    for line in inspected(call, Reporter(quiet=quiet)):
        print(line, flush=True)


def main() -> None:
    """Run the command line; a user's mistake ends in a message, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # text is UTF-8 whatever the console says
            stream.reconfigure(encoding="utf-8")
    try:
        app()
        status = 0
    except SystemExit as end:  # Typer's own: --help, a wrong option, Ctrl-C
        status = end.code if isinstance(end.code, int) else 1
    except HeedfulError as error:
        status = _told(error.problem, error.hint)
    except StoppedError as stopped:
        status = _told(str(stopped), stopped.hint, status=128 + stopped.signal_number, label="")
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        status = 1
    except OSError as error:
        hint = "free some space; nothing that was complete is lost" if error.errno == errno.ENOSPC else ""
        status = _told(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", hint)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        status = _told("not enough memory", "a smaller model.width or batches.tokens needs less")
    # Not sys.exit: a thread may be waiting for standard input, and Python aborts when it cannot end it.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _told(problem: str, hint: str, status: int = 1, label: str = "error: ") -> int:
    with suppress(OSError):  # a terminal that is gone
        print(f"{label}{problem}", file=sys.stderr)
        if hint:
            print(f"  hint: {hint}", file=sys.stderr)
    return status
