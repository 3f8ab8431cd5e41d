"""Lexical constraints: terms that a translation must contain, and the progress of a hypothesis. Torch-free.

A term may have several spellings in tokens; one suffices. An occurrence counts for one constraint, is
contiguous, and is not part of a longer word. Progress depends only on the tokens of the hypothesis.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Constraint = tuple[tuple[int, ...], ...]
"""Token spellings of a term, none empty."""

SameWord = Callable[[int, int], bool]
"""Whether two adjacent tokens belong to the same word."""

MAX_MATCHES = 64
"""Maximum matches tracked per hypothesis; more arise only from overlapping terms."""


def never_same_word(before: int, after: int) -> bool:
    """For word-level tokens."""
    return False


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints of a batch of sentences."""

    sentences: Sequence[Sequence[Constraint]]
    same_word: SameWord = never_same_word


class ConstraintMatch(NamedTuple):
    """One way to match a hypothesis: satisfied constraints, and the one in progress, if any."""

    satisfied: int
    """Bit mask of satisfied constraints."""
    current: int = -1
    """Index of the constraint in progress, or -1."""
    spelling: tuple[int, ...] = ()
    matched: int = 0
    """Matched tokens of the spelling; all, until the next token shows whether the word ends."""

    @property
    def is_open(self) -> bool:
        """Whether tokens of the spelling are missing."""
        return self.matched < len(self.spelling)

    @property
    def completion(self) -> int:
        """Bit mask of satisfied constraints if the word ends here."""
        return self.satisfied if self.current < 0 or self.is_open else self.satisfied | 1 << self.current


ConstraintProgress = frozenset[ConstraintMatch]
"""All matches of a hypothesis except dominated ones."""

NO_PROGRESS: ConstraintProgress = frozenset({ConstraintMatch(0)})


class ConstraintTracker:
    """Tracks the constraints of one sentence."""

    def __init__(self, constraints: Sequence[Constraint], same_word: SameWord = never_same_word) -> None:
        self.constraints, self.same_word = constraints, same_word
        self._min_lengths = [min(map(len, spellings)) for spellings in constraints]
        self._progress_by_mask: dict[int, int] = {}
        self._unmet_by_mask: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._duplicates = [
            sum(1 << j for j in range(i) if constraints[j] == constraints[i]) for i in range(len(constraints))
        ]

    @cached_property
    def total_tokens(self) -> int:
        """Tokens of all constraints in their shortest spelling: the maximum progress."""
        return sum(self._min_lengths)

    def advance(self, progress: ConstraintProgress, last_token: int, token: int) -> ConstraintProgress:
        """Progress after appending ``token`` to ``last_token``."""
        matches: set[ConstraintMatch] = set()
        for match in progress:
            if match.is_open:
                if match.spelling[match.matched] == token:
                    matches.add(match._replace(matched=match.matched + 1))
            elif match.current < 0 or not self.same_word(last_token, token):
                satisfied = match.completion
                matches.add(ConstraintMatch(satisfied))
                matches.update(
                    ConstraintMatch(satisfied, index, spelling, 1)
                    for index, spelling in self._startable_constraints(satisfied, last_token)
                    if spelling[0] == token
                )
        return self._prune(matches)

    def useful_tokens(self, progress: ConstraintProgress, last_token: int) -> set[int]:
        """Next tokens that make progress."""
        tokens: set[int] = set()
        for match in progress:
            if match.is_open:
                tokens.add(match.spelling[match.matched])
            else:
                tokens.update(spelling[0] for _, spelling in self._startable_constraints(match.completion, last_token))
        return tokens

    def token_progress(self, progress: ConstraintProgress) -> int:
        """Matched constraint tokens, from 0 to ``total_tokens``."""
        return max(map(self._match_progress, progress))

    def count_missing(self, progress: ConstraintProgress) -> int:
        """Unsatisfied constraints if the hypothesis ends here."""
        return len(self.constraints) - max(match.completion.bit_count() for match in progress)

    def _match_progress(self, match: ConstraintMatch) -> int:
        if match.satisfied not in self._progress_by_mask:
            self._progress_by_mask[match.satisfied] = sum(
                min_length for index, min_length in enumerate(self._min_lengths) if match.satisfied >> index & 1
            )
        satisfied = self._progress_by_mask[match.satisfied]
        return satisfied + (min(match.matched, self._min_lengths[match.current]) if match.current >= 0 else 0)

    def _startable_constraints(self, satisfied: int, last_token: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Index and spelling of the constraints that can start after a token; of identical ones only the first."""
        if satisfied not in self._unmet_by_mask:
            self._unmet_by_mask[satisfied] = [
                (index, spelling)
                for index, spellings in enumerate(self.constraints)
                if not satisfied >> index & 1 and self._duplicates[index] & ~satisfied == 0
                for spelling in spellings
            ]
        unmet = self._unmet_by_mask[satisfied]
        return ((index, spelling) for index, spelling in unmet if not self.same_word(last_token, spelling[0]))

    def _prune(self, matches: set[ConstraintMatch]) -> ConstraintProgress:
        idle_masks = {match.satisfied for match in matches if match.current < 0}
        remaining = [
            match
            for match in matches
            if not any(
                match.satisfied | satisfied == satisfied
                and (satisfied != match.satisfied or match.current >= 0)
                and (match.current < 0 or satisfied >> match.current & 1)
                for satisfied in idle_masks
            )
        ]
        if len(remaining) > MAX_MATCHES:
            remaining = sorted(remaining, key=lambda match: (-self._match_progress(match), match))[:MAX_MATCHES]
        return frozenset(remaining)
