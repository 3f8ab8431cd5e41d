"""Sampling: the model's distribution, seeds, and independence of the batch."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from heedful.generation.config import GenerationConfig
from heedful.generation.sampling import (
    GeneratedToken,
    choose_most_probable,
    filter_top_k_top_p,
    generate_tokens,
    greedy_search,
    new_sampler,
    sample,
)
from heedful.tokenization.special_tokens import END, PAD
from tests.generation.markov_model import MarkovChain, random_chain, sources

CHAINS = random_chain(1, chains=5, vocabulary=7, contrast=1.0)
NO_PREFIXES: list[tuple[int, ...]] = [()] * 5
LIMITS = [11, 3, 7, 13, 5]


def sampling_config(**settings: object) -> GenerationConfig:
    return GenerationConfig.from_settings({"method": "sample", **settings})


# ---- greedy


def test_greedy_search_takes_the_most_probable_token() -> None:
    for number, hypothesis in enumerate(
        greedy_search(CHAINS, sources([0, 1, 2, 3, 4]), GenerationConfig(beam_size=1), LIMITS, NO_PREFIXES)
    ):
        expected, last = [], PAD
        while len(expected) < LIMITS[number] and last != END:
            last = int(CHAINS.log_probabilities[number, last].argmax())
            expected.append(last)
        assert hypothesis.complete == (expected[-1] == END)
        assert hypothesis.tokens == tuple(token for token in expected if token != END)
        history = CHAINS.history(number, hypothesis.tokens, hypothesis.complete)
        assert hypothesis.log_probabilities == pytest.approx(history, abs=1e-12)


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_sample_top_k_one_is_greedy(settings: dict[str, float]) -> None:
    source = sources([0, 1, 2, 3, 4])
    samples = sample(CHAINS, source, sampling_config(**settings, seed=5), LIMITS, NO_PREFIXES)
    assert [actual[0] for actual in samples] == greedy_search(
        CHAINS, source, GenerationConfig(beam_size=1), LIMITS, NO_PREFIXES
    )


# ---- seeds


def test_sample_same_seed_gives_same_samples() -> None:
    def draw_samples(seed: int) -> list[object]:
        return sample(CHAINS, sources([0, 1, 2, 3, 4]), sampling_config(seed=seed, n_best=3), LIMITS, NO_PREFIXES)

    assert draw_samples(3) == draw_samples(3)
    assert draw_samples(3) != draw_samples(4)


def test_sample_is_independent_of_the_batch() -> None:
    config = sampling_config(seed=7, n_best=3)
    together = sample(CHAINS, sources([0, 1, 2, 3, 4]), config, LIMITS, NO_PREFIXES)
    order = [3, 0, 4, 1, 2]
    reordered = sample(CHAINS, sources(order), config, [LIMITS[row] for row in order], NO_PREFIXES)
    assert reordered == [together[row] for row in order]
    for row in range(5):
        assert sample(CHAINS, sources([row]), config, [LIMITS[row]], [()]) == [together[row]]


def test_sample_larger_n_best_keeps_the_first_samples() -> None:
    three_samples, seven_samples = (
        sample(CHAINS, sources([2]), sampling_config(seed=1, n_best=count), [9], [()])[0] for count in (3, 7)
    )
    assert len(three_samples) == 3
    assert len(seven_samples) == 7
    assert not Counter(h.tokens for h in three_samples) - Counter(h.tokens for h in seven_samples)


def test_sample_results_differ_and_are_sorted() -> None:
    for actual in sample(CHAINS, sources([0, 1, 2, 3, 4]), sampling_config(n_best=11), LIMITS, NO_PREFIXES):
        assert len({hypothesis.tokens for hypothesis in actual}) > 1
        scores = [hypothesis.score for hypothesis in actual]
        assert scores == sorted(scores, reverse=True)


# ---- distribution


def chi_square(counts: Counter[int], probabilities: list[float]) -> float:
    total = sum(counts.values())
    assert all(probabilities[token] > 0 for token in counts)
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(probabilities) if p)


TABLE = torch.tensor(
    [
        [
            [0, 0.1, 0.2, 0.3, 0.4],
            [0, 1.0, 0.0, 0.0, 0.0],  # never reached: nothing follows END
            [0, 0.5, 0.1, 0.4, 0.0],
            [0, 0.3, 0.3, 0.2, 0.2],
            [0, 0.6, 0.0, 0.2, 0.2],
        ]
    ],
    dtype=torch.float64,
)


def count_transitions(draws: int, **settings: object) -> dict[int, Counter[int]]:
    """How often each token follows each other token, in ``draws`` hundreds of outputs."""
    transitions: dict[int, Counter[int]] = {token: Counter() for token in range(5)}
    for seed in range(draws):
        config = sampling_config(n_best=100, seed=seed, **settings)
        for hypothesis in sample(MarkovChain(TABLE), sources([0]), config, [50], [()])[0]:
            last = PAD
            for token in (*hypothesis.tokens, END):
                transitions[last][token] += 1
                last = token
    return transitions


def test_sample_frequencies_match_probabilities() -> None:
    transitions = count_transitions(20)
    assert sum(transitions[PAD].values()) == 2000
    for token in (PAD, 2, 3, 4):
        # At most 3 degrees of freedom: exceeds 25 once in 60,000 times.
        assert chi_square(transitions[token], TABLE[0, token].tolist()) < 25


def test_sample_temperature_changes_probabilities() -> None:
    transitions = count_transitions(20, temperature=0.5)
    squared = TABLE[0, PAD] ** 2  # 1 / temperature is the power
    assert chi_square(transitions[PAD], (squared / squared.sum()).tolist()) < 25
    assert chi_square(transitions[PAD], TABLE[0, PAD].tolist()) > 100


def test_sample_top_k_uses_only_k_tokens() -> None:
    transitions = count_transitions(20, top_k=2)
    assert chi_square(transitions[PAD], [0, 0, 0, 3 / 7, 4 / 7]) < 25


def test_sample_log_probabilities_are_the_models() -> None:
    """Filters and temperature affect what is sampled, not its log-probability."""
    config = sampling_config(temperature=0.7, top_k=2, n_best=5)
    for hypothesis in sample(CHAINS, sources([3]), config, [9], [()])[0]:
        history = CHAINS.history(3, hypothesis.tokens, hypothesis.complete)
        assert hypothesis.log_probabilities == pytest.approx(history, abs=1e-12)


# ---- top-k and top-p, by hand


def list_unfiltered(probabilities: list[float], **settings: object) -> list[int]:
    scores = torch.tensor([probabilities, [0.2] * 5]).log()
    return (filter_top_k_top_p(scores, sampling_config(**settings))[0] > -torch.inf).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 3}, [0, 2, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [2]),
        ({"top_p": 0.41}, [0, 2]),  # 0.4 does not reach 0.41
        ({"top_p": 0.69}, [0, 2]),
        ({"top_p": 0.71}, [0, 2, 4]),
        ({"top_p": 0.96}, [0, 1, 2, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        # Of the two most probable tokens, 0.4 is 4 / 7 of the total: more than 0.5, less than 0.6.
        ({"top_k": 2, "top_p": 0.5}, [2]),
        ({"top_k": 2, "top_p": 0.6}, [0, 2]),
    ],
)
def test_filter_top_k_top_p_by_hand(settings: dict[str, float], expected: list[int]) -> None:
    assert list_unfiltered([0.3, 0.05, 0.4, 0.05, 0.2], **settings) == expected


def test_filter_top_k_top_p_keeps_scores() -> None:
    scores = torch.tensor([[0.3, 0.05, 0.4, 0.05, 0.2]]).log()
    result = filter_top_k_top_p(scores, sampling_config(top_k=3, top_p=0.8))
    assert torch.equal(result[0, [0, 2, 4]], scores[0, [0, 2, 4]])


# ---- token by token


def test_generate_tokens_yields_one_token_per_active_sentence() -> None:
    """Chain 0 generates one token, chain 1 three; the third sentence reaches its limit of 2."""
    table = torch.zeros(3, 5, 5, dtype=torch.float64)
    for chain, path in enumerate([[PAD, 2, END], [PAD, 3, 4, 2, END], [PAD, 2, 2]]):
        for last, new in pairwise(path):
            table[chain, last, new] = 1.0
    steps = list(generate_tokens(MarkovChain(table), sources([0, 1, 2]), [9, 9, 2], [()] * 3, choose_most_probable))
    assert steps == [
        [GeneratedToken(0, 2, 0.0), GeneratedToken(1, 3, 0.0), GeneratedToken(2, 2, 0.0)],
        [GeneratedToken(0, END, 0.0), GeneratedToken(1, 4, 0.0), GeneratedToken(2, 2, 0.0)],
        [GeneratedToken(1, 2, 0.0)],
        [GeneratedToken(1, END, 0.0)],
    ]


def test_generate_tokens_can_be_stopped() -> None:
    steps = generate_tokens(CHAINS, sources([0, 1, 2, 3, 4]), LIMITS, NO_PREFIXES, choose_most_probable)
    assert len(next(steps)) == 5
    assert not torch.is_inference_mode_enabled()
    steps.close()


def test_prefixes_come_first_with_their_log_probabilities() -> None:
    prefixes = [(3, 2), (), (4,)]
    for choose in (choose_most_probable, new_sampler(sampling_config(seed=2), sources([0, 1, 2]))):
        steps = generate_tokens(CHAINS, sources([0, 1, 2]), [9, 9, 9], prefixes, choose)
        tokens: list[list[int]] = [[], [], []]
        log_probabilities: list[list[float]] = [[], [], []]
        for step in steps:
            for sentence, token, log_probability in step:
                tokens[sentence].append(token)
                log_probabilities[sentence].append(log_probability)
        for number, prefix in enumerate(prefixes):
            assert tuple(tokens[number][: len(prefix)]) == prefix
            output = tuple(token for token in tokens[number] if token != END)
            history = CHAINS.history(number, output, END in tokens[number])
            assert log_probabilities[number] == pytest.approx(history, abs=1e-12)


def test_max_length_truncates_and_marks_incomplete() -> None:
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, :, 2] = 1.0
    actual = greedy_search(MarkovChain(table), sources([0, 0]), GenerationConfig(beam_size=1), [5, 2], [(), ()])
    assert [(h.tokens, h.complete) for h in actual] == [((2,) * 5, False), ((2,) * 2, False)]
    assert math.isclose(actual[0].score, 0.0)


def test_sample_sentences_use_separate_streams() -> None:
    """The same chain from different sources: samples do not share tokens at the same position."""
    source = sources([0]).repeat(40, 2)
    source[:, 1] = torch.arange(40) + END + 1
    actual = sample(MarkovChain(TABLE), source, sampling_config(), [50] * 40, [()] * 40)
    first = Counter((*hypotheses[0].tokens, END)[0] for hypotheses in actual)
    assert len(first) == 4
