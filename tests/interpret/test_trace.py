"""Traces: values equal to an unobserved pass, tensor names and sizes, beam search, requests."""

import gzip
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load

from heedful.errors import HeedfulError
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    AttentionKind,
    attention_name,
    compute_activations,
    get_sublayer,
    translate_ids,
)
from heedful.interpret.attribution import HeadIndex, ablate_heads
from heedful.interpret.trace import Trace, compute_trace
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS, TraceRequest
from heedful.interpret.trace_tensors import EXTRA_PADDING, THUMBNAIL_SIZE, list_residual_stream
from heedful.model_folder import ModelFolder
from heedful.models.embeddings import sinusoids
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.special_tokens import END, PAD
from tests.interpret.small_models import new_model_folder

SENTENCE = "The animal didn't cross the street because it was too tired."
BEAM = 3


@pytest.fixture(scope="module", params=["post", "pre"])
def trace(request: pytest.FixtureRequest) -> Trace:
    """A trace of an untrained model, post-norm and pre-norm."""
    return compute_trace(new_model_folder(norm_placement=request.param), TraceRequest(source=SENTENCE, beam_size=BEAM))


def check_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=tolerance)


# --- Observing changes nothing


def test_trace_translation_matches_translate_ids() -> None:
    model_folder = new_model_folder()
    trace = compute_trace(model_folder, TraceRequest(source=SENTENCE))
    source = model_folder.tokenizer.source.encode(SENTENCE)
    assert list(trace.manifest["translation"]["ids"]) == translate_ids(model_folder, source)


@torch.inference_mode()
def test_trace_logits_match_unobserved_pass(trace: Trace) -> None:
    model, sides = trace.model_folder.translation_model, trace.manifest["sides"]
    source, decoder_input = (torch.tensor([sides[side]["ids"]]) for side in ("source", "decoder_input"))
    plain = model.logits(model(source, decoder_input))[0]
    for step in range(len(sides["target"]["ids"])):
        check_close(trace.tensors.get(f"logits.{step}"), plain[step], 0)
    scores = model.score(source, torch.tensor([sides["target"]["ids"]]))[0].tolist()
    explanation = [step["log_probability"] for step in trace.manifest["steps"]]
    assert explanation == pytest.approx(scores, abs=1e-5)


# --- Names, shapes, types


def test_trace_tensors_match_manifest_specs(trace: Trace) -> None:
    specs = json.loads(json.dumps(trace.manifest))["tensors"]
    loaded = load(trace.tensors.to_bytes(specs))
    dtypes = {"F16": torch.float16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32}
    assert loaded.keys() == specs.keys()
    for name, explanation in specs.items():
        assert list(loaded[name].shape) == explanation["shape"], name
        assert loaded[name].dtype == dtypes[explanation["dtype"]], name
    assert trace.tensors.size(specs) == sum(tensor.nbytes for tensor in loaded.values())


def test_trace_tensor_names_follow_the_paper(trace: Trace) -> None:
    names = trace.manifest["tensors"].keys()
    for kind in ATTENTION_KINDS:
        for layer in range(trace.manifest["model"]["layers"][kind]):
            tensor_names = ("q", "k", "v", "scores", "weights", "heads", "output", "x")
            assert {f"{attention_name(kind, layer)}.{tensor_name}" for tensor_name in tensor_names} <= names
    assert {
        *list_residual_stream(trace.activations, "decoder"),
        "encoder.memory",
        "decoder.states",
        "decoder.mask",
        "lens.ids",
    } <= names


def test_trace_attention_rows_sum_to_one(trace: Trace) -> None:
    """Weights are softmax of the scores over sqrt(d_k), and masked positions have no weight."""
    mask = trace.tensors.get("decoder.mask").bool()
    for kind in ATTENTION_KINDS:
        rows, columns = trace.activations.queries_and_keys(kind)
        name = attention_name(kind, 1)
        weights, scores = trace.tensors.get(f"{name}.weights"), trace.tensors.get(f"{name}.scores")
        assert weights.shape == (4, len(rows.ids), len(columns.ids))
        check_close(weights.float().sum(-1), torch.ones(weights.shape[:2]), 3e-3)
        scaled = scores.float() / math.sqrt(5)  # width 20, 4 heads
        if kind == "decoder":
            assert (weights[:, ~mask] == 0).all()
            scaled = scaled.masked_fill(~mask, -torch.inf)
        check_close(weights, scaled.softmax(-1), 5e-3)


