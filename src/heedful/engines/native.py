"""The PyTorch engine: every model runs on it, on any device."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.corpora.batches import length_groups, padded
from heedful.decoding.config import SearchConfig
from heedful.decoding.constrained import WIDEST
from heedful.decoding.constraints import Constraints
from heedful.decoding.hypothesis import Hypothesis
from heedful.decoding.sampling import likeliest, new_draw, write
from heedful.decoding.search import output_limits, search
from heedful.engines.segmented import Job, SegmentedEngine
from heedful.engines.terms import joined_tokens
from heedful.model.translator import Translator
from heedful.text.tokenizer import END, PAD


class NativeEngine(SegmentedEngine):
    """A bundle at work in PyTorch."""

    name = "PyTorch"

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.model = bundle.model.eval()
        self.device = self.model.output.weight.device
        self._joined_tokens = joined_tokens(bundle.tokenizer.target)

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> Self:
        """The engine of a model folder."""
        return cls(Bundle.load(folder, device))

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        ids = padded([np.array([*row, END], dtype=np.int64) for row in rows], PAD)
        return torch.from_numpy(ids).to(self.device)

    def _searched(self, jobs: Sequence[Job], settings: SearchConfig, details: bool) -> list[list[Hypothesis]]:
        """Searched in batches of similar length."""
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        for group in self._groups(jobs, settings):
            source = self._padded([jobs[i].ids for i in group])
            prefixes = [jobs[i].prefix for i in group]
            limits = output_limits(source, settings, self.decoder.longest)
            constraints = Constraints([jobs[i].constraints for i in group], self._joined_tokens)
            results = search(
                self.decoder, source, settings, limits=limits, prefixes=prefixes, constraints=constraints
            )
            for i, hypotheses in zip(group, results, strict=True):
                found[i] = [self.watched(jobs[i].ids, each) for each in hypotheses] if details else hypotheses
        return found

    def _groups(self, jobs: Sequence[Job], settings: SearchConfig) -> Iterator[list[int]]:
        """Places of jobs that are searched together: those with constraints apart, which need more rows."""
        rows = settings.n_best if settings.method == "sample" else settings.beam  # of one sentence
        for constrained in (False, True):
            chosen = [bool(job.ids) and bool(job.constraints) == constrained for job in jobs]
            lengths = [(len(job.ids) + 1) * here for job, here in zip(jobs, chosen, strict=True)]
            more = max((_shortest(job) for job in jobs), default=0) if constrained else 0
            yield from length_groups(lengths, settings.batch_tokens // (rows + min(WIDEST, more)))

    @torch.inference_mode()
    def watched(self, ids: list[int], hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis with the attention of the layer that aligns best, its heads averaged."""
        before = torch.tensor([[PAD, *hypothesis.tokens]], device=self.device)
        weights = self._looked(self._padded([ids]), before)
        return replace(hypothesis, attention=weights[: len(hypothesis.tokens)].float().cpu().numpy())

    def _watched(self, ids: list[int], hypothesis: Hypothesis) -> Hypothesis:
        return self.watched(ids, hypothesis)

    def _looked(self, source: Tensor, before: Tensor) -> Tensor:
        """Where one target looks in its source: (target length, source length)."""
        return aligning_attention(self.model, source, before)

    @torch.inference_mode()
    def _scored(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
        for group in length_groups(lengths, self.bundle.config.search.batch_tokens):
            source = self._padded([sources[i] for i in group])
            target = self._padded([targets[i] for i in group])
            for i, gained in zip(group, self.decoder.score(source, target).tolist(), strict=True):
                found[i] = gained[: len(targets[i]) + 1]
        return found

    def _written(self, ids: list[int], prefix: list[int], settings: SearchConfig) -> Iterator[int]:
        source = self._padded([ids])
        choose = new_draw(settings, source) if settings.method == "sample" else likeliest
        limits = [
            max(limit, len(prefix) + 1) for limit in output_limits(source, settings, self.decoder.longest)
        ]
        for step in write(self.decoder, source, limits, [prefix], choose):
            yield from (token for _, token, _ in step if token != END)


def _shortest(job: Job) -> int:
    """Tokens of what it must contain, each spelled in the shortest way."""
    return sum(min(map(len, spellings)) for spellings in job.constraints)


def aligning_attention(model: Translator, source: Tensor, before: Tensor) -> Tensor:
    """Of the layer that aligns best, its heads averaged, of one sentence: (target length, source length)."""
    seen: dict[str, Tensor] = {}
    model(source, before, seen.__setitem__)
    return seen[f"decoder.{model.config.alignment_layer}.cross.weights"][0].mean(0)
