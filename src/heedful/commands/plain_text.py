"""`heedful generate`, `heedful fill`, and `heedful evaluate` of models of plain text."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.bundle import Bundle
from heedful.commands.evaluate import usable
from heedful.corpora.formats import check_texts, read_texts
from heedful.engines.plain_text import continued, filled, sampling
from heedful.errors import HeedfulError
from heedful.model.config import PLAIN
from heedful.progress import Reporter
from heedful.training.devices import chosen_device
from heedful.training.validation import plain_scores


def generate_command(
    model: Path, prompt: str, longest: int, search: Mapping[str, Any], device: str
) -> list[str]:
    """Texts that go on from the prompt."""
    bundle = Bundle.load(model, chosen_device(device))
    return continued(bundle, prompt, sampling(bundle, search), longest)


def fill_command(model: Path, text: str, top: int, device: str) -> list[str]:
    """The likeliest pieces for each blank, a line each: number of the blank, probability, piece."""
    blanks = filled(Bundle.load(model, chosen_device(device)), text, top)
    return [
        f"{number}\t{guess.probability:.4f}\t{guess.text}"
        for number, guesses in enumerate(blanks, start=1)
        for guess in guesses
    ]


def is_plain(model: Path) -> bool:
    """Whether a model folder is of plain text, and no translator's."""
    return Bundle.open(model).config.model.family in PLAIN


def evaluate_plain_command(model: Path, texts: Sequence[Path], device: str, report: Reporter) -> list[str]:
    """How well a model predicts other text, as lines to print."""
    check_texts(texts)
    bundle = Bundle.load(model, chosen_device(device))
    lines = usable(read_texts(texts), bundle.config.normalize, report)
    if not lines:
        raise HeedfulError(
            f"no text in {' and '.join(map(str, texts))}", hint="give a sentence or paragraph a line"
        )
    found = plain_scores(bundle.predictor.eval(), bundle.tokenizer, lines)
    hidden = "hidden " if bundle.config.model.family == "mask" else ""
    return [
        f"{len(lines):,} lines, {found.pieces:,} {hidden}pieces",
        f"loss       {found.loss:7.3f}   perplexity {math.exp(min(found.loss, 100)):,.2f}",
        f"found      {100 * found.accuracy:6.2f}%   of the pieces are the model's first guess",
        f"without it {100 * found.common_accuracy:6.2f}%   are the commonest piece: a guess without a model; "
        f"by how common each is: perplexity {math.exp(found.common_loss):,.2f}",
    ]
