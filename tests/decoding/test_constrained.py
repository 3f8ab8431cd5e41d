"""Search for given terms against the enumeration of every output, beam search, and itself in company."""

import itertools

import pytest
import torch

from heedful.decoding.beam import beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.constrained import constrained_search
from heedful.decoding.constraints import NOTHING, Constraint, Constraints, Tracker
from heedful.decoding.hypothesis import length_penalty
from heedful.decoding.search import search
from heedful.text.tokenizer import END, PAD
from tests.decoding.markov import MarkovChain, random_chain, sources
from tests.decoding.test_beam import FREE, LENGTHS, LIMITS, new_model, padded_source, same

TERMS: list[list[Constraint]] = [
    [((3,),)],
    [((4, 2),)],
    [((2, 2, 3),)],
    [((3,),), ((2,),)],
    [((3,),), ((3,),)],  # the same term twice is written twice
    [((3, 4),), ((3,),)],  # the beginning of one is the other
    [((2, 3), (4,))],  # two spellings, of which one is enough
    [((2, 3),), ((3, 2),)],  # "2 3 2" has only one of them
]


def contains(tokens: tuple[int, ...], constraints: list[Constraint]) -> bool:
    """Whether every constraint has a place of its own, by trying all places for all."""
    if not constraints:
        return True
    for spelling in constraints[0]:
        for place in range(len(tokens) - len(spelling) + 1):
            if tokens[place : place + len(spelling)] == spelling:
                without = (*tokens[:place], -1, *tokens[place + len(spelling) :])
                if contains(without, constraints[1:]):
                    return True
    return False


@pytest.mark.parametrize("terms", TERMS)
def test_how_far_one_has_come_agrees_with_trying_all_places(terms: list[Constraint]) -> None:
    tracker = Tracker(terms)
    for tokens in itertools.chain.from_iterable(
        itertools.product((2, 3, 4), repeat=length) for length in range(6)
    ):
        progress, last = NOTHING, PAD
        for token in tokens:
            helps = token in tracker.helpful(progress, last)
            before = tracker.distance(progress)
            progress, last = tracker.advanced(progress, last, token), token
            assert tracker.distance(progress) <= before or helps
        assert (tracker.missing(progress) == 0) == contains(tokens, terms)
        assert tracker.missing(progress) or tracker.distance(progress) == tracker.tokens


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("terms", TERMS)
def test_a_wide_beam_finds_the_best_of_all_that_have_the_terms(terms: list[Constraint], alpha: float) -> None:
    model, source = new_model(1, vocabulary=5), padded_source([5, 3], 5)
    every = [tokens for tokens in random_chain(0, 1, 5).complete_outputs(limit=5) if contains(tokens, terms)]
    config = SearchConfig(length_penalty=alpha).model_copy(update={"beam": 400})  # room for all in every bank
    found = constrained_search(model, source, config, [5, 5], [(), ()], Constraints([terms, terms]))
    for row in range(2):
        scores = {}
        for tokens in every:
            gained = model.score(source[row : row + 1], torch.tensor([[*tokens, END]]))
            scores[tokens] = sum(gained[0].tolist()) / length_penalty(len(tokens) + 1, alpha)
        best = max(every, key=lambda tokens: scores[tokens])
        assert found[row][0].tokens == best
        assert found[row][0].score == pytest.approx(scores[best], abs=1e-5)
        assert all(contains(each.tokens, terms) for each in found[row] if each.complete)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_without_terms_it_is_beam_search(beam: int) -> None:
    model, source = new_model(5), padded_source(LENGTHS)
    config = SearchConfig(beam=beam)
    free = beam_search(model, source, config, LIMITS, FREE)
    ours = constrained_search(model, source, config, LIMITS, FREE, Constraints([()] * 6))
    for mine, other in zip(ours, free, strict=True):
        same(mine, other)


