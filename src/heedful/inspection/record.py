"""A pass of the model as others see it: a manifest for reading, and every tensor by name.

One record feeds the page, the notebook, the standalone HTML and the tests. Names follow the paper:
``encoder.0.self.q``, ``decoder.1.cross.weights``; layers and heads count from 0. Rows look at columns.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from pydantic import Field

from heedful.bundle import Bundle
from heedful.config import Config
from heedful.corpora.filters import clean_sentence
from heedful.decoding.beam import Candidate, beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import length_penalty
from heedful.decoding.search import output_limits
from heedful.errors import HeedfulError
from heedful.inspection.ablation import read_head, without_heads
from heedful.inspection.alignment import usual_aligner
from heedful.inspection.heads import entropy, head_profiles
from heedful.inspection.record_tensors import TensorIndex, tensor_index
from heedful.inspection.trace import (
    KINDS,
    Kind,
    Tokens,
    Trace,
    encoded,
    trace_ids,
    unknown_words,
    with_hidden,
)
from heedful.model.config import ModelConfig
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import END, Tokenizer

FORMAT = 1
TOP = 20
"""Words of each step that are listed with their logits."""
LONGEST = 512
"""Tokens of the longest sentence that is recorded: attention takes their square."""
WIDEST_BEAM = 16


class Asked(Config):
    """What is to be recorded."""

    source: str
    """One sentence."""
    prefix: str = ""
    """What the translation must start with, as text ...; not together with a target."""
    prefix_ids: tuple[int, ...] = ()
    """... or exactly, as ids of the target's vocabulary."""
    target: str | None = None
    """The whole translation, to see how the model reads it; else the model writes its own."""
    target_ids: tuple[int, ...] | None = None
    """The same, exactly, as ids."""
    beam: int | None = Field(None, ge=1, le=WIDEST_BEAM)
    """Hypotheses kept side by side; the model's own setting if not given. A given target is not searched for,
    but its alternatives are."""
    temperature: float = Field(1.0, ge=0.05, le=20.0)
    """Of the probabilities listed for each step; search does not use it."""
    off: tuple[str, ...] = Field((), max_length=1024)
    """Heads that are switched off: encoder.0.3, decoder.1.0, cross.1.2, from 0."""
    hidden: tuple[int, ...] = Field((), max_length=LONGEST)
    """Places of source pieces that nobody may look at, from 0: masked like padding; the end cannot be."""


@dataclass(frozen=True)
class Beam:
    """Everything that search has thought of."""

    width: int
    alpha: float
    steps: tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True)
class Record:
    """One pass with all that is known about it."""

    asked: Asked
    bundle: Bundle
    """The model of this pass: with some heads switched off, if that was asked."""
    seen: Trace
    complete: bool
    """False if the translation ran into the longest length before it ended."""
    beam: Beam | None
    """None where the translation was given."""

    @cached_property
    def tensors(self) -> TensorIndex:
        """Every tensor by name, made when it is asked for."""
        return tensor_index(self.bundle, self.seen)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """All but the tensors, as JSON has it."""
        seen, tokenizer = self.seen, self.bundle.tokenizer
        steps, used = _steps(seen, self.asked.temperature)
        log_probability = math.fsum(step["log_probability"] for step in _written_steps(self, steps))
        count = len(_written_steps(self, steps))
        alpha = self.bundle.config.search.length_penalty
        aligner = usual_aligner(self.bundle.config.model)
        nodes = _nodes(self.beam) if self.beam else []
        used |= {node["id"] for node in nodes} | set(self.tensors.lens_ids)
        listed = sorted(used)
        return {
            "format": FORMAT,
            "model": model_facts(self.bundle),
            "asked": self.asked.model_dump(mode="json"),
            "sides": {
                "source": _side(tokenizer.source, seen.source),
                "read": _side(tokenizer.target, seen.read),
                "written": _side(tokenizer.target, seen.written),
                "sums": seen.sums and asdict(seen.sums),
            },
            "text": {"source": tokenizer.source.decode(seen.source.ids)},
            "translation": {
                "text": tokenizer.target.decode(seen.read.ids[1:]),
                "ids": seen.read.ids[1:],
                "log_probability": log_probability,
                "score": log_probability / length_penalty(count, alpha),
                "complete": self.complete,
                "given": self.beam is None,
            },
            "steps": steps,
            "pieces": dict(zip(listed, tokenizer.target.pieces(listed), strict=True)),
            "beam": self.beam
            and {"width": self.beam.width, "alpha": self.beam.alpha, "space": SPACE, "nodes": nodes},
            "heads": [
                {
                    "kind": each.kind,
                    "layer": each.layer,
                    "head": each.head,
                    "badge": each.habit,
                    "entropy": each.entropy,
                    "spread": each.spread,
                    "end": each.end,
                }
                for each in head_profiles([seen])
            ],
            "ribbon": {
                "layer": aligner.layer,
                "head": aligner.head,
                "caption": aligner.name,
                "links": aligner.links(seen),
            },
            "patterns": _patterns(self.bundle, seen),
            "tensors": self.tensors.described,
            "notes": unknown_words(self.bundle, seen),
        }

    @cached_property
    def identity(self) -> str:
        """A name by content: the same question about the same weights has the same."""
        told = json.dumps([self.asked.model_dump(mode="json"), self.seen.written.ids], sort_keys=True)
        digest = hashlib.sha256(told.encode())
        digest.update(self.seen.tensors["logits"].numpy().tobytes())
        return digest.hexdigest()[:20]


