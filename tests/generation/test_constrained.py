"""Constrained search against brute force, beam search, and itself in other batches."""

import itertools

import pytest
import torch

from heedful.generation.beam_search import beam_search
from heedful.generation.config import GenerationConfig, length_penalty
from heedful.generation.constrained import constrained_search
from heedful.generation.constraints import NO_PROGRESS, Constraint, Constraints, ConstraintTracker
from heedful.generation.search import search
from heedful.tokenization.special_tokens import END, PAD
from tests.generation.markov_model import MarkovChain, random_chain, sources
from tests.generation.test_beam_search import LENGTHS, LIMITS, NO_PREFIXES, check_equal, new_model, new_source

TERMS: list[list[Constraint]] = [
    [((3,),)],
    [((4, 2),)],
    [((2, 2, 3),)],
    [((3,),), ((2,),)],
    [((3,),), ((3,),)],  # the same term twice needs two occurrences
    [((3, 4),), ((3,),)],  # one is a prefix of the other
    [((2, 3), (4,))],  # two spellings; one suffices
    [((2, 3),), ((3, 2),)],  # "2 3 2" has only one of them
]


def contains(tokens: tuple[int, ...], constraints: list[Constraint]) -> bool:
    """Whether every constraint has its own occurrence, by brute force."""
    if not constraints:
        return True
    for spelling in constraints[0]:
        for position in range(len(tokens) - len(spelling) + 1):
            if tokens[position : position + len(spelling)] == spelling:
                remaining_tokens = (*tokens[:position], -1, *tokens[position + len(spelling) :])
                if contains(remaining_tokens, constraints[1:]):
                    return True
    return False


@pytest.mark.parametrize("terms", TERMS)
def test_constraint_progress_matches_brute_force(terms: list[Constraint]) -> None:
    tracker = ConstraintTracker(terms)
    for tokens in itertools.chain.from_iterable(itertools.product((2, 3, 4), repeat=length) for length in range(6)):
        progress, last = NO_PROGRESS, PAD
        for token in tokens:
            is_useful = token in tracker.useful_tokens(progress, last)
            before = tracker.token_progress(progress)
            progress, last = tracker.advance(progress, last, token), token
            assert tracker.token_progress(progress) <= before or is_useful
        assert (tracker.count_missing(progress) == 0) == contains(tokens, terms)
        assert tracker.count_missing(progress) or tracker.token_progress(progress) == tracker.total_tokens


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("terms", TERMS)
def test_wide_constrained_beam_finds_the_best_with_terms(terms: list[Constraint], alpha: float) -> None:
    model, source = new_model(1, vocabulary=5), new_source([5, 3], 5)
    outputs = [tokens for tokens in random_chain(0, 1, 5).complete_outputs(limit=5) if contains(tokens, terms)]
    config = GenerationConfig(length_penalty=alpha).model_copy(
        update={"beam_size": 400}
    )  # every bank can hold all hypotheses
    actual = constrained_search(model, source, config, [5, 5], [(), ()], Constraints([terms, terms]))
    for row in range(2):
        scores = {}
        for tokens in outputs:
            log_probabilities = model.score(source[row : row + 1], torch.tensor([[*tokens, END]]))
            scores[tokens] = sum(log_probabilities[0].tolist()) / length_penalty(len(tokens) + 1, alpha)
        best = max(outputs, key=lambda tokens: scores[tokens])
        assert actual[row][0].tokens == best
        assert actual[row][0].score == pytest.approx(scores[best], abs=1e-5)
        assert all(contains(hypothesis.tokens, terms) for hypothesis in actual[row] if hypothesis.complete)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_constrained_search_without_terms_is_beam_search(beam: int) -> None:
    model, source = new_model(5), new_source(LENGTHS)
    config = GenerationConfig(beam_size=beam)
    expected = beam_search(model, source, config, LIMITS, NO_PREFIXES)
    ours = constrained_search(model, source, config, LIMITS, NO_PREFIXES, Constraints([()] * 6))
    for constrained, unconstrained in zip(ours, expected, strict=True):
        check_equal(constrained, unconstrained)


