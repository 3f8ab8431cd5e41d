"""The command line: registers the verbs, and turns errors into messages.

A verb parses, calls one library function and prints. Heavy imports happen inside it: --help is instant.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.convert import export, import_
from heedful.cli.corpus import corpus_app
from heedful.cli.distill import average, distill
from heedful.cli.evaluate import compare, evaluate
from heedful.cli.inspect import explain, inspect
from heedful.cli.options import QuietOption, print_lines
from heedful.cli.serve import serve
from heedful.cli.train import train
from heedful.cli.translate import fill, generate, translate
from heedful.devices import exit_with_launcher, is_under_torchrun
from heedful.errors import HeedfulError, StoppedError, check_extras, has_extra
from heedful.version import __version__

app = typer.Typer(
    name="heedful",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a Transformer on your own sentence pairs, translate with it, inspect it.",
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"heedful {__version__}")
        raise typer.Exit


def demo(
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder of the demo.")] = Path("demo"),
    retrain: Annotated[bool, typer.Option("--retrain", help="Train again even if there is a model.")] = False,
    guided_attention: Annotated[
        bool,
        typer.Option("--guided-attention", help='Train one head with an extra loss to attend from "it" to its noun.'),
    ] = False,
    page: Annotated[
        bool, typer.Option(help="Open the web page at the end, in a terminal with the server installed.")
    ] = True,
    quiet: QuietOption = False,
) -> None:
    """Train on the built-in English-French corpus in about a minute, translate, and inspect the model."""
    check_extras("the demo", "train")
    from heedful.progress import Reporter
    from heedful.workflows.demo import demo_model_path, run_demo

    print_lines(run_demo(folder, retrain=retrain, guided=guided_attention, report=Reporter(quiet=quiet)))
    if page and sys.stdin.isatty() and sys.stdout.isatty() and has_extra("serve"):
        print(flush=True)
        serve([str(demo_model_path(folder, guided_attention))], port=0, open_page=True, quiet=quiet)


app.command()(demo)
for verb in (train, translate, evaluate, serve, inspect, explain, compare, average, distill, generate, fill, export):
    app.command()(verb)
app.command(name="import")(import_)
app.add_typer(corpus_app, name="corpus")


def main() -> None:
    """Run the command line; user errors end in a message, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # UTF-8 whatever the console encoding
            stream.reconfigure(encoding="utf-8")
    if is_under_torchrun():
        exit_with_launcher()
    try:
        app()
        status = 0
    except SystemExit as system_exit:  # from Typer: --help, a wrong option, Ctrl-C
        status = system_exit.code if isinstance(system_exit.code, int) else 1
    except HeedfulError as error:
        status = _print_error(error.problem, error.hint)
    except StoppedError as stopped:
        status = _print_error(str(stopped), stopped.hint, status=128 + stopped.signal_number, label="")
    except BrokenPipeError:  # the reader of our output (head, less) has quit
        status = 1
    except OSError as error:
        hint = "free some disk space; finished work is not lost" if error.errno == errno.ENOSPC else ""
        status = _print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", hint)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        status = _print_error("not enough memory", "reduce model.d_model or batching.max_tokens")
    # Not sys.exit: Python aborts when a thread still waits for standard input.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _print_error(problem: str, hint: str, status: int = 1, label: str = "error: ") -> int:
    with suppress(OSError):  # the terminal is gone
        print(f"{label}{problem}", file=sys.stderr)
        if hint:
            print(f"  hint: {hint}", file=sys.stderr)
    return status
