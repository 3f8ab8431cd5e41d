"""The model card: README.md of a model folder, for the person who finds it."""

from typing import Any

from heedful.model.config import PLAIN, Architecture
from heedful.progress import counted
from heedful.training.config import TaughtConfig
from heedful.training.loop import Run
from heedful.training.tuned import pieces_added, samples, table
from heedful.training.validation import Validation, direction_lines

TITLES = {"language": "plain text, from left to right", "mask": "plain text with blanks"}
KINDS = {
    "transformer": "A Transformer",
    "gru": "A recurrent model (GRU) with additive attention,",
    "lstm": "A recurrent model (LSTM) with additive attention,",
    "language": "A language model, the half of a Transformer that writes,",
    "mask": "A masked language model, the half of a Transformer that reads,",
}
TOKENS = {"language": "token", "mask": "hidden token"}
"""What a model of each family learns to predict, if not the words of a translation."""
USES = {"language": 'generate {} "a beginning"', "mask": 'fill {} "a __ sentence"'}


def use_of(family: str, folder: object = "FOLDER", to: str = "") -> str:
    """The command to try a model with; ``to`` is a language, of several that it writes."""
    return "heedful " + USES.get(family, 'translate {} "a sentence"').format(folder) + (to and f" --to {to}")


def model_card(run: Run, result: Validation, chosen: str, tuned: dict[str, Any] | None = None) -> str:
    """Data, settings, scores and samples of a trained model, in Markdown; of a tuned one before and after."""
    prepared, config = run.prepared, run.prepared.config
    languages, family = prepared.tokenizer.languages, config.model.family
    named = prepared.directions or ((languages,) if languages else ())
    title = ", ".join(f"{one} to {other}" for one, other in named) or TITLES.get(family, "translation")
    scores = [f"{name} {value:.1f}" for name, value in result.scores.items()]
    unit = "line" if family in PLAIN else "pair"
    sections = {
        "Data": _bullets(prepared.summary),
        "Model": _bullets(
            [
                f"{run.model.parameter_count():,} parameters, preset {config.preset}",
                _shape(config.model),
                f"{counted(run.state.update, 'update')}, "
                f"{counted(run.state.tokens, TOKENS.get(family, 'target token'))}, "
                f"{run.state.seconds / 60:.1f} minutes",
                chosen,
                *_taught(config.taught),
            ]
        ),
        f"Scores on the held-out {unit}s": _bullets(
            [
                f"loss {result.loss:.4f} a token, perplexity {result.perplexity:.3f}",
                *scores,
                *direction_lines(result, prepared.directions),
            ]
        ),
        **(_tuned(tuned) if tuned else {}),
        **({} if family in PLAIN or tuned else {"Samples, never learned from": _samples(result)}),
        "Settings": f"```json\n{config.model_dump_json(indent=2)}\n```",
        "Use": f"```\n{use_of(family, to=prepared.directions[-1][1] if prepared.directions else '')}\n```",
    }
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    return f"# Heedful model: {title}\n\n{KINDS[family]} trained by Heedful.\n\n{body}\n"


def _shape(model: Architecture) -> str:
    """Only what a model of this family has."""
    size = f"width {model.width}"
    heads = f"{size}, {counted(model.heads, 'head')}"
    if model.family == "language":
        return f"{counted(model.decoder_layers, 'layer')}, {heads}"
    if model.family == "mask":
        return f"{counted(model.encoder_layers, 'layer')}, {heads}"
    layers = f"{model.encoder_layers} encoder and {counted(model.decoder_layers, 'decoder layer')}"
    return f"{layers}, {heads if model.family == 'transformer' else size}"


def _taught(taught: TaughtConfig) -> list[str]:
    if not taught.links:
        return []
    return [
        f"encoder layer {taught.layer} head {taught.head} is a taught head: an extra loss has shown it where "
        "to look; it did not come to it by itself"
    ]


def _tuned(report: dict[str, Any]) -> dict[str, str]:
    rows = [f"| {' | '.join(_cell(text) for text in sample)} |" for sample in samples(report)] or [
        "| none were translated | | | |"
    ]
    head = ["| source | reference | before | after |", "|---|---|---|---|"]
    origin = [f"started from {report['start_from']}", *filter(None, [pieces_added(report)])]
    return {
        "Before and after tuning": "\n".join([_bullets(origin), "", *table(report)]),
        "Samples before and after, never learned from": "\n".join([*head, *rows]),
    }


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _samples(result: Validation) -> str:
    if not result.samples:
        return "None were translated."
    rows = [f"| {' | '.join(_cell(text) for text in sample)} |" for sample in result.samples]
    return "\n".join(["| source | reference | translation |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
