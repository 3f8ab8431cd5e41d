"""``heedful explain``: the steps of attention in numbers, of the lecture's examples or of a trained model."""

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.inspection.lecture import TOPICS, glove
from heedful.inspection.lecture_attention import PAIR_CHANNELS, PAIR_SCORES
from heedful.inspection.lecture_mask import TARGET_WORDS
from heedful.inspection.stacks import kinds_of
from heedful.inspection.tables import Explanation, may_style, rendered, terminal_width, to_json
from heedful.inspection.trace import KINDS, Kind, trace
from heedful.inspection.word import explain_word
from heedful.inspection.word_row import find_piece

ALL_TOPICS = (*TOPICS, "glove")
PICTURED = ("thinking-machines", "mask", "positions", "schedule")


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The command line of ``heedful explain``; None is what was not given."""

    subject: str
    sentence: str | None = None
    kind: str | None = None
    layer: int | None = None
    head: int | None = None
    word: str | None = None
    key: str | None = None
    target: str | None = None
    vectors: Path | None = None
    figure: Path | None = None
    digits: int | None = None
    as_json: bool = False
    whole: bool = False
    steps: str | None = None
    to: str | None = None


def explain_command(options: ExplainOptions) -> str:
    """The explanation as text to print."""
    if options.as_json and options.digits is not None:
        raise HeedfulError("--json writes every digit", hint="leave out --digits")
    if options.as_json and options.steps is not None:
        raise HeedfulError("--json writes every step", hint="leave out --steps")
    if options.whole and (options.as_json or options.subject in ALL_TOPICS):
        raise HeedfulError("--all has no effect here: nothing is left out", hint="leave out --all")
    if options.figure is not None:
        check_writable(options.figure)
    topic = options.subject in ALL_TOPICS
    explanation = _topic(options) if topic else _model(options)
    if options.figure is not None:
        _draw(options.subject, options.figure)
    if options.as_json:
        return to_json(explanation)
    digits = 4 if options.digits is None else options.digits
    return rendered(
        explanation,
        width=terminal_width(),
        digits=digits,
        styled=may_style(),
        whole=topic or options.whole,
        only=_steps(options.steps, len(explanation.sections)),
    )


def _steps(text: str | None, count: int) -> list[int]:
    """The numbers of "4,6" or "4-6"; none for all.

    >>> _steps("1,4-6", 9)
    [1, 4, 5, 6]
    """
    if text is None:
        return []
    found = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in text.split(",")]
    numbers = [
        number for part in found if part for number in range(int(part[1]), int(part[2] or part[1]) + 1)
    ]
    if not all(found) or not numbers or min(numbers) < 1 or max(numbers) > count:
        raise HeedfulError(
            f"cannot read the steps {text!r}", hint=f"write 4 or 4,6 or 4-6; steps: 1 to {count}"
        )
    return numbers


def _topic(options: ExplainOptions) -> Explanation:
    name = options.subject
    of_models = {
        "a sentence": options.sentence,
        "--kind": options.kind,
        "--layer": options.layer,
        "--head": options.head,
        "--word": options.word,
        "--key": options.key,
        "--target": options.target,
        "--to": options.to,
    }
    for option, given in of_models.items():
        if given is not None:
            raise HeedfulError(
                f"{option} belongs to a model, and {name} is a topic: topics have no layers, heads or words",
                hint=f"leave it out, or write ./{name} if you mean a model folder",
            )
    if options.figure is not None and name not in PICTURED:
        raise HeedfulError(f"there is no picture of {name}", hint=f"topics with one: {', '.join(PICTURED)}")
    if name == "glove":
        return glove(_vectors(options.vectors))
    if options.vectors is not None:
        raise HeedfulError(f"--vectors has no effect on {name}", hint="it belongs to the topic glove")
    return TOPICS[name]()


def _vectors(path: Path | None) -> Path:
    if path is None:
        raise HeedfulError(
            "the topic glove needs word vectors",
            hint="heedful explain glove --vectors glove.6B.50d.txt, a file of glove.6B.zip of the Stanford "
            "NLP group: a line for each word, the word and then 50 numbers, with spaces between",
        )
    return path


def _model(options: ExplainOptions) -> Explanation:
    _check_kind(options)
    folder = Path(options.subject)
    if not folder.is_dir():
        raise _unknown(options.subject)
    if options.vectors is not None:
        raise HeedfulError("--vectors has no effect on a model", hint="it belongs to the topic glove")
    if options.figure is not None:
        raise HeedfulError(
            "--figure draws topics, not models",
            hint=f"heedful inspect draws a model's heads; topics with a picture: {', '.join(PICTURED)}",
        )
    if options.sentence is None:
        raise HeedfulError(
            "no sentence to explain", hint=f'heedful explain {folder} "A sentence." --word sentence'
        )
    bundle = Bundle.load(folder).writing(options.to or "")
    there = kinds_of(bundle.config.model)
    kind: Kind = next((each for each in KINDS if each == options.kind), there[0])
    # An encoder does not depend on the target: an empty one saves the search for a translation.
    target = "" if kind == "encoder" and "cross" in there else options.target
    seen = trace(bundle, _valid(options.sentence), None if target is None else _valid(target))
    rows, columns = seen.sides(kind)
    translation = "the translation" if "cross" in there else "the text"
    looking = "the sentence" if kind == "encoder" else f"{translation}, which looks (--kind {kind})"
    looked_at = f"{translation} so far" if kind == "decoder" else "the sentence"
    row = 0 if options.word is None else find_piece(rows, _valid(options.word), looking)
    key = None if options.key is None else find_piece(columns, _valid(options.key), looked_at)
    layer, head = (1 if place is None else place for place in (options.layer, options.head))
    return explain_word(bundle, seen, kind, layer - 1, head - 1, row, key)


def _check_kind(options: ExplainOptions) -> None:
    if options.kind not in (None, *KINDS):
        raise HeedfulError(
            f"there is no kind {options.kind!r} of attention", hint=f"kinds: {', '.join(KINDS)}"
        )
    if options.target is not None and options.kind in (None, "encoder"):
        raise HeedfulError(
            "--target has no effect on the encoder",
            hint="add --kind decoder or --kind cross, or leave it out",
        )
    if options.target is not None and not options.target.strip():
        raise HeedfulError("the target is empty", hint="leave out --target for the model's own translation")


def _unknown(subject: str) -> HeedfulError:
    near = difflib.get_close_matches(subject.lower(), ALL_TOPICS, n=1)
    if near:
        return HeedfulError(
            f"there is no topic or model folder {subject!r}; did you mean {near[0]}?",
            hint=f"topics: {', '.join(ALL_TOPICS)}",
        )
    return HeedfulError(
        f"there is no topic or model folder {subject!r}",
        hint=f"topics: {', '.join(ALL_TOPICS)}; or give the folder that `heedful train` wrote",
    )


def _valid(text: str) -> str:
    """Bytes of the command line that are no UTF-8 arrive as halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


def _draw(topic: str, path: Path) -> None:
    from heedful.inspection import figures  # matplotlib is slow to import

    makers: dict[str, Callable[[], Any]] = {
        "thinking-machines": lambda: figures.softmax_figure(PAIR_SCORES, math.sqrt(PAIR_CHANNELS)),
        "mask": lambda: figures.mask_figure(TARGET_WORDS),
        "positions": figures.positions_figure,
        "schedule": figures.schedule_figure,
    }
    lacking = figures.save_figure(makers[topic](), path)
    assert not lacking, "the topics' labels are Latin"
