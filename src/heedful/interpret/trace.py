"""One forward pass with everything known about it: a JSON manifest, and every tensor by name.

A trace feeds the page, the notebook, the saved HTML page and the tests; ``trace_schema.py`` defines its JSON.
Names follow the paper (``encoder.0.self.q``, ``decoder.1.cross.weights``); layers and heads count from 0.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.files import wrap_read_errors, write_bytes
from heedful.generation.beam_search import BeamCandidate, beam_search
from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.inference.text_generation import fill_blank_ids
from heedful.inference.translator import Translator
from heedful.interpret import trace_schema as schema
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    Activations,
    AttentionKind,
    attention_name,
    compute_activations_from_ids,
    compute_max_output_length,
    count_attention_layers,
    default_beam_size,
    describe_unknown_words,
    encode_source,
    mask_positions,
)
from heedful.interpret.attribution import ablate_heads, parse_head
from heedful.interpret.heads import compute_head_profiles, default_aligner, entropy
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS, ModelFacts, TraceManifest, TraceRequest
from heedful.interpret.trace_tensors import TensorIndex, build_tensor_index
from heedful.model_folder import ModelFolder
from heedful.models.base import pad_with_end
from heedful.models.config import RECURRENT_ARCHITECTURES, ModelConfig
from heedful.tokenization.dependency_trees import SentenceIds, get_token_ids
from heedful.tokenization.normalization import METASPACE
from heedful.tokenization.special_tokens import END, MASK

TOP_K = 20
"""Most probable tokens listed for each step."""

TASKS: dict[str, schema.Task] = {"causal_lm": "generate", "masked_lm": "fill"}
"""By architecture; all others translate."""

UNSUPPORTED_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "causal_lm": ("a language model has no source and no target", ("prefix", "target", "masked_source")),
    "masked_lm": (
        "a masked language model does not generate from left to right",
        ("prefix", "prefix_ids", "target", "beam_size", "seed", "top_k", "top_p"),
    ),
}
"""Fields of a request that do not apply to an architecture, and why."""


@dataclass(frozen=True)
class DecodingResult:
    """An output and how it was generated."""

    ids: tuple[int, ...]
    """Without END."""
    complete: bool = True
    """False if it reached the maximum length."""
    is_reference: bool = False
    """Whether it was given and only scored."""
    prefix_length: int = 0
    """Tokens at its start that were given."""
    beam_steps: tuple[tuple[BeamCandidate, ...], ...] | None = None
    """All candidates of beam search; None without it."""


@dataclass(frozen=True)
class Trace:
    """One forward pass with everything known about it."""

    request: TraceRequest
    model_folder: ModelFolder
    """The model of this pass, with ablated heads if requested."""
    activations: Activations
    decoding: DecodingResult

    @cached_property
    def tensors(self) -> TensorIndex:
        """Every tensor by name, computed on request."""
        return build_tensor_index(self.model_folder, self.activations)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The ``TraceManifest`` as JSON values."""
        return _build_manifest(self).model_dump(mode="json")

    def export_manifest(self, *, name: str = "model", checkpoint: int | None = None) -> dict[str, Any]:
        """The manifest with the names it has outside this process."""
        model = {**self.manifest["model"], "name": name}
        return {**self.manifest, "checkpoint": checkpoint, "model": model}

    @cached_property
    def fingerprint(self) -> str:
        """An id by content: equal for the same request and the same weights."""
        content = json.dumps([self.request.model_dump(mode="json"), self.activations.target.ids], sort_keys=True)
        digest = hashlib.sha256(content.encode())
        digest.update(self.activations.tensors["logits"].numpy().tobytes())
        return digest.hexdigest()[:20]


