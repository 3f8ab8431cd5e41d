"""Beam search for translations that contain given terms, by dynamic beam allocation (Post and Vilar 2018).

Hypotheses stand in banks, by how many tokens of the terms they have written; the beam is divided over the
banks, so that those on the way to a term are not pushed out by likelier ones that ignore it. A translation
ends only when it has all terms. Sentences without terms are searched as ``beam_search`` does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.decoding.config import SearchConfig
from heedful.decoding.constraints import NOTHING, Constraints, Progress, Tracker
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.decoding.stepwise import Prefixes, State, StepwiseDecoder
from heedful.text.tokenizer import END, PAD

WIDEST = 64
"""Hypotheses of a sentence at most, whatever its terms; a wider beam that was asked for is left as it is."""


class _Live(NamedTuple):
    """A hypothesis that is being written."""

    tokens: tuple[int, ...]
    gained: tuple[float, ...]
    total: float
    progress: Progress
    origin: int = 0
    """Its parent's place among the hypotheses of the step before."""

    @property
    def last(self) -> int:
        return self.tokens[-1] if self.tokens else PAD


@dataclass(slots=True)
class _Sentence:
    """One sentence on its way."""

    tracker: Tracker
    config: SearchConfig
    limit: int
    prefix: Sequence[int]
    live: list[_Live]
    finished: list[Hypothesis]

    @property
    def width(self) -> int:
        """Hypotheses side by side: room for the beam, and for one in every other bank."""
        beam = self.config.beam
        return max(beam, min(WIDEST, beam + self.tracker.tokens))

    def hopeful(self) -> bool:
        """Whether there is still something to be found."""
        if not self.live or len(self.live[0].tokens) >= self.limit:
            return False
        if len(self.finished) < self.config.beam:
            return True
        if not self.tracker.constraints:
            return False
        # Those that got their terms over with first also end first; better ones may be on their way.
        worst = sorted(h.score for h in self.finished)[-self.config.n_best]
        longer = self.config.penalty(len(self.live[0].tokens) + 1)
        return max(each.total for each in self.live) / longer > worst

    def grow(self, choices: Iterable[tuple[int, int, float]]) -> None:
        """One more token: (hypothesis, token, log-probability) are to choose from."""
        banks: list[list[_Live]] = [[] for _ in range(self._bank(self.tracker.tokens) + 1)]
        for origin, token, gained in choices:
            parent = self.live[origin]
            if token == END and self.tracker.missing(parent.progress):
                continue
            progress = (
                parent.progress
                if token == END
                else self.tracker.advanced(parent.progress, parent.last, token)
            )
            new = _Live(
                (*parent.tokens, token),
                (*parent.gained, gained),
                parent.total + gained,
                progress,
                origin,
            )
            banks[self._bank(self.tracker.distance(progress))].append(new)
        self._choose(banks)

    def _bank(self, distance: int) -> int:
        """Banks are at most as many as hypotheses; then neighbours share one."""
        return distance * self.width // (self.tracker.tokens + 1) if self._is_crowded else distance

    @property
    def _is_crowded(self) -> bool:
        return self.tracker.tokens >= self.width

    def _choose(self, banks: list[list[_Live]]) -> None:
        """The best of each bank stay; those that have ended leave."""
        for bank in banks:
            bank.sort(key=lambda each: -each.total)
            if self._is_crowded:  # or the nearer neighbour would push the further one out for ever
                bank.sort(key=lambda each: -self.tracker.distance(each.progress))
        going_on = [[each for each in bank if each.last != END] for bank in banks]
        room = _divided(self.width, [*map(len, going_on)])
        # An END below its bank's room was not good enough.
        for bank, places in zip(banks, _divided(self.width, [*map(len, banks)]), strict=True):
            self.finished += [self._finished(each) for each in bank[:places] if each.last == END]
        self.live = [each for bank, places in zip(going_on, room, strict=True) for each in bank[:places]]

    def _finished(self, each: _Live) -> Hypothesis:
        return new_hypothesis(each.tokens[:-1], each.gained, penalty=self.config.penalty, complete=True)

    def result(self) -> list[Hypothesis]:
        """Best first: what ended, and to fill up what did not, that with the most terms before others."""
        self.live.sort(key=lambda each: (self.tracker.missing(each.progress), -each.total))
        cut = [
            new_hypothesis(each.tokens, each.gained, penalty=self.config.penalty, complete=False)
            for each in self.live
        ]
        ended = sorted(self.finished, key=lambda hypothesis: -hypothesis.score)
        return [*ended, *cut][: self.config.beam]


