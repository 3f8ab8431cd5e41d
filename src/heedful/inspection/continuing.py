"""How a translation could have gone on: the likeliest next pieces at a step, each written to its end.

This is a translator's interactive mode: choose another word, and the model rewrites the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heedful.decoding.search import search
from heedful.errors import HeedfulError
from heedful.inspection.asked import LONGEST
from heedful.inspection.record import Record
from heedful.inspection.trace import END_LABEL, encoded, new_tokens, output_room
from heedful.inspection.writing import search_settings
from heedful.model.translator import Translator
from heedful.text.tokenizer import END

MOST = 20
"""Continuations of one answer."""


@dataclass(frozen=True)
class Continuation:
    """A piece that could have been written at a step, and the translation that it leads to."""

    id: int
    piece: str
    probability: float
    """Of the piece at this step: softmax of the record's own logits."""
    word: str
    """The whole word that the piece becomes a part of; the end has its label."""
    text: str
    """The whole translation, from its first word."""


def continuations(record: Record, step: int, count: int = 8) -> list[Continuation]:
    """The likeliest pieces after those that were written before ``step`` (from 0), each continued."""
    seen = record.seen
    model = record.bundle.writer  # a model that fills in blanks has no rest to write
    if not 0 <= step < len(seen.written.ids):
        raise HeedfulError(
            f"there is no step {step + 1}", hint=f"this translation has steps 1 to {len(seen.written.ids)}"
        )
    logits = seen.tensors["logits"][step].double()
    candidates = logits.topk(min(count, MOST, logits.numel() - 1)).indices.tolist()  # PAD is never next
    chances = logits.softmax(-1)
    before = seen.written.ids[:step]
    own = seen.written.ids[step]
    going_on = [identity for identity in candidates if identity not in (END, own)]
    prefixes = [(*before, each) for each in going_on]
    rest = dict(zip(going_on, _written_from(record, model, prefixes), strict=True))
    rest[own] = seen.read.ids[1:]  # as it is: a search that is forced there may end up elsewhere
    tokenizer = record.bundle.tokenizer.target
    found = []
    for identity in candidates:
        ids = rest.get(identity, before)
        found.append(
            Continuation(
                id=identity,
                piece=tokenizer.pieces([identity])[0],
                probability=float(chances[identity]),
                word=END_LABEL if identity == END else _word_at(record, ids, step),
                text=tokenizer.decode(ids),
            )
        )
    return found


def _written_from(
    record: Record, model: Translator, prefixes: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """The ids of the best translation that starts with each prefix, searched for together."""
    if not prefixes:  # only the end was asked for
        return []
    if model.longest is not None and len(prefixes[0]) >= model.longest:
        return [tuple(prefix) for prefix in prefixes]  # no room for another word
    device = model.output.weight.device
    source = torch.tensor([record.seen.given] * len(prefixes), device=device)
    settings = search_settings(record.bundle, record.asked)
    # Hidden words count for the length.
    whole = torch.tensor([[*encoded(record.bundle, record.asked.source), END]] * len(prefixes))
    limits = [min(limit, LONGEST) for limit in output_room(record.bundle, whole, settings)]
    found = search(model, source, settings, limits=limits, prefixes=prefixes)
    return [best.tokens for [best, *_] in found]


def _word_at(record: Record, ids: Sequence[int], place: int) -> str:
    tokens = new_tokens(record.bundle.tokenizer.target, ids)
    return tokens.words[tokens.groups[place]]