def trace(
    model: Translator | ModelFolder | str | Path,
    sentence: str,
    *,
    target: str | None = None,
    prefix: str = "",
    beam_size: int | None = None,
    ablated_heads: Sequence[str] = (),
    target_language: str = "",
) -> Trace:
    """Translate one sentence and keep every tensor; ``model`` is a model folder, or what ``load`` returns.

    ``target`` is a translation to score instead; ``ablated_heads`` (cross.1.2, counted from 0) are switched
    off; ``target_language`` selects the language of a multilingual model.
    """
    request = TraceRequest.from_settings(
        {
            "source": sentence,
            "target": target,
            "prefix": prefix,
            "beam_size": beam_size,
            "ablated_heads": tuple(ablated_heads),
        }
    )
    model_folder = ModelFolder.load(model) if isinstance(model, (str, Path)) else getattr(model, "model_folder", model)
    assert isinstance(model_folder, ModelFolder)
    return compute_trace(model_folder.for_language(target_language), request)


def compute_trace(model_folder: ModelFolder, request: TraceRequest) -> Trace:
    """Generate (or score the given) output for one sentence, and keep every tensor."""
    _check_request(model_folder, request)
    architecture = model_folder.config.model.architecture
    source = encode_source(model_folder, request.source)
    _check_length(len(source), "sentence")
    for position in request.masked_source:
        if not 0 <= position < len(source):
            raise HeedfulError(
                f"masked_source has position {position}, which does not exist",
                hint=f"the sentence has positions 0 to {len(source) - 1}; its end cannot be masked",
            )
    model = model_folder
    if request.ablated_heads:
        model = ablate_heads(model_folder, [parse_head(name) for name in request.ablated_heads])
    target = _resolve_ids(model_folder, request.target, request.target_ids, "target")
    if target is None:
        prefix = _resolve_ids(model_folder, request.prefix or None, request.prefix_ids or None, "prefix")
        if prefix is None:
            prefix = get_token_ids(source) if architecture == "causal_lm" else []
        decoding = _decode(model, source, prefix, request)
    else:
        if architecture == "masked_lm" and not (
            len(source) == len(target) and all(a in (MASK, b) for a, b in zip(source, target, strict=True))
        ):
            raise HeedfulError("target_ids is not the source text with its blanks filled")
        decoding = DecodingResult(tuple(target), is_reference=True)
    activations = compute_activations_from_ids(model, source, decoding.ids, request.masked_source)
    return Trace(request, model, activations, decoding)


def _check_request(model_folder: ModelFolder, request: TraceRequest) -> None:
    """Reject contradictory fields, and fields that the architecture would ignore."""
    set_fields = request.model_dump(exclude_defaults=True).keys()
    reason, unsupported = UNSUPPORTED_FIELDS.get(model_folder.config.model.architecture, ("", ()))
    for name in unsupported:
        if name in set_fields:
            raise HeedfulError(f"{reason}: {name} has no effect", hint=f"remove {name}")
    if set_fields & {"target", "target_ids"} and set_fields & {"prefix", "prefix_ids"}:
        raise HeedfulError("prefix and target cannot be combined: a target is a complete translation")
    if "seed" in set_fields and "beam_size" in set_fields:
        raise HeedfulError("seed and beam_size cannot be combined: use either sampling or beam search")
    if set_fields & {"top_k", "top_p"} and "seed" not in set_fields:
        raise HeedfulError("top_k and top_p apply to sampling only", hint="set a seed, or remove them")


def _resolve_ids(
    model_folder: ModelFolder, text: str | None, ids: tuple[int, ...] | None, name: str
) -> list[int] | None:
    """The ids of a prefix or target, given as text or as ids."""
    if ids is None:
        if text is None:
            return None
        token_ids = model_folder.target_ids(text)
    else:
        if text is not None:
            raise HeedfulError(f"{name} and {name}_ids cannot be combined", hint=f"remove {name}")
        token_ids = list(ids)
        vocab_size = model_folder.config.model.target_vocab_size
        if any(not END < token_id < vocab_size for token_id in token_ids):
            raise HeedfulError(
                f"{name}_ids contains an invalid token id",
                hint=f"tokens of a text have ids from {END + 1} to {vocab_size - 1}",
            )
    _check_length(len(token_ids), name)
    return token_ids