@pytest.mark.parametrize("beam", [1, 3])
def test_constrained_search_batch_changes_nothing_and_has_all_terms(beam: int) -> None:
    model, source = new_model(6), new_source(LENGTHS)
    terms: list[list[Constraint]] = [
        [((6, 5),)],
        [],
        [((3,),), ((2, 4, 6),)],
        [((5, 5, 5),)],
        [((2, 3),), ((4,),), ((6,),)],
        [],
    ]
    limits, config = [14] * 6, GenerationConfig(beam_size=beam)
    together = search(model, source, config, max_lengths=limits, constraints=Constraints(terms))
    for row, length in enumerate(LENGTHS):
        alone = search(
            model, source[row : row + 1, :length], config, max_lengths=limits[:1], constraints=Constraints([terms[row]])
        )
        check_equal(alone[0], together[row])
        best = together[row][0]
        assert contains(best.tokens, terms[row])
        target = [*best.tokens, END] if best.complete else best.tokens
        log_probabilities = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
        assert best.log_probabilities == pytest.approx(log_probabilities, abs=1e-5)


def test_constrained_search_generates_improbable_terms() -> None:
    """A chain in which 4 is improbable and which ends after two tokens."""
    table = torch.zeros(1, 5, 5, dtype=torch.float64)
    table[0, PAD, 2:] = torch.tensor([0.98, 0.01999, 1e-5])
    table[0, 2:] = torch.tensor([0.0, 0.9, 0.05, 0.04999, 1e-5])
    config = GenerationConfig(length_penalty=0)
    constraints = Constraints([[((4, 4),)]])
    best = search(MarkovChain(table), sources([0]), config, max_lengths=[9], constraints=constraints)[0][0]
    assert (best.tokens, best.complete) == ((4, 4), True)


def test_constrained_search_short_max_length_gives_most_terms_incomplete() -> None:
    terms: list[Constraint] = [((4,),), ((3, 3, 3),), ((2,),)]
    chain = random_chain(3, chains=1, vocabulary=5)
    best = search(chain, sources([0]), GenerationConfig(), max_lengths=[3], constraints=Constraints([terms]))[0][0]
    assert not best.complete
    assert {2, 4} <= set(best.tokens)


def test_constrained_search_counts_terms_in_prefix() -> None:
    """A term in the prefix need not occur again."""
    model, source = new_model(7), new_source([5, 4])
    actual = search(
        model,
        source,
        GenerationConfig(),
        max_lengths=[9, 9],
        prefixes=[(5, 3, 4), (2,)],
        constraints=Constraints([[((3, 4),)], [((6,),)]]),
    )
    unconstrained = search(model, source[:1], GenerationConfig(), max_lengths=[9], prefixes=[(5, 3, 4)])
    assert actual[0][0].tokens == unconstrained[0][0].tokens
    assert actual[1][0].tokens[0] == 2
    assert 6 in actual[1][0].tokens


def test_constraint_does_not_match_inside_a_longer_word() -> None:
    """6 continues the word before it, so 3 6 is not the word 3, and 6 cannot start a term after 3."""

    def continues_word(before: int, after: int) -> bool:
        return after == 6 and before != PAD

    tracker = ConstraintTracker([((3,),)], continues_word)
    progress = tracker.advance(NO_PROGRESS, PAD, 3)
    assert tracker.count_missing(progress) == 0
    longer_word_progress = tracker.advance(progress, 3, 6)
    assert tracker.count_missing(longer_word_progress) == 1
    assert tracker.count_missing(tracker.advance(progress, 3, 2)) == 0
    suffix = ConstraintTracker([((6,),)], continues_word)
    assert suffix.useful_tokens(NO_PROGRESS, 2) == set()
    assert suffix.count_missing(suffix.advance(NO_PROGRESS, PAD, 6)) == 0


def test_constrained_search_many_terms_limit_the_beam() -> None:
    """More banks than slots: adjacent banks share one, and the search still finds all terms."""
    model, source = new_model(8, vocabulary=11), new_source([6], 11)
    terms: list[Constraint] = [((2 + number % 9,),) for number in range(72)]
    best = search(model, source, GenerationConfig(), max_lengths=[99], constraints=Constraints([terms]))[0][0]
    assert all(best.tokens.count(2 + word) >= 8 for word in range(9))
