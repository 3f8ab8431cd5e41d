"""Traces of encoder-only and decoder-only models."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.text_generation import fill_blanks, generate_text
from heedful.interpret.activations import attention_name, compute_activations, get_sublayer
from heedful.interpret.alternatives import generate_alternatives
from heedful.interpret.arithmetic import build_model_attention
from heedful.interpret.attention_row import explain_row
from heedful.interpret.heads import compute_head_profiles
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from tests.interpret.small_models import new_model_folder
from tests.models.variants import VARIANTS

PROMPT = "The animal didn't"
BLANKS = "The __ didn't cross the __ because it was tired."
KIND = {"causal_lm": "decoder", "masked_lm": "encoder"}
TEXT = {"causal_lm": PROMPT, "masked_lm": BLANKS}
both_architectures = pytest.mark.parametrize("architecture", ["causal_lm", "masked_lm"])
NAMES = ["paper", "pre-norm", "relative", "rotary", "bigbird", "no-residuals"]


@both_architectures
@pytest.mark.parametrize("name", NAMES)
def test_build_model_attention_matches_language_model(architecture: str, name: str) -> None:
    settings = dict(VARIANTS[name])
    norm = settings.pop("norm_placement", "post")
    model_folder = new_model_folder("bpe", norm, d_model=24, heads=3, architecture=architecture, **settings)
    activations, kind = compute_activations(model_folder, TEXT[architecture]), KIND[architecture]
    assert {item: bool(n) for item, n in activations.layers.items()} == {
        item: item == kind for item in ("encoder", "decoder", "cross")
    }
    assert len(compute_head_profiles([activations])) == 3 * activations.layers[kind]
    for layer in range(activations.layers[kind]):
        step, name_prefix = build_model_attention(model_folder, activations, kind, layer), attention_name(kind, layer)
        weights = torch.stack([head.attention.weights for head in step.heads])
        torch.testing.assert_close(weights, activations.weights(kind, layer).double(), rtol=0, atol=1e-5)
        torch.testing.assert_close(
            step.output, activations.tensors[f"{name_prefix}.residual"].double(), rtol=0, atol=1e-4
        )
    explanation = explain_row(model_folder, activations, kind, 1, 2, 3)
    assert sum(explanation.values["weights"]) == pytest.approx(1)


@both_architectures
def test_trace_of_language_model_has_every_tensor(architecture: str) -> None:
    model_folder = new_model_folder("bpe", architecture=architecture)
    trace = compute_trace(model_folder, TraceRequest(source=TEXT[architecture]))
    manifest = trace.manifest
    for tensor, entry in manifest["tensors"].items():
        assert tuple(trace.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert manifest["alignment"] is None
    assert ("decoder.mask" in manifest["tensors"]) == (architecture == "causal_lm")
    assert ("padding.mask" in manifest["tensors"]) == (architecture == "masked_lm")
    ids, probabilities = trace.tensors.get("lens.ids"), trace.tensors.get("lens.probabilities")
    expected = trace.activations.tensors["logits"].softmax(-1).max(-1)
    assert ids[-1, :, 0].tolist() == expected.indices.tolist()
    torch.testing.assert_close(probabilities[-1, :, 0], expected.values, rtol=0, atol=1e-5)


def test_trace_of_causal_lm_matches_generate_text() -> None:
    model_folder = new_model_folder("bpe", architecture="causal_lm")
    trace = compute_trace(model_folder, TraceRequest(source=PROMPT)).manifest
    greedy = GenerationConfig(beam_size=1, length_penalty=model_folder.config.generation.length_penalty)
    max_length = trace["translation"]["prefix_length"] + model_folder.config.generation.max_length_offset
    assert [trace["translation"]["text"]] == generate_text(model_folder, PROMPT, greedy, max_length)
    assert trace["translation"]["text"].startswith(PROMPT)
    assert trace["beam_search"]["beam_size"] == 1
    sampled = compute_trace(
        model_folder, TraceRequest(source=PROMPT, seed=3, temperature=0.7, top_k=20, top_p=0.9)
    ).manifest
    settings = GenerationConfig(method="sample", seed=3, temperature=0.7, top_k=20, top_p=0.9)
    assert [sampled["translation"]["text"]] == generate_text(model_folder, PROMPT, settings, max_length)
    assert (sampled["beam_search"], sampled["translation"]["is_reference"]) == (None, False)
    assert sampled["translation"]["text"] != trace["translation"]["text"]


def test_trace_of_causal_lm_masks_future() -> None:
    """Later tokens do not change the rows of earlier ones."""
    model_folder = new_model_folder("bpe", architecture="causal_lm")
    trace = compute_trace(model_folder, TraceRequest(source=PROMPT))
    ids = trace.manifest["translation"]["ids"]
    other_trace = compute_trace(model_folder, TraceRequest(source=PROMPT, target_ids=(*ids[:4], 9, 8)))
    assert other_trace.manifest["translation"]["is_reference"]
    before, after = trace.activations.weights("decoder", 1), other_trace.activations.weights("decoder", 1)
    torch.testing.assert_close(before[:, :5, :5], after[:, :5, :5], rtol=0, atol=1e-6)
    assert not before.triu(1).any()


def test_generate_alternatives_of_causal_lm_follow_prefix() -> None:
    model_folder = new_model_folder("bpe", architecture="causal_lm")
    trace = compute_trace(model_folder, TraceRequest(source=PROMPT))
    step = trace.manifest["translation"]["prefix_length"]
    alternatives = generate_alternatives(trace, step, 4)
    assert all(alternative.translation.text.startswith(PROMPT) for alternative in alternatives)
    forced = (*trace.manifest["translation"]["ids"][:step], alternatives[1].token_id)
    other = compute_trace(model_folder, TraceRequest(source=PROMPT, prefix_ids=forced)).manifest
    assert other["translation"]["text"] == alternatives[1].translation.text
    assert other["translation"]["prefix_length"] == step + 1


def test_trace_of_masked_lm_matches_fill_blanks() -> None:
    model_folder = new_model_folder("bpe", architecture="masked_lm")
    manifest = compute_trace(model_folder, TraceRequest(source=BLANKS)).manifest
    predictions = fill_blanks(model_folder, BLANKS, 5)
    assert len(manifest["blank_positions"]) == len(predictions) == 2
    assert [manifest["sides"]["source"]["subwords"][blank] for blank in manifest["blank_positions"]] == ["__", "__"]
    for blank, expected in zip(manifest["blank_positions"], predictions, strict=True):
        top = manifest["steps"][blank]["top"][:5]
        texts = [manifest["subwords"][str(item["id"])].replace("▁", " ").strip() for item in top]
        assert texts == [prediction.text for prediction in expected]
        probabilities = [prediction.probability for prediction in expected]
        assert [item["probability"] for item in top] == pytest.approx(probabilities, rel=1e-4)
    total = sum(manifest["steps"][blank]["log_probability"] for blank in manifest["blank_positions"])
    assert manifest["translation"]["log_probability"] == pytest.approx(total)


@both_architectures
def test_trace_of_language_model_with_ablated_heads_changes_probabilities(architecture: str) -> None:
    model_folder = new_model_folder("bpe", architecture=architecture)
    kind = KIND[architecture]
    plain = compute_trace(model_folder, TraceRequest(source=TEXT[architecture]))
    request = TraceRequest(
        source=TEXT[architecture], ablated_heads=(f"{kind}.1.2",), target_ids=plain.manifest["translation"]["ids"]
    )
    ablated = compute_trace(model_folder, request)
    assert not get_sublayer(ablated.model_folder.model, kind, 1)[0].output.weight[:, 10:15].any()
    assert ablated.manifest["translation"]["text"] == plain.manifest["translation"]["text"]
    assert ablated.manifest["steps"][3]["log_probability"] != plain.manifest["steps"][3]["log_probability"]


@pytest.mark.parametrize(
    ("architecture", "fields", "problem"),
    [
        ("causal_lm", {"source": " "}, "the sentence is empty"),
        ("causal_lm", {"source": "a", "prefix": "b"}, "prefix has no effect"),
        ("causal_lm", {"source": "a", "masked_source": (0,)}, "masked_source has no effect"),
        ("causal_lm", {"source": "a", "ablated_heads": ("cross.0.0",)}, "no cross attention"),
        ("causal_lm", {"source": "a", "beam_size": 2, "seed": 1}, "seed and beam_size"),
        ("causal_lm", {"source": "a", "top_k": 2}, "top_k and top_p"),
        ("masked_lm", {"source": "no blank"}, "there is no blank"),
        ("masked_lm", {"source": ""}, "there is no blank"),
        ("masked_lm", {"source": "a __", "beam_size": 2}, "beam_size has no effect"),
        ("masked_lm", {"source": "a __", "target_ids": (5,)}, "blanks filled"),
    ],
)
def test_trace_of_language_model_unsupported_field_is_an_error(
    architecture: str, fields: dict[str, object], problem: str
) -> None:
    model_folder = new_model_folder("bpe", architecture=architecture)
    with pytest.raises(HeedfulError, match=problem):
        compute_trace(model_folder, TraceRequest.from_settings(fields))


def test_trace_of_causal_lm_respects_learned_position_limit() -> None:
    """A text truncated at the last position can be traced."""
    model_folder = new_model_folder("bpe", architecture="causal_lm", positions="learned", max_length=12)
    trace = compute_trace(model_folder, TraceRequest(source=PROMPT))
    assert len(trace.activations.decoder_input.ids) <= 12
    with pytest.raises(HeedfulError, match="exceed the 12 learned positions"):
        compute_trace(model_folder, TraceRequest(source="The animal didn't cross the street because it was too tired."))