def test_trace_positions_and_padding_match_model(trace: Trace) -> None:
    length = len(trace.manifest["sides"]["source"]["ids"])
    check_close(trace.tensors.get("encoder.positions"), sinusoids(length, 20), 0)
    assert trace.tensors.get("padding.mask").tolist() == [1] * length + [0] * EXTRA_PADDING
    weights = trace.tensors.get("padding.weights")
    assert (weights[:, :, length:] == 0).all()
    check_close(weights[:, :, :length], trace.tensors.get("encoder.0.self.weights"), 1e-3)


def test_trace_without_free_positions_has_no_padding_example() -> None:
    model_folder = new_model_folder()
    length = len(model_folder.tokenizer.source.encode(SENTENCE)) + 1
    config = model_folder.config.model.model_copy(update={"positions": "learned", "max_length": length})
    model = type(model_folder.translation_model)(config).eval()
    trace = compute_trace(
        ModelFolder(model_folder.config, model_folder.tokenizer, model),
        TraceRequest(source=SENTENCE, target="il était"),
    )
    assert not [name for name in trace.manifest["tensors"] if name.startswith("padding")]
    assert trace.tensors.get("encoder.positions").shape == (length, 20)


@torch.inference_mode()
def test_logit_lens_last_stage_matches_model(trace: Trace) -> None:
    """The last stage of the lens gives the predictions of the model."""
    ids, probabilities = trace.tensors.get("lens.ids"), trace.tensors.get("lens.probabilities")
    assert ids.shape[0] == len(list_residual_stream(trace.activations, "decoder")) == 1 + 2 * 3
    for step, explanation in enumerate(trace.manifest["steps"]):
        top = explanation["top"][: ids.size(-1)]
        assert ids[-1, step].tolist() == [item["id"] for item in top]
        assert probabilities[-1, step].tolist() == pytest.approx([item["probability"] for item in top], abs=1e-6)
    assert {str(token_id) for token_id in ids.flatten().tolist()} <= json.loads(json.dumps(trace.manifest))[
        "subwords"
    ].keys()


@pytest.mark.parametrize(
    "source",
    [SENTENCE, " cafe\u0301  مرحبا بالعالم 👨‍👩‍👧 ok", "e\u0323\u0301 世界。"],
    ids=["plain", "mixed", "marks"],
)
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_trace_spans_map_subwords_to_text(kind: str, source: str) -> None:
    """Spans of the source text and of the translation: those of a word's subwords cover the word."""
    model_folder = new_model_folder(kind)
    explanation = compute_trace(
        model_folder, TraceRequest(source=source, target="Le chien était à l'heure. 👍🏽")
    ).manifest
    assert explanation["text"]["source"] == clean_sentence(source)
    for side, text in (("source", explanation["text"]["source"]), ("target", explanation["translation"]["text"])):
        tokens = explanation["sides"][side]
        assert len(tokens["spans"]) == len(tokens["ids"])
        assert tokens["spans"][-1] is None
        for number, word in enumerate(tokens["words"][:-1]):
            spans = [s for s, group in zip(tokens["spans"], tokens["word_ids"], strict=True) if group == number]
            assert text[min(start for start, _ in spans) : max(end for _, end in spans)] == word
    assert explanation["sides"]["decoder_input"]["spans"] == [None, *explanation["sides"]["target"]["spans"][:-1]]


# --- Sizes