@torch.inference_mode()
def constrained_search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: SearchConfig,
    limits: Sequence[int],
    prefixes: Prefixes,
    constraints: Constraints,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence that contain what they must.

    Where the longest length leaves no room for that, those with the most of it, marked as incomplete.
    """
    sentences = [
        _Sentence(
            Tracker(wanted, constraints.joined), config, limit, prefix, [_Live((), (), 0.0, NOTHING)], []
        )
        for wanted, limit, prefix in zip(constraints.sentences, limits, prefixes, strict=True)
    ]
    state, growing = decoder.start(source), sentences
    last = source.new_full((len(sentences),), PAD)  # the decoder starts from PAD
    while growing:
        scores, state = decoder.step(last, state)
        columns = scores.size(0) // len(growing)
        scores = scores.view(len(growing), columns, -1)
        for sentence, choices in zip(growing, _choices(growing, scores), strict=True):
            sentence.grow(choices)
        stay = [line for line, sentence in enumerate(growing) if sentence.hopeful()]
        growing = [growing[line] for line in stay]
        if growing:
            rows, last = _rows(growing, stay, columns, source.device)
            state = state.reorder(rows)
    return [sentence.result() for sentence in sentences]


def _choices(growing: Sequence[_Sentence], scores: Tensor) -> list[list[tuple[int, int, float]]]:
    """What each sentence can go on with: the likeliest tokens of all its hypotheses, the likeliest of each,
    and those that bring a hypothesis further."""
    vocabulary = scores.size(-1)
    totals = torch.full(scores.shape[:2], -torch.inf, dtype=scores.dtype)
    for line, sentence in enumerate(growing):
        totals[line, : len(sentence.live)] = torch.tensor(
            [each.total for each in sentence.live], dtype=scores.dtype
        )
    candidates = (totals.to(scores.device)[:, :, None] + scores).flatten(1)
    widest = max(sentence.width for sentence in growing)
    # Twice the beam: at most one END for each hypothesis, so enough remain to go on with.
    best = candidates.topk(min(2 * widest, candidates.size(1))).indices.tolist()
    each_best = scores.argmax(-1).tolist()
    wanted = [
        _places(sentence, found[: 2 * sentence.width], each, vocabulary)
        for sentence, found, each in zip(growing, best, each_best, strict=True)
    ]
    lines = torch.tensor([line for line, places in enumerate(wanted) for _ in places], device=scores.device)
    places = torch.tensor([place for places in wanted for place in places], device=scores.device)
    gained = iter(scores.flatten(1)[lines, places].tolist())
    return [
        [
            (place // vocabulary, place % vocabulary, value)
            for place, value in zip(places, gained, strict=False)
            if value > -torch.inf
        ]
        for places in wanted
    ]


def _places(sentence: _Sentence, best: list[int], each_best: list[int], vocabulary: int) -> list[int]:
    """Hypotheses and tokens to look at, as places in a table of hypotheses times tokens."""
    length = len(sentence.live[0].tokens)
    if length < len(sentence.prefix):
        return [number * vocabulary + sentence.prefix[length] for number in range(len(sentence.live))]
    found = dict.fromkeys(place for place in best if place // vocabulary < len(sentence.live))
    for number, hypothesis in enumerate(sentence.live):
        found[number * vocabulary + each_best[number]] = None
        helpful = sorted(sentence.tracker.helpful(hypothesis.progress, hypothesis.last))
        wanted = helpful if sentence.tracker.missing(hypothesis.progress) else [END]
        found.update(dict.fromkeys(number * vocabulary + token for token in wanted))
    return list(found)


def _divided(places: int, sizes: Sequence[int]) -> list[int]:
    """Places for banks of these sizes: as many for each, the rest for the last; what one leaves others get.

    >>> _divided(5, [9, 9]), _divided(5, [1, 9]), _divided(5, [9, 0])
    ([2, 3], [1, 4], [5, 0])
    """
    share, rest = divmod(places, len(sizes))
    room = [min(size, share) for size in sizes]
    room[-1] = min(sizes[-1], share + rest)
    left = places - sum(room)
    for bank in reversed(range(len(sizes))):
        more = min(left, sizes[bank] - room[bank])
        room[bank] += more
        left -= more
    return room


def _rows(
    growing: Sequence[_Sentence], lines: Sequence[int], columns: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The old rows of the hypotheses, and their last tokens; what fills up a line is never looked at."""
    widest = max(len(sentence.live) for sentence in growing)
    rows, last = [], []
    for line, sentence in zip(lines, growing, strict=True):
        fill = [sentence.live[0]] * (widest - len(sentence.live))
        rows.append([line * columns + each.origin for each in [*sentence.live, *fill]])
        last += [each.last for each in [*sentence.live, *fill]]
    return torch.tensor(rows, device=device), torch.tensor(last, device=device)