@pytest.mark.parametrize("beam", [1, 3])
def test_company_changes_nothing_and_every_term_is_there(beam: int) -> None:
    model, source = new_model(6), padded_source(LENGTHS)
    terms: list[list[Constraint]] = [
        [((6, 5),)],
        [],
        [((3,),), ((2, 4, 6),)],
        [((5, 5, 5),)],
        [((2, 3),), ((4,),), ((6,),)],
        [],
    ]
    limits, config = [14] * 6, SearchConfig(beam=beam)
    together = search(model, source, config, limits=limits, constraints=Constraints(terms))
    for row, length in enumerate(LENGTHS):
        alone = search(
            model,
            source[row : row + 1, :length],
            config,
            limits=limits[:1],
            constraints=Constraints([terms[row]]),
        )
        same(alone[0], together[row])
        best = together[row][0]
        assert contains(best.tokens, terms[row])
        target = [*best.tokens, END] if best.complete else best.tokens
        forced = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
        assert best.log_probabilities == pytest.approx(forced, abs=1e-5)


def test_an_unlikely_term_is_written_all_the_same() -> None:
    """A chain that hardly ever writes 4, and would end after two words."""
    table = torch.zeros(1, 5, 5, dtype=torch.float64)
    table[0, PAD, 2:] = torch.tensor([0.98, 0.01999, 1e-5])
    table[0, 2:] = torch.tensor([0.0, 0.9, 0.05, 0.04999, 1e-5])
    config = SearchConfig(length_penalty=0)
    constraints = Constraints([[((4, 4),)]])
    best = search(MarkovChain(table), sources([0]), config, limits=[9], constraints=constraints)[0][0]
    assert (best.tokens, best.complete) == ((4, 4), True)


def test_a_length_without_room_gives_what_has_the_most_terms_marked() -> None:
    terms: list[Constraint] = [((4,),), ((3, 3, 3),), ((2,),)]
    chain = random_chain(3, chains=1, words=5)
    best = search(chain, sources([0]), SearchConfig(), limits=[3], constraints=Constraints([terms]))[0][0]
    assert not best.complete
    assert {2, 4} <= set(best.tokens)


def test_prefixes_and_terms() -> None:
    """A term in the prefix counts."""
    model, source = new_model(7), padded_source([5, 4])
    found = search(
        model,
        source,
        SearchConfig(),
        limits=[9, 9],
        prefixes=[(5, 3, 4), (2,)],
        constraints=Constraints([[((3, 4),)], [((6,),)]]),
    )
    free = search(model, source[:1], SearchConfig(), limits=[9], prefixes=[(5, 3, 4)])
    assert found[0][0].tokens == free[0][0].tokens
    assert found[1][0].tokens[0] == 2
    assert 6 in found[1][0].tokens


def test_a_term_is_no_part_of_a_longer_word() -> None:
    """6 goes on with the word before it; so 3 6 is not the word 3, and 6 can begin no term after 3."""

    def joined(before: int, after: int) -> bool:
        return after == 6 and before != PAD

    tracker = Tracker([((3,),)], joined)
    written = tracker.advanced(NOTHING, PAD, 3)
    assert tracker.missing(written) == 0
    longer = tracker.advanced(written, 3, 6)
    assert tracker.missing(longer) == 1
    assert tracker.missing(tracker.advanced(written, 3, 2)) == 0
    suffix = Tracker([((6,),)], joined)
    assert suffix.helpful(NOTHING, 2) == set()
    assert suffix.missing(suffix.advanced(NOTHING, PAD, 6)) == 0


def test_many_terms_cost_no_more_than_the_widest_beam() -> None:
    """More banks than places: neighbours share one, and the search still ends with all of them."""
    model, source = new_model(8, vocabulary=11), padded_source([6], 11)
    terms: list[Constraint] = [((2 + number % 9,),) for number in range(72)]
    best = search(model, source, SearchConfig(), limits=[99], constraints=Constraints([terms]))[0][0]
    assert all(best.tokens.count(2 + word) >= 8 for word in range(9))
