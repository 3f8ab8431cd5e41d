"""BigBird and Linformer against their formulas, and their invariances."""

import pytest
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.models.attention import MultiHeadAttention, attention, causal_mask
from heedful.models.efficient_attention import (
    BigBirdAttention,
    BlockPattern,
    CausalBigBirdAttention,
    LinformerAttention,
    bigbird_blocks,
)
from tests.models.test_relative_positions import D_MODEL, HEADS, new


def padding_mask(lengths: list[int], max_length: int) -> Tensor:
    return (torch.arange(max_length) < torch.tensor(lengths)[:, None])[:, None, None]


def check_equal(module: MultiHeadAttention, actual: Tensor, expected: Tensor, x: Tensor) -> None:
    """Check the output and its gradients."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    inputs = [x, *module.parameters()]
    direction = torch.randn_like(expected)
    actual_gradients = torch.autograd.grad((actual * direction).sum(), inputs)
    expected_gradients = torch.autograd.grad((expected * direction).sum(), inputs)
    for actual_gradient, expected_gradient in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual_gradient, expected_gradient, rtol=0, atol=1e-9)


def attends(module: BigBirdAttention, i: int, j: int, length: int) -> bool:
    """Whether position i attends to position j in a text of this length, by the paper's three rules."""
    blocks, block_count = module.blocks, module.blocks.block_count(length)
    if i // blocks.block_size >= block_count:
        return i // blocks.block_size < blocks.global_blocks
    query_block, key_block = i // blocks.block_size, j // blocks.block_size
    if (
        query_block < blocks.global_blocks
        or key_block < blocks.global_blocks
        or abs(query_block - key_block) <= blocks.window_blocks // 2
    ):
        return True
    return key_block in bigbird_blocks(blocks, block_count, module.seed)[query_block].tolist()


SHAPES = [
    (BlockPattern(2, 1, 1, 1), 13),
    (BlockPattern(3, 3, 1, 2), 31),
    (BlockPattern(2, 3, 0, 1), 17),
    (BlockPattern(1, 3, 2, 0), 12),
    (BlockPattern(4, 1, 2, 1), 32),
]


@pytest.mark.parametrize(("blocks", "length"), SHAPES)
@pytest.mark.parametrize("padded", [False, True])
def test_bigbird_matches_formula(blocks: BlockPattern, length: int, padded: bool) -> None:
    module = new(BigBirdAttention, blocks=blocks, seed=3)
    assert blocks.block_count(length) > blocks.attended_blocks, "the pattern is not sparse"
    x = torch.randn(2, length, D_MODEL, dtype=torch.float64, requires_grad=True)
    lengths = [length, length - 5] if padded else [length, length]
    attention_mask = padding_mask(lengths, length) if padded else None
    pattern = torch.tensor(
        [
            [
                [
                    [attends(module, i, j, sentence_length) and j < sentence_length for j in range(length)]
                    for i in range(length)
                ]
            ]
            for sentence_length in lengths
        ]
    )
    assert not pattern[0].all()
    mask = pattern | ~pattern.any(-1, keepdim=True)
    query, key, value = module.project(x)
    expected = module.output(attention(query, key, value, mask).transpose(1, 2).flatten(2))
    is_token = padding_mask(lengths, length)[:, 0, 0, :, None]  # the output of padding is unused
    check_equal(module, module(x, attention_mask=attention_mask) * is_token, expected * is_token, x)