def test_trace_sizes_at_40_tokens_are_bounded() -> None:
    """The budgets of the page: manifest at most 60 kB, thumbnails at most 150 kB."""
    model_folder = new_model_folder(layers=(6, 6), heads=8, d_model=32)
    ids = model_folder.tokenizer.source.encode(SENTENCE)
    text = model_folder.tokenizer.source.decode((ids * 4)[:39])
    target = tuple((list(model_folder.tokenizer.target.encode("il était trop fatigué .")) * 9)[:39])
    trace = compute_trace(model_folder, TraceRequest(source=text, target_ids=target))
    assert len(trace.activations.source.ids) == 40
    assert len(trace.activations.decoder_input.ids) == 40
    explanation = json.dumps(trace.manifest, ensure_ascii=False).encode()
    assert len(gzip.compress(explanation, 5)) <= 60_000
    thumbnails = [f"thumbnails.{kind}" for kind in ATTENTION_KINDS]
    assert len(trace.tensors.to_bytes(thumbnails)) <= 150_000
    assert trace.tensors.get("thumbnails.cross").shape == (6, 8, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    names = [name for name in trace.manifest["tensors"] if not name.startswith("logits")]
    assert trace.tensors.size(names) <= 4_500_000


def test_trace_thumbnails_are_max_pooled(trace: Trace) -> None:
    small = trace.tensors.get("thumbnails.encoder")
    weights = trace.activations.weights("encoder", 2)
    assert small.shape[2:] == weights.shape[1:]  # a short sentence is not pooled
    check_close(small[2] / 255, weights, 0.5 / 255 + 1e-6)


# --- Search


def get_hypothesis_ids(nodes: list[dict[str, Any]], node: dict[str, Any]) -> list[int]:
    """The token ids of the hypothesis that ends at a node."""
    ids = [node["id"]]
    while node["parent"] >= 0:
        node = nodes[node["parent"]]
        ids.insert(0, node["id"])
    return ids


def test_trace_beam_search_is_a_tree_with_consistent_totals(trace: Trace) -> None:
    beam = trace.manifest["beam_search"]
    assert beam["beam_size"] == BEAM
    nodes = beam["nodes"]
    for number, node in enumerate(nodes):
        assert -1 <= node["parent"] < number
        parent = nodes[node["parent"]] if node["parent"] >= 0 else {"step": -1, "total": 0.0, "status": "kept"}
        assert parent["step"] == node["step"] - 1
        assert parent["status"] == "kept"
        assert node["total"] == pytest.approx(parent["total"] + node["log_probability"], abs=1e-4)
    for step in {node["step"] for node in nodes}:
        assert sum(node["step"] == step and node["status"] == "kept" for node in nodes) <= BEAM


def test_trace_beam_search_best_finished_is_translation() -> None:
    model_folder = new_model_folder(norm_placement="pre")
    activations = compute_trace(model_folder, TraceRequest(source=SENTENCE)).activations.tensors
    mean_state, largest = activations["decoder.states"].mean(0), activations["logits"].max(-1).values.mean()
    with torch.no_grad():  # an untrained model rarely predicts END: make it more probable
        model_folder.translation_model.output.weight[END] = 0.8 * largest * mean_state / mean_state.dot(mean_state)
    manifest = compute_trace(model_folder, TraceRequest(source=SENTENCE, beam_size=BEAM)).manifest
    nodes = manifest["beam_search"]["nodes"]
    finished = [node for node in nodes if node["status"] == "finished"]
    assert manifest["translation"]["complete"]
    assert len(finished) >= BEAM
    best = max(finished, key=lambda node: node["score"])
    assert get_hypothesis_ids(nodes, best) == [*manifest["translation"]["ids"], END]
    assert best["total"] == pytest.approx(manifest["translation"]["log_probability"], abs=1e-3)
    assert best["score"] == pytest.approx(manifest["translation"]["score"], abs=1e-3)


def test_trace_beam_search_unfinished_translation_is_best_of_longest(trace: Trace) -> None:
    manifest = trace.manifest
    nodes = manifest["beam_search"]["nodes"]
    assert not manifest["translation"]["complete"]
    assert not [node for node in nodes if node["status"] == "finished"]
    best = max((node for node in nodes if node["step"] == nodes[-1]["step"]), key=lambda node: node["total"])
    assert get_hypothesis_ids(nodes, best) == list(manifest["translation"]["ids"])
    assert best["total"] == pytest.approx(manifest["translation"]["log_probability"], abs=1e-3)


# --- Ablated heads


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_trace_ablated_head_has_zero_rows_of_w_o(kind: AttentionKind) -> None:
    model_folder = new_model_folder()
    before = {name: tensor.clone() for name, tensor in model_folder.translation_model.state_dict().items()}
    target = tuple(model_folder.tokenizer.target.encode("il était trop fatigué ."))
    plain = compute_trace(model_folder, TraceRequest(source=SENTENCE, target_ids=target))
    ablated = compute_trace(
        model_folder, TraceRequest(source=SENTENCE, target_ids=target, ablated_heads=(f"{kind}.1.2",))
    )

    by_hand = get_sublayer(model_folder.translation_model, kind, 1)[0].output.weight.detach().clone()
    by_hand[:, 10:15] = 0  # head 3 of 4 heads with 5 channels each
    check_close(get_sublayer(ablated.model_folder.translation_model, kind, 1)[0].output.weight, by_hand, 0)
    changed = {
        name
        for name, tensor in ablated.model_folder.translation_model.state_dict().items()
        if not tensor.equal(before[name])
    }
    assert len(changed) == 1

    name = attention_name(kind, 1)
    heads, output = ablated.activations.tensors[f"{name}.heads"], ablated.activations.tensors[f"{name}.output"]
    bias = get_sublayer(model_folder.translation_model, kind, 1)[0].output.bias.detach()
    check_close(output, heads.transpose(0, 1).flatten(1) @ by_hand.T + bias, 1e-5)
    assert ablated.fingerprint != plain.fingerprint
    assert ablated.manifest["translation"]["log_probability"] != plain.manifest["translation"]["log_probability"]
    for key, tensor in model_folder.translation_model.state_dict().items():
        assert tensor.equal(before[key]), key  # the model itself is unchanged
    repeated = compute_trace(model_folder, TraceRequest(source=SENTENCE, target_ids=target))
    assert repeated.fingerprint == plain.fingerprint


def test_trace_without_ablated_heads_keeps_model() -> None:
    model_folder = new_model_folder()
    assert ablate_heads(model_folder, []) is model_folder
    with pytest.raises(HeedfulError, match="head 5 does not exist"):
        ablate_heads(model_folder, [HeadIndex("cross", 0, 4)])
    with pytest.raises(HeedfulError, match="is not a valid head"):
        compute_trace(model_folder, TraceRequest(source=SENTENCE, ablated_heads=("cross.first.0",)))


# --- Requests


def test_trace_prefix_as_text_or_ids_is_equal() -> None:
    model_folder = new_model_folder()
    ids = tuple(model_folder.tokenizer.target.encode("il était"))
    by_text = compute_trace(model_folder, TraceRequest(source=SENTENCE, prefix="il était"))
    by_ids = compute_trace(model_folder, TraceRequest(source=SENTENCE, prefix_ids=ids))
    assert tuple(by_ids.manifest["translation"]["ids"][: len(ids)]) == ids
    assert by_text.manifest["translation"] == by_ids.manifest["translation"]
    with pytest.raises(HeedfulError, match="cannot be combined"):
        compute_trace(model_folder, TraceRequest(source=SENTENCE, prefix="il", prefix_ids=ids))


def test_trace_target_is_scored_not_searched() -> None:
    model_folder = new_model_folder()
    trace = compute_trace(model_folder, TraceRequest(source=SENTENCE, target="il était trop fatigué ."))
    explanation = trace.manifest["translation"]
    assert explanation["text"] == "il était trop fatigué ."
    assert explanation["is_reference"]
    assert trace.manifest["beam_search"] is None
    activations = compute_activations(model_folder, SENTENCE, "il était trop fatigué .")
    check_close(trace.tensors.get("logits.0"), activations.tensors["logits"][0], 0)
    assert explanation["log_probability"] == pytest.approx(sum(s["log_probability"] for s in trace.manifest["steps"]))


@pytest.mark.parametrize("wrong", [-1, PAD, END, 10**6])
@pytest.mark.parametrize("field", ["prefix_ids", "target_ids"])
def test_trace_invalid_ids_are_an_error(field: str, wrong: int) -> None:
    with pytest.raises(HeedfulError, match=f"{field} contains an invalid token id"):
        compute_trace(new_model_folder(), TraceRequest.from_settings({"source": SENTENCE, field: [5, wrong]}))


def test_trace_too_long_sentence_is_an_error() -> None:
    model_folder = new_model_folder()
    many = model_folder.tokenizer.source.decode(model_folder.tokenizer.source.encode(SENTENCE) * 15)
    trace = compute_trace(model_folder, TraceRequest(source=many, target="il était trop fatigué ."))
    assert len(trace.activations.source.ids) > 170
    assert trace.tensors.get("thumbnails.encoder").shape[2:] == (THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    with pytest.raises(HeedfulError, match=f"the maximum for a trace is {MAX_TRACE_TOKENS}"):
        compute_trace(model_folder, TraceRequest(source=" ".join([many] * 4)))
    with pytest.raises(HeedfulError, match="the target has"):
        compute_trace(model_folder, TraceRequest(source=SENTENCE, target_ids=(5,) * (MAX_TRACE_TOKENS + 1)))


def test_trace_unknown_tensor_is_an_error(trace: Trace) -> None:
    with pytest.raises(HeedfulError, match=r"tensor 'encoder\.9\.self\.weights' does not exist"):
        trace.tensors.to_bytes(["encoder.9.self.weights"])
