"""Beam search against brute force, greedy search, and itself in other batches."""

import math

import pytest
import torch
from torch import Tensor

from heedful.generation.beam_search import beam_search
from heedful.generation.config import GenerationConfig, length_penalty
from heedful.generation.decoder_protocol import Hypothesis
from heedful.generation.sampling import greedy_search
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import END, PAD
from tests.generation.markov_model import MarkovChain, random_chain, sources


def new_model(seed: int, vocabulary: int = 7) -> Transformer:
    """A model with large weights, so that its distributions are far from uniform."""
    torch.manual_seed(seed)
    config = ModelConfig(
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
        d_model=14,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        d_ff=13,
    )
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        model.output.weight *= 1.5
        model.output.weight[PAD] = 0
        model.output.weight[END] *= 0.7
    return model


def new_source(lengths: list[int], vocabulary: int = 7) -> Tensor:
    torch.manual_seed(99)
    source = torch.randint(2, vocabulary, (len(lengths), max(lengths)))
    for row, length in enumerate(lengths):
        source[row, length - 1] = END
        source[row, length:] = PAD
    return source


def check_equal(first: list[Hypothesis], second: list[Hypothesis]) -> None:
    assert [(h.tokens, h.complete) for h in first] == [(h.tokens, h.complete) for h in second]
    for left, right in zip(first, second, strict=True):
        assert left.log_probabilities == pytest.approx(right.log_probabilities, abs=1e-5)
        assert left.score == pytest.approx(right.score, abs=1e-5)


LENGTHS = [7, 4, 1, 5, 3, 2]
LIMITS = [11, 3, 7, 5, 13, 2]
NO_PREFIXES: list[tuple[int, ...]] = [()] * 6


