"""Drawing words at random: by the model's numbers, by the seed, whatever else is in the batch."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from heedful.decoding.config import SearchConfig
from heedful.decoding.sampling import Written, greedy, likeliest, narrowed, new_draw, sampled, write
from heedful.text.tokenizer import END, PAD
from tests.decoding.markov import MarkovChain, random_chain, sources

CHAINS = random_chain(1, chains=5, words=7, contrast=1.0)
FREE: list[tuple[int, ...]] = [()] * 5
LIMITS = [11, 3, 7, 13, 5]


def sampling(**settings: object) -> SearchConfig:
    return SearchConfig.checked({"method": "sample", **settings})


# ---- greedy


def test_greedy_takes_the_likeliest_word_each_time() -> None:
    for number, hypothesis in enumerate(
        greedy(CHAINS, sources([0, 1, 2, 3, 4]), SearchConfig(beam=1), LIMITS, FREE)
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
def test_the_narrowest_draw_is_greedy(settings: dict[str, float]) -> None:
    source = sources([0, 1, 2, 3, 4])
    drawn = sampled(CHAINS, source, sampling(**settings, seed=5), LIMITS, FREE)
    assert [found[0] for found in drawn] == greedy(CHAINS, source, SearchConfig(beam=1), LIMITS, FREE)


# ---- seeds


def test_a_seed_repeats_its_draws() -> None:
    def drawn(seed: int) -> list[object]:
        return sampled(CHAINS, sources([0, 1, 2, 3, 4]), sampling(seed=seed, n_best=3), LIMITS, FREE)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_draws_do_not_depend_on_the_batch() -> None:
    config = sampling(seed=7, n_best=3)
    together = sampled(CHAINS, sources([0, 1, 2, 3, 4]), config, LIMITS, FREE)
    order = [3, 0, 4, 1, 2]
    shuffled = sampled(CHAINS, sources(order), config, [LIMITS[row] for row in order], FREE)
    assert shuffled == [together[row] for row in order]
    for row in range(5):
        assert sampled(CHAINS, sources([row]), config, [LIMITS[row]], [()]) == [together[row]]


def test_the_first_draws_stay_when_more_are_asked_for() -> None:
    three, seven = (
        sampled(CHAINS, sources([2]), sampling(seed=1, n_best=count), [9], [()])[0] for count in (3, 7)
    )
    assert len(three) == 3
    assert len(seven) == 7
    assert not Counter(h.tokens for h in three) - Counter(h.tokens for h in seven)


def test_draws_differ_and_stand_best_first() -> None:
    for found in sampled(CHAINS, sources([0, 1, 2, 3, 4]), sampling(n_best=11), LIMITS, FREE):
        assert len({hypothesis.tokens for hypothesis in found}) > 1
        scores = [hypothesis.score for hypothesis in found]
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
            [0, 1.0, 0.0, 0.0, 0.0],  # never reached: END has no next word
            [0, 0.5, 0.1, 0.4, 0.0],
            [0, 0.3, 0.3, 0.2, 0.2],
            [0, 0.6, 0.0, 0.2, 0.2],
        ]
    ],
    dtype=torch.float64,
)


def drawn_words(draws: int, **settings: object) -> dict[int, Counter[int]]:
    """How often each word followed each other one, in ``draws`` hundreds of outputs."""
    followers: dict[int, Counter[int]] = {word: Counter() for word in range(5)}
    for seed in range(draws):
        config = sampling(n_best=100, seed=seed, **settings)
        for hypothesis in sampled(MarkovChain(TABLE), sources([0]), config, [50], [()])[0]:
            last = PAD
            for token in (*hypothesis.tokens, END):
                followers[last][token] += 1
                last = token
    return followers


def test_words_are_drawn_by_their_probabilities() -> None:
    followers = drawn_words(20)
    assert sum(followers[PAD].values()) == 2000
    for word in (PAD, 2, 3, 4):
        # 3 degrees of freedom at most: beyond 25 once in 60,000 times.
        assert chi_square(followers[word], TABLE[0, word].tolist()) < 25


def test_temperature_bends_the_probabilities() -> None:
    followers = drawn_words(20, temperature=0.5)
    squared = TABLE[0, PAD] ** 2  # 1 / temperature is the power
    assert chi_square(followers[PAD], (squared / squared.sum()).tolist()) < 25
    assert chi_square(followers[PAD], TABLE[0, PAD].tolist()) > 100


def test_top_k_draws_among_the_k_alone() -> None:
    followers = drawn_words(20, top_k=2)
    assert chi_square(followers[PAD], [0, 0, 0, 3 / 7, 4 / 7]) < 25


def test_gained_is_the_models_own_probability() -> None:
    """Narrowing and temperature decide what is drawn, not what it is worth."""
    config = sampling(temperature=0.7, top_k=2, n_best=5)
    for hypothesis in sampled(CHAINS, sources([3]), config, [9], [()])[0]:
        history = CHAINS.history(3, hypothesis.tokens, hypothesis.complete)
        assert hypothesis.log_probabilities == pytest.approx(history, abs=1e-12)


# ---- narrowed, by hand


def kept(probabilities: list[float], **settings: object) -> list[int]:
    scores = torch.tensor([probabilities, [0.2] * 5]).log()
    return (narrowed(scores, sampling(**settings))[0] > -torch.inf).nonzero().flatten().tolist()


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
        # Among the two likeliest 0.4 is 4 / 7 of all: more than a half, less than 0.6.
        ({"top_k": 2, "top_p": 0.5}, [2]),
        ({"top_k": 2, "top_p": 0.6}, [0, 2]),
    ],
)
def test_narrowed_by_hand(settings: dict[str, float], expected: list[int]) -> None:
    assert kept([0.3, 0.05, 0.4, 0.05, 0.2], **settings) == expected


def test_narrowed_leaves_the_scores_of_what_it_keeps() -> None:
    scores = torch.tensor([[0.3, 0.05, 0.4, 0.05, 0.2]]).log()
    result = narrowed(scores, sampling(top_k=3, top_p=0.8))
    assert torch.equal(result[0, [0, 2, 4]], scores[0, [0, 2, 4]])


# ---- the stream


def test_stream_gives_one_token_a_live_sentence_a_step() -> None:
    """Chain 0 writes one word, chain 1 three; the third sentence runs into its limit of 2."""
    table = torch.zeros(3, 5, 5, dtype=torch.float64)
    for chain, path in enumerate([[PAD, 2, END], [PAD, 3, 4, 2, END], [PAD, 2, 2]]):
        for last, new in pairwise(path):
            table[chain, last, new] = 1.0
    steps = list(write(MarkovChain(table), sources([0, 1, 2]), [9, 9, 2], [()] * 3, likeliest))
    assert steps == [
        [Written(0, 2, 0.0), Written(1, 3, 0.0), Written(2, 2, 0.0)],
        [Written(0, END, 0.0), Written(1, 4, 0.0), Written(2, 2, 0.0)],
        [Written(1, 2, 0.0)],
        [Written(1, END, 0.0)],
    ]


def test_stream_can_be_left_at_any_time() -> None:
    steps = write(CHAINS, sources([0, 1, 2, 3, 4]), LIMITS, FREE, likeliest)
    assert len(next(steps)) == 5
    assert not torch.is_inference_mode_enabled()
    steps.close()


def test_prefixes_are_written_first_and_cost_their_probability() -> None:
    prefixes = [(3, 2), (), (4,)]
    for choose in (likeliest, new_draw(sampling(seed=2), sources([0, 1, 2]))):
        written = write(CHAINS, sources([0, 1, 2]), [9, 9, 9], prefixes, choose)
        tokens: list[list[int]] = [[], [], []]
        gained: list[list[float]] = [[], [], []]
        for step in written:
            for sentence, token, log_probability in step:
                tokens[sentence].append(token)
                gained[sentence].append(log_probability)
        for number, prefix in enumerate(prefixes):
            assert tuple(tokens[number][: len(prefix)]) == prefix
            words = tuple(token for token in tokens[number] if token != END)
            history = CHAINS.history(number, words, END in tokens[number])
            assert gained[number] == pytest.approx(history, abs=1e-12)


def test_a_limit_cuts_and_says_so() -> None:
    table = torch.zeros(1, 3, 3, dtype=torch.float64)
    table[0, :, 2] = 1.0
    found = greedy(MarkovChain(table), sources([0, 0]), SearchConfig(beam=1), [5, 2], [(), ()])
    assert [(h.tokens, h.complete) for h in found] == [((2,) * 5, False), ((2,) * 2, False)]
    assert math.isclose(found[0].score, 0.0)


def test_sentences_draw_apart_from_each_other() -> None:
    """The same chain, told by sources that differ: not the same word in the same place of all."""
    source = sources([0]).repeat(40, 2)
    source[:, 1] = torch.arange(40) + END + 1
    found = sampled(MarkovChain(TABLE), source, sampling(), [50] * 40, [()] * 40)
    first = Counter((*hypotheses[0].tokens, END)[0] for hypotheses in found)
    assert len(first) == 4
