"""A pass of the model as others see it: a manifest for reading, and every tensor by name.

One record feeds the page, the notebook, the standalone HTML and the tests. Names follow the paper:
``encoder.0.self.q``, ``decoder.1.cross.weights``; layers and heads count from 0. Rows look at columns.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.errors import HeedfulError
from heedful.inspection.ablation import read_head, without_heads
from heedful.inspection.alignment import usual_aligner
from heedful.inspection.asked import LONGEST, Asked, check_asked
from heedful.inspection.heads import entropy, head_profiles
from heedful.inspection.patterns import patterns
from heedful.inspection.record_tensors import TensorIndex, tensor_index
from heedful.inspection.stacks import attention_layers
from heedful.inspection.trace import Tokens, Trace, encoded, trace_ids, unknown_words, usual_beam
from heedful.inspection.writing import Beam, Writing, write_text
from heedful.model.config import PLAIN, RECURRENT, ModelConfig
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import BLANK, END, Tokenizer

FORMAT = 1
TOP = 20
"""Words of each step that are listed with their logits."""


@dataclass(frozen=True)
class Record:
    """One pass with all that is known about it."""

    asked: Asked
    bundle: Bundle
    """The model of this pass: with some heads switched off, if that was asked."""
    seen: Trace
    writing: Writing
    """How the text that was written came about."""

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
        penalty = self.bundle.config.search.penalty
        writing, beam = self.writing, self.writing.beam
        nodes = _nodes(beam) if beam else []
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
                "text": tokenizer.target.decode(writing.ids),
                "ids": writing.ids,
                "log_probability": log_probability,
                "score": log_probability / penalty(count),
                "complete": writing.complete,
                "given": writing.given,
                "forced": writing.forced,
            },
            "blanks": seen.blanks,
            "steps": steps,
            "pieces": dict(zip(listed, tokenizer.target.pieces(listed), strict=True)),
            "beam": beam and _searched(beam, nodes),
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
            "ribbon": _ribbon(self.bundle, seen),
            "patterns": patterns(self.bundle.config.model, seen),
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
        "task": model.family if model.family in PLAIN else "translate",
        "depth": _depth(model),
        "layers": attention_layers(model),
        "heads": 1 if model.family in RECURRENT else model.heads,
        "arithmetic": model.family not in RECURRENT,
        "width": model.width,
        "channels": model.width // model.heads,
        "feed_forward": model.feed_forward_width,
        "norm": model.norm,
        "positions": model.positions,
        "activation": model.activation,
        "attention": {"encoder": model.encoder_attention, "decoder": model.decoder_attention},
        "vocabulary": {"source": model.source_vocabulary, "target": model.target_vocabulary},
        "parameters": bundle.predictor.parameter_count(),
        "taught_head": config.taught_head,
        "beam": usual_beam(bundle),
        "alpha": config.search.length_penalty,
        "normalization": config.search.normalization,
        "scaled_embeddings": model.scale_embeddings,
    }


def _depth(model: ModelConfig) -> tuple[int, int]:
    """Layers of the encoder and of the decoder; 0 of what half a Transformer does not have."""
    there = attention_layers(model)
    encoder, decoder = model.encoder_layers, model.decoder_layers
    return (encoder, decoder) if there["cross"] else (there["encoder"], there["decoder"])


def record(bundle: Bundle, asked: Asked) -> Record:
    """Translate (or read the given translation of) one sentence, or go on with it; and keep everything."""
    check_asked(bundle, asked)
    source = encoded(bundle, asked.source)
    _check_length(len(source), "sentence")
    _check_hidden(asked.hidden, len(source))
    model = without_heads(bundle, [read_head(name) for name in asked.off])
    target = _ids(bundle, asked.target, asked.target_ids, "target")
    if target is not None:
        _check_filled(bundle, source, target)
        writing = Writing(tuple(target), given=True)
    else:
        prefix = _ids(bundle, asked.prefix or None, asked.prefix_ids or None, "prefix")
        if prefix is None:
            prefix = source if bundle.config.model.family == "language" else []
        writing = write_text(model, source, prefix, asked)
    return Record(asked, model, trace_ids(model, source, writing.ids, asked.hidden), writing)


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


def _check_filled(bundle: Bundle, source: Sequence[int], target: Sequence[int]) -> None:
    """A text whose blanks are filled is the same text elsewhere."""
    if bundle.config.model.family != "mask":
        return
    if len(source) != len(target) or any(
        one not in (BLANK, other) for one, other in zip(source, target, strict=True)
    ):
        raise HeedfulError("target_ids is not this text with its blanks filled")


def _check_hidden(hidden: tuple[int, ...], pieces: int) -> None:
    wrong = next((place for place in hidden if not 0 <= place < pieces), None)
    if wrong is not None:
        raise HeedfulError(
            f"there is no piece {wrong} that could be hidden",
            hint=f"the sentence has the pieces 0 to {pieces - 1}, and its end is always seen",
        )


def _searched(beam: Beam, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """A search and how it scored."""
    return {
        "width": beam.width,
        "alpha": beam.search.length_penalty,
        "normalization": beam.search.normalization,
        "space": SPACE,
        "nodes": nodes,
    }


def _side(tokenizer: Tokenizer, tokens: Tokens) -> dict[str, Any]:
    return {
        "ids": tokens.ids,
        "pieces": tokens.pieces,
        "groups": tokens.groups,
        "words": tokens.words,
        "spans": tokenizer.spans(tokens.ids),
    }


def _ribbon(bundle: Bundle, seen: Trace) -> dict[str, Any] | None:
    """Where each word comes from, if there is a source."""
    if not seen.layers["cross"]:
        return None
    aligner = usual_aligner(bundle.config.model)
    return {
        "layer": aligner.layer,
        "head": aligner.head,
        "caption": aligner.name,
        "links": [(source + seen.tags, target) for source, target in aligner.links(seen)],
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
    """The steps that were written: a translation that was cut has no end, and of a text only blanks are."""
    if (blanks := record.seen.blanks) is not None:
        return [steps[place] for place in blanks]
    return steps if record.writing.complete else steps[:-1]


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
                    "score": candidate.total / beam.search.penalty(number + 1),
                    "fate": candidate.fate,
                }
            )
        kept = going_on
    return nodes
