"""``heedful explain``: the arithmetic of attention, for a topic of the lecture or a word in a model."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.files import check_writable
from heedful.interpret.activations import check_attention_kind, compute_activations, list_attention_kinds
from heedful.interpret.attention_row import explain_row, find_subword
from heedful.interpret.lecture.attention import TARGET_WORDS, explain_mask, explain_numerical, explain_thinking_machines
from heedful.interpret.lecture.layer_parts import explain_layer, explain_positions, explain_schedule
from heedful.interpret.lecture.text_representations import explain_glove, explain_text
from heedful.interpret.tables import Explanation, can_style, render_text, terminal_width, to_json
from heedful.model_folder import ModelFolder

TOPICS: dict[str, Callable[[], Explanation]] = {
    "thinking-machines": explain_thinking_machines,
    "numerical": explain_numerical,
    "mask": explain_mask,
    "positions": explain_positions,
    "layer": explain_layer,
    "schedule": explain_schedule,
    "text": explain_text,
}
"""Topics without input; ``explain_glove`` needs a file of word vectors."""

ALL_TOPICS = (*TOPICS, "glove")
TOPICS_WITH_FIGURE = ("thinking-machines", "mask", "positions", "schedule")


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The command line of ``heedful explain``; None means not given."""

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
    show_all: bool = False
    steps: str | None = None
    target_language: str | None = None

    def __post_init__(self) -> None:
        for name in ("sentence", "word", "key", "target"):  # invalid UTF-8 arrives as lone surrogates
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, text.encode("utf-8", "replace").decode())


def explain_subject(options: ExplainOptions) -> str:
    """The explanation as text to print."""
    if options.as_json and options.digits is not None:
        raise HeedfulError("--json writes every digit", hint="remove --digits")
    if options.as_json and options.steps is not None:
        raise HeedfulError("--json writes every step", hint="remove --steps")
    if options.show_all and (options.as_json or options.subject in ALL_TOPICS):
        raise HeedfulError("--all has no effect here: nothing is left out", hint="remove --all")
    if options.figure is not None:
        check_writable(options.figure)
    is_topic = options.subject in ALL_TOPICS
    explanation = _explain_topic(options) if is_topic else _explain_model(options)
    if options.figure is not None:
        _draw_topic(options.subject, options.figure)
    if options.as_json:
        return to_json(explanation)
    return render_text(
        explanation,
        width=terminal_width(),
        digits=4 if options.digits is None else options.digits,
        use_style=can_style(),
        show_all_columns=is_topic or options.show_all,
        selected_sections=_parse_steps(options.steps, len(explanation.sections)),
    )


def _parse_steps(text: str | None, count: int) -> list[int]:
    """The numbers of "4,6" or "4-6"; none for all.

    >>> _parse_steps("1,4-6", 9)
    [1, 4, 5, 6]
    """
    if text is None:
        return []
    matches = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in text.split(",")]
    numbers = [number for part in matches if part for number in range(int(part[1]), int(part[2] or part[1]) + 1)]
    if not all(matches) or not numbers or min(numbers) < 1 or max(numbers) > count:
        raise HeedfulError(f"cannot read the steps {text!r}", hint=f"write 4 or 4,6 or 4-6; steps: 1 to {count}")
    return numbers


def _explain_topic(options: ExplainOptions) -> Explanation:
    name = options.subject
    model_options = {
        "a sentence": options.sentence,
        "--kind": options.kind,
        "--layer": options.layer,
        "--head": options.head,
        "--word": options.word,
        "--key": options.key,
        "--target": options.target,
        "--to": options.target_language,
    }
    for option, value in model_options.items():
        if value is not None:
            raise HeedfulError(
                f"{option} belongs to a model, and {name} is a topic: topics have no layers, heads or words",
                hint=f"omit it, or write ./{name} if you mean a model folder",
            )
    if options.figure is not None and name not in TOPICS_WITH_FIGURE:
        raise HeedfulError(
            f"the topic {name} has no figure", hint=f"topics with a figure: {', '.join(TOPICS_WITH_FIGURE)}"
        )
    if name != "glove":
        if options.vectors is not None:
            raise HeedfulError(f"--vectors has no effect on {name}", hint="it belongs to the topic glove")
        return TOPICS[name]()
    if options.vectors is None:
        raise HeedfulError(
            "the topic glove needs word vectors",
            hint="heedful explain glove --vectors glove.6B.50d.txt, a file of glove.6B.zip of the Stanford "
            "NLP group: one line per word, the word and then 50 numbers, separated by spaces",
        )
    return explain_glove(options.vectors)


def _explain_model(options: ExplainOptions) -> Explanation:
    if options.kind is not None:
        check_attention_kind(options.kind)
    if options.target is not None and options.kind in (None, "encoder"):
        raise HeedfulError(
            "--target has no effect on the encoder", hint="add --kind decoder or --kind cross, or remove it"
        )
    if options.target is not None and not options.target.strip():
        raise HeedfulError("the target is empty", hint="remove --target to use the model's translation")
    folder = Path(options.subject)
    if not folder.is_dir():
        problem, hint = f"unknown topic or model folder {options.subject!r}", f"topics: {', '.join(ALL_TOPICS)}"
        if close_matches := difflib.get_close_matches(options.subject.lower(), ALL_TOPICS, n=1):
            raise HeedfulError(f"{problem}; did you mean {close_matches[0]}?", hint=hint)
        raise HeedfulError(problem, hint=f"{hint}; or give the folder that `heedful train` wrote")
    if options.vectors is not None:
        raise HeedfulError("--vectors has no effect on a model", hint="it belongs to the topic glove")
    if options.figure is not None:
        raise HeedfulError(
            "--figure draws topics, not models",
            hint=f"use heedful inspect; topics with a figure: {', '.join(TOPICS_WITH_FIGURE)}",
        )
    if options.sentence is None:
        raise HeedfulError("no sentence to explain", hint=f'heedful explain {folder} "A sentence." --word sentence')
    model_folder = ModelFolder.load(folder).for_language(options.target_language or "")
    available_kinds = list_attention_kinds(model_folder.config.model)
    kind = available_kinds[0] if options.kind is None else check_attention_kind(options.kind)
    # An encoder does not depend on the target: an empty one saves the search for a translation.
    target = "" if kind == "encoder" and "cross" in available_kinds else options.target
    activations = compute_activations(model_folder, options.sentence, target)
    rows, columns = activations.queries_and_keys(kind)
    translation = "the translation" if "cross" in available_kinds else "the text"
    query_text_name = "the sentence" if kind == "encoder" else f"{translation} (--kind {kind})"
    key_text_name = f"{translation} so far" if kind == "decoder" else "the sentence"
    row = 0 if options.word is None else find_subword(rows, options.word, query_text_name)
    key = None if options.key is None else find_subword(columns, options.key, key_text_name)
    layer, head = (1 if number is None else number for number in (options.layer, options.head))
    return explain_row(model_folder, activations, kind, layer - 1, head - 1, row, key)


def _draw_topic(topic: str, path: Path) -> None:
    from heedful.interpret.figures import lecture_figures, style  # matplotlib is slow to import

    figure_builders: dict[str, Callable[[], Any]] = {
        "thinking-machines": lecture_figures.softmax_figure,
        "mask": lambda: lecture_figures.mask_figure(TARGET_WORDS),
        "positions": lecture_figures.positions_figure,
        "schedule": lecture_figures.schedule_figure,
    }
    undrawable = style.save_figure(figure_builders[topic](), path)
    assert not undrawable, "the topics' labels are Latin"