def _check_length(token_count: int, name: str) -> None:
    if token_count > MAX_TRACE_TOKENS:
        raise HeedfulError(
            f"the {name} has {token_count} subwords, and the maximum for a trace is {MAX_TRACE_TOKENS}",
            hint="trace one sentence at a time",
        )


@torch.inference_mode()
def _decode(
    model_folder: ModelFolder, source_ids: SentenceIds, prefix: Sequence[int], request: TraceRequest
) -> DecodingResult:
    """Generate the output after the prefix by beam search or sampling, or fill the blanks."""
    architecture = model_folder.config.model.architecture
    source = mask_positions(pad_with_end([source_ids]), request.masked_source)
    if architecture == "masked_lm":
        masked_ids = source[0, :-1].tolist()
        return DecodingResult(tuple(fill_blank_ids(model_folder, get_token_ids(source_ids), masked_ids)))
    model, config = model_folder.autoregressive_model, build_generation_config(model_folder, request)
    max_length = compute_max_output_length(model_folder, len(source_ids), config)
    max_length = max(min(max_length, MAX_TRACE_TOKENS), len(prefix) + 1)
    if architecture == "causal_lm":  # it has no source, and its samples must not depend on one
        source = pad_with_end([[]])
    source = source.to(model.output.weight.device)
    if config.method == "sample":
        beam_steps = None
        [[best]] = search(model, source, config, max_lengths=[max_length], prefixes=[prefix])
    else:
        steps: list[tuple[BeamCandidate, ...]] = []
        [[best, *_]] = beam_search(
            model, source, config, [max_length], [prefix], lambda candidates: steps.append(tuple(candidates))
        )
        beam_steps = tuple(steps)
    return DecodingResult(tuple(best.tokens), best.complete, prefix_length=len(prefix), beam_steps=beam_steps)


def build_generation_config(model_folder: ModelFolder, request: TraceRequest) -> GenerationConfig:
    """The model's generation config with the requested beam size or sampling."""
    if request.seed is None:
        overrides = {"method": "beam", "beam_size": request.beam_size or default_beam_size(model_folder)}
    else:
        overrides = {"method": "sample", **request.model_dump(include={"seed", "temperature", "top_k", "top_p"})}
    return model_folder.config.generation.model_copy(update={"n_best": 1, **overrides})


# ---- How the manifest is built.


def _build_manifest(trace: Trace) -> TraceManifest:
    activations, decoding = trace.activations, trace.decoding
    config, tokenizer = trace.model_folder.config, trace.model_folder.tokenizer
    steps = _describe_steps(activations, trace.request.temperature)
    # The score counts what was generated: a truncated text has no end, a masked text only its blanks.
    scored_steps = steps if decoding.complete else steps[:-1]
    if (blank_positions := activations.blank_positions) is not None:
        scored_steps = tuple(steps[position] for position in blank_positions)
    log_probability = math.fsum(step.log_probability for step in scored_steps)
    search_tree = _describe_beam_search(trace)
    listed_ids = {*activations.target.ids, *trace.tensors.lens_ids}
    listed_ids |= {token.id for step in steps for token in step.top}
    listed_ids |= {node.id for node in search_tree.nodes} if search_tree else set()
    sorted_ids = sorted(listed_ids)
    sequences = {
        name: schema.ManifestSequence(**asdict(tokens), spans=side_tokenizer.char_spans(tokens.ids))
        for name, side_tokenizer, tokens in (
            ("source", tokenizer.source, activations.source),
            ("decoder_input", tokenizer.target, activations.decoder_input),
            ("target", tokenizer.target, activations.target),
        )
    }
    projected_keys = activations.projected_keys and schema.ManifestTokens(**asdict(activations.projected_keys))
    alignment = None
    if activations.layers["cross"]:
        aligner = default_aligner(config.model)
        links = [(source + activations.tag_count, target) for source, target in aligner.extract_links(activations)]
        alignment = schema.ManifestAlignment(
            layer=aligner.layer, head=aligner.head, caption=aligner.name, links=tuple(links)
        )
    return TraceManifest(
        id=trace.fingerprint,
        segments=((trace.request.source, ""),),
        model=describe_model(trace.model_folder),
        request=trace.request,
        sides=schema.ManifestSides(**sequences, projected_keys=projected_keys),
        text=schema.ManifestText(source=tokenizer.source.decode(activations.source.ids)),
        translation=schema.ManifestTranslation(
            text=tokenizer.target.decode(decoding.ids),
            ids=decoding.ids,
            log_probability=log_probability,
            score=log_probability / config.generation.penalty(len(scored_steps)),
            complete=decoding.complete,
            is_reference=decoding.is_reference,
            prefix_length=decoding.prefix_length,
        ),
        blank_positions=blank_positions,
        steps=steps,
        subwords=dict(zip(sorted_ids, tokenizer.target.ids_to_tokens(sorted_ids), strict=True)),
        beam_search=search_tree,
        heads=tuple(
            schema.HeadSummary.model_validate(profile, from_attributes=True)
            for profile in compute_head_profiles([activations])
        ),
        alignment=alignment,
        sparse_patterns=_describe_sparse_patterns(config.model, activations),
        tensors=trace.tensors.specs,
        notes=tuple(describe_unknown_words(trace.model_folder, activations)),
    )


