"""Lexically constrained beam search by dynamic beam allocation (Post and Vilar 2018).

Hypotheses are grouped into banks by matched constraint tokens, and the beam is divided over the banks, so
that more probable hypotheses without terms do not displace those that make progress.
A hypothesis can end only when it has all terms. Sentences without terms are searched as by ``beam_search``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.generation.config import GenerationConfig
from heedful.generation.constraints import NO_PROGRESS, ConstraintProgress, Constraints, ConstraintTracker
from heedful.generation.decoder_protocol import Hypothesis, Prefixes, State, StepwiseDecoder, new_hypothesis
from heedful.tokenization.special_tokens import END, PAD

MAX_BEAM_WIDTH = 64
"""Maximum beam width with constraints, unless beam_size is larger."""


class _PartialHypothesis(NamedTuple):
    """An active hypothesis."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    total: float
    progress: ConstraintProgress
    parent_index: int = 0
    """Index of its parent among the previous hypotheses."""

    @property
    def last_token(self) -> int:
        return self.tokens[-1] if self.tokens else PAD


@dataclass(slots=True)
class _SentenceSearch:
    """The search of one sentence."""

    tracker: ConstraintTracker
    config: GenerationConfig
    max_length: int
    prefix: Sequence[int]
    hypotheses: list[_PartialHypothesis]
    finished: list[Hypothesis]

    @property
    def beam_width(self) -> int:
        """Maximum active hypotheses: beam_size, and one for every other bank."""
        beam_size = self.config.beam_size
        return max(beam_size, min(MAX_BEAM_WIDTH, beam_size + self.tracker.total_tokens))

    def can_improve(self) -> bool:
        """Whether the search continues."""
        if not self.hypotheses or len(self.hypotheses[0].tokens) >= self.max_length:
            return False
        if len(self.finished) < self.config.beam_size:
            return True
        if not self.tracker.constraints:
            return False
        # Hypotheses with early terms end early; better ones may still be active.
        worst = sorted(h.score for h in self.finished)[-self.config.n_best]
        penalty = self.config.penalty(len(self.hypotheses[0].tokens) + 1)
        return max(partial.total for partial in self.hypotheses) / penalty > worst

    def expand(self, choices: Iterable[tuple[int, int, float]]) -> None:
        """Extend by one token, chosen from (hypothesis, token, log-probability), and keep the best of each bank."""
        banks: list[list[_PartialHypothesis]] = [[] for _ in range(self._bank_index(self.tracker.total_tokens) + 1)]
        for parent_index, token, log_probability in choices:
            parent = self.hypotheses[parent_index]
            if token == END and self.tracker.count_missing(parent.progress):
                continue
            progress = (
                parent.progress if token == END else self.tracker.advance(parent.progress, parent.last_token, token)
            )
            child = _PartialHypothesis(
                (*parent.tokens, token),
                (*parent.log_probabilities, log_probability),
                parent.total + log_probability,
                progress,
                parent_index,
            )
            banks[self._bank_index(self.tracker.token_progress(progress))].append(child)
        for bank in banks:
            bank.sort(key=lambda partial: -partial.total)
            if self.shares_banks:  # more progress first, or it would never be kept
                bank.sort(key=lambda partial: -self.tracker.token_progress(partial.progress))
        # END must rank within the slots of its bank.
        for bank, slots in zip(banks, _allocate_slots(self.beam_width, [*map(len, banks)]), strict=True):
            self.finished += [
                new_hypothesis(
                    partial.tokens[:-1], partial.log_probabilities, penalty=self.config.penalty, complete=True
                )
                for partial in bank[:slots]
                if partial.last_token == END
            ]
        continuing = [[partial for partial in bank if partial.last_token != END] for bank in banks]
        allocation = _allocate_slots(self.beam_width, [*map(len, continuing)])
        self.hypotheses = [
            partial for bank, slots in zip(continuing, allocation, strict=True) for partial in bank[:slots]
        ]

    @property
    def shares_banks(self) -> bool:
        """Whether adjacent progress values share a bank, because there are more than hypotheses."""
        return self.tracker.total_tokens >= self.beam_width

    def _bank_index(self, token_progress: int) -> int:
        if self.shares_banks:
            return token_progress * self.beam_width // (self.tracker.total_tokens + 1)
        return token_progress

    def result(self) -> list[Hypothesis]:
        """Complete hypotheses, best first, then incomplete ones, those with the most terms first."""
        self.hypotheses.sort(key=lambda partial: (self.tracker.count_missing(partial.progress), -partial.total))
        incomplete = [
            new_hypothesis(partial.tokens, partial.log_probabilities, penalty=self.config.penalty, complete=False)
            for partial in self.hypotheses
        ]
        complete = sorted(self.finished, key=lambda hypothesis: -hypothesis.score)
        return [*complete, *incomplete][: self.config.beam_size]


