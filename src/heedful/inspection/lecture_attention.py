"""The lecture's two worked examples of attention: "Thinking Machines", and three inputs by hand.

"The document" is the lecture text that an example comes from; what it prints is quoted as printed.
"""

import math

import torch
from torch import Tensor

from heedful.inspection.arithmetic import AttentionStep, HeadStep, head_step, softmax
from heedful.inspection.tables import Explanation, Section, Table, counted, grid

# --- Thinking Machines

PAIR = ("Thinking", "Machines")
PAIR_SCORES = (112, 96)
PAIR_CHANNELS = 64


def thinking_machines() -> Explanation:
    """Two scores to two weights, with and without the division by sqrt(d_k)."""
    scores = torch.tensor(PAIR_SCORES, dtype=torch.float64)
    divisor = math.sqrt(PAIR_CHANNELS)
    scaled = scores / divisor
    weights, unscaled = softmax(scaled), softmax(scores)
    others = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
    hidden = torch.tensor([2.0, 0.0, -torch.inf], dtype=torch.float64)
    return Explanation(
        "Thinking Machines: two scores become two weights",
        (
            _scaling(scores, scaled, divisor),
            _softmax_section(scaled, weights),
            _saturation(weights, unscaled),
            _not_ignored(others, hidden),
        ),
        {
            "scores": scores.tolist(),
            "d_k": PAIR_CHANNELS,
            "scaled": scaled.tolist(),
            "weights": weights.tolist(),
            "unscaled_weights": unscaled.tolist(),
            "gradient": _slope(weights).tolist(),
            "unscaled_gradient": _slope(unscaled).tolist(),
            "weights_of_2_0_-1": softmax(others).tolist(),
            "weights_of_2_0_-inf": softmax(hidden).tolist(),
        },
    )


def _slope(weights: Tensor) -> Tensor:
    """d softmax_i / d score_i = w_i (1 - w_i)."""
    return weights * (1 - weights)


def _scaling(scores: Tensor, scaled: Tensor, divisor: float) -> Section:
    cells = (tuple(map(int, scores.tolist())), tuple(map(int, scaled.tolist())))
    rows = ("score q1 · k", f"divided by {divisor:g}")
    return Section(
        "Divide the scores by sqrt(d_k)",
        "s / sqrt(d_k), with d_k = 64, so sqrt(d_k) = 8",
        (Table("The query of Thinking meets both keys.", rows, PAIR, cells),),
    )


def _softmax_section(scaled: Tensor, weights: Tensor) -> Section:
    shifted = (scaled - scaled.max()).exp()
    rows = ("exp(s)", "exp(s - 14)", "weight")
    cells = [scaled.exp().tolist(), shifted.tolist(), weights.tolist()]
    return Section(
        "Softmax",
        "w_j = exp(s_j) / sum over k of exp(s_k)",
        (grid("", rows, PAIR, cells).with_sum_column(),),
        (
            "Subtracting the largest score from all changes no weight and keeps the numbers small: "
            f"1 / {shifted.sum():.4f} = {weights[0]:.4f}. Computers do it so.",
            "The document prints .88 and .12: right.",
        ),
    )


def _saturation(weights: Tensor, unscaled: Tensor) -> Section:
    cells = [[*weights.tolist(), _slope(weights)[0].item()], [*unscaled.tolist(), _slope(unscaled)[0].item()]]
    rows, columns = ("s / 8 = 14, 12", "s = 112, 96"), (*PAIR, "gradient w (1 - w)")
    ratio = _slope(weights)[0] / _slope(unscaled)[0]
    return Section(
        "Why divide at all?",
        "d w_i / d s_i = w_i (1 - w_i)",
        (
            grid(
                "Weights with and without the division, and the gradient of softmax there.",
                rows,
                columns,
                cells,
                at_least=8,
            ),
        ),
        (
            "Without the division softmax saturates: one weight is all but 1, and its gradient is "
            f"{ratio:,.0f} times smaller. Almost nothing is left to learn from.",
            'The document gives "exploding gradients" as the reason. It is the other way round: they vanish.',
        ),
    )


def _not_ignored(others: Tensor, hidden: Tensor) -> Section:
    columns = ("first", "second", "third", "sum")
    rows = ("score", "weight", "score", "weight")
    cells: list[list[float | str]] = []
    for scores in (others, hidden):
        weights = softmax(scores)
        cells += [[*scores.tolist(), ""], [*weights.tolist(), weights.sum().item()]]
    table = Table("", rows, columns, tuple(map(tuple, cells)))
    return Section(
        "A score of zero or below is not ignored",
        "exp(0) = 1, exp(-1) = 0.3679, exp(-inf) = 0",
        (table,),
        (
            'The document says of a zero or negative score that the word is "ignored". It is not: a score '
            f"of 0 weighs {softmax(others)[1]:.4f} here, a score of -1 still {softmax(others)[2]:.4f}.",
            "What counts is the difference to the other scores. Only -inf, the mask, weighs exactly 0.",
        ),
    )


# --- The 3 x 4 example

INPUTS = ((1, 0, 1, 0), (0, 2, 0, 2), (1, 1, 1, 1))
W_KEY = ((0, 0, 1), (1, 1, 0), (0, 1, 0), (1, 1, 0))
W_QUERY = ((1, 0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 1))
W_VALUE = ((0, 2, 0), (0, 3, 0), (1, 0, 3), (1, 1, 0))
ROUNDED_WEIGHTS = ((0.0, 0.5, 0.5), (0.0, 1.0, 0.0), (0.0, 0.9, 0.1))
"""The weights a well-known blog post goes on with; its answer is exact for these only."""


