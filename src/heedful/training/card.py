"""The model card: README.md of a model folder, for the person who finds it."""

from heedful.training.config import TaughtConfig
from heedful.training.loop import Run
from heedful.training.validation import Validation

TITLES = {"language": "plain text, from left to right", "mask": "plain text with blanks"}
USES = {"language": "generate", "mask": "fill"}


def model_card(run: Run, result: Validation, chosen: str) -> str:
    """Data, settings, scores and samples of a trained model, in Markdown."""
    prepared, config = run.prepared, run.prepared.config
    languages = prepared.tokenizer.languages
    family = config.model.family
    title = f"{languages[0]} to {languages[1]}" if languages else TITLES.get(family, "translation")
    scores = [f"{name} {value:.1f}" for name, value in result.scores.items()]
    minutes = run.state.seconds / 60
    sections = {
        "Data": _bullets(prepared.summary),
        "Model": _bullets(
            [
                f"{run.model.parameter_count():,} parameters, preset {config.preset}",
                f"{config.model.encoder_layers} encoder and {config.model.decoder_layers} decoder layers, "
                f"width {config.model.width}, {config.model.heads} heads",
                f"{run.state.update:,} updates, {run.state.tokens:,} target tokens, {minutes:.1f} minutes",
                chosen,
                *_taught(config.taught),
            ]
        ),
        "Scores on the held-out pairs": _bullets(
            [f"loss {result.loss:.4f} a token, perplexity {result.perplexity:.3f}", *scores]
        ),
        "Samples, never learned from": _samples(result),
        "Settings": f"```json\n{config.model_dump_json(indent=2)}\n```",
        "Use": f'```\nheedful {USES.get(family, "translate")} FOLDER "a sentence"\n```',
    }
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    return f"# Heedful model: {title}\n\nA Transformer trained by Heedful.\n\n{body}\n"


def _taught(taught: TaughtConfig) -> list[str]:
    if not taught.links:
        return []
    return [
        f"encoder layer {taught.layer} head {taught.head} is a taught head: an extra loss has shown it where "
        "to look; it did not come to it by itself"
    ]


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _samples(result: Validation) -> str:
    if not result.samples:
        return "None were translated."
    rows = [f"| {' | '.join(_cell(text) for text in sample)} |" for sample in result.samples]
    return "\n".join(["| source | reference | translation |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
