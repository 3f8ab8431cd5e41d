"""Beam search against the enumeration of every output, greedy search, and itself in other company."""

import math

import pytest
import torch
from torch import Tensor

from heedful.decoding.beam import beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import Hypothesis, length_penalty
from heedful.decoding.sampling import greedy
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import END, PAD
from tests.decoding.markov import MarkovChain, random_chain, sources


def new_model(seed: int, vocabulary: int = 7) -> Transformer:
    """A model with opinions: weights large enough that its words are far from equally likely."""
    torch.manual_seed(seed)
    config = ModelConfig(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        width=14,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        feed_forward_width=13,
    )
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        model.output.weight *= 1.5
        model.output.weight[PAD] = 0
        model.output.weight[END] *= 0.7
    return model


def padded_source(lengths: list[int], vocabulary: int = 7) -> Tensor:
    torch.manual_seed(99)
    source = torch.randint(2, vocabulary, (len(lengths), max(lengths)))
    for row, length in enumerate(lengths):
        source[row, length - 1] = END
        source[row, length:] = PAD
    return source


def same(first: list[Hypothesis], second: list[Hypothesis]) -> None:
    assert [(h.tokens, h.complete) for h in first] == [(h.tokens, h.complete) for h in second]
    for left, right in zip(first, second, strict=True):
        assert left.log_probabilities == pytest.approx(right.log_probabilities, abs=1e-5)
        assert left.score == pytest.approx(right.score, abs=1e-5)


LENGTHS = [7, 4, 1, 5, 3, 2]
LIMITS = [11, 3, 7, 5, 13, 2]
FREE: list[tuple[int, ...]] = [()] * 6