@pytest.mark.parametrize("seed", range(5))
def test_beam_size_one_is_greedy(seed: int) -> None:
    model, source = new_model(seed), new_source(LENGTHS)
    config = GenerationConfig(beam_size=1)
    beams = beam_search(model, source, config, LIMITS, NO_PREFIXES)
    assert all(len(actual) == 1 for actual in beams)
    check_equal([actual[0] for actual in beams], greedy_search(model, source, config, LIMITS, NO_PREFIXES))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beam_score_matches_forced_decoding(alpha: float) -> None:
    model, source = new_model(11), new_source(LENGTHS)
    config = GenerationConfig(beam_size=5, length_penalty=alpha)
    actual = beam_search(model, source, config, LIMITS, NO_PREFIXES)
    complete_count = 0
    for row, hypotheses in enumerate(actual):
        for hypothesis in hypotheses:
            target = [*hypothesis.tokens, END] if hypothesis.complete else hypothesis.tokens
            log_probabilities = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
            assert hypothesis.log_probabilities == pytest.approx(log_probabilities, abs=1e-5)
            expected = sum(log_probabilities) / ((5 + len(target)) / 6) ** alpha
            assert hypothesis.score == pytest.approx(expected, abs=1e-5)
            complete_count += hypothesis.complete
    assert complete_count >= 6


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_wide_beam_finds_the_best_hypothesis(seed: int, alpha: float) -> None:
    """Three tokens besides PAD and END, up to 4 tokens: 40 outputs, and all fit in the beam."""
    model, source = new_model(seed, vocabulary=5), new_source([5, 3], 5)
    outputs = random_chain(0, 1, 5).complete_outputs(limit=4)
    assert len(outputs) == 1 + 3 + 9 + 27
    config = GenerationConfig(beam_size=100, n_best=1, length_penalty=alpha)
    actual = beam_search(model, source, config, [4, 4], [(), ()])
    for row in range(2):
        scores = {}
        for tokens in outputs:
            log_probabilities = model.score(source[row : row + 1], torch.tensor([[*tokens, END]]))
            scores[tokens] = sum(log_probabilities[0].tolist()) / length_penalty(len(tokens) + 1, alpha)
        best = sorted(outputs, key=lambda tokens: -scores[tokens])
        complete_hypotheses = [hypothesis for hypothesis in actual[row] if hypothesis.complete]
        assert [hypothesis.tokens for hypothesis in complete_hypotheses[:10]] == best[:10]
        assert complete_hypotheses[0].score == pytest.approx(scores[best[0]], abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beam_search_of_markov_chain_finds_the_best(alpha: float) -> None:
    chain = random_chain(3, chains=3, vocabulary=5)
    config = GenerationConfig(beam_size=100, length_penalty=alpha)
    actual = beam_search(chain, sources([2, 0, 1]), config, [4, 4, 4], [(), (), ()])
    for number, hypotheses in zip([2, 0, 1], actual, strict=True):
        best = max(
            chain.complete_outputs(4),
            key=lambda tokens: sum(chain.history(number, tokens)) / length_penalty(len(tokens) + 1, alpha),
        )
        assert hypotheses[0].tokens == best


def test_beam_finds_what_greedy_misses() -> None:
    """The most probable first token has an improbable continuation: .6 * .4 against .4 * .9."""
    table = torch.zeros(1, 4, 4, dtype=torch.float64)
    table[0, PAD, 2:] = torch.tensor([0.6, 0.4])
    table[0, 2] = torch.tensor([0.0, 0.4, 0.3, 0.3])
    table[0, 3] = torch.tensor([0.0, 0.9, 0.05, 0.05])
    chain, source = MarkovChain(table), sources([0])
    greedy, best = (
        beam_search(chain, source, GenerationConfig(beam_size=beam, length_penalty=0.0), [9], [()])[0][0]
        for beam in (1, 2)
    )
    assert greedy.tokens[0] == 2
    assert best.tokens == (3,)
    assert best.log_probability == pytest.approx(math.log(0.36), abs=1e-6)


def test_complete_hypothesis_frees_its_slot() -> None:
    """END is the most probable first token; the third best token enters a beam of two and ends next."""
    table = torch.zeros(1, 4, 4, dtype=torch.float64)
    table[0, PAD] = torch.tensor([0.0, 0.4, 0.35, 0.25])
    table[0, 2] = torch.tensor([0.0, 0.1, 0.8, 0.1])
    table[0, 3] = torch.tensor([0.0, 0.9, 0.1, 0.0])
    actual = beam_search(MarkovChain(table), sources([0]), GenerationConfig(beam_size=2), [9], [()])[0]
    assert [(h.tokens, h.complete) for h in actual] == [((), True), ((3,), True)]


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_batch_composition_and_order_change_nothing(beam: int) -> None:
    model, source = new_model(5), new_source(LENGTHS)
    config = GenerationConfig(beam_size=beam)
    together = beam_search(model, source, config, LIMITS, NO_PREFIXES)
    order = [3, 0, 5, 1, 4, 2]
    reordered = beam_search(model, source[order], config, [LIMITS[row] for row in order], NO_PREFIXES)
    for position, row in enumerate(order):
        check_equal(reordered[position], together[row])
    lengths = {len(hypothesis.log_probabilities) for actual in together for hypothesis in actual}
    assert len(lengths) > 2  # sentences finished at different steps
    for row, length in enumerate(LENGTHS):
        alone = beam_search(model, source[row : row + 1, :length], config, LIMITS[row : row + 1], [()])
        check_equal(alone[0], together[row])


@pytest.mark.parametrize("beam", [2, 3, 7, 100])
def test_hypotheses_are_distinct_and_sorted(beam: int) -> None:
    model, source = new_model(6), new_source(LENGTHS)
    for actual in beam_search(model, source, GenerationConfig(beam_size=beam), [6] * 6, NO_PREFIXES):
        assert actual
        assert len({(h.tokens, h.complete) for h in actual}) == len(actual)
        ranks = [(h.complete, h.score) for h in actual]
        assert ranks == sorted(ranks, reverse=True)
        assert all(PAD not in h.tokens and END not in h.tokens for h in actual)


def test_beam_returns_beam_size_hypotheses() -> None:
    model, source = new_model(6), new_source(LENGTHS)
    for actual in beam_search(model, source, GenerationConfig(beam_size=5), [6] * 6, NO_PREFIXES):
        assert len(actual) >= 5


@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_with_prefixes_of_different_lengths_keeps_them(beam: int) -> None:
    model, source = new_model(7), new_source(LENGTHS)
    prefixes: list[tuple[int, ...]] = [(5, 5, 4), (), (3,), (6, 2), (2, 3, 4, 5, 6), ()]
    limits = [11, 6, 7, 5, 13, 6]
    config = GenerationConfig(beam_size=beam)
    actual = beam_search(model, source, config, limits, prefixes)
    without_prefixes = beam_search(model, source, config, limits, NO_PREFIXES)
    for row, (hypotheses, prefix) in enumerate(zip(actual, prefixes, strict=True)):
        assert all(h.tokens[: len(prefix)] == prefix for h in hypotheses)
        if not prefix:
            check_equal(hypotheses, without_prefixes[row])
        best = hypotheses[0]
        target = [*best.tokens, END] if best.complete else best.tokens
        log_probabilities = model.score(source[row : row + 1], torch.tensor([target]))[0].tolist()
        assert best.log_probabilities == pytest.approx(log_probabilities, abs=1e-5)


def test_max_length_marks_incomplete_hypotheses() -> None:
    """A chain that never ends: every output has its maximum length and is incomplete."""
    table = torch.zeros(1, 5, 5, dtype=torch.float64)
    table[0, :, 2:] = torch.tensor([0.5, 0.3, 0.2])
    actual = beam_search(MarkovChain(table), sources([0, 0, 0]), GenerationConfig(beam_size=3), [5, 2, 7], [()] * 3)
    for limit, hypotheses in zip([5, 2, 7], actual, strict=True):
        assert len(hypotheses) == 3
        assert all(not h.complete and len(h.tokens) == limit for h in hypotheses)
        assert hypotheses[0].tokens == (2,) * limit


def test_complete_hypotheses_rank_first() -> None:
    """END is improbable, but complete hypotheses rank first."""
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, :, 1:] = torch.tensor([0.02, 0.98])
    actual = beam_search(MarkovChain(table), sources([0]), GenerationConfig(beam_size=4), [3], [()])[0]
    expected = [((2, 2), True), ((2,), True), ((), True), ((2, 2, 2), False)]
    assert [(h.tokens, h.complete) for h in actual] == expected
    assert actual[3].score > actual[0].score


def test_beam_larger_than_vocabulary_works() -> None:
    """One token and END: after a few steps only one hypothesis is possible, and none is invented."""
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, PAD, 2] = 1.0
    table[0, 2, END] = 1.0
    actual = beam_search(MarkovChain(table), sources([0]), GenerationConfig(beam_size=5), [9], [()])[0]
    assert [(h.tokens, h.complete, h.log_probability) for h in actual] == [((2,), True, 0.0)]
