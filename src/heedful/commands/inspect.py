"""``heedful inspect``: a sentence (pictures, a page, a record), alignments, or what heads do."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.inspection.tables import Explanation, may_style, rendered, terminal_width
from heedful.progress import Reporter

FITTING = {
    "a sentence": {"output", "target", "to", "form", "pieces", "kind", "layer", "head", "word"},
    "--alignments": {"output", "to", "gold", "layer", "head", "reads"},
    "--heads": {"to"},
    "--grammar": set[str](),
}
"""Which options go with which work."""
FILES = {".html": "page", ".safetensors": "record"}
"""What a sentence becomes if the output has such a name; else it is a folder of pictures."""
SPELLED = {"form": "--format"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectCall:
    """The command line; None, False or empty is what was not given."""

    model: Path
    sentence: str | None
    output: Path | None
    target: str | None
    to: str | None
    form: str | None
    pieces: bool
    kind: str | None
    layer: int | None
    head: int | None
    word: str | None
    alignments: tuple[Path, ...]
    gold: Path | None
    reads: bool
    heads: tuple[Path, ...]
    grammar: bool
    device: str


def inspected(call: InspectCall, report: Reporter) -> Iterator[str]:
    """Do what was asked for; yields lines to print. Heavy imports wait until it is known what that is."""
    work, to = _work(call), call.to or ""
    if work == "a sentence":
        yield from (_taken if _ending(call) in FILES else _drawn)(call, report)
    elif work == "--alignments":
        from heedful.commands.alignments import alignments_command

        yield from alignments_command(
            call.model,
            call.alignments,
            call.output,
            call.gold,
            (call.layer, call.head),
            reads=call.reads,
            to=to,
            device=call.device,
            report=report,
        )
    else:
        from heedful.commands.heads import grammar_command, heads_command

        yield _shown(
            grammar_command(call.model, device=call.device, report=report)
            if call.grammar
            else heads_command(call.model, call.heads, to=to, device=call.device, report=report)
        )


def _work(call: InspectCall) -> str:
    """The one thing that was asked for; an option that belongs to another is an error."""
    asked = {
        "a sentence": call.sentence is not None,
        "--alignments": bool(call.alignments),
        "--heads": bool(call.heads),
        "--grammar": call.grammar,
    }
    wanted = [name for name, given in asked.items() if given]
    if len(wanted) != 1:
        problem = f"{' and '.join(wanted)} do not go together" if wanted else "nothing to inspect"
        raise HeedfulError(problem, hint=f"give one of {', '.join(asked)}")
    options = {name for names in FITTING.values() for name in names}
    for name in sorted(options - FITTING[wanted[0]]):
        if getattr(call, name) not in (None, False):
            raise HeedfulError(
                f"{SPELLED.get(name, f'--{name}')} has no effect with {wanted[0]}", hint="leave it out"
            )
    return wanted[0]


def _ending(call: InspectCall) -> str:
    return call.output.suffix.lower() if call.output else ""


def _taken(call: InspectCall, report: Reporter) -> Iterator[str]:
    """The sentence as one file: a page that works without a server, or every tensor."""
    from heedful.commands.taking import TakenOptions, taken_command

    assert call.output is not None
    assert call.sentence is not None
    if call.form is not None:
        raise HeedfulError("--format has no effect on a file", hint="it is for pictures: -o FOLDER")
    place = {name: getattr(call, name) for name in ("kind", "layer", "head", "word", "pieces")}
    options = TakenOptions(
        call.model, call.sentence, call.output, call.target, call.device, place, call.to or ""
    )
    return taken_command(options, report)


def _drawn(call: InspectCall, report: Reporter) -> Iterator[str]:
    from heedful.commands.pictures import PictureOptions, pictures_command

    if call.output is None or call.sentence is None:
        raise HeedfulError("no folder for the pictures", hint="name one: -o pictures")
    options = PictureOptions(
        call.model,
        call.sentence,
        call.output,
        call.target,
        call.form or "both",
        call.pieces,
        call.kind,
        call.layer,
        call.head,
        call.word,
        call.device,
        call.to or "",
    )
    return pictures_command(options, report)


def _shown(explanation: Explanation) -> str:
    return rendered(explanation, width=terminal_width(), styled=may_style()).rstrip("\n")