@pytest.mark.parametrize("length", [1, 2, 11, 12])
def test_bigbird_covering_everything_matches_full_attention(length: int) -> None:
    module = new(BigBirdAttention, blocks=BlockPattern(2, 3, 1, 2), seed=0)
    full = new(MultiHeadAttention)
    full.load_state_dict(module.state_dict())
    x = torch.randn(2, length, D_MODEL, dtype=torch.float64, requires_grad=True)
    attention_mask = padding_mask([length, max(1, length - 3)], length)
    actual, expected = module(x, attention_mask=attention_mask), full(x, attention_mask=attention_mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_bigbird_all_blocks_matches_full_attention() -> None:
    """The block-wise computation itself, not the shortcut."""
    module = new(BigBirdAttention, blocks=BlockPattern(2, 3, 0, 9), seed=0)
    x = torch.randn(2, 19, D_MODEL, dtype=torch.float64)
    query, key, value = module.project(x)
    actual = module._attend_blocks(query, key, value, None)[..., :19, :]
    torch.testing.assert_close(actual, attention(query, key, value), rtol=0, atol=1e-12)


def test_bigbird_padding_changes_nothing() -> None:
    """Some blocks attend only to padding; no value may become NaN."""
    module = new(BigBirdAttention, blocks=BlockPattern(2, 1, 0, 1), seed=0)
    x = torch.randn(2, 20, D_MODEL, dtype=torch.float64, requires_grad=True)
    actual = module(x, attention_mask=padding_mask([20, 1], 20))
    assert actual.isfinite().all()
    gradient = torch.autograd.grad(actual[0].sum() + actual[1, 0].sum(), x)[0]
    assert gradient.isfinite().all()


def test_bigbird_blocks_rows_are_equal_length_without_duplicates() -> None:
    table = bigbird_blocks(BlockPattern(64, 3, 2, 3), 40, 7)
    assert table.shape == (40, 8)
    assert all(len(set(row)) == 8 for row in table.tolist())
    assert all({0, 1, block} <= set(row) for block, row in enumerate(table.tolist()))
    assert not torch.equal(table, bigbird_blocks(BlockPattern(64, 3, 2, 3), 40, 8)), (
        "layers have the same random blocks"
    )


@pytest.mark.parametrize(
    ("size", "window_blocks", "global_blocks", "length"), [(2, 2, 1, 13), (3, 1, 0, 20), (2, 3, 2, 24)]
)
def test_causal_bigbird_matches_formula(size: int, window_blocks: int, global_blocks: int, length: int) -> None:
    module = new(CausalBigBirdAttention, blocks=BlockPattern(size, window_blocks, global_blocks))
    x = torch.randn(2, length, D_MODEL, dtype=torch.float64, requires_grad=True)
    block = torch.arange(length) // size
    distances = block[:, None] - block
    mask = ((distances < window_blocks) | (block < global_blocks)) & causal_mask(length)
    assert not mask[causal_mask(length)].all()
    query, key, value = module.project(x)
    expected = module.output(attention(query, key, value, mask).transpose(1, 2).flatten(2))
    check_equal(module, module(x, causal=True), expected, x)
    steps = [
        module.attend_and_project(query[..., n : n + 1, :], key[..., : n + 1, :], value[..., : n + 1, :])
        for n in range(length)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[9, 9], [9, 4]])
def test_linformer_matches_formula(lengths: list[int]) -> None:
    module = new(LinformerAttention, max_length=14, projected_length=5)
    x = torch.randn(2, 9, D_MODEL, dtype=torch.float64, requires_grad=True)
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
    check_equal(module, module(x, attention_mask=padding_mask(lengths, 9)), torch.stack(rows), x)


def test_linformer_too_long_raises() -> None:
    module = new(LinformerAttention, max_length=8, projected_length=5)
    with pytest.raises(HeedfulError, match="9 tokens exceed the 8 positions"):
        module(torch.randn(1, 9, D_MODEL, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_match_attention_output(causal: bool) -> None:
    blocks, observed = BlockPattern(2, 1, 1, 0 if causal else 1), {}
    module = new(CausalBigBirdAttention, blocks=blocks) if causal else new(BigBirdAttention, blocks=blocks, seed=0)
    x = torch.randn(2, 15, D_MODEL, dtype=torch.float64)
    module(x, causal=causal, observer=observed.__setitem__)
    torch.testing.assert_close(observed["weights"] @ observed["v"], observed["heads"], rtol=0, atol=1e-12)
    assert (observed["weights"] == 0).any()
