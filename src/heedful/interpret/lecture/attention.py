"""The lecture's worked examples of attention: "Thinking Machines", three inputs by hand, and the causal mask.

"The document" is the lecture text that an example comes from; what it prints is quoted as printed.
"""

import math

import torch
from torch import Tensor

from heedful.interpret.arithmetic import AttentionStep, build_head_step, softmax
from heedful.interpret.tables import Explanation, Section, Table, matrix_table
from heedful.models.attention import causal_mask, mask_scores

# ---- Thinking Machines

PAIR = ("Thinking", "Machines")
PAIR_SCORES = (112, 96)
PAIR_CHANNELS = 64


def explain_thinking_machines() -> Explanation:
    """Two scores to two weights, with and without the division by sqrt(d_k)."""
    scores = torch.tensor(PAIR_SCORES, dtype=torch.float64)
    scaled = scores / math.sqrt(PAIR_CHANNELS)
    weights, unscaled = softmax(scaled), softmax(scores)
    gradient, unscaled_gradient = weights * (1 - weights), unscaled * (1 - unscaled)
    shifted = (scaled - scaled.max()).exp()
    finite_scores, masked_scores = to_matrix(((2.0, 0.0, -1.0), (2.0, 0.0, -math.inf)))
    finite_weights, masked_weights = softmax(finite_scores), softmax(masked_scores)
    sections = (
        Section(
            "Divide the scores by sqrt(d_k)",
            "s / sqrt(d_k), with d_k = 64, so sqrt(d_k) = 8",
            (
                matrix_table(
                    "The query of Thinking and both keys.",
                    ("score q1 · k", "divided by 8"),
                    PAIR,
                    torch.stack([scores, scaled]),
                    digits=0,
                ),
            ),
        ),
        Section(
            "Softmax",
            "w_j = exp(s_j) / sum over k of exp(s_k)",
            (
                matrix_table(
                    "", ("exp(s)", "exp(s - 14)", "weight"), PAIR, torch.stack([scaled.exp(), shifted, weights])
                ).with_sum_column(),
            ),
            (
                "Subtracting the largest score from all changes no weight and avoids overflow: "
                f"1 / {shifted.sum():.4f} = {weights[0]:.4f}.",
                "The document prints .88 and .12: right.",
            ),
        ),
        Section(
            "Why divide at all?",
            "d w_i / d s_i = w_i (1 - w_i)",
            (
                matrix_table(
                    "Weights with and without the division, and the gradient of softmax there.",
                    ("s / 8 = 14, 12", "s = 112, 96"),
                    (*PAIR, "gradient w (1 - w)"),
                    [[*weights.tolist(), gradient[0].item()], [*unscaled.tolist(), unscaled_gradient[0].item()]],
                    min_digits=8,
                ),
            ),
            (
                "Without the division softmax saturates: one weight is almost 1, and its gradient is "
                f"{gradient[0] / unscaled_gradient[0]:,.0f} times smaller. Almost nothing is left to learn from.",
                'The document gives "exploding gradients" as the reason. It is the other way round: they vanish.',
            ),
        ),
        Section(
            "A score of zero or below is not ignored",
            "exp(0) = 1, exp(-1) = 0.3679, exp(-inf) = 0",
            (
                Table(
                    "",
                    ("score", "weight", "score", "weight"),
                    ("first", "second", "third", "sum"),
                    (
                        (*finite_scores.tolist(), ""),
                        (*finite_weights.tolist(), finite_weights.sum().item()),
                        (*masked_scores.tolist(), ""),
                        (*masked_weights.tolist(), masked_weights.sum().item()),
                    ),
                ),
            ),
            (
                'The document says of a zero or negative score that the word is "ignored". It is not: a score '
                f"of 0 weighs {finite_weights[1]:.4f} here, a score of -1 still {finite_weights[2]:.4f}.",
                "Only differences between scores matter. Only -inf, the mask, has a weight of exactly 0.",
            ),
        ),
    )
    values = {
        "scores": scores.tolist(),
        "d_k": PAIR_CHANNELS,
        "scaled": scaled.tolist(),
        "weights": weights.tolist(),
        "unscaled_weights": unscaled.tolist(),
        "gradient": gradient.tolist(),
        "unscaled_gradient": unscaled_gradient.tolist(),
        "weights_of_2_0_-1": finite_weights.tolist(),
        "weights_of_2_0_-inf": masked_weights.tolist(),
    }
    return Explanation("Thinking Machines: two scores become two weights", sections, values)