def model_facts(bundle: Bundle) -> dict[str, Any]:
    """What a model is, in a few numbers."""
    config, model = bundle.config, bundle.config.model
    return {
        "languages": config.languages,
        "family": model.family,
        "depth": [model.encoder_layers, model.decoder_layers],
        "layers": _attention_layers(model),
        "heads": model.heads if model.family == "transformer" else 1,
        "width": model.width,
        "channels": model.width // model.heads,
        "feed_forward": model.feed_forward_width,
        "norm": model.norm,
        "positions": model.positions,
        "activation": model.activation,
        "attention": {"encoder": model.encoder_attention, "decoder": model.decoder_attention},
        "vocabulary": {"source": model.source_vocabulary, "target": model.target_vocabulary},
        "parameters": bundle.model.parameter_count(),
        "taught_head": config.taught_head,
        "beam": config.search.beam,
        "alpha": config.search.length_penalty,
    }


def _attention_layers(model: ModelConfig) -> dict[Kind, int]:
    """How many layers of each kind of attention there are; a recurrent model looks at the source, once."""
    if model.family != "transformer":
        return {"encoder": 0, "decoder": 0, "cross": 1}
    return {kind: model.encoder_layers if kind == "encoder" else model.decoder_layers for kind in KINDS}


def record(bundle: Bundle, asked: Asked) -> Record:
    """Translate (or read the given translation of) one sentence, and keep everything."""
    source = encoded(bundle, asked.source)
    _check_length(len(source), "sentence")
    _check_hidden(asked.hidden, len(source))
    model = without_heads(bundle, [read_head(name) for name in asked.off])
    target = _ids(bundle, asked.target, asked.target_ids, "target")
    if target is not None:
        if asked.prefix or asked.prefix_ids:
            raise HeedfulError("prefix and target cannot both be given: a target is the whole translation")
        return Record(asked, model, trace_ids(model, source, target, asked.hidden), True, None)
    prefix = _ids(bundle, asked.prefix or None, asked.prefix_ids or None, "prefix") or []
    tokens, complete, beam = _searched(model, source, prefix, asked)
    return Record(asked, model, trace_ids(model, source, tokens, asked.hidden), complete, beam)


def _ids(bundle: Bundle, text: str | None, ids: tuple[int, ...] | None, name: str) -> list[int] | None:
    """The ids of a prefix or target, which may be given as text or as ids."""
    if ids is None:
        if text is None:
            return None
        found = bundle.tokenizer.target.encode(clean_sentence(text, bundle.config.normalize))
    else:
        if text is not None:
            raise HeedfulError(f"{name} and {name}_ids cannot both be given")
        found = list(ids)
        if any(not END < identity < bundle.config.model.target_vocabulary for identity in found):
            raise HeedfulError(
                f"{name}_ids has an id that cannot be written",
                hint=f"words have ids from {END + 1} to {bundle.config.model.target_vocabulary - 1}",
            )
    _check_length(len(found), name)
    return found


def _check_length(tokens: int, name: str) -> None:
    if tokens > LONGEST:
        raise HeedfulError(
            f"the {name} has {tokens} pieces, and at most {LONGEST} are looked into at once",
            hint="give one sentence at a time",
        )


