"""The CTranslate2 backend: the same model, several times as fast on a CPU.

Tokens are passed as the digits of their ids. Sampling stays in PyTorch, where a seed makes it reproducible,
and so do constraints and inputs longer than the position table; until then PyTorch is not imported.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from heedful.convert.compatibility import MAX_SINUSOIDAL_POSITIONS
from heedful.errors import check_extras
from heedful.generation.config import GenerationConfig
from heedful.generation.decoder_protocol import Hypothesis, new_hypothesis
from heedful.inference.translation import SearchInput
from heedful.model_folder import ModelFolder
from heedful.models.config import too_long_error
from heedful.tokenization.dependency_trees import SentenceIds
from heedful.tokenization.special_tokens import END

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.inference.pytorch_backend import PyTorchBackend

MAX_BATCH_TOKENS = 2048
"""Source tokens per batch of a worker, padding included."""

PATIENCE = 2
"""Beam patience without early stopping: the nearest to the stopping rule of our own beam search."""

InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")


class CTranslate2Backend:
    """Searches and scores with a converted model on ``workers`` CPU cores."""

    concurrent_batches = 2

    def __init__(self, model_folder: ModelFolder, folder: Path, *, precision: str, workers: int) -> None:
        import ctranslate2  # type: ignore[import-untyped]

        self.model_folder = model_folder
        self.name = f"CTranslate2 {precision}"
        self.precision, self.workers = precision, workers
        # One thread per worker: on a busy machine OpenMP threads wait for each other.
        self.translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=precision, inter_threads=workers, intra_threads=1
        )
        model_config = model_folder.config.model
        self.max_length = model_config.max_length if model_config.has_max_length else None
        self.max_positions = self.max_length or MAX_SINUSOIDAL_POSITIONS

    @cached_property
    def _pytorch(self) -> "PyTorchBackend":
        from heedful.inference.pytorch_backend import PyTorchBackend

        return PyTorchBackend(self.model_folder)

    def _get_pytorch(self, purpose: str) -> "PyTorchBackend":
        """PyTorch, for what CTranslate2 does not support; an error if it is not installed."""
        check_extras(purpose, "train")
        return self._pytorch

    def search(
        self, inputs: Sequence[SearchInput], config: GenerationConfig, *, with_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each input, best first."""
        return _dispatch(
            inputs,
            [self._find_unsupported(search_input, config) for search_input in inputs],
            lambda supported: self._search_ctranslate2(supported, config, with_attention),
            lambda others, purpose: self._get_pytorch(purpose).search(others, config, with_attention=with_attention),
        )

    def _find_unsupported(self, search_input: SearchInput, config: GenerationConfig) -> str:
        """What CTranslate2 does not support in this search; empty if it supports all."""
        if config.method == "sample":
            return "sampling"
        if search_input.constraints:
            return "constrained search"
        if not config.early_stopping and config.beam_size > 1 and self.precision == "float32":
            # float32 promises PyTorch's results, so it excludes a stopping rule that is only approximated.
            return "beam search without early_stopping at float32"
        return self._find_too_long(len(search_input.ids) + 1, self._max_output_length(search_input, config))

    def _find_too_long(self, *lengths: int) -> str:
        """Of what PyTorch can read: for more learned positions than there are, an error is raised."""
        if max(lengths) <= self.max_positions:
            return ""
        if self.max_length is not None:
            raise too_long_error(max(lengths), self.max_length)
        return f"a sentence of more than {self.max_positions:,} tokens"

    def _search_ctranslate2(
        self, inputs: Sequence[SearchInput], config: GenerationConfig, details: bool
    ) -> list[list[Hypothesis]]:
        n_best_lists: list[list[Hypothesis]] = [[] for _ in inputs]
        for i, result in self._translate_batches(inputs, config, details and config.beam_size == 1).items():
            limit = self._max_output_length(inputs[i], config)
            attentions = result.attention or [None] * len(result.hypotheses)
            n_best_lists[i] = _sort_hypotheses(  # by our length penalty; CTranslate2's is length ^ alpha
                [
                    _to_hypothesis(tokens, score, attention, config, limit)
                    for tokens, score, attention in zip(result.hypotheses, result.scores, attentions, strict=True)
                ]
            )
        n_best_lists = self._rescore(inputs, n_best_lists, config, details)
        n_best_lists = [n_best[: config.n_best] for n_best in n_best_lists]
        if details and config.beam_size > 1:  # CTranslate2 mixes up the attention of beams
            sources = [
                search_input.ids for search_input, n_best in zip(inputs, n_best_lists, strict=True) for _ in n_best
            ]
            hypotheses = iter(self._add_attention(sources, [item for n_best in n_best_lists for item in n_best]))
            n_best_lists = [list(islice(hypotheses, len(n_best))) for n_best in n_best_lists]
        return n_best_lists

    def _translate_batches(
        self, inputs: Sequence[SearchInput], config: GenerationConfig, return_attention: bool
    ) -> dict[int, Any]:
        """CTranslate2's results, by the index of each input that has words."""
        # A call has one maximum output length: group by length, so that short sentences do not run up to it.
        groups = _group_by_length([len(search_input.ids) for search_input in inputs])
        results = self._translate_groups(inputs, groups, config, return_attention)
        if config.beam_size == 1:
            return results
        # A beam that passed its sentence's own limit has dropped the best hypotheses at the limit: search it
        # again with sentences of the same limit. Greedy output only needs to be truncated.
        overlong: dict[int, list[int]] = defaultdict(list)
        for i, result in results.items():
            limit = self._max_output_length(inputs[i], config)
            if any(len(tokens) > limit for tokens in result.hypotheses):
                overlong[limit].append(i)
        return results | self._translate_groups(inputs, overlong.values(), config, return_attention)

    def _translate_groups(
        self,
        inputs: Sequence[SearchInput],
        groups: Iterable[list[int]],
        config: GenerationConfig,
        return_attention: bool,
    ) -> dict[int, Any]:
        """The results of some inputs, by index; all groups are submitted before the first is awaited."""
        futures: dict[int, Any] = {}
        for group in groups:
            batch = [inputs[i] for i in group]
            prefixes = [_to_tokens(search_input.prefix) or None for search_input in batch]
            batch_futures = self.translator.translate_batch(
                [_to_tokens([*search_input.ids, END]) for search_input in batch],
                prefixes if any(prefixes) else None,
                beam_size=config.beam_size,
                num_hypotheses=config.n_best if config.beam_size == 1 else config.beam_size,
                length_penalty=config.length_penalty,
                patience=1 if config.early_stopping else PATIENCE,
                max_input_length=0,
                max_decoding_length=max(self._max_output_length(search_input, config) for search_input in batch),
                min_decoding_length=0,  # a translation may be empty
                max_batch_size=MAX_BATCH_TOKENS,
                batch_type="tokens",
                return_scores=True,
                return_attention=return_attention,
                return_end_token=True,
                asynchronous=True,
            )
            futures |= zip(group, batch_futures, strict=True)
        return {i: future.result() for i, future in futures.items()}

    def _max_output_length(self, search_input: SearchInput, config: GenerationConfig) -> int:
        """Maximum output tokens, END included, as in ``generation.search.max_output_lengths``."""
        limit = config.max_output_length(len(search_input.ids))
        if self.max_length is not None:
            limit = min(limit, self.max_length)
        return max(limit, len(search_input.prefix) + 1)

    def _rescore(
        self,
        inputs: Sequence[SearchInput],
        n_best_lists: list[list[Hypothesis]],
        config: GenerationConfig,
        rescore_all: bool,
    ) -> list[list[Hypothesis]]:
        """Compute token log-probabilities by forced decoding: of all hypotheses, or of those whose score is
        unknown (truncated ones, and those with a prefix, which CTranslate2 leaves out of the score)."""
        indices = [
            (i, j)
            for i, (search_input, hypotheses) in enumerate(zip(inputs, n_best_lists, strict=True))
            for j, hypothesis in enumerate(hypotheses)
            if rescore_all or search_input.prefix or math.isnan(hypothesis.score)
        ]
        if not indices:
            return n_best_lists
        log_probabilities = self.score(
            [inputs[i].ids for i, _ in indices], [list(n_best_lists[i][j].tokens) for i, j in indices]
        )
        for (i, j), values in zip(indices, log_probabilities, strict=True):
            hypothesis = n_best_lists[i][j]
            rescored = new_hypothesis(
                hypothesis.tokens, values[: hypothesis.steps], penalty=config.penalty, complete=hypothesis.complete
            )
            n_best_lists[i][j] = replace(rescored, attention=hypothesis.attention)
        return [_sort_hypotheses(hypotheses) for hypotheses in n_best_lists]

    def score(self, sources: Sequence[SentenceIds], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each target, and of its END."""
        pairs = list(zip(sources, targets, strict=True))
        return _dispatch(
            pairs,
            [self._find_too_long(len(source) + 1, len(target) + 1) for source, target in pairs],
            self._score_ctranslate2,
            lambda others, purpose: self._get_pytorch(purpose).score(*map(list, zip(*others, strict=True))),
        )

    def _score_ctranslate2(self, pairs: Sequence[tuple[SentenceIds, list[int]]]) -> list[list[float]]:
        results = self.translator.score_batch(
            [_to_tokens([*source, END]) for source, _ in pairs],
            [_to_tokens(target) for _, target in pairs],
            max_batch_size=MAX_BATCH_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]

    def add_attention(self, source_ids: SentenceIds, hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis with its attention to the source, for word alignment."""
        if purpose := self._find_too_long(len(source_ids) + 1, len(hypothesis.tokens) + 1):
            return self._get_pytorch(purpose).add_attention(source_ids, hypothesis)
        return self._add_attention([source_ids], [hypothesis])[0]

    def _add_attention(self, sources: Sequence[SentenceIds], hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses with the attention of the alignment layer, by forced decoding."""
        if not hypotheses:
            return []
        results = self.translator.translate_batch(
            [_to_tokens([*source, END]) for source in sources],
            [_to_tokens(hypothesis.tokens) or None for hypothesis in hypotheses],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=max(1, *(len(hypothesis.tokens) for hypothesis in hypotheses)),
            min_decoding_length=0,
            max_batch_size=MAX_BATCH_TOKENS,
            batch_type="tokens",
            return_attention=True,
            return_end_token=True,
        )
        return [
            replace(hypothesis, attention=_to_weights(result.attention[0], len(hypothesis.tokens)))
            for hypothesis, result in zip(hypotheses, results, strict=True)
        ]

    def next_token_probabilities(self, source_ids: SentenceIds, prefix: list[int]) -> "Tensor":
        """Distributions after the prefix, see ``generation.search.next_token_probabilities``."""
        return self._pytorch.next_token_probabilities(source_ids, prefix)

    def stream(self, source_ids: SentenceIds, prefix: list[int], config: GenerationConfig) -> Iterator[int]:
        """Tokens as they are generated, greedily or by sampling; the prefix comes first."""
        search_input = SearchInput(source_ids, prefix)
        if purpose := self._find_unsupported(search_input, config.model_copy(update={"beam_size": 1})):
            yield from self._get_pytorch(purpose).stream(source_ids, prefix, config)
            return
        steps = self.translator.generate_tokens(
            _to_tokens([*source_ids, END]),
            _to_tokens(prefix) or None,
            max_decoding_length=self._max_output_length(search_input, config),
            min_decoding_length=0,
            max_input_length=0,
        )
        yield from (int(step.token) for step in steps if int(step.token) != END)


def _dispatch(
    inputs: Sequence[InputT],
    unsupported: Sequence[str],
    run_supported: Callable[[list[InputT]], list[ResultT]],
    run_others: Callable[[list[InputT], str], list[ResultT]],
) -> list[ResultT]:
    """Results in the order of the inputs, from the backend that supports each.

    ``unsupported`` says for each input what CTranslate2 does not support in it, or is empty.
    """
    results: dict[int, ResultT] = {}
    if others := [i for i, purpose in enumerate(unsupported) if purpose]:
        results |= zip(others, run_others([inputs[i] for i in others], unsupported[others[0]]), strict=True)
    if supported := [i for i, purpose in enumerate(unsupported) if not purpose]:
        results |= zip(supported, run_supported([inputs[i] for i in supported]), strict=True)
    return [results[i] for i in range(len(inputs))]


def _sort_hypotheses(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: (not hypothesis.complete, -hypothesis.score))


def _to_tokens(ids: Sequence[int]) -> list[str]:
    return [str(token_id) for token_id in ids]


def _group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of positive lengths, sorted, in groups whose longest is about twice the shortest."""
    sorted_indices = sorted((index for index, length in enumerate(lengths) if length), key=lambda index: lengths[index])
    groups: list[list[int]] = []
    for index in sorted_indices:
        if groups and lengths[index] <= lengths[groups[-1][0]] * 2 + 16:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _to_hypothesis(
    token_strings: list[str], score: float, attention: Any, config: GenerationConfig, limit: int
) -> Hypothesis:
    """Convert a result. Greedy output beyond its own limit is truncated; its score is then unknown (nan)."""
    ids = [int(token_string) for token_string in token_strings]
    truncated = ids[:limit]
    complete = bool(truncated) and truncated[-1] == END
    tokens = tuple(truncated[:-1] if complete else truncated)
    steps = max(len(truncated), 1)
    total = float(score) * (steps**config.length_penalty) if len(truncated) == len(ids) else math.nan
    weights = None if attention is None else _to_weights(attention, len(tokens))
    return Hypothesis(tokens, (), total / config.penalty(steps), complete, total, weights)


def _to_weights(attention: Any, length: int) -> np.ndarray:
    """The attention of the first ``length`` tokens: (length, source length)."""
    return np.asarray(attention, dtype=np.float32)[:length]
