"""The lecture's other numbers: positions, the learning rate, and the layer around attention."""

import math

import torch
from torch import Tensor, nn

from heedful.inspection.arithmetic import layer_norm
from heedful.inspection.lecture_attention import matrix
from heedful.inspection.tables import Explanation, Section, Table, counted, grid
from heedful.model.config import Architecture
from heedful.model.feed_forward import FeedForward
from heedful.model.positions import exact_sinusoids
from heedful.training.schedule import noam

# --- Positions

SMALL_WIDTH, BASE_WIDTH = 4, 512
CHANNELS = (0, 1, 2, 3, 4, 5, 510, 511)
SAMPLED = (0, 1, 2, 50, 100)
DOT_PAIRS = ((0, 0), (100, 100), (3, 10), (50, 57), (0, 1), (0, 2), (0, 50))


def positions() -> Explanation:
    """The sines and cosines of section 3.5."""
    small = exact_sinusoids(5, SMALL_WIDTH)
    base = exact_sinusoids(101, BASE_WIDTH)
    dots = [(base[a] @ base[b]).item() for a, b in DOT_PAIRS]
    wavelengths = [2 * math.pi * 10000 ** (2 * pair / BASE_WIDTH) for pair in range(BASE_WIDTH // 2)]
    return Explanation(
        "Positions: where a word stands, as sines and cosines",
        (
            _small_positions(small),
            _base_positions(base),
            _dots(dots),
            _wavelengths(wavelengths),
            _where_added(),
        ),
        {
            "d_model_4": small.tolist(),
            "d_model_512": base.tolist(),
            "dot_products": [
                {"positions": pair, "value": value} for pair, value in zip(DOT_PAIRS, dots, strict=True)
            ],
            "wavelengths_512": wavelengths,
        },
    )


def _small_positions(small: Tensor) -> Section:
    columns = ("sin(pos)", "cos(pos)", "sin(pos / 100)", "cos(pos / 100)")
    return Section(
        "Four channels",
        "PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same",
        (
            grid(
                "d_model = 4: the divisors are 10000^0 = 1 and 10000^(2/4) = 100.",
                [f"pos {n}" for n in range(5)],
                columns,
                small.tolist(),
            ),
        ),
        (
            "Set your calculator to radians: sin(1) = 0.8415.",
            "The documents count positions from 1. The paper's code and this program count from 0, so that "
            "the first word has 0, 1, 0, 1.",
        ),
    )


def _base_positions(base: Tensor) -> Section:
    columns = [str(channel) for channel in CHANNELS]
    cells = base[list(SAMPLED)][:, list(CHANNELS)].tolist()
    return Section(
        "512 channels, as in the paper",
        "channel 2i has the divisor 10000^(2i / 512): 1, 1.0366, 1.0746, ... 9646.6",
        (
            grid(
                "A few positions; the columns are channels, counted from 0",
                [f"pos {n}" for n in SAMPLED],
                columns,
                cells,
            ),
        ),
        ("The first channels turn fast, the last hardly move.",),
    )


def _dots(dots: list[float]) -> Section:
    cells = tuple((abs(a - b), value) for (a, b), value in zip(DOT_PAIRS, dots, strict=True))
    rows = tuple(f"PE({a}) · PE({b})" for a, b in DOT_PAIRS)
    return Section(
        "Only the distance counts",
        "sin a sin b + cos a cos b = cos(a - b)",
        (Table("Dot products, d_model = 512", rows, ("distance", "value"), cells),),
        (
            "PE(p) · PE(p) = 256 = d_model / 2 for every p: each pair of channels adds sin^2 + cos^2 = 1.",
            "Positions 3 and 10 are 7 apart, and so are 50 and 57: the same value.",
        ),
    )


def _wavelengths(wavelengths: list[float]) -> Section:
    chosen = (0, 1, 64, 128, 192, 255)
    rows = tuple(f"channels {2 * pair}, {2 * pair + 1}" for pair in chosen)
    return Section(
        "Wavelengths",
        "2 pi 10000^(2i / d_model) positions for one turn",
        (Table("", rows, ("positions",), tuple((wavelengths[pair],) for pair in chosen)),),
        (
            f"From 2 pi = 6.2832 towards 10000 × 2 pi = {20000 * math.pi:.1f}; the last of 512 channels has "
            f"{wavelengths[-1]:.1f}, since i ends at 255, not 256.",
        ),
    )


def _where_added() -> Section:
    return Section(
        "Where they are added",
        "x = embedding × sqrt(d_model) + PE(pos)",
        (),
        (
            "Once, before the first layer. One of the documents adds them to q, k and v; the paper does not.",
            "sqrt(512) = 22.63 makes the embeddings large enough for the sines not to drown them.",
        ),
    )


# --- The learning rate

STEPS = (1, 100, 1000, 2000, 4000, 8000, 16000, 100000, 300000)
WARMUP, BIG_WIDTH = 4000, 1024


def schedule() -> Explanation:
    """The learning rate of section 5.3."""
    rates = {step: noam(step, width=BASE_WIDTH, warmup=WARMUP) for step in STEPS}
    big = noam(WARMUP, width=BIG_WIDTH, warmup=WARMUP)
    cells = tuple((step**-0.5, step * WARMUP**-1.5, rates[step]) for step in STEPS)
    columns = ("step^-0.5", "step × 4000^-1.5", "rate")
    names = tuple(f"step {step:,}" for step in STEPS)
    peaks = (
        ("d_model 512 (base)", BASE_WIDTH**-0.5, rates[WARMUP]),
        ("d_model 1024 (big)", BIG_WIDTH**-0.5, big),
    )
    return Explanation(
        "The learning rate: climb for 4,000 steps, then fall",
        (
            Section(
                "Step by step",
                "rate = d_model^-0.5 × min(step^-0.5, step × warmup^-1.5)",
                (
                    Table(
                        "d_model 512, warm-up 4000; 512^-0.5 = 0.0441942",
                        names,
                        columns,
                        cells,
                        scientific=True,
                    ),
                ),
                (
                    "The smaller of the two counts: up to step 4,000 the second, then the first.",
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
                        tuple(name for name, _, _ in peaks),
                        ("d_model^-0.5", "peak"),
                        tuple((factor, peak) for _, factor, peak in peaks),
                        scientific=True,
                    ),
                ),
                ("The wider the model, the smaller its steps: half the peak needs four times the width.",),
            ),
        ),
        {
            "d_model": BASE_WIDTH,
            "warmup": WARMUP,
            "rates": {str(step): rate for step, rate in rates.items()},
            "peak_step": WARMUP,
            "peak": rates[WARMUP],
            "big_peak": big,
        },
    )


# --- Around attention: the layer

LEFT, RIGHT = ((3, 4), (7, 2), (5, 9)), ((3, 1, 5), (6, 9, 7))
FFN_X = ((1.0, 2.0), (-1.0, 0.5))
FFN_W1, FFN_B1 = ((1.0, -1.0, 0.5), (2.0, 0.0, -1.0)), (0.0, 0.5, -0.5)
FFN_W2, FFN_B2 = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), (0.1, -0.1)
NORM_X = ((1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 0.0, 10.0))


