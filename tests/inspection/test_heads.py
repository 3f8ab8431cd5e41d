"""Habits of heads, on weights whose habits are known."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.inspection.heads import entropy, head_profiles
from heedful.inspection.trace import Tokens, Trace, trace
from tests.inspection.models import new_bundle


def new_trace(encoder: list[Tensor], decoder: list[Tensor], cross: list[Tensor]) -> Trace:
    """A trace of one layer with these heads."""
    queries, keys = cross[0].shape

    def tokens(count: int) -> Tokens:
        return Tokens(tuple(range(count)), ("x",) * count, tuple(range(count)), ("x",) * count)

    weights = {"encoder.0.self": encoder, "decoder.0.self": decoder, "decoder.0.cross": cross}
    return Trace(
        tokens(keys),
        tokens(queries),
        tokens(queries),
        {f"{name}.weights": torch.stack(heads) for name, heads in weights.items()},
    )


def previous(size: int) -> Tensor:
    """Every row looks at the one before; the first at itself."""
    weights = torch.zeros(size, size)
    weights[torch.arange(1, size), torch.arange(size - 1)] = 1
    weights[0, 0] = 1
    return weights


def test_habits() -> None:
    even, end = torch.full((5, 5), 0.2), torch.eye(5)[[4] * 5]
    causal = torch.ones(3, 3).tril()
    start = torch.eye(3)[[0] * 3]
    seen = new_trace(
        [previous(5), previous(5).flip(0, 1), even, end],
        [previous(3), torch.eye(3), causal / causal.sum(1, keepdim=True), start],
        [torch.eye(5)[[4] * 3], torch.full((3, 5), 0.2), torch.eye(5)[:3], torch.eye(5)[[2] * 3]],
    )
    profiles = head_profiles([seen, seen])
    assert [(each.kind, each.layer, each.head) for each in profiles] == [
        (kind, 0, head) for kind in ("encoder", "decoder", "cross") for head in range(4)
    ]
    assert [each.habit for each in profiles] == [
        *("previous word", "next word", "broad", "end sink"),
        *("previous word", "itself", "broad", "start sink"),
        *("end sink", "broad", "aligner", ""),
    ]
    first, _, broad, sink = profiles[:4]
    assert first.previous == pytest.approx(4 / 5)
    assert first.distance == pytest.approx(4 / 5)
    assert first.itself == pytest.approx(1 / 5)
    assert first.entropy == 0
    assert broad.entropy == pytest.approx(math.log2(5))
    assert broad.spread == pytest.approx(1)
    assert broad.distance == pytest.approx((2 * (4 + 3 + 2 + 1) + 2 * (3 + 2 * 2 + 1)) / 25, abs=0.2)
    assert sink.end == 1
    assert profiles[8].distance is profiles[8].previous is None


def test_aligners() -> None:
    """Each word looks at one word, and most are looked at; ends and the row of the end do not count."""
    half = torch.tensor([[0.6, 0.4, 0.0, 0.0], [0.3, 0.0, 0.7, 0.0], [0.0, 0.0, 0.1, 0.9]])
    one_for_all = torch.eye(4)[[1] * 3]
    torn = torch.tensor([[0.4, 0.0, 0.0, 0.6], [0.0, 0.4, 0.0, 0.6], [0.0, 0.0, 1.0, 0.0]])
    seen = new_trace([torch.eye(4)] * 3, [torch.eye(3)] * 3, [half, one_for_all, torn])
    found = [each for each in head_profiles([seen]) if each.kind == "cross"]
    assert [each.aligns for each in found] == pytest.approx(
        [min((0.6 + 0.7) / 2, (0.6 + 0.4 + 0.7) / 3), min(1, 1 / 3), min(0.4, (0.4 + 0.4 + 1) / 3)]
    )
    assert [each.habit for each in found] == ["aligner", "", ""]
    hidden = replace(seen, hidden=(1,))
    kept = [each for each in head_profiles([hidden]) if each.kind == "cross"]
    assert kept[0].aligns == pytest.approx(min((0.6 + 0.7) / 2, (0.6 + 0.7) / 2))
    assert all(each.aligns is None for each in head_profiles([seen]) if each.kind != "cross")


def test_spread_of_a_masked_row_counts_what_it_sees() -> None:
    """Rows that see 1, 2 and 4 tokens, all evenly: as broad as can be, though their entropies differ."""
    causal = torch.ones(4, 4).tril()
    even = causal / causal.sum(1, keepdim=True)
    half = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    seen = new_trace([torch.eye(5)] * 2, [even, half], [torch.eye(5)[:4]] * 2)
    decoder = [each for each in head_profiles([seen]) if each.kind == "decoder"]
    assert decoder[0].spread == pytest.approx(1)
    assert decoder[0].entropy == pytest.approx((0 + 1 + math.log2(3) + 2) / 4)
    assert decoder[1].spread == pytest.approx(1 / 3)  # one of the three rows that have a choice


def test_entropy_counts_a_zero_as_nothing() -> None:
    assert entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).tolist() == [1.0, 0.0]


def test_sentences_weigh_the_same() -> None:
    bundle = new_bundle()
    one, other = trace(bundle, "A dog.", "Un chien."), trace(bundle, "The dog was very tired.", "Le chien.")
    both = head_profiles([one, other])
    apart = [head_profiles([each]) for each in (one, other)]
    assert len(both) == 3 * 4 + 2 * 4 + 2 * 4
    for whole, first, second in zip(both, *apart, strict=True):
        assert whole.entropy == pytest.approx((first.entropy + second.entropy) / 2)
        assert whole.end == pytest.approx((first.end + second.end) / 2)
