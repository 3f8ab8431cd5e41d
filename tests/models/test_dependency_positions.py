"""Structural positions by hand, and against slow references written from the paper's formulas."""

import math
import random

import pytest
import torch
from torch import Tensor

from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.models.attention import MultiHeadAttention, join_heads
from heedful.models.base import pad_with_end
from heedful.models.config import ModelConfig
from heedful.models.embeddings import exact_sinusoids
from heedful.models.relative_positions import (
    MASKED,
    DepthEmbedding,
    TreeAttention,
    split_columns,
    structural_distance_ids,
    structural_distances,
    token_depths,
)
from heedful.models.transformer import Transformer, TreeEncoder
from heedful.tokenization.dependency_trees import TreeToken
from heedful.tokenization.special_tokens import PAD
from tests.models.test_relative_positions import CHANNELS, D_MODEL, HEADS, new
from tests.models.test_transformer import close, new_model


def new_tree(words: list[int], heads: list[int]) -> list[TreeToken]:
    """One token per entry of ``words``, the number of its word."""
    return [TreeToken(5 + position % 11, word, heads[word - 1]) for position, word in enumerate(words)]


def tree_columns(source: Tensor) -> tuple[Tensor, Tensor]:
    """The word and the head of each token."""
    _, word, head = split_columns(source)
    return word, head


def random_sentence(rng: random.Random, count: int) -> tuple[list[int], list[int]]:
    """Words of one to three tokens, and their heads: one tree or several."""
    permutation = rng.sample(range(1, count + 1), count)
    heads = [0] * count
    for index, word in enumerate(permutation[1:], start=1):
        heads[word - 1] = rng.choice([0, *permutation[:index], *permutation[:index]])
    return [word for word in range(1, count + 1) for _ in range(rng.randint(1, 3))], heads


def reference_depth(word: int, heads: list[int]) -> int:
    return 0 if heads[word - 1] == 0 else 1 + reference_depth(heads[word - 1], heads)


def is_ancestor(ancestor: int, word: int, heads: list[int]) -> bool:
    return word != 0 and (ancestor == word or is_ancestor(ancestor, heads[word - 1], heads))


def reference_distance(i: int, j: int, words: list[int], heads: list[int]) -> int:
    """Distance of tokens i and j; END belongs to word 0, below all words and on no path."""
    max_depth = max(reference_depth(word, heads) for word in words)
    first_depth, second_depth = (reference_depth(words[p], heads) if p < len(words) else max_depth + 1 for p in (i, j))
    first, second = (words[p] if p < len(words) else 0 for p in (i, j))
    if first and second and (is_ancestor(first, second, heads) or is_ancestor(second, first, heads)):
        return first_depth - second_depth
    return (i > j) * (first_depth + second_depth) - (i < j) * (first_depth + second_depth)


def test_token_depths_and_distances_by_hand() -> None:
    """Bush held a talk with Sharon; held is the root, and talk has two tokens."""
    source = pad_with_end([new_tree([1, 2, 3, 4, 4, 5, 6], [2, 0, 4, 2, 4, 5])])
    assert token_depths(*tree_columns(source)).tolist() == [[1, 0, 2, 1, 1, 2, 3, 4]]
    from_talk = structural_distances(*tree_columns(source))[0, 3].tolist()
    #         Bush  held   a  talk      with Sharon  end
    assert from_talk == [2, 1, -1, 0, 0, -1, -2, -5]
    assert structural_distances(*tree_columns(source))[0, 4].tolist() == from_talk
    from_sharon = structural_distances(*tree_columns(source))[0, 6].tolist()
    assert from_sharon == [4, 3, 5, 2, 2, 1, 0, -7]


def test_structural_distances_random_trees_match_slow_reference() -> None:
    rng = random.Random(3)
    for _ in range(40):
        words, heads = random_sentence(rng, rng.randint(1, 13))
        source = pad_with_end([new_tree(words, heads)])
        max_depth = max(reference_depth(word, heads) for word in words)
        assert token_depths(*tree_columns(source))[0].tolist() == [
            *(reference_depth(word, heads) for word in words),
            max_depth + 1,
        ]
        length = len(words) + 1
        expected = [[reference_distance(i, j, words, heads) for j in range(length)] for i in range(length)]
        assert structural_distances(*tree_columns(source))[0].tolist() == expected