def layer() -> Explanation:
    """What stands around attention: matrix product, feed-forward, residual sum, LayerNorm."""
    product = matrix(LEFT) @ matrix(RIGHT)
    network = feed_forward(FFN_W1, FFN_B1, FFN_W2, FFN_B2)
    x, rows = matrix(FFN_X), matrix(NORM_X)
    with torch.no_grad():
        before = network.inner(x)
        after, output = network.activation(before), network(x)
    return Explanation(
        "Around attention: matrix product, feed-forward, residual, LayerNorm",
        (_product(product), _feed_forward(x, before, after, output), _residual(x, output), _norm(rows)),
        {
            "matrix_product": product.tolist(),
            "feed_forward": {
                "x": FFN_X,
                "W1": FFN_W1,
                "b1": FFN_B1,
                "W2": FFN_W2,
                "b2": FFN_B2,
                "before_relu": before.tolist(),
                "after_relu": after.tolist(),
                "output": output.tolist(),
            },
            "residual": (x + output).tolist(),
            "layer_norm": {"x": NORM_X, "epsilon": 1e-5, "output": layer_norm(rows).tolist()},
        },
    )


def feed_forward(
    w1: tuple[tuple[float, ...], ...],
    b1: tuple[float, ...],
    w2: tuple[tuple[float, ...], ...],
    b2: tuple[float, ...],
) -> FeedForward:
    """The model's own feed-forward network with given weights, in float64; x W, as the lecture writes it."""
    sizes = Architecture(width=len(b2), heads=1, feed_forward_width=len(b1), dropout=0)
    network = FeedForward(sizes).double().eval()
    for linear, weight, bias in ((network.inner, w1, b1), (network.outer, w2, b2)):
        linear.weight = nn.Parameter(matrix(weight).T.contiguous())
        linear.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float64))
    return network


