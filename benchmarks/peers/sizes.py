"""The model sizes that all toolkits train, and the operations of one update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Size:
    """One model and its batches; dropout and label smoothing are 0.1, post-norm, float32."""

    name: str
    layers: int  # of the encoder and of the decoder
    d_model: int
    d_ff: int
    heads: int
    batch_tokens: int
    warmup: int  # updates that do not count: memory is allocated, and Heedful logs every 10


SIZES = {
    "tiny": Size("tiny", 4, 256, 1024, 8, batch_tokens=4096, warmup=20),
    "base": Size("base", 6, 512, 2048, 8, batch_tokens=2048, warmup=10),
}
DROPOUT = SMOOTHING = 0.1


def model_flops(size: Size, vocabulary: int, sources: Lengths, targets: Lengths) -> float:
    """Floating-point operations to train on these pairs, with any toolkit; lengths include END.

    Every weight of a product is used once per token: 2 operations forward, 4 backward, so 6 x weights x tokens.
    With w = d_model and f = d_ff, for each layer:

        encoder        4 w w (query, key, value, output) + 2 w f     per source token
        cross keys     2 w w (key and value, of the memory)          per source token
        decoder        4 w w + 2 w w (cross query, output) + 2 w f   per target token
        output layer   w x vocabulary, once                          per target token

    Scores and weighted sums take 2 products of 2 w operations per pair of positions, three times that with the
    backward pass: 12 w S S in the encoder, 12 w S T across, and 6 w T T in the decoder, where half is masked.
    Padding, embedding lookup, norms, dropout and Adam are not counted.

    >>> toy = Size("toy", 1, 2, 3, 1, 0, 0)  # by hand: 6 (28 + 8) + 6 (36 + 10) + (24 + 24 + 12)
    >>> model_flops(toy, 5, np.array([1]), np.array([1]))
    552.0
    """
    d_model, d_ff = size.d_model, size.d_ff
    for_source = size.layers * (6 * d_model**2 + 2 * d_model * d_ff)
    for_target = size.layers * (6 * d_model**2 + 2 * d_model * d_ff) + d_model * vocabulary
    products = 6 * (for_source * sources.sum() + for_target * targets.sum())
    squares = 12 * (sources**2).sum() + 12 * (sources * targets).sum() + 6 * (targets**2).sum()
    return float(products + size.layers * d_model * squares)