def test_structural_distances_deep_tree() -> None:
    """Deeper than any cached table: the head of every word is the word before it."""
    count = 307
    source = pad_with_end([new_tree(list(range(1, count + 1)), list(range(count)))])
    assert token_depths(*tree_columns(source))[0].tolist() == list(range(count + 1))
    model = new_model(3, positions="dependency")
    assert model.encode(source).isfinite().all()


def test_masked_head_counts_as_root() -> None:
    source = pad_with_end([new_tree([1, 2, 3], [0, 1, 2])])
    source[0, 1] = PAD
    assert token_depths(*tree_columns(source))[0].tolist() == [0, 2, 1, 2]


def test_missing_tree_differs_from_root() -> None:
    root, no_tree = pad_with_end([[TreeToken(5, 1, 0)]]), pad_with_end([[5]])
    assert (token_depths(*tree_columns(root)).tolist(), token_depths(*tree_columns(no_tree)).tolist()) == (
        [[0, 1]],
        [[-1, -1]],
    )
    assert structural_distance_ids(*tree_columns(root), None, 3).tolist() == [[[[3, 2], [4, 3]]]]
    assert structural_distance_ids(*tree_columns(no_tree), None, 3).tolist() == [[[[7, 7], [7, 7]]]]
    for positions in ("dependency", "relative-dependency"):
        model = new_model(3, positions=positions)
        assert not torch.allclose(model.encode(root), model.encode(no_tree))
        together = model.encode(pad_with_end([[TreeToken(5, 1, 0)], [5]]))
        close(together, torch.cat([model.encode(root), model.encode(no_tree)]))


@pytest.mark.parametrize("method", ["beam", "sample"])
@pytest.mark.parametrize("positions", ["dependency", "relative-dependency"])
def test_search_with_trees_is_independent_of_the_batch(positions: str, method: str) -> None:
    model = new_model(3, positions=positions)
    sentences = [new_tree([1, 2, 3, 3], [2, 0, 2]), new_tree([1], [0]), [7, 8], new_tree([1, 2, 3, 3], [0, 1, 2])]
    config = GenerationConfig(method=method, beam_size=3, n_best=2, max_length_offset=5)
    together = search(model, pad_with_end(sentences), config)
    alone = [search(model, pad_with_end([sentence]), config)[0] for sentence in sentences]
    assert [[best.tokens for best in n_best] for n_best in together] == [
        [best.tokens for best in n_best] for n_best in alone
    ]
    assert together[0][0].score != pytest.approx(together[3][0].score)  # of the same tokens in another tree


def reference(module: TreeAttention, x: Tensor, distances: list[list[int | None]], key_count: int) -> Tensor:
    """Pair by pair: Shaw's equations 3 and 4, with the vectors of the distance in the tree added."""
    query, key, value = (tensor[0] for tensor in MultiHeadAttention.project(module, x))
    heads = []
    for head in range(HEADS):
        rows = []
        for i in range(x.size(1)):
            scores, values = [], []
            for j in range(key_count):
                row = max(-module.max_distance, min(module.max_distance, j - i)) + module.max_distance
                k = key[head, j] + module.distance_keys[row]
                v = value[head, j] + module.distance_values[row]
                structural = distances[i][j]
                if structural is not None:
                    row = max(-module.max_distance, min(module.max_distance, structural)) + module.max_distance
                    k, v = k + module.tree_keys[row], v + module.tree_values[row]
                scores.append(query[head, i] @ k / math.sqrt(CHANNELS))
                values.append(v)
            weights = torch.stack(scores).softmax(0)
            rows.append((weights[:, None] * torch.stack(values)).sum(0))
        heads.append(torch.stack(rows))
    return module.output(join_heads(torch.stack(heads)[None]))


