"""The lecture's other examples: positions, the learning rate, and the layer around attention."""

import math

import torch
from torch import nn

from heedful.interpret.arithmetic import layer_norm
from heedful.interpret.lecture.attention import to_matrix
from heedful.interpret.tables import Explanation, Section, Table, matrix_table
from heedful.models.config import ArchitectureConfig
from heedful.models.embeddings import exact_sinusoids
from heedful.models.sublayers import FeedForward
from heedful.training.lr_schedule import noam

# ---- Positions

SMALL_D_MODEL, BASE_D_MODEL = 4, 512
SHOWN_CHANNELS = (0, 1, 2, 3, 4, 5, 510, 511)
SHOWN_POSITIONS = (0, 1, 2, 50, 100)
SHOWN_CHANNEL_PAIRS = (0, 1, 64, 128, 192, 255)
DOT_PAIRS = ((0, 0), (100, 100), (3, 10), (50, 57), (0, 1), (0, 2), (0, 50))


def explain_positions() -> Explanation:
    """The sines and cosines of section 3.5."""
    small = exact_sinusoids(5, SMALL_D_MODEL)
    base = exact_sinusoids(101, BASE_D_MODEL)
    dot_products = {(a, b): (base[a] @ base[b]).item() for a, b in DOT_PAIRS}
    wavelengths = [2 * math.pi * 10000 ** (2 * pair / BASE_D_MODEL) for pair in range(BASE_D_MODEL // 2)]
    sections = (
        Section(
            "Four channels",
            "PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same",
            (
                matrix_table(
                    "d_model = 4: the divisors are 10000^0 = 1 and 10000^(2/4) = 100.",
                    [f"pos {position}" for position in range(5)],
                    ("sin(pos)", "cos(pos)", "sin(pos / 100)", "cos(pos / 100)"),
                    small,
                ),
            ),
            (
                "Set your calculator to radians: sin(1) = 0.8415.",
                "The documents count positions from 1. The paper's code and this program count from 0, so that "
                "the first word has 0, 1, 0, 1.",
            ),
        ),
        Section(
            "512 channels, as in the paper",
            "channel 2i has the divisor 10000^(2i / 512): 1, 1.0366, 1.0746, ... 9646.6",
            (
                matrix_table(
                    "A few positions; the columns are channels, counted from 0",
                    [f"pos {position}" for position in SHOWN_POSITIONS],
                    [str(channel) for channel in SHOWN_CHANNELS],
                    base[list(SHOWN_POSITIONS)][:, list(SHOWN_CHANNELS)],
                ),
            ),
            ("The first channels oscillate fast, the last hardly change.",),
        ),
        Section(
            "The dot product depends on the distance only",
            "sin a sin b + cos a cos b = cos(a - b)",
            (
                Table(
                    "Dot products, d_model = 512",
                    tuple(f"PE({a}) · PE({b})" for a, b in DOT_PAIRS),
                    ("distance", "value"),
                    tuple((abs(a - b), value) for (a, b), value in dot_products.items()),
                ),
            ),
            (
                "PE(p) · PE(p) = 256 = d_model / 2 for every p: each pair of channels adds sin^2 + cos^2 = 1.",
                "Positions 3 and 10 are 7 apart, and so are 50 and 57: the same value.",
            ),
        ),
        Section(
            "Wavelengths",
            "2 pi 10000^(2i / d_model) positions per period",
            (
                Table(
                    "",
                    tuple(f"channels {2 * pair}, {2 * pair + 1}" for pair in SHOWN_CHANNEL_PAIRS),
                    ("positions",),
                    tuple((wavelengths[pair],) for pair in SHOWN_CHANNEL_PAIRS),
                ),
            ),
            (
                f"From 2 pi = 6.2832 towards 10000 × 2 pi = {20000 * math.pi:.1f}; the last of 512 channels has "
                f"{wavelengths[-1]:.1f}, since i ends at 255, not 256.",
            ),
        ),
        Section(
            "Where they are added",
            "x = embedding × sqrt(d_model) + PE(pos)",
            (),
            (
                "Once, before the first layer. One of the documents adds them to q, k and v; the paper does not.",
                "sqrt(512) = 22.63 brings the embeddings to the scale of the sines.",
            ),
        ),
    )
    values = {
        "d_model_4": small.tolist(),
        "d_model_512": base.tolist(),
        "dot_products": [{"positions": pair, "value": value} for pair, value in dot_products.items()],
        "wavelengths_512": wavelengths,
    }
    return Explanation("Positional encoding: sines and cosines of the position", sections, values)


# ---- The learning rate

STEPS = (1, 100, 1000, 2000, 4000, 8000, 16000, 100000, 300000)
WARMUP, BIG_D_MODEL = 4000, 1024


def explain_schedule() -> Explanation:
    """The learning rate of section 5.3."""
    learning_rates = {step: noam(step, d_model=BASE_D_MODEL, warmup=WARMUP) for step in STEPS}
    big_peak = noam(WARMUP, d_model=BIG_D_MODEL, warmup=WARMUP)
    sections = (
        Section(
            "Step by step",
            "rate = d_model^-0.5 × min(step^-0.5, step × warmup^-1.5)",
            (
                Table(
                    "d_model 512, warm-up 4000; 512^-0.5 = 0.0441942",
                    tuple(f"step {step:,}" for step in STEPS),
                    ("step^-0.5", "step × 4000^-1.5", "rate"),
                    tuple((step**-0.5, step * WARMUP**-1.5, rate) for step, rate in learning_rates.items()),
                    scientific=True,
                ),
            ),
            (
                "The smaller of the two applies: up to step 4,000 the second, then the first.",
                "Four times the steps, half the rate: compare 4,000 and 16,000.",
                "Step 0 is undefined: 0^-0.5 divides by zero. The schedule starts at step 1.",
            ),
        ),
        Section(
            "The peak",
            "at step = warmup both are equal: rate = 1 / sqrt(d_model × warmup)",
            (
                Table(
                    "",
                    ("d_model 512 (base)", "d_model 1024 (big)"),
                    ("d_model^-0.5", "peak"),
                    ((BASE_D_MODEL**-0.5, learning_rates[WARMUP]), (BIG_D_MODEL**-0.5, big_peak)),
                    scientific=True,
                ),
            ),
            ("Larger models take smaller steps: four times d_model halves the peak.",),
        ),
    )
    values = {
        "d_model": BASE_D_MODEL,
        "warmup": WARMUP,
        "rates": {str(step): learning_rate for step, learning_rate in learning_rates.items()},
        "peak_step": WARMUP,
        "peak": learning_rates[WARMUP],
        "big_peak": big_peak,
    }
    return Explanation("The learning rate: 4,000 steps of warm-up, then decay", sections, values)


# ---- The layer around attention

LEFT, RIGHT = ((3, 4), (7, 2), (5, 9)), ((3, 1, 5), (6, 9, 7))
FFN_X = ((1.0, 2.0), (-1.0, 0.5))
FFN_W1, FFN_B1 = ((1.0, -1.0, 0.5), (2.0, 0.0, -1.0)), (0.0, 0.5, -0.5)
FFN_W2, FFN_B2 = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), (0.1, -0.1)
NORM_X = ((1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 0.0, 10.0))


def explain_layer() -> Explanation:
    """What surrounds attention: matrix product, feed-forward, residual sum, LayerNorm."""
    product = to_matrix(LEFT) @ to_matrix(RIGHT)
    network = build_feed_forward(FFN_W1, FFN_B1, FFN_W2, FFN_B2)
    x, rows = to_matrix(FFN_X), to_matrix(NORM_X)
    with torch.no_grad():
        pre_activation = network.inner(x)
        post_activation, output = network.activation(pre_activation), network(x)
    mean, variance = rows.mean(-1), rows.var(-1, unbiased=False)
    sections = (
        Section(
            "Matrix product",
            "cell = row of A times column of B, summed",
            (
                matrix_table("A (3 x 2)", "", "", LEFT),
                matrix_table("B (2 x 3)", "", "", RIGHT, beside=True),
                matrix_table("A B (3 x 3)", "", "", product, digits=0, beside=True),
            ),
            ("For example row 1, column 1: 3×3 + 4×6 = 33. The inner sizes, 2 and 2, must agree.",),
        ),
        Section(
            "Feed-forward, the same for every position",
            "FFN(x) = max(0, x W1 + b1) W2 + b2",
            (
                matrix_table("x", "x", "", x, digits=1),
                matrix_table("W1", "", "", FFN_W1, digits=1, beside=True),
                matrix_table("b1", ("",), "", [FFN_B1], digits=1, beside=True),
                matrix_table("W2", "", "", FFN_W2, digits=1),
                matrix_table("b2", ("",), "", [FFN_B2], digits=1, beside=True),
                matrix_table("x W1 + b1", "x", "", pre_activation),
                matrix_table("max(0, ...)", "x", "", post_activation, beside=True),
                matrix_table("FFN(x)", "x", "", output, beside=True),
            ),
            (
                "Check the first: 1×1 + 2×2 + 0 = 5.",
                "Negative numbers become 0. Without this nonlinearity two matrices in a row could do no more than one.",
            ),
        ),
        Section(
            "Residual",
            "x + Sublayer(x)",
            (
                matrix_table("The first position", ("x1", "FFN(x1)"), "", torch.stack([x[0], output[0]])).with_sum_row(
                    "x1 + FFN(x1)"
                ),
            ),
        ),
        Section(
            "LayerNorm",
            "(x - mean) / sqrt(variance + 0.00001), then × gain + bias (1 and 0 before training)",
            (
                matrix_table("x", "x", "", NORM_X, digits=0),
                matrix_table(
                    "of each row",
                    "x",
                    ("mean", "variance", "sqrt(variance + eps)"),
                    torch.stack([mean, variance, (variance + 1e-5).sqrt()], dim=1),
                    beside=True,
                ),
                matrix_table("LayerNorm(x)", "x", "", layer_norm(rows)),
            ),
            (
                "The variance is divided by the number of channels (4), not by one less. Some code, such as the "
                "Annotated Transformer, divides by 3 and adds eps outside the root: then 1.3416 becomes 1.1619.",
            ),
        ),
    )
    values = {
        "matrix_product": product.tolist(),
        "feed_forward": {
            "x": FFN_X,
            "W1": FFN_W1,
            "b1": FFN_B1,
            "W2": FFN_W2,
            "b2": FFN_B2,
            "before_relu": pre_activation.tolist(),
            "after_relu": post_activation.tolist(),
            "output": output.tolist(),
        },
        "residual": (x + output).tolist(),
        "layer_norm": {"x": NORM_X, "epsilon": 1e-5, "output": layer_norm(rows).tolist()},
    }
    return Explanation("Around attention: matrix product, feed-forward, residual, LayerNorm", sections, values)


def build_feed_forward(
    w1: tuple[tuple[float, ...], ...], b1: tuple[float, ...], w2: tuple[tuple[float, ...], ...], b2: tuple[float, ...]
) -> FeedForward:
    """The model's feed-forward network with given weights, in float64; x W, as the lecture writes it."""
    architecture = ArchitectureConfig(d_model=len(b2), heads=1, d_ff=len(b1), dropout=0)
    network = FeedForward(architecture).double().eval()
    for linear, weight, bias in ((network.inner, w1, b1), (network.outer, w2, b2)):
        linear.weight = nn.Parameter(to_matrix(weight).T.contiguous())
        linear.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float64))
    return network
