"""Models of plain text at work: going on with a text, and filling in its blanks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.config import merged
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.search import search
from heedful.errors import HeedfulError
from heedful.model.language import LanguageModel, MaskedModel
from heedful.model.predictor import Predictor
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import BLANK, END, UNKNOWN

BLANKS = re.compile(r"_{2,}")
STAND_IN = "\ue000"
"""A letter of nobody's, in place of a blank while the text is cut into pieces."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A piece that could stand in a blank."""

    text: str
    probability: float


def sampling(bundle: Bundle, told: Mapping[str, Any]) -> SearchConfig:
    """The model's own search, but with words drawn at random, by these settings."""
    return SearchConfig.checked(merged(bundle.config.search.model_dump(), {"method": "sample", **told}))


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
        longer = model.longest is None or longest < model.longest
        raise HeedfulError(
            f"the prompt has {len(start)} tokens, and the text may have {limit}",
            hint=f"allow more: --longest {2 * len(start)}" if longer else "give a shorter prompt",
        )
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
    ids = text_with_blanks(bundle, text)
    likely = _likely(model, ids)[places_of_blanks(ids)]
    best = likely.topk(min(top, likely.size(-1) - 1), dim=-1)
    return [
        [Guess(_shown(bundle, identity), chance) for identity, chance in zip(row, chances, strict=True)]
        for row, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@torch.inference_mode()
def filled_ids(bundle: Bundle, ids: Sequence[int], shown: Sequence[int]) -> list[int]:
    """The ids of a text with the likeliest piece in each blank; ``shown`` is what the model sees of it."""
    likely = _likely(bundle.predictor, shown)
    likely[:, : UNKNOWN + 1] = 0  # these are no words: neither the end nor another blank fills a blank
    best = likely.argmax(-1).tolist()
    return [best[place] if identity == BLANK else identity for place, identity in enumerate(ids)]


def _likely(model: Predictor, ids: Sequence[int]) -> Tensor:
    """The probability of every piece at every place: (places, vocabulary)."""
    source = torch.tensor([[*ids, END]], device=model.output.weight.device)
    return model.logits(model.encode(source)[0]).softmax(-1)


def text_with_blanks(bundle: Bundle, text: str) -> list[int]:
    """``blanked`` of a text that has a blank, and that the model can take."""
    ids = blanked(bundle, text)
    longest = bundle.predictor.longest
    if not places_of_blanks(ids):
        raise HeedfulError("there is no blank in the text", hint='write __ for it: "A man __ a horse."')
    if longest is not None and len(ids) >= longest:
        raise HeedfulError(f"{len(ids)} tokens are too many: this model ends at {longest}")
    return ids


def places_of_blanks(ids: Sequence[int]) -> list[int]:
    """Where the blanks are, from 0."""
    return [place for place, identity in enumerate(ids) if identity == BLANK]


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