@pytest.mark.parametrize("has_tree", [True, False])
def test_tree_attention_matches_formula(has_tree: bool) -> None:
    rng, distance = random.Random(5), 2
    words, heads = random_sentence(rng, 5)
    length = len(words) + 1
    sentence = new_tree(words, heads) if has_tree else [7] * len(words)
    source = pad_with_end([sentence, [7] * (length + 1)])[:1]  # the last two are masked
    module = new(TreeAttention, max_distance=distance)
    x = torch.randn(1, length + 2, D_MODEL, dtype=torch.float64, requires_grad=True)
    rows = structural_distance_ids(*tree_columns(source), Transformer.source_attention_mask(source), distance)
    assert (rows[..., length:] == MASKED).all()
    actual = module(x, attention_mask=rows)[:, :length]
    distances = [
        [reference_distance(i, j, words, heads) if has_tree else None for j in range(length)] for i in range(length)
    ]
    expected = reference(module, x[:, :length], distances, length)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    inputs = [x, *module.parameters()]
    direction = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((output * direction).sum(), inputs, allow_unused=True) for output in (actual, expected)
    ]
    for parameter, ours, theirs in zip(inputs, *gradients, strict=True):
        theirs = torch.zeros_like(parameter) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_depth_embedding_combines_depth_and_position() -> None:
    """tanh(W [sine of the position; sine of the depth] + b), and zeros where no depth is known."""
    model = new_model(7, positions="dependency")
    embedding, d_model = model.encoder.embedding, model.config.d_model
    assert isinstance(embedding, DepthEmbedding)
    source = pad_with_end([new_tree([1, 2, 3], [2, 0, 2]), [7, 8, 9]])
    depths = [[1, 0, 1, 2], [None] * 4]
    for row, row_depths in enumerate(depths):
        for position, depth in enumerate(row_depths):
            sequential = exact_sinusoids(1, d_model, position)[0]
            structural = torch.zeros(d_model) if depth is None else exact_sinusoids(1, d_model, depth)[0]
            weight, bias = embedding.joined.weight, embedding.joined.bias
            expected = torch.tanh(weight @ torch.cat([sequential, structural.double()]) + bias)
            token_id = int(source[row, position, 0])
            actual = embedding(source)[row, position] - embedding.table.weight[token_id] * math.sqrt(d_model)
            close(actual, expected, 1e-6)  # the model's sines are rounded to float32


def test_decoder_has_no_tree_parameters() -> None:
    for positions in ("dependency", "relative-dependency"):
        model = new_model(3, positions=positions)
        names = [name for name, _ in model.decoder.named_parameters()]
        assert not any("tree" in name or "joined" in name for name in names)
    assert isinstance(model.encoder, TreeEncoder)


def new_task_batch(rng: random.Random, size: int, task: str, trees: bool) -> tuple[Tensor, Tensor]:
    """Four words in a random tree; the target is the root, or the head of each word (3: none)."""
    sources, targets = [], []
    for _ in range(size):
        words, permutation = rng.sample(range(4, 14), 4), rng.sample(range(1, 5), 4)
        heads = [0] * 4
        for index, word in enumerate(permutation[1:], start=1):
            heads[word - 1] = rng.choice(permutation[:index])
        source = [TreeToken(word, n + 1, heads[n]) for n, word in enumerate(words)] if trees else words
        target = [words[permutation[0] - 1]] if task == "root" else [words[n - 1] if n else 3 for n in heads]
        sources.append(source)
        targets.append(target)
    return pad_with_end(sources), pad_with_end(targets)


def train_accuracy(positions: str, task: str, updates: int) -> float:
    """Accuracy of a small model on the next word of unseen sentences (teacher forcing)."""
    torch.manual_seed(1)
    sizes = {"d_model": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 64}
    settings = {"norm_placement": "pre", "dropout": 0.0, "max_relative_distance": 4}
    vocabulary = {"source_vocab_size": 14, "target_vocab_size": 14}
    config = ModelConfig.from_settings({**sizes, **settings, **vocabulary, "positions": positions})
    model, rng = Transformer(config), random.Random(1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 0.012 * min(1, (update + 1) / 100) * (1 - update / updates)
        optimizer.zero_grad()
        (-model.score(*new_task_batch(rng, 64, task, config.uses_dependency_trees)).mean()).backward()
        optimizer.step()
    source, target = new_task_batch(random.Random(99), 500, task, config.uses_dependency_trees)
    with torch.inference_mode():
        decoder_input = torch.nn.functional.pad(target[:, :-1], (1, 0), value=PAD)
        is_correct = model.eval().logits(model(source, decoder_input)).argmax(-1) == target
    return float(is_correct[:, :-1].float().mean())


@pytest.mark.long
@pytest.mark.parametrize(
    ("positions", "task", "updates"), [("dependency", "root", 150), ("relative-dependency", "head", 500)]
)
def test_dependency_positions_learn_a_task_that_needs_the_tree(positions: str, task: str, updates: int) -> None:
    """Trees are independent of the words, so a model without trees cannot solve the task."""
    assert train_accuracy(positions, task, updates) > 0.98
    assert train_accuracy("sinusoidal", task, 150) < 0.6
