"""Which search runs, for which model: the one door for engines and validation.

Batched: all sentences step together, and a sentence leaves the batch when it is done. Each search takes
``limits``, the longest output of each sentence in tokens, and ``prefixes`` that the output must start with.
"""

from collections.abc import Sequence

from torch import Tensor

from heedful.decoding.beam import beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.constrained import constrained_search
from heedful.decoding.constraints import Constraints
from heedful.decoding.hypothesis import Hypothesis
from heedful.decoding.sampling import greedy, sampled
from heedful.decoding.stepwise import Prefixes, State, StepwiseDecoder
from heedful.text.tokenizer import PAD


def search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: SearchConfig,
    *,
    limits: Sequence[int] | None = None,
    prefixes: Prefixes | None = None,
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` translations of each sentence of padded source ids, best first.

    ``constraints`` are terms that they must contain; what is drawn at random has none.
    """
    if not source.size(0):
        return []
    limits = limits or output_limits(source, config)
    prefixes = prefixes or [()] * source.size(0)
    limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, prefixes, strict=True)]
    if config.method == "sample":
        return sampled(decoder, source, config, limits, prefixes)
    if constraints is not None and any(constraints.sentences):
        found = constrained_search(decoder, source, config, limits, prefixes, constraints)
        return [hypotheses[: config.n_best] for hypotheses in found]
    if config.beam == 1:
        return [[best] for best in greedy(decoder, source, config, limits, prefixes)]
    found = beam_search(decoder, source, config, limits, prefixes)
    return [hypotheses[: config.n_best] for hypotheses in found]


def output_limits(source: Tensor, config: SearchConfig, longest: int | None = None) -> list[int]:
    """The paper's longest output: source length (without END) + 50 tokens, END included.

    ``longest`` is what the model can write at most.
    """
    lengths = [config.limit(length) for length in ((source != PAD).sum(1) - 1).tolist()]
    return lengths if longest is None else [min(length, longest) for length in lengths]