# ---- Three inputs of four numbers

INPUTS = ((1, 0, 1, 0), (0, 2, 0, 2), (1, 1, 1, 1))
W_KEY = ((0, 0, 1), (1, 1, 0), (0, 1, 0), (1, 1, 0))
W_QUERY = ((1, 0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 1))
W_VALUE = ((0, 2, 0), (0, 3, 0), (1, 0, 3), (1, 1, 0))
BLOG_WEIGHTS = ((0.0, 0.5, 0.5), (0.0, 1.0, 0.0), (0.0, 0.9, 0.1))
"""The rounded weights of a well-known blog post; its answer is exact for these only."""


def explain_numerical() -> Explanation:
    """Three inputs of four numbers through one head of three channels, by hand."""
    x, w_query, w_key, w_value = map(to_matrix, (INPUTS, W_QUERY, W_KEY, W_VALUE))
    scaled = build_head_step(x, w_query, w_key, w_value).attention
    unscaled = build_head_step(x, w_query, w_key, w_value, scale=1.0).attention
    blog_output = to_matrix(BLOG_WEIGHTS) @ scaled.value
    products = torch.stack([scaled.query[1], scaled.key[2], scaled.products(1, 2)]).tolist()
    value_labels = [f"{weight:.4f} × v{number}" for number, weight in enumerate(scaled.weights[0].tolist(), 1)]
    sections = (
        Section(
            "What is given",
            "X: a row for each input. W^Q, W^K, W^V: learned; here small integers.",
            (
                matrix_table("X", "x", "", INPUTS),
                matrix_table("W^Q", "", "", W_QUERY, beside=True),
                matrix_table("W^K", "", "", W_KEY, beside=True),
                matrix_table("W^V", "", "", W_VALUE, beside=True),
            ),
            ("The document gives these inputs only and prints no results.",),
        ),
        Section(
            "Queries, keys, values",
            "row of X times column of W, summed",
            (
                matrix_table("Q = X W^Q", "q", "", scaled.query, digits=0),
                matrix_table("K = X W^K", "k", "", scaled.key, digits=0, beside=True),
                matrix_table("V = X W^V", "v", "", scaled.value, digits=0, beside=True),
            ),
            ("For example the last number of q3: 1×1 + 1×0 + 1×1 + 1×1 = 3.",),
        ),
        Section(
            "Scores",
            "q · k = sum over channels of q_c × k_c",
            (
                Table(
                    "One pair: q2 · k3",
                    ("q2", "k3", "product"),
                    ("1", "2", "3", "sum"),
                    ((*products[0], ""), (*products[1], ""), (*products[2], scaled.scores[1, 2].item())),
                    digits=0,
                ),
                matrix_table("All pairs: Q K^T", "q", "k", scaled.scores, digits=0, beside=True),
            ),
        ),
        Section(
            "Divide by sqrt(d_k), then softmax",
            "softmax(Q K^T / sqrt(3))",
            (
                matrix_table(f"Scores / {scaled.divisor:.4f}", "q", "k", scaled.scaled_scores),
                matrix_table("Weights, as in the paper", "q", "k", scaled.weights, beside=True).with_sum_column(),
            ),
        ),
        Section(
            "The weighted sum of the values",
            "output_i = sum over j of w_ij × v_j",
            (
                matrix_table(
                    "Input 1: each value times its weight", value_labels, "", scaled.contributions[0]
                ).with_sum_row("output 1"),
                matrix_table("All outputs", "output ", "", scaled.output, beside=True),
            ),
        ),
        Section(
            "The same without the division",
            "softmax(Q K^T) V",
            (
                matrix_table("Weights", "q", "k", unscaled.weights).with_sum_column(),
                matrix_table("Outputs", "output ", "", unscaled.output, beside=True),
                matrix_table(
                    "Outputs of the weights rounded to 0, 0.5, 0.5 / 0, 1, 0 / 0, 0.9, 0.1", "output ", "", blog_output
                ),
            ),
            (
                "The document's recipe leaves the division out; the paper divides. Compare the weights: without "
                "it each row is more concentrated.",
                "A well-known blog post answers [2, 7, 1.5], [2, 8, 0], [2, 7.8, 0.3]. That comes from weights "
                "that were rounded first; the exact outputs are above.",
            ),
        ),
    )
    values = {
        "x": x.tolist(),
        "w_query": w_query.tolist(),
        "w_key": w_key.tolist(),
        "w_value": w_value.tolist(),
        "Q": scaled.query.tolist(),
        "K": scaled.key.tolist(),
        "V": scaled.value.tolist(),
        "scores": scaled.scores.tolist(),
        "scaled": _collect_step_values(scaled),
        "unscaled": _collect_step_values(unscaled),
        "rounded": {"weights": BLOG_WEIGHTS, "output": blog_output.tolist()},
    }
    return Explanation("Self-attention by hand: three inputs, four numbers each, one head", sections, values)


