"""Head profiles, on weights with known patterns."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.interpret.activations import Activations, TokenSequence, compute_activations
from heedful.interpret.heads import compute_head_profiles, entropy
from tests.interpret.small_models import new_model_folder


def new_trace(encoder: list[Tensor], decoder: list[Tensor], cross: list[Tensor]) -> Activations:
    """A trace of one layer with these heads."""
    queries, keys = cross[0].shape

    def tokens(count: int) -> TokenSequence:
        return TokenSequence(tuple(range(count)), ("x",) * count, tuple(range(count)), ("x",) * count)

    weights = {"encoder.0.self": encoder, "decoder.0.self": decoder, "decoder.0.cross": cross}
    return Activations(
        tokens(keys),
        tokens(queries),
        tokens(queries),
        {f"{name}.weights": torch.stack(heads) for name, heads in weights.items()},
        torch.arange(keys)[None],
    )


def previous(size: int) -> Tensor:
    """Every row attends to the previous one; the first to itself."""
    weights = torch.zeros(size, size)
    weights[torch.arange(1, size), torch.arange(size - 1)] = 1
    weights[0, 0] = 1
    return weights


def test_compute_head_profiles_detects_patterns() -> None:
    even, end = torch.full((5, 5), 0.2), torch.eye(5)[[4] * 5]
    causal = torch.ones(3, 3).tril()
    start = torch.eye(3)[[0] * 3]
    activations = new_trace(
        [previous(5), previous(5).flip(0, 1), even, end],
        [previous(3), torch.eye(3), causal / causal.sum(1, keepdim=True), start],
        [torch.eye(5)[[4] * 3], torch.full((3, 5), 0.2), torch.eye(5)[:3], torch.eye(5)[[2] * 3]],
    )
    profiles = compute_head_profiles([activations, activations])
    assert [(item.kind, item.layer, item.head) for item in profiles] == [
        (kind, 0, head) for kind in ("encoder", "decoder", "cross") for head in range(4)
    ]
    assert [item.pattern for item in profiles] == [
        *("previous word", "next word", "broad", "end sink"),
        *("previous word", "itself", "broad", "start sink"),
        *("end sink", "broad", "aligner", ""),
    ]
    first, _, broad, sink = profiles[:4]
    assert first.previous_weight == pytest.approx(4 / 5)
    assert first.distance == pytest.approx(4 / 5)
    assert first.self_weight == pytest.approx(1 / 5)
    assert first.entropy == 0
    assert broad.entropy == pytest.approx(math.log2(5))
    assert broad.normalized_entropy == pytest.approx(1)
    assert broad.distance == pytest.approx((2 * (4 + 3 + 2 + 1) + 2 * (3 + 2 * 2 + 1)) / 25, abs=0.2)
    assert sink.sink_weight == 1
    assert profiles[8].distance is profiles[8].previous_weight is None


def test_compute_head_profiles_detects_aligners() -> None:
    """Each word attends to one word, and most are attended to; ends are ignored."""
    half = torch.tensor([[0.6, 0.4, 0.0, 0.0], [0.3, 0.0, 0.7, 0.0], [0.0, 0.0, 0.1, 0.9]])
    single_word = torch.eye(4)[[1] * 3]
    ambiguous = torch.tensor([[0.4, 0.0, 0.0, 0.6], [0.0, 0.4, 0.0, 0.6], [0.0, 0.0, 1.0, 0.0]])
    activations = new_trace([torch.eye(4)] * 3, [torch.eye(3)] * 3, [half, single_word, ambiguous])
    cross_profiles = [item for item in compute_head_profiles([activations]) if item.kind == "cross"]
    assert [item.alignment_score for item in cross_profiles] == pytest.approx(
        [min((0.6 + 0.7) / 2, (0.6 + 0.4 + 0.7) / 3), min(1, 1 / 3), min(0.4, (0.4 + 0.4 + 1) / 3)]
    )
    assert [item.pattern for item in cross_profiles] == ["aligner", "", ""]
    hidden = replace(activations, masked_source=(1,))
    masked_profiles = [item for item in compute_head_profiles([hidden]) if item.kind == "cross"]
    assert masked_profiles[0].alignment_score == pytest.approx(min((0.6 + 0.7) / 2, (0.6 + 0.7) / 2))
    assert all(item.alignment_score is None for item in compute_head_profiles([activations]) if item.kind != "cross")


def test_normalized_entropy_of_masked_row_counts_visible_keys() -> None:
    """Uniform rows over 1 to 4 tokens: normalized entropy 1, though their entropies differ."""
    causal = torch.ones(4, 4).tril()
    even = causal / causal.sum(1, keepdim=True)
    half = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    activations = new_trace([torch.eye(5)] * 2, [even, half], [torch.eye(5)[:4]] * 2)
    decoder = [item for item in compute_head_profiles([activations]) if item.kind == "decoder"]
    assert decoder[0].normalized_entropy == pytest.approx(1)
    assert decoder[0].entropy == pytest.approx((0 + 1 + math.log2(3) + 2) / 4)
    assert decoder[1].normalized_entropy == pytest.approx(1 / 3)  # one of the three rows with more than one key


def test_entropy_zero_weight_adds_nothing() -> None:
    assert entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist() == [1.0, 0.0]


def test_compute_head_profiles_weights_sentences_equally() -> None:
    model_folder = new_model_folder()
    first_activations, second_activations = (
        compute_activations(model_folder, "A dog.", "Un chien."),
        compute_activations(model_folder, "The dog was very tired.", "Le chien."),
    )
    both = compute_head_profiles([first_activations, second_activations])
    separate = [compute_head_profiles([item]) for item in (first_activations, second_activations)]
    assert len(both) == 3 * 4 + 2 * 4 + 2 * 4
    for combined, first, second in zip(both, *separate, strict=True):
        assert combined.entropy == pytest.approx((first.entropy + second.entropy) / 2)
        assert combined.sink_weight == pytest.approx((first.sink_weight + second.sink_weight) / 2)
