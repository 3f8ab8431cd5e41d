"""Attention step by step: the lecture's examples by hand, and models against their own pass and NumPy."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.interpret.activations import ATTENTION_KINDS, AttentionKind, check_layer_and_head, compute_activations
from heedful.interpret.arithmetic import AttentionStep, build_head_step, build_model_attention, layer_norm, softmax
from heedful.interpret.lecture.layer_parts import build_feed_forward
from heedful.model_folder import ModelFolder, ModelFolderConfig
from heedful.models.attention import causal_mask, mask_scores
from heedful.models.config import ModelConfig
from heedful.models.embeddings import sinusoids
from heedful.models.transformer import Transformer
from heedful.tokenization.pair_tokenizer import PairTokenizer
from heedful.tokenization.tokenizer import TokenizerConfig
from heedful.training.lr_schedule import noam

LECTURE_NUMBERS = Path(__file__).with_name("lecture_numbers.json")
PAIRS = [
    ("the animal did not cross the street", "l'animal n'a pas traversé la rue"),
    ("it was too tired", "il était trop fatigué"),
    ("it was too wide", "elle était trop large"),
]


def matrix(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual: Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual.double(), matrix(expected), rtol=0, atol=tolerance)


# --- By hand


def test_softmax_of_thinking_machines_scores() -> None:
    close(softmax(matrix([112, 96]) / 8), [0.8807970779778823, 0.11920292202211755])
    close(softmax(matrix([112, 96])), [0.9999998874648379, 1.12535162055095e-07])


def test_softmax_gradient_is_w_times_1_minus_w() -> None:
    scores = matrix([14, 12]).requires_grad_()
    weights = softmax(scores)
    (slope,) = torch.autograd.grad(weights[0], scores)
    close(slope[0].detach(), (weights[0] * (1 - weights[0])).item())


def test_softmax_zero_and_negative_scores_have_weight() -> None:
    close(softmax(matrix([2, 0, -1])), [0.8437947344813395, 0.11419519938459449, 0.04201006613406605])
    close(softmax(matrix([2, 0, -math.inf])), [0.8807970779778823, 0.11920292202211755, 0.0], 0)


class TestThreeInputs:
    x = matrix([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    w_query = matrix([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    w_key = matrix([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
    w_value = matrix([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])

    def test_projections_and_scores_match_hand_computation(self) -> None:
        step = build_head_step(self.x, self.w_query, self.w_key, self.w_value).attention
        close(step.query, [[1, 0, 2], [2, 2, 2], [2, 1, 3]], 0)
        close(step.key, [[0, 1, 1], [4, 4, 0], [2, 3, 1]], 0)
        close(step.value, [[1, 2, 3], [2, 8, 0], [2, 6, 3]], 0)
        close(step.scores, [[2, 4, 4], [4, 16, 12], [4, 12, 10]], 0)
        close(step.products(1, 2), [4, 6, 2], 0)

    def test_attention_step_scaled_matches_hand_computation(self) -> None:
        step = build_head_step(self.x, self.w_query, self.w_key, self.w_value).attention
        assert step.divisor == math.sqrt(3)
        close(step.weights[0], [0.13612579755693344, 0.4319371012215332, 0.4319371012215332])
        close(step.weights[1], [0.0008904473906323324, 0.9088426472149936, 0.09026690539437415])
        close(step.weights[2], [0.0074448923770739665, 0.7547075806414643, 0.23784752698146175])
        close(step.output[0], [1.8638742024430663, 6.319371012215332, 1.7041886963354])
        close(step.output[1], [1.9991095526093678, 7.814123504867458, 0.2734720583550195])
        close(step.output[2], [1.992555107622926, 7.479635591774633, 0.7358772580756071])

    def test_attention_step_unscaled_matches_hand_computation(self) -> None:
        step = build_head_step(self.x, self.w_query, self.w_key, self.w_value, scale=1.0).attention
        close(step.weights[0], [0.06337893833303762, 0.4683105308334812, 0.4683105308334812])
        close(step.output[0], [1.9366210616669624, 6.683105308334811, 1.5950684074995565])
        close(step.output[1], [1.9999939663351454, 7.963991595132215, 0.053976405312549595])
        close(step.output[2], [1.9997046127769653, 7.759892254657784, 0.35838929467511527])

    def test_rounded_weights_reproduce_blog_post(self) -> None:
        value = build_head_step(self.x, self.w_query, self.w_key, self.w_value).attention.value
        rounded = matrix([[0, 0.5, 0.5], [0, 1, 0], [0, 0.9, 0.1]])
        close(rounded @ value, [[2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]])

    def test_attention_step_contributions_sum_to_output(self) -> None:
        step = build_head_step(self.x, self.w_query, self.w_key, self.w_value).attention
        close(step.contributions.sum(1), step.output.tolist())
        close(step.weights.sum(1), [1, 1, 1])

    def test_build_head_step_mismatched_shapes_are_an_error(self) -> None:
        with pytest.raises(HeedfulError, match="cannot be multiplied: 3x4 and 3x3"):
            build_head_step(self.x, self.w_query[:3], self.w_key, self.w_value)
        with pytest.raises(HeedfulError, match="queries have 3 channels and keys 2"):
            build_head_step(self.x, self.w_query, self.w_key[:, :2], self.w_value)


MASK_SCORES = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.3, 0.6, 0.1], [0.1, 0.3, 0.3, 0.3]]
MASK_WEIGHTS = [
    [1.0, 0.0, 0.0, 0.0],
    [0.37754066879814546, 0.6224593312018546, 0.0, 0.0],
    [0.25838965173797984, 0.3155978333128143, 0.4260125149492057, 0.0],
    [0.2143986591403614, 0.2618671136198795, 0.2618671136198795, 0.2618671136198795],
]


def test_attention_step_with_causal_mask_matches_hand_computation() -> None:
    close(softmax(mask_scores(matrix(MASK_SCORES), causal_mask(4))), MASK_WEIGHTS)
    strict = causal_mask(4) & ~torch.eye(4, dtype=torch.bool)
    weights = softmax(mask_scores(matrix(MASK_SCORES), strict))
    assert weights[0].isnan().all()  # j < i: the first word attends to nothing
    close(weights[1], [1, 0, 0, 0])
    close(weights[2], [0.4501660026875221, 0.549833997312478, 0, 0])


def test_sinusoids_match_hand_computation() -> None:
    table = sinusoids(5, 4)
    close(table[0], [0, 1, 0, 1], 1e-7)
    close(table[1], [0.8414709848078965, 0.5403023058681398, 0.009999833334166664, 0.9999500004166653], 1e-7)
    close(table[4], [-0.7568024953079282, -0.6536436208636119, 0.03998933418663416, 0.9992001066609779], 1e-7)
    base = sinusoids(101, 512).double()
    close(base[50, [0, 1, 510, 511]], [-0.262374853, 0.964966028, 0.005183141, 0.999986567], 1e-7)
    close(base[7] @ base[7], 256, 1e-4)
    close(base[3] @ base[10], 187.86499728186047, 1e-4)
    close(base[50] @ base[57], 187.86499728186047, 1e-4)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 1.746928107421711e-07),
        (100, 1.746928107421711e-05),
        (1000, 0.0001746928107421711),
        (4000, 0.0006987712429686843),
        (16000, 0.00034938562148434214),
        (100000, 0.00013975424859373687),
        (300000, 8.068715304598785e-05),
    ],
)
def test_noam_matches_hand_computation(step: int, rate: float) -> None:
    assert noam(step, d_model=512, warmup=4000) == pytest.approx(rate, rel=1e-12)
    assert noam(4000, d_model=1024, warmup=4000) == pytest.approx(0.0004941058844013092, rel=1e-12)


def test_projection_is_matrix_product() -> None:
    x, weight = matrix([[3, 4], [7, 2], [5, 9]]), matrix([[3, 1, 5], [6, 9, 7]])
    step = build_head_step(x, weight, weight, weight)
    close(step.query.result, [[33, 39, 43], [33, 25, 49], [69, 86, 88]], 0)


def test_feed_forward_matches_hand_computation() -> None:
    network = build_feed_forward(((1, -1, 0.5), (2, 0, -1)), (0, 0.5, -0.5), ((1, 0), (0, 1), (1, 1)), (0.1, -0.1))
    x = matrix([[1, 2], [-1, 0.5]])
    with torch.no_grad():
        close(network.inner(x), [[5, -0.5, -2], [0, 1.5, -1.5]])
        close(network(x), [[5.1, -0.1], [0.1, 1.4]])


def test_layer_norm_matches_hand_computation() -> None:
    x = matrix([[1, 2, 3, 4], [0, 0, 0, 10]])
    close(layer_norm(x)[0], [-1.3416354199689269, -0.447211806656309, 0.447211806656309, 1.3416354199689269])
    close(layer_norm(x)[1], [-0.5773501152296155, -0.5773501152296155, -0.5773501152296155, 1.7320503456888465])
    close(layer_norm(x, 1e-6)[0, 3], 1.3416402498438813)


def count_parameters(vocabulary: int, *, big: bool, bias: bool) -> int:
    """Parameters of a model with the sizes of the paper, without allocating them."""
    sizes = {"d_model": 1024, "heads": 16, "d_ff": 4096} if big else {}
    config = ModelConfig(source_vocab_size=vocabulary, target_vocab_size=vocabulary, attention_bias=bias, **sizes)
    with torch.device("meta"):
        return sum(item.numel() for item in Transformer(config).parameters())


def test_parameter_counts_match_paper() -> None:
    assert count_parameters(37000, big=False, bias=False) == 63_045_632
    assert count_parameters(37000, big=False, bias=True) == 63_082_496
    assert count_parameters(37000, big=True, bias=False) == 214_171_648
    assert count_parameters(37000, big=False, bias=False) - 37000 * 512 == 44_101_632


# --- Every number of the lecture


def seed_head(seeds: dict[str, Any], scale: float | None) -> AttentionStep:
    entry = seeds["self_attention_3x4"]
    names = ("x", "w_query", "w_key", "w_value")
    return build_head_step(*(matrix(entry[name]) for name in names), scale=scale).attention


def seed_feed_forward(entry: dict[str, Any]) -> Tensor:
    weights = [tuple(map(tuple, entry[name])) for name in ("W1", "W2")]
    with torch.no_grad():
        result: Tensor = build_feed_forward(weights[0], entry["b1"], weights[1], entry["b2"])(matrix(entry["x"]))
    return result


CHECKS: dict[str, Callable[[dict[str, Any]], list[tuple[Any, Any]]]] = {
    "thinking machines": lambda s: [
        (softmax(matrix(s["thinking_machines"]["scaled"])), s["thinking_machines"]["weights"]),
        (softmax(matrix(s["thinking_machines"]["scores"])), s["thinking_machines"]["unscaled_weights"]),
    ],
    "three inputs": lambda s: (
        [
            (getattr(seed_head(s, scale), name), s["self_attention_3x4"][key][name])
            for key, scale in (("scaled", None), ("unscaled", 1.0))
            for name in ("weights", "output")
        ]
        + [(seed_head(s, None).scores, s["self_attention_3x4"]["scores"])]
    ),
    "mask": lambda s: [
        (
            softmax(mask_scores(matrix(s["look_ahead_mask"]["scaled_scores"]), causal_mask(4))),
            s["look_ahead_mask"]["weights"],
        )
    ],
    "greeting": lambda s: [
        (softmax(matrix(s["hi_how_are_you"]["score_matrix"]) / 8), s["hi_how_are_you"]["softmax"]["sqrt64=8"])
    ],
    "positions": lambda s: [
        (sinusoids(5, 4), s["positional_encoding"]["d_model_4"]),
        (sinusoids(101, 512)[100, :4], s["positional_encoding"]["d_model_512_pos100_first4"]),
    ],
    "noam": lambda s: [
        (matrix(noam(int(step), d_model=512, warmup=4000)), rate) for step, rate in s["noam"]["values"].items()
    ],
    "matrix product": lambda s: [
        (matrix(s["matrix_product"]["a"]) @ matrix(s["matrix_product"]["b"]), s["matrix_product"]["product"])
    ],
    "feed-forward": lambda s: [(seed_feed_forward(s["ffn"]), s["ffn"]["output"])],
    "layer norm": lambda s: [(layer_norm(matrix(s["layer_norm"]["x"])), s["layer_norm"]["output"])],
    "parameters": lambda s: [
        (
            matrix(count_parameters(int(name.split("V=")[1].split()[0]), big="big" in name, bias="True" in name)),
            count["total"],
        )
        for name, count in s["parameters"]["computed"].items()
    ],
}


@pytest.mark.parametrize("name", CHECKS)
def test_arithmetic_lecture_numbers_match(name: str) -> None:
    for actual, expected in CHECKS[name](json.loads(LECTURE_NUMBERS.read_text(encoding="utf-8"))):
        close(actual, expected, 1e-7 if name == "positions" else 1e-12)


# --- Models


def new_random_model(norm: str = "post", bias: bool = True, positions: str = "sinusoidal") -> ModelFolder:
    tokenizer = PairTokenizer.train(lambda: PAIRS, TokenizerConfig(vocab_size=320))
    torch.manual_seed(5)
    config = ModelConfig(
        source_vocab_size=tokenizer.source.vocab_size,
        target_vocab_size=tokenizer.target.vocab_size,
        d_model=12,
        heads=3,
        d_ff=7,
        encoder_layers=2,
        decoder_layers=2,
        norm_placement=norm,
        attention_bias=bias,
        positions=positions,
    )
    model = Transformer(config)
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide errors
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return ModelFolder(ModelFolderConfig(model=config), tokenizer, model.eval())


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@pytest.mark.parametrize(("norm", "bias"), [("post", True), ("post", False), ("pre", True)])
def test_build_model_attention_matches_model(kind: AttentionKind, norm: str, bias: bool) -> None:
    model_folder = new_random_model(norm, bias)
    activations = compute_activations(model_folder, "it was too tired", "il était trop large")
    name = "cross" if kind == "cross" else "self"
    stack = "encoder" if kind == "encoder" else "decoder"
    for layer in range(2):
        step = build_model_attention(model_folder, activations, kind, layer)
        weights = torch.stack([head.attention.weights for head in step.heads])
        heads = torch.stack([head.attention.output for head in step.heads])
        where = f"{stack}.{layer}.{name}"
        close(weights, activations.weights(kind, layer).tolist(), 1e-6)
        close(heads, activations.tensors[f"{where}.heads"].tolist(), 1e-5)
        close(step.projected, activations.tensors[f"{where}.output"].tolist(), 1e-5)
        close(step.output, activations.tensors[f"{where}.residual"].tolist(), 1e-5)
        assert (step.norm is None) == (norm == "pre")


def test_check_layer_and_head_messages_count_from_one() -> None:
    model_folder = new_random_model()
    with pytest.raises(HeedfulError, match="layer 3 does not exist: the encoder has 2"):
        check_layer_and_head(model_folder, "encoder", 2)
    with pytest.raises(HeedfulError, match="layer 0 does not exist: the decoder has 2"):
        check_layer_and_head(model_folder, "cross", -1)
    with pytest.raises(HeedfulError, match="head 4 does not exist: each layer has 3"):
        check_layer_and_head(model_folder, "decoder", 0, 3)


def numpy_layer(tensors: dict[str, Any], ids: list[int], heads: int, norm: str) -> dict[str, Any]:
    """The attention of the first encoder layer, reimplemented from the paper for the saved weights."""
    table = tensors["encoder.embedding.table.weight"].astype(np.float64)
    d_model = table.shape[1]
    position, channel = np.arange(len(ids))[:, None], np.arange(d_model)[None]
    angle = position / 10000 ** (2 * (channel // 2) / d_model)
    stream = table[ids] * np.sqrt(d_model) + np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))

    def normalize(x: Any) -> Any:
        gain = tensors["encoder.layers.0.residual_attention.norm.weight"].astype(np.float64)
        bias = tensors["encoder.layers.0.residual_attention.norm.bias"].astype(np.float64)
        centered = x - x.mean(axis=1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5) * gain + bias

    x = normalize(stream) if norm == "pre" else stream
    weight = tensors["encoder.layers.0.attention.input.weight"].astype(np.float64)
    projected = x @ weight.T + tensors["encoder.layers.0.attention.input.bias"].astype(np.float64)
    size = d_model // heads
    weights, outputs = [], []
    for head in range(heads):
        q, k, v = (projected[:, index * d_model + head * size :][:, :size] for index in range(3))
        powers = np.exp(q @ k.T / np.sqrt(size))
        weights.append(powers / powers.sum(axis=1, keepdims=True))
        outputs.append(weights[-1] @ v)
    w_output = tensors["encoder.layers.0.attention.output.weight"].astype(np.float64)
    joined = np.hstack(outputs) @ w_output.T
    residual = stream + joined + tensors["encoder.layers.0.attention.output.bias"].astype(np.float64)
    return {
        "weights": np.stack(weights),
        "heads": np.stack(outputs),
        "residual": residual,
        "output": residual if norm == "pre" else normalize(residual),
    }


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_saved_weights_reproduce_model_in_numpy(norm: str, tmp_path: Path) -> None:
    model_folder = new_random_model(norm)
    model_folder.save(tmp_path)
    activations = compute_activations(model_folder, "the animal was too tired", "")
    expected = numpy_layer(
        load_file(tmp_path / "weights.safetensors"), list(activations.source.ids), model_folder.config.model.heads, norm
    )
    step = build_model_attention(model_folder, activations, "encoder", 0)
    close(torch.stack([head.attention.weights for head in step.heads]), expected["weights"], 1e-6)
    close(torch.stack([head.attention.output for head in step.heads]), expected["heads"], 1e-5)
    close(step.residual, expected["residual"], 1e-5)
    close(step.output, expected["output"], 1e-5)
    close(activations.tensors["encoder.0.self.residual"], expected["output"], 1e-5)