def _product(product: Tensor) -> Section:
    return Section(
        "Matrix product",
        "cell = row of A times column of B, summed",
        (
            grid("A (3 x 2)", counted(3), counted(2), LEFT, whole=True),
            grid("B (2 x 3)", counted(2), counted(3), RIGHT, whole=True, beside=True),
            grid("A B (3 x 3)", counted(3), counted(3), product.tolist(), whole=True, beside=True),
        ),
        ("For example row 1, column 1: 3×3 + 4×6 = 33. The inner sizes, 2 and 2, must agree.",),
    )


def _feed_forward(x: Tensor, before: Tensor, after: Tensor, output: Tensor) -> Section:
    tokens = ("x1", "x2")
    return Section(
        "Feed-forward, the same for every position",
        "FFN(x) = max(0, x W1 + b1) W2 + b2",
        (
            grid("x", tokens, counted(2), x.tolist(), digits=1),
            grid("W1", counted(2), counted(3), FFN_W1, digits=1, beside=True),
            grid("b1", ("",), counted(3), [FFN_B1], digits=1, beside=True),
            grid("W2", counted(3), counted(2), FFN_W2, digits=1),
            grid("b2", ("",), counted(2), [FFN_B2], digits=1, beside=True),
            grid("x W1 + b1", tokens, counted(3), before.tolist()),
            grid("max(0, ...)", tokens, counted(3), after.tolist(), beside=True),
            grid("FFN(x)", tokens, counted(2), output.tolist(), beside=True),
        ),
        (
            "Check the first: 1×1 + 2×2 + 0 = 5.",
            "Negative numbers become 0. Without this bend two matrices in a row could do no more than one.",
        ),
    )


def _residual(x: Tensor, output: Tensor) -> Section:
    rows = ("x1", "FFN(x1)")
    table = grid("The first position", rows, counted(2), [x[0].tolist(), output[0].tolist()])
    return Section("Residual", "x + Sublayer(x)", (table.with_sum_row("x1 + FFN(x1)"),))


def _norm(rows: Tensor) -> Section:
    mean, variance = rows.mean(-1), rows.var(-1, unbiased=False)
    facts = [[m, v, math.sqrt(v + 1e-5)] for m, v in zip(mean.tolist(), variance.tolist(), strict=True)]
    names = ("x1", "x2")
    return Section(
        "LayerNorm",
        "(x - mean) / sqrt(variance + 0.00001), then × gain + bias (1 and 0 before training)",
        (
            grid("x", names, counted(4), NORM_X, digits=0),
            grid("of each row", names, ("mean", "variance", "sqrt(variance + eps)"), facts, beside=True),
            grid("LayerNorm(x)", names, counted(4), layer_norm(rows).tolist()),
        ),
        (
            "The variance is divided by the number of channels (4), not by one less. Some code, such as the "
            "Annotated Transformer, divides by 3 and adds eps outside the root: then 1.3416 becomes 1.1619.",
        ),
    )