def to_matrix(numbers: tuple[tuple[float, ...], ...]) -> Tensor:
    """In float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def _collect_step_values(step: AttentionStep) -> dict[str, object]:
    return {
        "divisor": step.divisor,
        "weights": step.weights.tolist(),
        "contributions": step.contributions.tolist(),
        "output": step.output.tolist(),
    }


# ---- The causal mask, and the matrix of "Hi how are you": printed and computed values

TARGET_WORDS = ("<start>", "I", "am", "fine")
SOURCE_WORDS = ("Hi", "how", "are", "you")
SCALED_SCORES = ((0.7, 0.1, 0.1, 0.1), (0.1, 0.6, 0.2, 0.1), (0.1, 0.3, 0.6, 0.1), (0.1, 0.3, 0.3, 0.3))
PRINTED_MASKED = ((1.0, 0.0, 0.0, 0.0), (0.37, 0.62, 0.0, 0.0), (0.26, 0.31, 0.43, 0.0), (0.21, 0.26, 0.26, 0.26))
GREETING_SCORES = ((98, 27, 10, 12), (27, 89, 31, 67), (10, 31, 91, 54), (12, 67, 54, 92))
GREETING_WEIGHTS = SCALED_SCORES
"""The document prints one matrix twice: as the weights of "Hi how are you" and as scores to be masked."""


def explain_mask() -> Explanation:
    """The causal mask: the printed and the computed values."""
    words, scores, mask = TARGET_WORDS, to_matrix(SCALED_SCORES), causal_mask(4)
    masked_scores = mask_scores(scores, mask)
    weights = softmax(masked_scores)
    strict_weights = softmax(mask_scores(scores, mask & ~torch.eye(4, dtype=torch.bool)))
    temperature, error = find_best_temperature(to_matrix(GREETING_SCORES), to_matrix(GREETING_WEIGHTS))
    unmasked = {
        f"{words[i]} -> {words[j]}": (weights[i, j].item(), PRINTED_MASKED[i][j])
        for i in range(4)
        for j in range(i + 1)
    }
    sections = (
        Section(
            "Add the mask to the scaled scores",
            "j <= i: add 0.  j > i: add -inf.  Rows attend to columns.",
            (
                matrix_table("Scaled scores", words, words, scores, digits=1),
                matrix_table("+ mask", words, words, mask_scores(torch.zeros(4, 4), mask), digits=0, beside=True),
                matrix_table("= masked scores", words, words, masked_scores, digits=1, beside=True),
            ),
        ),
        Section(
            "Softmax of each row",
            "exp(-inf) = 0, so masked words have a weight of exactly 0",
            (
                matrix_table("Weights", words, words, weights).with_sum_column(),
                Table(
                    "Cell by cell",
                    tuple(unmasked),
                    ("exact", "document", "rounded", ""),
                    tuple(
                        (exact, f"{printed:.2f}", f"{exact:.2f}", _judge_printed_value(exact, printed))
                        for exact, printed in unmasked.values()
                    ),
                ),
            ),
            (
                "Check row I: exp(0.1) = 1.1052, exp(0.6) = 1.8221; 1.1052 / 2.9273 = 0.3775.",
                "The document prints 0.37 for 0.3775 and 0.31 for 0.3156: truncated, not rounded. "
                f"Its rows sum to {', '.join(f'{sum(row):.2f}' for row in PRINTED_MASKED)}; the last by rounding.",
            ),
        ),
        Section(
            "The document's formula is too strict",
            "its formula: q_i · k_j for j < i, -inf for j >= i",
            (
                Table(
                    "Weights if a word could not see itself",
                    words,
                    words,
                    tuple(
                        tuple("undefined" if math.isnan(cell) else cell for cell in row)
                        for row in strict_weights.tolist()
                    ),
                ),
            ),
            (
                "With j < i the first word sees nothing: its row is all -inf, the sum of exponentials is 0, "
                "and 0 / 0 is undefined. The document's own table has 0 on the diagonal, which is right: j <= i.",
            ),
        ),
        Section(
            '"Hi how are you": weights that no softmax gives',
            "",
            (
                matrix_table("Printed scores", SOURCE_WORDS, SOURCE_WORDS, GREETING_SCORES),
                matrix_table(
                    "Printed weights", SOURCE_WORDS, SOURCE_WORDS, GREETING_WEIGHTS, digits=1, beside=True
                ).with_sum_column(),
                matrix_table(
                    f"Nearest softmax: scores / {temperature:.2f}",
                    SOURCE_WORDS,
                    SOURCE_WORDS,
                    softmax(to_matrix(GREETING_SCORES) / temperature),
                ).with_sum_column(),
            ),
            (
                'The row of "are" sums to 1.1. Weights sum to 1.',
                'A larger score always gets a larger weight. In the row of "how", "you" has 67 and "are" has '
                '31, but the document gives "you" 0.1 and "are" 0.2.',
                f"With any divisor, some weight is off by {error:.3f} or more. "
                "The picture is an illustration, not a computation.",
                "The document later uses these weights as the scaled scores of the mask above.",
            ),
        ),
    )
    values = {
        "scaled_scores": scores.tolist(),
        "masked_scores": masked_scores.tolist(),
        "weights": weights.tolist(),
        "printed": PRINTED_MASKED,
        "strict_weights": strict_weights.tolist(),
        "hi_how_are_you": {
            "scores": GREETING_SCORES,
            "printed_weights": GREETING_WEIGHTS,
            "best_temperature": temperature,
            "largest_error": error,
        },
    }
    return Explanation("The causal mask: no word sees the words after it", sections, values)


def _judge_printed_value(exact: float, printed: float) -> str:
    if math.isclose(round(exact, 2), printed):
        return "right"
    return "truncated" if math.isclose(math.floor(exact * 100) / 100, printed) else "wrong"


def find_best_temperature(scores: Tensor, weights: Tensor) -> tuple[float, float]:
    """The divisor for which softmax(scores / divisor) is nearest to the weights, and its largest error."""
    low, high = 0.0, 3.0  # powers of ten
    best, error = 1.0, math.inf
    for _ in range(4):  # each time a finer grid around the best
        temperatures = torch.logspace(low, high, 2001, dtype=torch.float64)
        errors = (softmax(scores / temperatures[:, None, None]) - weights).abs().amax(dim=(1, 2))
        best_index = int(errors.argmin())
        best, error = temperatures[best_index].item(), errors[best_index].item()
        step = (high - low) / 2000
        low, high = math.log10(best) - step, math.log10(best) + step
    return best, error