@pytest.mark.parametrize("seed", range(5))
def test_beam_of_one_is_greedy(seed: int) -> None:
    model, source = new_model(seed), padded_source(LENGTHS)
    config = SearchConfig(beam=1)
    beams = beam_search(model, source, config, LIMITS, FREE)
    assert all(len(found) == 1 for found in beams)
    same([found[0] for found in beams], greedy(model, source, config, LIMITS, FREE))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_score_is_that_of_the_forced_translation(alpha: float) -> None:
    model, source = new_model(11), padded_source(LENGTHS)
    config = SearchConfig(beam=5, length_penalty=alpha)
    found = beam_search(model, source, config, LIMITS, FREE)
    completed = 0
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            target = [*hypothesis.tokens, END] if hypothesis.complete else hypothesis.tokens
            forced = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
            assert hypothesis.log_probabilities == pytest.approx(forced, abs=1e-5)
            expected = sum(forced) / ((5 + len(target)) / 6) ** alpha
            assert hypothesis.score == pytest.approx(expected, abs=1e-5)
            completed += hypothesis.complete
    assert completed >= 6


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all(seed: int, alpha: float) -> None:
    """Three words but PAD and END, up to 4 tokens: 40 outputs, and the beam has room for all."""
    model, source = new_model(seed, vocabulary=5), padded_source([5, 3], 5)
    every = random_chain(0, 1, 5).complete_outputs(limit=4)
    assert len(every) == 1 + 3 + 9 + 27
    config = SearchConfig(beam=100, n_best=1, length_penalty=alpha)
    found = beam_search(model, source, config, [4, 4], [(), ()])
    for row in range(2):
        scores = {}
        for tokens in every:
            gained = model.score(source[row : row + 1], torch.tensor([[*tokens, END]]))
            scores[tokens] = sum(gained[0].tolist()) / length_penalty(len(tokens) + 1, alpha)
        best = sorted(every, key=lambda tokens: -scores[tokens])
        ended = [hypothesis for hypothesis in found[row] if hypothesis.complete]
        assert [hypothesis.tokens for hypothesis in ended[:10]] == best[:10]
        assert ended[0].score == pytest.approx(scores[best[0]], abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_any_model_can_be_searched(alpha: float) -> None:
    chain = random_chain(3, chains=3, words=5)
    config = SearchConfig(beam=100, length_penalty=alpha)
    found = beam_search(chain, sources([2, 0, 1]), config, [4, 4, 4], [(), (), ()])
    for number, hypotheses in zip([2, 0, 1], found, strict=True):
        best = max(
            chain.complete_outputs(4),
            key=lambda tokens: sum(chain.history(number, tokens)) / length_penalty(len(tokens) + 1, alpha),
        )
        assert hypotheses[0].tokens == best


def test_a_beam_sees_what_greedy_misses() -> None:
    """The likeliest first word leads nowhere: .6 * .4 against .4 * .9."""
    table = torch.zeros(1, 4, 4, dtype=torch.float64)
    table[0, PAD, 2:] = torch.tensor([0.6, 0.4])
    table[0, 2] = torch.tensor([0.0, 0.4, 0.3, 0.3])
    table[0, 3] = torch.tensor([0.0, 0.9, 0.05, 0.05])
    chain, source = MarkovChain(table), sources([0])
    one, two = (
        beam_search(chain, source, SearchConfig(beam=beam, length_penalty=0.0), [9], [()])[0][0]
        for beam in (1, 2)
    )
    assert one.tokens[0] == 2
    assert two.tokens == (3,)
    assert two.log_probability == pytest.approx(math.log(0.36), abs=1e-6)


def test_an_output_that_ends_leaves_its_place_to_another() -> None:
    """END is the likeliest at once; the third best word still gets into a beam of two, and ends next."""
    table = torch.zeros(1, 4, 4, dtype=torch.float64)
    table[0, PAD] = torch.tensor([0.0, 0.4, 0.35, 0.25])
    table[0, 2] = torch.tensor([0.0, 0.1, 0.8, 0.1])
    table[0, 3] = torch.tensor([0.0, 0.9, 0.1, 0.0])
    found = beam_search(MarkovChain(table), sources([0]), SearchConfig(beam=2), [9], [()])[0]
    assert [(h.tokens, h.complete) for h in found] == [((), True), ((3,), True)]


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_company_and_order_change_nothing(beam: int) -> None:
    model, source = new_model(5), padded_source(LENGTHS)
    config = SearchConfig(beam=beam)
    together = beam_search(model, source, config, LIMITS, FREE)
    order = [3, 0, 5, 1, 4, 2]
    shuffled = beam_search(model, source[order], config, [LIMITS[row] for row in order], FREE)
    for place, row in enumerate(order):
        same(shuffled[place], together[row])
    lengths = {len(hypothesis.log_probabilities) for found in together for hypothesis in found}
    assert len(lengths) > 2  # sentences did leave at different times
    for row, length in enumerate(LENGTHS):
        alone = beam_search(model, source[row : row + 1, :length], config, LIMITS[row : row + 1], [()])
        same(alone[0], together[row])


@pytest.mark.parametrize("beam", [2, 3, 7, 100])
def test_hypotheses_are_distinct_and_sorted(beam: int) -> None:
    model, source = new_model(6), padded_source(LENGTHS)
    for found in beam_search(model, source, SearchConfig(beam=beam), [6] * 6, FREE):
        assert found
        assert len({(h.tokens, h.complete) for h in found}) == len(found)
        ranks = [(h.complete, h.score) for h in found]
        assert ranks == sorted(ranks, reverse=True)
        assert all(PAD not in h.tokens and END not in h.tokens for h in found)


def test_enough_hypotheses_for_every_place_of_the_beam() -> None:
    model, source = new_model(6), padded_source(LENGTHS)
    for found in beam_search(model, source, SearchConfig(beam=5), [6] * 6, FREE):
        assert len(found) >= 5


@pytest.mark.parametrize("beam", [1, 3])
def test_prefixes_of_different_lengths(beam: int) -> None:
    model, source = new_model(7), padded_source(LENGTHS)
    prefixes: list[tuple[int, ...]] = [(5, 5, 4), (), (3,), (6, 2), (2, 3, 4, 5, 6), ()]
    limits = [11, 6, 7, 5, 13, 6]
    config = SearchConfig(beam=beam)
    found = beam_search(model, source, config, limits, prefixes)
    free = beam_search(model, source, config, limits, FREE)
    for row, (hypotheses, prefix) in enumerate(zip(found, prefixes, strict=True)):
        assert all(h.tokens[: len(prefix)] == prefix for h in hypotheses)
        if not prefix:
            same(hypotheses, free[row])
        best = hypotheses[0]
        target = [*best.tokens, END] if best.complete else best.tokens
        forced = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
        assert best.log_probabilities == pytest.approx(forced, abs=1e-5)


def test_limits_leave_what_is_unfinished_marked() -> None:
    """A chain that never ends: every output is as long as its own limit, and says so."""
    table = torch.zeros(1, 5, 5, dtype=torch.float64)
    table[0, :, 2:] = torch.tensor([0.5, 0.3, 0.2])
    found = beam_search(MarkovChain(table), sources([0, 0, 0]), SearchConfig(beam=3), [5, 2, 7], [()] * 3)
    for limit, hypotheses in zip([5, 2, 7], found, strict=True):
        assert len(hypotheses) == 3
        assert all(not h.complete and len(h.tokens) == limit for h in hypotheses)
        assert hypotheses[0].tokens == (2,) * limit


def test_what_ended_stands_before_what_did_not() -> None:
    """To end is unlikely here, and yet the outputs that did come first."""
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, :, 1:] = torch.tensor([0.02, 0.98])
    found = beam_search(MarkovChain(table), sources([0]), SearchConfig(beam=4), [3], [()])[0]
    expected = [((2, 2), True), ((2,), True), ((), True), ((2, 2, 2), False)]
    assert [(h.tokens, h.complete) for h in found] == expected
    assert found[3].score > found[0].score


def test_a_vocabulary_smaller_than_the_beam_runs_out_of_words() -> None:
    """One word and END: after a few steps all hypotheses but one are hopeless, and none is made up."""
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, PAD, 2] = 1.0
    table[0, 2, END] = 1.0
    found = beam_search(MarkovChain(table), sources([0]), SearchConfig(beam=5), [9], [()])[0]
    assert [(h.tokens, h.complete, h.log_probability) for h in found] == [((2,), True, 0.0)]
