"""The PyTorch engine: every model runs on it, on any device."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.corpora.batches import length_groups, padded
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.decoding.sampling import likeliest, new_draw, write
from heedful.decoding.search import output_limits, search
from heedful.engines.base import Alternative, Translation
from heedful.errors import HeedfulError
from heedful.text.sentences import Segment, split_sentences, split_text
from heedful.text.tokenizer import END, PAD


class _Job(NamedTuple):
    """A segment of a text, as it goes through search."""

    text: int
    ids: list[int]
    prefix: list[int]


class NativeEngine:
    """A bundle at work."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.model = bundle.model.eval()
        self.device = self.model.output.weight.device

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> Self:
        """The engine of a model folder."""
        return cls(Bundle.load(folder, device))

    def translate(
        self, texts: Sequence[str], search: SearchConfig | None = None, prefixes: Sequence[str] | None = None
    ) -> list[Translation]:
        """Translate each text; what is longer than the model reads at once is split, never cut."""
        settings = search or self.bundle.config.search
        prefixes = prefixes or [""] * len(texts)
        if isinstance(texts, str) or len(prefixes) != len(texts):
            raise HeedfulError("translate takes a list of texts, and as many prefixes if any")
        split = [self._segments(text) for text in texts]
        jobs = [
            _Job(number, self._encoded(segment.text), self._prefix(prefixes[number]) if first else [])
            for number, segments in enumerate(split)
            for first, segment in _first_marked(segments)
        ]
        found = self._searched(jobs, settings)
        grouped: list[list[list[Hypothesis]]] = [[] for _ in texts]
        for job, hypotheses in zip(jobs, found, strict=True):
            grouped[job.text].append(hypotheses)
        return [
            self._joined(text, segments, hypotheses, settings)
            for text, segments, hypotheses in zip(texts, split, grouped, strict=True)
        ]

    @torch.inference_mode()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Alternative]:
        """How likely the model finds these translations, each taken whole."""
        alpha = self.bundle.config.search.length_penalty
        result = []
        for source, target in zip(sources, targets, strict=True):
            ids = self._target_ids(target)
            gained = self.model.score(
                self._padded([self._encoded(source)]), torch.tensor([[*ids, END]], device=self.device)
            )
            hypothesis = new_hypothesis(ids, gained[0].tolist(), alpha=alpha, complete=True)
            result.append(self._alternative([hypothesis], [Segment(target, "")], alpha))
        return result

    def stream(self, text: str, search: SearchConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The translation of one text bit by bit, as it is written: greedy or sampled."""
        settings = search or self.bundle.config.search
        forced = self._prefix(prefix)
        for segment in self._segments(text):
            if segment.text:
                yield from self._streamed(segment.text, settings, forced)
                forced = []
            yield segment.separator

    def _streamed(self, text: str, settings: SearchConfig, forced: list[int]) -> Iterator[str]:
        source = self._padded([self._encoded(text)])
        choose = new_draw(settings, 1) if settings.method == "sample" else likeliest
        limits = [
            max(limit, len(forced) + 1) for limit in output_limits(source, settings, self.model.longest)
        ]
        written: list[int] = []
        whole = shown = ""
        for step in write(self.model, source, limits, [forced], choose):
            written += [token for _, token, _ in step if token != END]
            whole = self.bundle.tokenizer.target.decode(written)
            if not whole.endswith("\ufffd"):  # in the middle of a character spelled in bytes
                yield whole[len(shown) :]
                shown = whole
        yield whole[len(shown) :]

    # ---- text to jobs

    def _segments(self, text: str) -> list[Segment]:
        """The text in parts that the model can take, with the white space between them."""
        core = text.strip()
        if not core:
            return [Segment("", text)]
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        segments = [Segment("", before)] if before else []
        for sentence in split_sentences(core) if self.bundle.config.by_sentence else [Segment(core, "")]:
            *parts, last = split_text(sentence.text, self._fits)
            segments += [*parts, Segment(last.text, last.separator + sentence.separator)]
        return [*segments[:-1], Segment(segments[-1].text, segments[-1].separator + after)]

    def _fits(self, text: str) -> bool:
        return len(self._encoded(text)) < self.bundle.config.longest_source

    def _encoded(self, text: str) -> list[int]:
        return self.bundle.tokenizer.source.encode(clean_sentence(text, self.bundle.config.normalize))

    def _prefix(self, text: str) -> list[int]:
        return self._target_ids(text.rstrip()) if text.strip() else []

    def _target_ids(self, text: str) -> list[int]:
        return self.bundle.tokenizer.target.encode(clean_sentence(text, self.bundle.config.normalize))

    def _padded(self, rows: Sequence[list[int]]) -> Tensor:
        ids = padded([np.array([*row, END], dtype=np.int64) for row in rows], PAD)
        return torch.from_numpy(ids).to(self.device)

    # ---- search

    def _searched(self, jobs: Sequence[_Job], settings: SearchConfig) -> list[list[Hypothesis]]:
        """The hypotheses of each job, searched in batches of similar length; none for an empty text."""
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        rows = settings.n_best if settings.method == "sample" else settings.beam  # of one sentence
        lengths = [len(job.ids) and len(job.ids) + 1 for job in jobs]
        for group in length_groups(lengths, settings.batch_tokens // rows):
            source = self._padded([jobs[i].ids for i in group])
            prefixes = [jobs[i].prefix for i in group]
            limits = output_limits(source, settings, self.model.longest)
            results = search(self.model, source, settings, limits=limits, prefixes=prefixes)
            for i, hypotheses in zip(group, results, strict=True):
                found[i] = hypotheses
        return found

    # ---- hypotheses to text

    def _joined(
        self,
        text: str,
        segments: Sequence[Segment],
        found: Sequence[list[Hypothesis]],
        settings: SearchConfig,
    ) -> Translation:
        """One translation from those of its segments: the i-th best of all make the i-th best."""
        count = max((len(hypotheses) for hypotheses in found), default=0) or 1
        empty = new_hypothesis([], [], alpha=0.0, complete=True)
        alternatives = tuple(
            self._alternative(
                [each[min(i, len(each) - 1)] if each else empty for each in found],
                segments,
                settings.length_penalty,
            )
            for i in range(count)
        )
        complete = all(each[0].complete for each in found if each)
        return Translation(text, alternatives, max(1, len(segments)), complete)

    def _alternative(
        self, parts: Sequence[Hypothesis], segments: Sequence[Segment], alpha: float
    ) -> Alternative:
        target = self.bundle.tokenizer.target
        tokens = [token for part in parts for token in part.tokens]
        gained = [value for part in parts for value in part.log_probabilities]
        whole = new_hypothesis(tokens, gained, alpha=alpha, complete=True)
        text = "".join(
            target.decode(part.tokens) + segment.separator
            for part, segment in zip(parts, segments, strict=True)
        )
        return Alternative(
            text, whole.score, whole.log_probability, tuple(target.pieces(tokens)), tuple(gained)
        )


def _first_marked(segments: Sequence[Segment]) -> Iterator[tuple[bool, Segment]]:
    """Each segment, and whether it is the first that has words: there a prefix belongs."""
    seen = False
    for segment in segments:
        yield bool(segment.text) and not seen, segment
        seen = seen or bool(segment.text)