def numerical() -> Explanation:
    """Three inputs of four numbers through one head of three channels, by hand."""
    x, w_query, w_key, w_value = map(matrix, (INPUTS, W_QUERY, W_KEY, W_VALUE))
    head = head_step(x, w_query, w_key, w_value)
    plain = head_step(x, w_query, w_key, w_value, scale=1.0).attention
    scaled = head.attention
    blog = matrix(ROUNDED_WEIGHTS) @ scaled.value
    return Explanation(
        "Self-attention by hand: three inputs, four numbers each, one head",
        (
            _inputs_section(),
            _projection_section(head),
            _product_section(scaled, 1, 2),
            _weights_section(
                "Divide by sqrt(d_k), then softmax", "softmax(Q K^T / sqrt(3))", scaled, "the paper's way"
            ),
            _contribution_section(scaled),
            _unscaled_section(plain, blog),
        ),
        {
            "x": x.tolist(),
            "w_query": w_query.tolist(),
            "w_key": w_key.tolist(),
            "w_value": w_value.tolist(),
            "Q": scaled.query.tolist(),
            "K": scaled.key.tolist(),
            "V": scaled.value.tolist(),
            "scores": scaled.scores.tolist(),
            "scaled": _step_values(scaled),
            "unscaled": _step_values(plain),
            "rounded": {"weights": ROUNDED_WEIGHTS, "output": blog.tolist()},
        },
    )


def matrix(numbers: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _step_values(step: AttentionStep) -> dict[str, object]:
    return {
        "divisor": step.divisor,
        "weights": step.weights.tolist(),
        "contributions": step.contributions.tolist(),
        "output": step.output.tolist(),
    }


def _inputs_section() -> Section:
    inner, outer = counted(4), counted(3)
    return Section(
        "What is given",
        "X: a row for each input. W^Q, W^K, W^V: learned; here small whole numbers.",
        (
            grid("X", counted(3, "x"), inner, INPUTS, whole=True),
            grid("W^Q", inner, outer, W_QUERY, whole=True, beside=True),
            grid("W^K", inner, outer, W_KEY, whole=True, beside=True),
            grid("W^V", inner, outer, W_VALUE, whole=True, beside=True),
        ),
        ("The document gives these inputs only and prints no results.",),
    )


def _projection_section(head: HeadStep) -> Section:
    named = (("Q = X W^Q", "q", head.query), ("K = X W^K", "k", head.key), ("V = X W^V", "v", head.value))
    tables = [
        grid(title, counted(3, letter), counted(3), projection.result.tolist(), whole=True, beside=True)
        for title, letter, projection in named
    ]
    return Section(
        "Queries, keys, values",
        "row of X times column of W, summed",
        tuple(tables),
        ("For example the last number of q3: 1×1 + 1×0 + 1×1 + 1×1 = 3.",),
    )


def _product_section(step: AttentionStep, row: int, column: int) -> Section:
    names = (f"q{row + 1}", f"k{column + 1}", "product")
    products = [step.query[row].tolist(), step.key[column].tolist(), step.products(row, column).tolist()]
    one = grid(f"One pair: q{row + 1} · k{column + 1}", names, counted(3), products, whole=True)
    score = int(step.scores[row, column])
    pair = Table(
        one.title,
        one.rows,
        (*one.columns, "sum"),
        tuple(
            (*cells, score if name == "product" else "") for name, cells in zip(names, one.cells, strict=True)
        ),
    )
    scores = grid(
        "All pairs: Q K^T", counted(3, "q"), counted(3, "k"), step.scores.tolist(), whole=True, beside=True
    )
    return Section("Scores", "q · k = sum over channels of q_c × k_c", (pair, scores))


def _weights_section(heading: str, formula: str, step: AttentionStep, whose: str) -> Section:
    rows, columns = counted(3, "q"), counted(3, "k")
    tables = (
        grid(f"Scores / {step.divisor:.4f}", rows, columns, step.scaled.tolist()),
        grid(f"Weights, {whose}", rows, columns, step.weights.tolist(), beside=True).with_sum_column(),
    )
    return Section(heading, formula, tables)


def _contribution_section(step: AttentionStep) -> Section:
    first = grid(
        "Input 1: each value times its weight",
        [f"{w:.4f} × v{j}" for j, w in enumerate(step.weights[0].tolist(), 1)],
        counted(3),
        step.contributions[0].tolist(),
    ).with_sum_row("output 1")
    outputs = grid("All outputs", counted(3, "output "), counted(3), step.output.tolist(), beside=True)
    return Section("The weighted sum of the values", "output_i = sum over j of w_ij × v_j", (first, outputs))


def _unscaled_section(plain: AttentionStep, blog: Tensor) -> Section:
    rows, keys = counted(3, "q"), counted(3, "k")
    outputs = counted(3, "output ")
    return Section(
        "The same without the division",
        "softmax(Q K^T) V",
        (
            grid("Weights", rows, keys, plain.weights.tolist()).with_sum_column(),
            grid("Outputs", outputs, counted(3), plain.output.tolist(), beside=True),
            grid(
                "Outputs of the weights rounded to 0, 0.5, 0.5 / 0, 1, 0 / 0, 0.9, 0.1",
                outputs,
                counted(3),
                blog.tolist(),
            ),
        ),
        (
            "The document's recipe leaves the division out; the paper divides. Compare the weights: without "
            "it each row leans further to one side.",
            "A well-known blog post answers [2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]. That comes from weights "
            "that were rounded first; the exact outputs are above.",
        ),
    )