def _check_hidden(hidden: tuple[int, ...], pieces: int) -> None:
    wrong = next((place for place in hidden if not 0 <= place < pieces), None)
    if wrong is not None:
        raise HeedfulError(
            f"there is no piece {wrong} that could be hidden",
            hint=f"the sentence has the pieces 0 to {pieces - 1}, and its end is always seen",
        )


@torch.inference_mode()
def _searched(
    bundle: Bundle, source_ids: list[int], prefix: list[int], asked: Asked
) -> tuple[list[int], bool, Beam]:
    """The best translation that starts with the prefix, whether it ended, and what search went through."""
    device = bundle.model.output.weight.device
    source = torch.tensor([[*source_ids, END]], device=device)
    settings = search_settings(bundle.config.search, asked)
    limits = [
        max(min(limit, LONGEST), len(prefix) + 1)
        for limit in output_limits(source, settings, bundle.model.longest)  # with what is hidden
    ]
    source = torch.tensor([[*with_hidden(source_ids, asked.hidden), END]], device=device)
    steps: list[tuple[Candidate, ...]] = []
    found = beam_search(
        bundle.model, source, settings, limits, [prefix], lambda step: steps.append(tuple(step))
    )
    best = found[0][0]
    return list(best.tokens), best.complete, Beam(settings.beam, settings.length_penalty, tuple(steps))


def search_settings(own: SearchConfig, asked: Asked) -> SearchConfig:
    """The model's own search, with the beam that was asked for."""
    return own.model_copy(update={"method": "beam", "n_best": 1, "beam": asked.beam or own.beam})


def _side(tokenizer: Tokenizer, tokens: Tokens) -> dict[str, Any]:
    return {
        "ids": tokens.ids,
        "pieces": tokens.pieces,
        "groups": tokens.groups,
        "words": tokens.words,
        "spans": tokenizer.spans(tokens.ids),
    }


def _patterns(bundle: Bundle, seen: Trace) -> dict[str, Any]:
    """Which blocks of words see which, where not all do: for each attention its rows of blocks."""
    size = bundle.config.model.block
    return {
        name.removesuffix(".pattern"): {
            "block": size,
            "rows": [row.nonzero().flatten().tolist() for row in pattern[::size, ::size]],
        }
        for name, pattern in seen.tensors.items()
        if name.endswith(".pattern")
    }


def _steps(seen: Trace, temperature: float) -> tuple[list[dict[str, Any]], set[int]]:
    """What the model thought at each step, and the ids that are listed."""
    logits = seen.tensors["logits"].double()
    chances = logits.log_softmax(-1)
    heated = (logits / temperature).softmax(-1)
    bits = entropy(chances.exp())
    best = logits.topk(min(TOP, logits.size(-1) - 1), dim=-1)
    steps = []
    for number, identity in enumerate(seen.written.ids):
        own = float(chances[number, identity])
        steps.append(
            {
                "id": identity,
                "logit": float(logits[number, identity]),
                "log_probability": own,
                "probability": math.exp(own),
                "rank": int((logits[number] > logits[number, identity]).sum()) + 1,
                "entropy": float(bits[number]),
                "top": [
                    {"id": other, "logit": logit, "probability": float(heated[number, other])}
                    for other, logit in zip(
                        best.indices[number].tolist(), best.values[number].tolist(), strict=True
                    )
                ],
            }
        )
    return steps, {*best.indices.flatten().tolist(), *seen.written.ids}


def _written_steps(record: Record, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that were written: a translation that was cut has no end."""
    return steps if record.complete else steps[:-1]


def _nodes(beam: Beam) -> list[dict[str, Any]]:
    """The candidates of all steps in one list; ``parent`` is a place in it, or -1 for the start."""
    nodes: list[dict[str, Any]] = []
    kept = [-1]  # the place in ``nodes`` of each hypothesis that goes on
    for number, step in enumerate(beam.steps):
        going_on = []
        for candidate in step:
            if candidate.fate == "kept":
                going_on.append(len(nodes))
            nodes.append(
                {
                    "step": number,
                    "parent": kept[candidate.origin],
                    "id": candidate.token,
                    "log_probability": candidate.log_probability,
                    "total": candidate.total,
                    "score": candidate.total / length_penalty(number + 1, beam.alpha),
                    "fate": candidate.fate,
                }
            )
        kept = going_on
    return nodes
