"""Traces and explanations of every model variant match the model."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.interpret.activations import ATTENTION_KINDS, attention_name, compute_activations
from heedful.interpret.arithmetic import build_model_attention
from heedful.interpret.attention_row import explain_row
from heedful.interpret.attribution import attention_rollout, gradient_matrix, occlusion_matrix, target_rollout
from heedful.interpret.heads import compute_head_profiles
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder
from heedful.models.config import DEPENDENCY_POSITIONS
from tests.interpret.small_models import new_model_folder
from tests.models.variants import VARIANTS

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
HEADS = "2 4 4 0 6 4 11 11 11 11 4"
all_variants = pytest.mark.parametrize("name", VARIANTS)


def new_variant(name: str) -> ModelFolder:
    settings = dict(VARIANTS[name])
    return new_model_folder("bpe", settings.pop("norm_placement", "post"), d_model=24, heads=3, **settings)


def build_source(name: str) -> str:
    """The sentence; with its tree, for models that read trees."""
    return f"{SENTENCE}\t{HEADS}" if VARIANTS[name].get("positions") in DEPENDENCY_POSITIONS else SENTENCE


@all_variants
@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_build_model_attention_matches_variant(name: str, kind: str) -> None:
    model_folder = new_variant(name)
    activations = compute_activations(model_folder, build_source(name), TARGET)
    for layer in range(activations.layers[kind]):
        step, name_prefix = build_model_attention(model_folder, activations, kind, layer), attention_name(kind, layer)
        weights = torch.stack([head.attention.weights for head in step.heads])
        torch.testing.assert_close(weights, activations.weights(kind, layer).double(), rtol=0, atol=1e-5)
        outputs = torch.stack([head.attention.output for head in step.heads])
        torch.testing.assert_close(outputs, activations.tensors[f"{name_prefix}.heads"].double(), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(
            step.output, activations.tensors[f"{name_prefix}.residual"].double(), rtol=0, atol=1e-4
        )


@all_variants
def test_explain_row_of_variant_has_every_step(name: str) -> None:
    model_folder = new_variant(name)
    activations = compute_activations(model_folder, build_source(name), TARGET)
    for kind in ATTENTION_KINDS:
        explanation = explain_row(model_folder, activations, kind, 0, 1, 3)
        total = sum(w if w != "-inf" else 0 for w in explanation.values["weights"])
        assert total == pytest.approx(1)
        assert len(explanation.values["weights"]) == len(activations.queries_and_keys(kind)[1].subwords)
        text = str(explanation)
        assert ("RMSNorm" in text) == (VARIANTS[name].get("norm") == "rmsnorm")
        assert ("Rotary" in text) == (name == "rotary" and kind != "cross")
        has_bias = build_model_attention(model_folder, activations, kind, 0).heads[1].attention.bias is not None
        assert ("+ distance" in text) == has_bias
        assert has_bias == (kind != "cross") or name not in ("alibi", "relative", "relative-dependency")


@all_variants
def test_trace_of_variant_has_every_tensor(name: str) -> None:
    trace = compute_trace(new_variant(name), TraceRequest(source=build_source(name)))
    manifest = trace.manifest
    assert manifest["model"]["positions"] == VARIANTS[name].get("positions", "sinusoidal")
    for tensor, entry in manifest["tensors"].items():
        assert tuple(trace.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert ("encoder.0.self.pattern" in manifest["tensors"]) == name.startswith("bigbird")


def test_sparse_patterns_have_block_reasons() -> None:
    """Blocks of two subwords: the first, the block itself, and in the encoder a random one."""
    trace = compute_trace(new_variant("bigbird"), TraceRequest(source=SENTENCE, target=TARGET))
    for kind in ("encoder", "decoder"):
        explanation = trace.manifest["sparse_patterns"][f"{kind}.0.self"]
        mask = trace.activations.tensors[f"{kind}.0.self.pattern"][::2, ::2]
        assert [row.nonzero().flatten().tolist() for row in mask] == explanation["rows"]
        for row, (blocks, row_reasons) in enumerate(zip(explanation["rows"], explanation["reasons"], strict=True)):
            reasons = dict(zip(blocks, row_reasons, strict=True))
            if row == 0:
                assert set(row_reasons) == {"first"}
                continue
            assert (reasons.pop(0), reasons.pop(row)) == ("first", "window")
            assert list(reasons.values()) == (["random"] if kind == "encoder" else [])


@all_variants
def test_attribution_of_variant_is_finite(name: str) -> None:
    model_folder = new_variant(name)
    activations = compute_activations(model_folder, build_source(name), TARGET)
    assert gradient_matrix(model_folder, activations).isfinite().all()
    assert occlusion_matrix(model_folder, activations).isfinite().all()
    assert len(compute_head_profiles([activations])) == 3 * (3 + 2 + 2)
    if name == "linformer":
        with pytest.raises(HeedfulError, match="attention rollout is not defined"):
            attention_rollout(activations)
    else:
        both = torch.cat(target_rollout(activations), dim=1)
        torch.testing.assert_close(both.sum(1), torch.ones(len(both)).double())


@pytest.mark.parametrize("name", ["bigbird", "linformer", "relative", "dependency", "relative-dependency"])
def test_trace_of_variant_masked_source_has_no_weight(name: str) -> None:
    model_folder = new_variant(name)
    trace = compute_trace(model_folder, TraceRequest(source=build_source(name), masked_source=(2,)))
    step = build_model_attention(model_folder, trace.activations, "encoder", 0)
    weights = torch.stack([head.attention.weights for head in step.heads])
    torch.testing.assert_close(weights, trace.activations.weights("encoder", 0).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dependency", "relative-dependency"])
def test_activations_with_dependency_tree_use_vocabulary_ids(name: str) -> None:
    model_folder = new_variant(name)
    with_tree, without = (compute_activations(model_folder, text, TARGET) for text in (build_source(name), SENTENCE))
    assert with_tree.source == without.source
    assert max(with_tree.source.ids) < model_folder.config.model.source_vocab_size
    memories = [activations.tensors["encoder.memory"] for activations in (with_tree, without)]
    assert not torch.allclose(*memories, atol=1e-3)
    explanation = compute_trace(model_folder, TraceRequest(source=build_source(name), target=TARGET)).manifest
    assert explanation["text"]["source"] == SENTENCE
    assert explanation["sides"]["source"]["ids"] == list(without.source.ids)
    embedding = explain_row(model_folder, with_tree, "encoder", 0, 0, 3).sections[1].tables[0]
    above = [sum(column) for column in zip(*embedding.cells[1:], strict=True)]
    assert embedding.footer[0][1] == pytest.approx(above, abs=1e-5)


@pytest.mark.parametrize("name", ["dependency", "relative-dependency"])
def test_build_model_attention_without_tree_matches_variant(name: str) -> None:
    model_folder = new_variant(name)
    activations = compute_activations(model_folder, SENTENCE, TARGET)
    for layer in range(activations.layers["encoder"]):
        step = build_model_attention(model_folder, activations, "encoder", layer)
        own = activations.tensors[f"{attention_name('encoder', layer)}.residual"].double()
        torch.testing.assert_close(step.output, own, rtol=0, atol=1e-4)
