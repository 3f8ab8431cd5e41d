"""Models of plain text at work: going on with a text, and filling in its blanks."""

import re
from dataclasses import dataclass

import torch

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.search import search
from heedful.errors import HeedfulError
from heedful.model.language import LanguageModel, MaskedModel
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import BLANK, END

BLANKS = re.compile(r"_{2,}")
STAND_IN = "\ue000"
"""A letter of nobody's, in place of a blank while the text is cut into pieces."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A piece that could stand in a blank."""

    text: str
    probability: float


def continued(bundle: Bundle, prompt: str, settings: SearchConfig, longest: int) -> list[str]:
    """The prompt and what could follow it, ``n_best`` times, up to so many tokens."""
    model = bundle.predictor
    if not isinstance(model, LanguageModel):
        raise HeedfulError(
            "this model does not go on with a text", hint="train one: heedful train --task language texts.txt"
        )
    start = bundle.tokenizer.target.encode(clean_sentence(prompt, bundle.config.normalize))
    limit = longest if model.longest is None else min(longest, model.longest)
    if len(start) >= limit:
        raise HeedfulError(f"the prompt has {len(start)} tokens, and the text may have {limit}")
    source = torch.tensor([[END]], device=model.output.weight.device)
    found = search(model, source, settings, limits=[limit], prefixes=[start])[0]
    return [bundle.tokenizer.target.decode(each.tokens) for each in found]


@torch.inference_mode()
def filled(bundle: Bundle, text: str, top: int) -> list[list[Guess]]:
    """For every blank (__) of the text the likeliest pieces, as if it were the only one to be filled."""
    model = bundle.predictor
    if not isinstance(model, MaskedModel):
        raise HeedfulError(
            "this model does not fill in blanks", hint="train one: heedful train --task mask texts.txt"
        )
    ids = blanked(bundle, text)
    blanks = [place for place, identity in enumerate(ids) if identity == BLANK]
    if not blanks:
        raise HeedfulError("there is no blank in the text", hint='write __ for it: "A man __ a horse."')
    if model.longest is not None and len(ids) >= model.longest:
        raise HeedfulError(f"{len(ids)} tokens are too many: this model ends at {model.longest}")
    source = torch.tensor([[*ids, END]], device=model.output.weight.device)
    likely = model.logits(model.encode(source)[0, blanks]).softmax(-1)
    best = likely.topk(min(top, likely.size(-1) - 1), dim=-1)
    return [
        [Guess(_shown(bundle, identity), chance) for identity, chance in zip(row, chances, strict=True)]
        for row, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def blanked(bundle: Bundle, text: str) -> list[int]:
    """The ids of a text, with BLANK where it has a blank: one piece, with the space before it."""
    tokenizer = bundle.tokenizer.source
    ids = tokenizer.encode(clean_sentence(BLANKS.sub(STAND_IN, text), bundle.config.normalize))
    places = [place for place, letter in enumerate(tokenizer.decode(ids)) if letter == STAND_IN]
    result: list[int] = []
    done: set[int] = set()
    for identity, span in zip(ids, tokenizer.spans(ids), strict=True):
        start, stop = span or (-1, -1)
        # Several pieces spell the letter; one that is only a space before it belongs to the blank.
        blank = next((place for place in places if start <= place < max(stop, start + 1)), None)
        if blank is None:
            result.append(identity)
        elif start < stop and blank not in done:
            result.append(BLANK)
            done.add(blank)
    return result


def _shown(bundle: Bundle, identity: int) -> str:
    return bundle.tokenizer.source.pieces([identity])[0].replace(SPACE, " ").strip() or SPACE
