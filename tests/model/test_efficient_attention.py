"""BigBird and Linformer against the formulas written out, and what they may never do."""

import pytest
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.model.attention import MultiHeadAttention, attention, look_ahead_mask
from heedful.model.efficient_attention import (
    BlockAttention,
    Blocks,
    CausalBlockAttention,
    ProjectedAttention,
    blocks_seen,
)
from tests.model.test_relative import HEADS, WIDTH, new


def visible_of(lengths: list[int], longest: int) -> Tensor:
    return (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None]


def agree(module: MultiHeadAttention, found: Tensor, expected: Tensor, x: Tensor) -> None:
    """Forward and gradient."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    wanted = [x, *module.parameters()]
    direction = torch.randn_like(expected)
    ours = torch.autograd.grad((found * direction).sum(), wanted)
    theirs = torch.autograd.grad((expected * direction).sum(), wanted)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


def sees(module: BlockAttention, i: int, j: int, length: int) -> bool:
    """Word i sees word j of a text so long, by the paper's three rules."""
    blocks, number = module.blocks, module.blocks.of(length)
    if i // blocks.size >= number:
        return i // blocks.size < blocks.first
    own, other = i // blocks.size, j // blocks.size
    if own < blocks.first or other < blocks.first or abs(own - other) <= blocks.window // 2:
        return True
    return other in blocks_seen(blocks, number, module.seed)[own].tolist()


SHAPES = [
    (Blocks(2, 1, 1, 1), 13),
    (Blocks(3, 3, 1, 2), 31),
    (Blocks(2, 3, 0, 1), 17),
    (Blocks(1, 3, 2, 0), 12),
    (Blocks(4, 1, 2, 1), 32),
]


@pytest.mark.parametrize(("blocks", "length"), SHAPES)
@pytest.mark.parametrize("padded", [False, True])
def test_bigbird_is_the_formula(blocks: Blocks, length: int, padded: bool) -> None:
    module = new(BlockAttention, blocks=blocks, seed=3)
    assert blocks.of(length) > blocks.seen, "else everything is seen"
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    lengths = [length, length - 5] if padded else [length, length]
    visible = visible_of(lengths, length) if padded else None
    pattern = torch.tensor(
        [
            [[[sees(module, i, j, own) and j < own for j in range(length)] for i in range(length)]]
            for own in lengths
        ]
    )
    assert not pattern[0].all()
    mask = pattern | ~pattern.any(-1, keepdim=True)
    query, key, value = module.project(x)
    expected = module.output(attention(query, key, value, mask).transpose(1, 2).flatten(2))
    real = visible_of(lengths, length)[:, 0, 0, :, None]  # what padding finds is nobody's business
    agree(module, module(x, visible=visible) * real, expected * real, x)


@pytest.mark.parametrize("length", [1, 2, 11, 12])
def test_bigbird_that_covers_everything_is_full_attention(length: int) -> None:
    module = new(BlockAttention, blocks=Blocks(2, 3, 1, 2), seed=0)
    full = new(MultiHeadAttention)
    full.load_state_dict(module.state_dict())
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    visible = visible_of([length, max(1, length - 3)], length)
    found, expected = module(x, visible=visible), full(x, visible=visible)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_bigbird_by_blocks_is_full_attention_when_the_blocks_are_all() -> None:
    """The block-wise computation itself, not the short cut."""
    module = new(BlockAttention, blocks=Blocks(2, 3, 0, 9), seed=0)
    x = torch.randn(2, 19, WIDTH, dtype=torch.float64)
    query, key, value = module.project(x)
    found = module._rest(query, key, value, None)[..., :19, :]
    torch.testing.assert_close(found, attention(query, key, value), rtol=0, atol=1e-12)


def test_a_sentence_much_shorter_than_its_batch() -> None:
    """Some of its blocks see nothing but padding: no number may become none."""
    module = new(BlockAttention, blocks=Blocks(2, 1, 0, 1), seed=0)
    x = torch.randn(2, 20, WIDTH, dtype=torch.float64, requires_grad=True)
    found = module(x, visible=visible_of([20, 1], 20))
    assert found.isfinite().all()
    gradient = torch.autograd.grad(found[0].sum() + found[1, 0].sum(), x)[0]
    assert gradient.isfinite().all()


def test_each_row_of_blocks_is_as_long_and_has_none_twice() -> None:
    table = blocks_seen(Blocks(64, 3, 2, 3), 40, 7)
    assert table.shape == (40, 8)
    assert all(len(set(row)) == 8 for row in table.tolist())
    assert all({0, 1, block} <= set(row) for block, row in enumerate(table.tolist()))
    assert not torch.equal(table, blocks_seen(Blocks(64, 3, 2, 3), 40, 8)), "each layer draws its own"


@pytest.mark.parametrize(("size", "window", "first", "length"), [(2, 2, 1, 13), (3, 1, 0, 20), (2, 3, 2, 24)])
def test_causal_bigbird_is_the_formula(size: int, window: int, first: int, length: int) -> None:
    module = new(CausalBlockAttention, blocks=Blocks(size, window, first))
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    block = torch.arange(length) // size
    apart = block[:, None] - block
    mask = ((apart < window) | (block < first)) & look_ahead_mask(length)
    assert not mask[look_ahead_mask(length)].all()
    query, key, value = module.project(x)
    expected = module.output(attention(query, key, value, mask).transpose(1, 2).flatten(2))
    agree(module, module(x, causal=True), expected, x)
    steps = [
        module.attend(query[..., n : n + 1, :], key[..., : n + 1, :], value[..., : n + 1, :])
        for n in range(length)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[9, 9], [9, 4]])
def test_linformer_is_the_formula(lengths: list[int]) -> None:
    module = new(ProjectedAttention, longest=14, sums=5)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64, requires_grad=True)
    query, key, value = module.project(x)
    rows = []
    for sentence, length in enumerate(lengths):
        heads = []
        for head in range(HEADS):
            keys = module.key_sums[:, :length] @ key[sentence, head, :length]
            values = module.value_sums[:, :length] @ value[sentence, head, :length]
            weights = (query[sentence, head] @ keys.T / 2.0).softmax(-1)  # sqrt of 4 channels
            heads.append(weights @ values)
        rows.append(module.output(torch.cat(heads, -1)))
    agree(module, module(x, visible=visible_of(lengths, 9)), torch.stack(rows), x)


def test_linformer_ends() -> None:
    module = new(ProjectedAttention, longest=8, sums=5)
    with pytest.raises(HeedfulError, match="9 tokens are too many"):
        module(torch.randn(1, 9, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_shown_is_what_is_computed(causal: bool) -> None:
    blocks, seen = Blocks(2, 1, 1, 0 if causal else 1), {}
    module = (
        new(CausalBlockAttention, blocks=blocks) if causal else new(BlockAttention, blocks=blocks, seed=0)
    )
    x = torch.randn(2, 15, WIDTH, dtype=torch.float64)
    module(x, causal=causal, observer=seen.__setitem__)
    torch.testing.assert_close(seen["weights"] @ seen["v"], seen["heads"], rtol=0, atol=1e-12)
    assert (seen["weights"] == 0).any()
