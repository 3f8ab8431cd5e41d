"""Traces of recurrent models, which have cross-attention only."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.interpret.activations import compute_activations
from heedful.interpret.attention_row import explain_row
from heedful.interpret.attribution import attention_rollout, gradient_matrix, occlusion_matrix
from heedful.interpret.heads import compute_head_profiles
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from tests.interpret.small_models import new_model_folder

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
def test_activations_of_recurrent_model_have_cross_attention_only(architecture: str) -> None:
    model_folder = new_model_folder("bpe", architecture=architecture)
    activations = compute_activations(model_folder, SENTENCE, TARGET)
    assert activations.layers == {"encoder": 0, "decoder": 0, "cross": 1}
    weights = activations.weights("cross", 0)
    assert weights.shape == (1, len(activations.target.ids), len(activations.source.ids))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, len(activations.target.ids)))
    assert len(compute_head_profiles([activations])) == 1
    assert gradient_matrix(model_folder, activations).isfinite().all()
    assert occlusion_matrix(model_folder, activations).isfinite().all()
    with pytest.raises(HeedfulError, match="attention rollout is not defined"):
        attention_rollout(activations)
    with pytest.raises(HeedfulError, match="recurrent"):
        explain_row(model_folder, activations, "cross", 0, 0, 1)


def test_trace_of_recurrent_model_has_manifest_and_tensors() -> None:
    model_folder = new_model_folder("bpe", architecture="gru")
    trace = compute_trace(model_folder, TraceRequest(source=SENTENCE, masked_source=(2,)))
    assert trace.manifest["model"]["architecture"] == "gru"
    assert trace.manifest["model"]["heads"] == 1
    for tensor, entry in trace.manifest["tensors"].items():
        assert tuple(trace.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert not trace.tensors.get("decoder.0.cross.weights")[..., 2].any()
    with pytest.raises(HeedfulError, match="recurrent"):
        compute_trace(model_folder, TraceRequest(source=SENTENCE, ablated_heads=("cross.0.0",)))
