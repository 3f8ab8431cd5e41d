"""How the text of a pass comes about: searched for, drawn at random, or filled in."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heedful.bundle import Bundle
from heedful.decoding.beam import Candidate, beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.search import search
from heedful.engines.plain_text import filled_ids
from heedful.inspection.asked import LONGEST, Asked
from heedful.inspection.trace import output_room, usual_beam, with_hidden
from heedful.text.tokenizer import END


@dataclass(frozen=True)
class Beam:
    """Everything that search has thought of."""

    width: int
    search: SearchConfig
    steps: tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True)
class Writing:
    """A text and how it came about."""

    ids: tuple[int, ...]
    """Without its end."""
    complete: bool = True
    """False if it ran into the longest length before it ended."""
    given: bool = False
    """Whether it was given, and only read by the model."""
    forced: int = 0
    """Pieces at its start that were given."""
    beam: Beam | None = None
    """None where nothing was searched for."""


@torch.inference_mode()
def write_text(bundle: Bundle, source_ids: Sequence[int], prefix: Sequence[int], asked: Asked) -> Writing:
    """The model's own text: what it writes after the prefix, or what it fills in."""
    shown = with_hidden(source_ids, asked.hidden)
    if bundle.config.model.family == "mask":
        return Writing(tuple(filled_ids(bundle, source_ids, shown)))
    settings = search_settings(bundle, asked)
    device = bundle.writer.output.weight.device
    whole = torch.tensor([[*source_ids, END]])  # with what is hidden: it counts for the length
    limits = [max(min(limit, LONGEST), len(prefix) + 1) for limit in output_room(bundle, whole, settings)]
    # A language model reads no source, and what it draws must not depend on one.
    read = [] if bundle.config.model.family == "language" else shown
    source = torch.tensor([[*read, END]], device=device)
    steps: list[tuple[Candidate, ...]] = []
    if settings.method == "sample":
        found = search(bundle.writer, source, settings, limits=limits, prefixes=[prefix])
        beam = None
    else:
        found = beam_search(
            bundle.writer, source, settings, limits, [prefix], lambda step: steps.append(tuple(step))
        )
        beam = Beam(settings.beam, settings, tuple(steps))
    best = found[0][0]
    return Writing(tuple(best.tokens), best.complete, forced=len(prefix), beam=beam)


def search_settings(bundle: Bundle, asked: Asked) -> SearchConfig:
    """The model's own search, with the beam or the draw that was asked for."""
    wanted = {"method": "beam", "beam": asked.beam or usual_beam(bundle)}
    if asked.seed is not None:
        drawing = ("seed", "temperature", "top_k", "top_p")
        wanted = {"method": "sample", **{name: getattr(asked, name) for name in drawing}}
    return bundle.config.search.model_copy(update={"n_best": 1, **wanted})