@torch.inference_mode()
def constrained_search(
    decoder: StepwiseDecoder[State],
    source: Tensor,
    config: GenerationConfig,
    max_lengths: Sequence[int],
    prefixes: Prefixes,
    constraints: Constraints,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence that satisfy its constraints.

    If the maximum length is too small, incomplete hypotheses with the most terms.
    """
    sentences = [
        _SentenceSearch(
            ConstraintTracker(sentence_constraints, constraints.same_word),
            config,
            max_length,
            prefix,
            [_PartialHypothesis((), (), 0.0, NO_PROGRESS)],
            [],
        )
        for sentence_constraints, max_length, prefix in zip(constraints.sentences, max_lengths, prefixes, strict=True)
    ]
    state, active = decoder.start(source), sentences
    last_tokens = source.new_full((len(sentences),), PAD)  # the decoder starts from PAD
    while active:
        scores, state = decoder.step(last_tokens, state)
        columns = scores.size(0) // len(active)
        scores = scores.view(len(active), columns, -1)
        for sentence, choices in zip(active, _expansion_choices(active, scores), strict=True):
            sentence.expand(choices)
        remaining = [index for index, sentence in enumerate(active) if sentence.can_improve()]
        active = [active[index] for index in remaining]
        if active:
            max_width = max(len(sentence.hypotheses) for sentence in active)
            beams = [  # padded to the same width
                [*sentence.hypotheses, *[sentence.hypotheses[0]] * (max_width - len(sentence.hypotheses))]
                for sentence in active
            ]
            rows = [
                [index * columns + partial.parent_index for partial in beam]
                for index, beam in zip(remaining, beams, strict=True)
            ]
            state = state.reorder(torch.tensor(rows, device=source.device))
            last_tokens = source.new_tensor([partial.last_token for beam in beams for partial in beam])
    return [sentence.result() for sentence in sentences]


def _expansion_choices(active: Sequence[_SentenceSearch], scores: Tensor) -> list[list[tuple[int, int, float]]]:
    """Extensions (hypothesis, token, log-probability) per sentence: the most probable of all hypotheses, the
    most probable of each, and those that make progress."""
    vocab_size = scores.size(-1)
    totals = scores.new_full(scores.shape[:2], -torch.inf)
    for line, sentence in enumerate(active):
        totals[line, : len(sentence.hypotheses)] = scores.new_tensor([item.total for item in sentence.hypotheses])
    candidates = (totals[:, :, None] + scores).flatten(1)
    max_beam_width = max(sentence.beam_width for sentence in active)
    # Twice the beam width: at most one END per hypothesis, so enough active ones remain.
    best_indices = candidates.topk(min(2 * max_beam_width, candidates.size(1))).indices.tolist()
    best_tokens = scores.argmax(-1).tolist()
    choices = []
    for line, sentence in enumerate(active):
        best = best_indices[line][: 2 * sentence.beam_width]
        indices = _expansion_indices(sentence, best, best_tokens[line], vocab_size)
        values = zip(indices, scores[line].flatten()[indices].tolist(), strict=True)
        choices.append([(*divmod(index, vocab_size), value) for index, value in values if value > -torch.inf])
    return choices


def _expansion_indices(
    sentence: _SentenceSearch, best_indices: list[int], best_tokens: list[int], vocab_size: int
) -> list[int]:
    """Extensions to consider, as flat indices of (hypotheses, vocabulary)."""
    length = len(sentence.hypotheses[0].tokens)
    if length < len(sentence.prefix):
        return [row * vocab_size + sentence.prefix[length] for row in range(len(sentence.hypotheses))]
    indices = dict.fromkeys(index for index in best_indices if index // vocab_size < len(sentence.hypotheses))
    for row, hypothesis in enumerate(sentence.hypotheses):
        indices[row * vocab_size + best_tokens[row]] = None
        useful_tokens = sorted(sentence.tracker.useful_tokens(hypothesis.progress, hypothesis.last_token))
        next_tokens = useful_tokens if sentence.tracker.count_missing(hypothesis.progress) else [END]
        indices.update(dict.fromkeys(row * vocab_size + token for token in next_tokens))
    return list(indices)


def _allocate_slots(slots: int, sizes: Sequence[int]) -> list[int]:
    """Divide slots equally among banks, the remainder to the last; unused slots go to other banks.

    >>> _allocate_slots(5, [9, 9]), _allocate_slots(5, [1, 9]), _allocate_slots(5, [9, 0])
    ([2, 3], [1, 4], [5, 0])
    """
    quota, remainder = divmod(slots, len(sizes))
    allocation = [min(size, quota) for size in sizes]
    allocation[-1] = min(sizes[-1], quota + remainder)
    unused = slots - sum(allocation)
    for bank in reversed(range(len(sizes))):
        extra = min(unused, sizes[bank] - allocation[bank])
        allocation[bank] += extra
        unused -= extra
    return allocation
