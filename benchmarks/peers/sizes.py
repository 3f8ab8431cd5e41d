"""The model sizes that all toolkits train, and the operations of one update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Size:
    """One model and its batches; dropout and label smoothing are 0.1, the norm is after, all in float32."""

    name: str
    layers: int  # of the encoder, and as many of the decoder
    width: int
    feed_forward_width: int
    heads: int
    batch_tokens: int
    warmup: int  # updates that do not count: memory is being claimed, and ours writes a line every 10


SIZES = {
    "tiny": Size("tiny", 4, 256, 1024, 8, batch_tokens=4096, warmup=20),
    "base": Size("base", 6, 512, 2048, 8, batch_tokens=2048, warmup=10),
}
DROPOUT = SMOOTHING = 0.1


def model_flops(size: Size, vocabulary: int, sources: Lengths, targets: Lengths) -> float:
    """Floating-point operations that training on these pairs takes, whoever does it; lengths with END.

    Every weight of a product is used once a token: 2 operations forward, 4 backward, so 6 x weights x tokens.
    Of w = width and f = inner width, and for each layer:

        encoder        4 w w (query, key, value, output) + 2 w f     a source token
        cross keys     2 w w (key and value, of the memory)          a source token
        decoder        4 w w + 2 w w (cross query, output) + 2 w f   a target token
        output layer   w x vocabulary, once                          a target token

    Scores and weighted sums take 2 products of 2 w operations a pair of positions, three times with the
    backward pass: 12 w S S in the encoder, 12 w S T across, and 6 w T T in the decoder, where half is masked.
    Padding, embeddings' look-up, norms, dropout and Adam do not count: they are nobody's aim.

    >>> toy = Size("toy", 1, 2, 3, 1, 0, 0)  # by hand: 6 (28 + 8) + 6 (36 + 10) + (24 + 24 + 12)
    >>> model_flops(toy, 5, np.array([1]), np.array([1]))
    552.0
    """
    width, inner = size.width, size.feed_forward_width
    for_source = size.layers * (6 * width**2 + 2 * width * inner)
    for_target = size.layers * (6 * width**2 + 2 * width * inner) + width * vocabulary
    products = 6 * (for_source * sources.sum() + for_target * targets.sum())
    squares = 12 * (sources**2).sum() + 12 * (sources * targets).sum() + 6 * (targets**2).sum()
    return float(products + size.layers * width * squares)
