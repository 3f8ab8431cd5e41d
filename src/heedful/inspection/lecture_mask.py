"""The lecture's look-ahead mask, and the grid of "Hi how are you": what is printed against what comes out."""

import math

import torch
from torch import Tensor

from heedful.inspection.arithmetic import softmax
from heedful.inspection.lecture_attention import matrix
from heedful.inspection.tables import Explanation, Section, Table, grid
from heedful.model.attention import look_ahead_mask, masked

TARGET_WORDS = ("<start>", "I", "am", "fine")
SOURCE_WORDS = ("Hi", "how", "are", "you")
SCALED_SCORES = ((0.7, 0.1, 0.1, 0.1), (0.1, 0.6, 0.2, 0.1), (0.1, 0.3, 0.6, 0.1), (0.1, 0.3, 0.3, 0.3))
PRINTED_MASKED = (
    (1.0, 0.0, 0.0, 0.0),
    (0.37, 0.62, 0.0, 0.0),
    (0.26, 0.31, 0.43, 0.0),
    (0.21, 0.26, 0.26, 0.26),
)
GREETING_SCORES = ((98, 27, 10, 12), (27, 89, 31, 67), (10, 31, 91, 54), (12, 67, 54, 92))
GREETING_WEIGHTS = SCALED_SCORES
"""The document prints one grid twice: as the weights of "Hi how are you" and as scores to be masked."""


def mask() -> Explanation:
    """The look-ahead mask: what is printed against what comes out."""
    scores = matrix(SCALED_SCORES)
    visible = look_ahead_mask(4)
    hidden = masked(scores, visible)
    weights = softmax(hidden)
    strict = softmax(masked(scores, visible & ~torch.eye(4, dtype=torch.bool)))
    temperature, error = best_temperature(matrix(GREETING_SCORES), matrix(GREETING_WEIGHTS))
    return Explanation(
        "The look-ahead mask: no word sees the words after it",
        (
            _masking(scores, visible, hidden),
            _masked_weights(weights),
            _strictness(strict),
            _greeting(temperature, error),
        ),
        {
            "scaled_scores": scores.tolist(),
            "masked_scores": hidden.tolist(),
            "weights": weights.tolist(),
            "printed": PRINTED_MASKED,
            "strict_weights": strict.tolist(),
            "hi_how_are_you": {
                "scores": GREETING_SCORES,
                "printed_weights": GREETING_WEIGHTS,
                "best_temperature": temperature,
                "largest_error": error,
            },
        },
    )


def _masking(scores: Tensor, visible: Tensor, hidden: Tensor) -> Section:
    added = masked(torch.zeros(4, 4, dtype=torch.float64), visible)
    as_cells = tuple(tuple(0 if cell == 0 else cell for cell in row) for row in added.tolist())
    words = TARGET_WORDS
    return Section(
        "Add the mask to the scaled scores",
        "j <= i: add 0.  j > i: add -inf.  Rows look at columns.",
        (
            grid("Scaled scores", words, words, scores.tolist(), digits=1),
            Table("+ mask", words, words, as_cells, beside=True),
            grid("= masked scores", words, words, hidden.tolist(), digits=1, beside=True),
        ),
    )


def _masked_weights(weights: Tensor) -> Section:
    words = TARGET_WORDS
    seen = [(i, j) for i in range(4) for j in range(i + 1)]
    cells = tuple(
        (
            weights[i, j].item(),
            f"{PRINTED_MASKED[i][j]:.2f}",
            f"{weights[i, j]:.2f}",
            _verdict(weights[i, j].item(), PRINTED_MASKED[i][j]),
        )
        for i, j in seen
    )
    names = tuple(f"{words[i]} -> {words[j]}" for i, j in seen)
    sums = [sum(row) for row in PRINTED_MASKED]
    return Section(
        "Softmax of each row",
        "exp(-inf) = 0, so hidden words weigh exactly 0",
        (
            grid("Weights", words, words, weights.tolist()).with_sum_column(),
            Table("Cell by cell", names, ("exact", "document", "rounded", ""), cells),
        ),
        (
            "Check row I: exp(0.1) = 1.1052, exp(0.6) = 1.8221; 1.1052 / 2.9273 = 0.3775.",
            "The document prints 0.37 for 0.3775 and 0.31 for 0.3156: truncated, not rounded. "
            f"Its rows sum to {', '.join(f'{value:.2f}' for value in sums)}; in the last it is rounding.",
        ),
    )


def _verdict(exact: float, printed: float) -> str:
    """How a printed number with two decimals came about."""
    if math.isclose(round(exact, 2), printed):
        return "right"
    return "truncated" if math.isclose(math.floor(exact * 100) / 100, printed) else "wrong"


def _strictness(strict: Tensor) -> Section:
    undefined = tuple("undefined" if math.isnan(cell) else cell for cell in strict[0].tolist())
    cells = (undefined, *(tuple(row) for row in strict[1:].tolist()))
    return Section(
        "The document's formula is too strict",
        "its formula: q_i · k_j for j < i, -inf for j >= i",
        (Table("Weights if a word could not see itself", TARGET_WORDS, TARGET_WORDS, cells),),
        (
            "With j < i the first word sees nothing: its row is all -inf, the sum of exponentials is 0, "
            "and 0 / 0 is undefined. The document's own table has 0 on the diagonal, which is right: j <= i.",
        ),
    )


def best_temperature(scores: Tensor, weights: Tensor) -> tuple[float, float]:
    """The divisor that brings softmax(scores / divisor) nearest to the weights, and how far off it stays."""
    low, high = 0.0, 3.0  # powers of ten
    best, error = 1.0, math.inf
    for _ in range(4):  # each time a finer comb around the best
        tried = torch.logspace(low, high, 2001, dtype=torch.float64)
        errors = (softmax(scores / tried[:, None, None]) - weights).abs().amax(dim=(1, 2))
        place = int(errors.argmin())
        best, error = tried[place].item(), errors[place].item()
        step = (high - low) / 2000
        low, high = math.log10(best) - step, math.log10(best) + step
    return best, error


def _greeting(temperature: float, error: float) -> Section:
    words = SOURCE_WORDS
    nearest = softmax(matrix(GREETING_SCORES) / temperature)
    return Section(
        '"Hi how are you": weights that no softmax gives',
        "",
        (
            grid("Printed scores", words, words, GREETING_SCORES, whole=True),
            grid("Printed weights", words, words, GREETING_WEIGHTS, digits=1, beside=True).with_sum_column(),
            grid(
                f"Nearest softmax: scores / {temperature:.2f}", words, words, nearest.tolist()
            ).with_sum_column(),
        ),
        (
            'The row of "are" sums to 1.1. Weights sum to 1.',
            'A larger score gets a larger weight, always. In the row of "how", "you" has 67 and "are" has '
            '31, yet the document gives "you" 0.1 and "are" 0.2.',
            f"Whatever the scores are divided by, some weight stays off by {error:.3f} or more. "
            "Take the picture as an illustration, not as arithmetic.",
            "The document later takes these weights for the scaled scores of the mask above.",
        ),
    )
