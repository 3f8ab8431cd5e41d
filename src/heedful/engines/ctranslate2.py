"""The CTranslate2 engine: the same model several times as fast on a CPU.

Tokens go in and out as their ids' digits. Sampling stays with PyTorch, whose draws a seed repeats, and so
does what is longer than the table of positions. Until then PyTorch is not even imported.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.engines.segmented import Job, SegmentedEngine
from heedful.text.tokenizer import END

if TYPE_CHECKING:
    from heedful.engines.native import NativeEngine

BATCH_TOKENS = 2048
"""Source tokens that a worker takes at a time, padding included."""
PATIENCE = 2
"""Without early stopping so many times the beam's hypotheses are waited for: the nearest to our rule."""
POSITIONS = 4096
"""Rows of a converted model's table of sines, beyond which CTranslate2 cannot go."""


class CTranslate2Engine(SegmentedEngine):
    """A bundle at work in CTranslate2, which keeps ``workers`` cores busy."""

    windows_at_once = 2

    def __init__(self, bundle: Bundle, folder: Path, *, precision: str, workers: int) -> None:
        import ctranslate2  # type: ignore[import-untyped]

        super().__init__(bundle)
        self.name = f"CTranslate2 {precision}"
        self.precision, self.workers = precision, workers
        # One thread each: two OpenMP threads on a busy machine wait for each other.
        self.translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=precision, inter_threads=workers, intra_threads=1
        )
        model = bundle.config.model
        self.longest = model.longest if model.ends else None  # as Transformer.longest
        self.positions = self.longest or POSITIONS

    @cached_property
    def _native(self) -> "NativeEngine":
        """PyTorch, for what CTranslate2 cannot do."""
        from heedful.engines.native import NativeEngine

        return NativeEngine(self.bundle)

    def _searched(self, jobs: Sequence[Job], settings: SearchConfig, details: bool) -> list[list[Hypothesis]]:
        found: dict[int, list[Hypothesis]] = {}
        for quick in (False, True):
            places = [i for i, job in enumerate(jobs) if self._is_quick(job, settings) == quick]
            if places:
                search = self._searched_quickly if quick else self._native._searched
                found |= zip(places, search([jobs[i] for i in places], settings, details), strict=True)
        return [found[i] for i in range(len(jobs))]

    def _is_quick(self, job: Job, settings: SearchConfig) -> bool:
        longest = max(len(job.ids) + 1, self._limit(job, settings))
        # Where the same results are promised, a rule of stopping that CTranslate2 only comes near is not its.
        same_rule = settings.early_stopping or settings.beam == 1 or self.precision != "float32"
        fits = longest <= self.positions and not job.constraints
        return settings.method != "sample" and fits and same_rule

    def _searched_quickly(
        self, jobs: Sequence[Job], settings: SearchConfig, details: bool
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        for i, result in self._results(jobs, settings, details and settings.beam == 1).items():
            found[i] = self._ranked(jobs[i], result, settings)
        found = self._with_scores(jobs, found, settings, details)
        found = [each[: settings.n_best] for each in found]
        if details and settings.beam > 1:  # CTranslate2 gives some beams the attention of others
            found = [
                [self._native.watched(job.ids, hypothesis) for hypothesis in each]
                for job, each in zip(jobs, found, strict=True)
            ]
        return found

    def _results(self, jobs: Sequence[Job], settings: SearchConfig, attention: bool) -> dict[int, Any]:
        """What CTranslate2 finds, by the place of each job that has words."""
        # Each call has one longest output: a short sentence that does not end should not run on to it.
        found = dict(self._grouped(jobs, _similar([len(job.ids) for job in jobs]), settings, attention))
        if settings.beam == 1:
            return found
        # A beam that went on beyond its sentence's own limit has dropped what was best there: it is searched
        # again in the company of the same limit. What is greedy needs only be cut.
        runaways: dict[int, list[int]] = defaultdict(list)
        for i, result in found.items():
            limit = self._limit(jobs[i], settings)
            if any(len(names) > limit for names in result.hypotheses):
                runaways[limit].append(i)
        return found | dict(self._grouped(jobs, list(runaways.values()), settings, attention))

    def _grouped(
        self, jobs: Sequence[Job], groups: Sequence[list[int]], settings: SearchConfig, attention: bool
    ) -> Iterable[tuple[int, Any]]:
        """The results of some jobs, by their places; all groups are begun before the first is waited for."""
        begun = [(group, self._begun([jobs[i] for i in group], settings, attention)) for group in groups]
        return ((i, one.result()) for group, results in begun for i, one in zip(group, results, strict=True))

    def _begun(self, jobs: Sequence[Job], settings: SearchConfig, attention: bool) -> list[Any]:
        """Start the search of some sentences; the results can be waited for."""
        longest = max(self._limit(job, settings) for job in jobs)
        results: list[Any] = self.translator.translate_batch(
            [_names([*job.ids, END]) for job in jobs],
            [_names(job.prefix) or None for job in jobs] if any(job.prefix for job in jobs) else None,
            beam_size=settings.beam,
            num_hypotheses=settings.n_best if settings.beam == 1 else settings.beam,
            length_penalty=settings.length_penalty,
            patience=1 if settings.early_stopping else PATIENCE,
            max_input_length=0,
            max_decoding_length=longest,
            min_decoding_length=0,  # a translation may be empty
            max_batch_size=max(1, BATCH_TOKENS),
            batch_type="tokens",
            return_scores=True,
            return_attention=attention,
            return_end_token=True,
            asynchronous=True,
        )
        return results

    def _limit(self, job: Job, settings: SearchConfig) -> int:
        """Tokens of the longest output, END included, as in ``output_limits``."""
        limit = settings.limit(len(job.ids))
        if self.longest is not None:
            limit = min(limit, self.longest)
        return max(limit, len(job.prefix) + 1)

    def _ranked(self, job: Job, result: Any, settings: SearchConfig) -> list[Hypothesis]:
        """Our hypotheses, best first by our own length penalty: CTranslate2's is length ^ alpha."""
        attentions = result.attention or [None] * len(result.hypotheses)
        found = [
            _hypothesis(names, score, attention, settings, self._limit(job, settings))
            for names, score, attention in zip(result.hypotheses, result.scores, attentions, strict=True)
        ]
        return _best_first(found)

    def _with_scores(
        self, jobs: Sequence[Job], found: list[list[Hypothesis]], settings: SearchConfig, every: bool
    ) -> list[list[Hypothesis]]:
        """The hypotheses with the log-probability of every token, by reading them once more: every one, or
        those whose score is not known (cut ones, and those with a prefix, which does not count there)."""
        places = [
            (i, j)
            for i, (job, hypotheses) in enumerate(zip(jobs, found, strict=True))
            for j, each in enumerate(hypotheses)
            if every or job.prefix or math.isnan(each.score)
        ]
        if not places:
            return found
        gained = self._scored([jobs[i].ids for i, _ in places], [list(found[i][j].tokens) for i, j in places])
        for (i, j), values in zip(places, gained, strict=True):
            each = found[i][j]
            new = new_hypothesis(
                each.tokens, values[: each.steps], penalty=settings.penalty, complete=each.complete
            )
            found[i][j] = replace(new, attention=each.attention)
        return [_best_first(each) for each in found]

    def _scored(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[float]]:
        lengths = [max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)]
        found: dict[int, list[float]] = {}
        for quick in (False, True):
            places = [i for i, length in enumerate(lengths) if (length <= self.positions) == quick]
            if places:
                score = self._scored_quickly if quick else self._native._scored
                gained = score([sources[i] for i in places], [targets[i] for i in places])
                found |= zip(places, gained, strict=True)
        return [found[i] for i in range(len(lengths))]

    def _scored_quickly(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        results = self.translator.score_batch(
            [_names([*ids, END]) for ids in sources],
            [_names(ids) for ids in targets],
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
            max_input_length=0,
        )
        return [list(result.log_probs) for result in results]

    def _watched(self, ids: list[int], hypothesis: Hypothesis) -> Hypothesis:
        return self._native.watched(ids, hypothesis)

    def _written(self, ids: list[int], prefix: list[int], settings: SearchConfig) -> Iterator[int]:
        job = Job(0, ids, prefix)
        if not self._is_quick(job, settings):
            yield from self._native._written(ids, prefix, settings)
            return
        limit = self._limit(job, settings)
        steps = self.translator.generate_tokens(
            _names([*ids, END]),
            _names(prefix) or None,
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,
        )
        for step in steps:  # the prefix comes out too
            token = int(step.token)
            if token != END:
                yield token


def _best_first(found: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda hypothesis: (not hypothesis.complete, -hypothesis.score))


def _names(ids: Sequence[int]) -> list[str]:
    return [str(identity) for identity in ids]


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """The places of lengths above zero, shortest first, in groups whose longest is twice the shortest."""
    order = sorted(
        (place for place, length in enumerate(lengths) if length), key=lambda place: lengths[place]
    )
    groups: list[list[int]] = []
    for place in order:
        if groups and lengths[place] <= lengths[groups[-1][0]] * 2 + 16:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _hypothesis(
    names: list[str], score: float, attention: Any, settings: SearchConfig, limit: int
) -> Hypothesis:
    """Ours from theirs. What is longer than its limit, being written greedily with longer ones, is cut; its
    score is then unknown (nan)."""
    ids = [int(name) for name in names]
    kept = ids[:limit]
    complete = bool(kept) and kept[-1] == END
    tokens = tuple(kept[:-1] if complete else kept)
    steps = max(len(kept), 1)
    total = float(score) * (steps**settings.length_penalty) if len(kept) == len(ids) else math.nan
    weights = None if attention is None else np.asarray(attention, dtype=np.float32)[: len(tokens)]
    return Hypothesis(tokens, (), total / settings.penalty(steps), complete, total, weights)