def describe_model(model_folder: ModelFolder, name: str = "model") -> ModelFacts:
    """What a model is, in a few numbers."""
    config, model = model_folder.config, model_folder.config.model
    layers = count_attention_layers(model)
    fields = {"architecture", "d_model", "d_ff", "norm_placement", "positions", "activation", "scale_embeddings"}
    return ModelFacts(
        **model.model_dump(include=fields),
        **config.generation.model_dump(include={"length_penalty", "length_normalization"}),
        name=name,
        languages=config.languages,
        task=TASKS.get(model.architecture, "translate"),
        encoder_layers=model.encoder_layers if layers["cross"] else layers["encoder"],
        decoder_layers=model.decoder_layers if layers["cross"] else layers["decoder"],
        layers=schema.AttentionLayers(**layers),
        heads=1 if model.architecture in RECURRENT_ARCHITECTURES else model.heads,
        has_arithmetic=model.architecture not in RECURRENT_ARCHITECTURES,
        d_k=model.d_model // model.heads,
        attention=schema.StackAttention(encoder=model.encoder_attention, decoder=model.decoder_attention),
        vocab_size=schema.VocabularySizes(source=model.source_vocab_size, target=model.target_vocab_size),
        parameters=model_folder.model.parameter_count(),
        guided_head=config.guided_head,
        beam_size=default_beam_size(model_folder),
    )


def _describe_steps(activations: Activations, temperature: float) -> tuple[schema.ManifestStep, ...]:
    logits = activations.tensors["logits"].double()
    log_probabilities = logits.log_softmax(-1)
    tempered_probabilities = (logits / temperature).softmax(-1)
    entropies = entropy(log_probabilities.exp())
    best = logits.topk(min(TOP_K, logits.size(-1) - 1), dim=-1)
    steps = []
    for position, token_id in enumerate(activations.target.ids):
        log_probability = float(log_probabilities[position, token_id])
        top = zip(best.indices[position].tolist(), best.values[position].tolist(), strict=True)
        steps.append(
            schema.ManifestStep(
                id=token_id,
                logit=float(logits[position, token_id]),
                log_probability=log_probability,
                probability=math.exp(log_probability),
                rank=int((logits[position] > logits[position, token_id]).sum()) + 1,
                entropy=float(entropies[position]),
                top=tuple(
                    schema.TopToken(
                        id=other_id, logit=logit, probability=float(tempered_probabilities[position, other_id])
                    )
                    for other_id, logit in top
                ),
            )
        )
    return tuple(steps)


def _describe_beam_search(trace: Trace) -> schema.ManifestBeamSearch | None:
    """The candidates of all steps in one list, so that ``parent`` is an index."""
    if trace.decoding.beam_steps is None:
        return None
    config = build_generation_config(trace.model_folder, trace.request)
    nodes: list[schema.BeamNode] = []
    parents = [-1]  # index of the node that ends each live hypothesis
    for step, candidates in enumerate(trace.decoding.beam_steps):
        next_parents = []
        for candidate in candidates:
            if candidate.status == "kept":
                next_parents.append(len(nodes))
            nodes.append(
                schema.BeamNode(
                    step=step,
                    parent=parents[candidate.parent],
                    id=candidate.token,
                    log_probability=candidate.log_probability,
                    total=candidate.total,
                    score=candidate.total / config.penalty(step + 1),
                    status=candidate.status,
                )
            )
        parents = next_parents
    return schema.ManifestBeamSearch(
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
        length_normalization=config.length_normalization,
        space=METASPACE,
        nodes=tuple(nodes),
    )


def _describe_sparse_patterns(model: ModelConfig, activations: Activations) -> dict[str, schema.SparsePattern]:
    """The blocks that each block attends to, for every sparse attention."""

    def find_reason(kind: AttentionKind, row: int, column: int) -> schema.BlockReason:
        if column < model.global_blocks or (kind == "encoder" and row < model.global_blocks):
            return "first"
        before, after = (model.window_blocks - 1, 0) if kind == "decoder" else (model.window_blocks // 2,) * 2
        return "window" if row - before <= column <= row + after else "random"

    patterns = {}
    for kind in ATTENTION_KINDS:
        for layer in range(activations.layers[kind]):
            name = attention_name(kind, layer)
            if (mask := activations.tensors.get(f"{name}.pattern")) is None:
                continue
            block_mask = mask[:: model.block_size, :: model.block_size]
            rows = [row.nonzero().flatten().tolist() for row in block_mask]
            reasons = [[find_reason(kind, row, column) for column in columns] for row, columns in enumerate(rows)]
            patterns[name] = schema.SparsePattern(block_size=model.block_size, rows=rows, reasons=reasons)
    return patterns


# ---- A trace in one safetensors file; the manifest is JSON in its metadata.

METADATA_KEY = "heedful"


@dataclass(frozen=True)
class SavedTrace:
    """A trace read from a file: it has all values, but no model to compute more."""

    manifest: dict[str, Any]
    tensors: dict[str, Tensor]


def serialize_trace(trace: Trace, manifest: dict[str, Any]) -> bytes:
    """The manifest and all tensors as a safetensors file."""
    tensors = {name: trace.tensors.get(name) for name in trace.tensors.entries}
    return save(tensors, metadata={METADATA_KEY: json.dumps(manifest, ensure_ascii=False)})


def save_trace(trace: Trace, path: Path | str, *, name: str = "model") -> None:
    """Write the trace to a file, atomically."""
    write_bytes(Path(path), serialize_trace(trace, trace.export_manifest(name=name)))


def load_trace(path: Path | str) -> SavedTrace:
    """Read what ``save_trace`` wrote."""
    path = Path(path)
    hint = 'write one with: heedful inspect MODEL "A sentence." -o trace.safetensors'
    try:
        with wrap_read_errors(path), safe_open(path, "pt") as file:
            manifest_json = (file.metadata() or {}).get(METADATA_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise HeedfulError(f"{path} is not a trace file: {error}", hint=hint) from None
    if manifest_json is None:
        raise HeedfulError(f"{path} is not a trace file: it has no manifest", hint=hint)
    try:
        manifest = json.loads(manifest_json)
        format_version = manifest.get("format") if isinstance(manifest, dict) else None
        if format_version != schema.TRACE_FORMAT:
            raise HeedfulError(
                f"{path} has trace format {format_version}, not {schema.TRACE_FORMAT}",
                hint="trace the sentence again with this version",
            )
        layers = TraceManifest.from_settings(manifest).model.layers
        if not (layers.encoder or layers.decoder or layers.cross):
            raise ValueError("the manifest has no attention layers")
        json.dumps(manifest, ensure_ascii=False).encode()  # a lone surrogate cannot be written to a page
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{path} is corrupt: {error}", hint=hint) from None
    return SavedTrace(manifest, tensors)
