"""``search`` selects the algorithm, the maximum lengths and the results to return."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.generation.beam_search import beam_search
from heedful.generation.config import GenerationConfig
from heedful.generation.sampling import greedy_search, sample
from heedful.generation.search import max_output_lengths, search
from heedful.tokenization.special_tokens import END, PAD
from tests.generation.markov_model import random_chain, sources

CHAINS = random_chain(1, chains=3, vocabulary=7, contrast=1.0)
SOURCE = sources([0, 1, 2])
NO_PREFIXES: list[tuple[int, ...]] = [()] * 3


def test_max_output_lengths_add_the_offset() -> None:
    source = torch.tensor([[7, 8, 9, 5, END], [7, END, PAD, PAD, PAD], [END, PAD, PAD, PAD, PAD]])
    assert max_output_lengths(source, GenerationConfig()) == [54, 51, 50]
    assert max_output_lengths(source, GenerationConfig(max_length_offset=3)) == [7, 4, 3]


def test_search_beam_size_one_is_greedy() -> None:
    config = GenerationConfig(beam_size=1)
    expected = greedy_search(CHAINS, SOURCE, config, [9] * 3, NO_PREFIXES)
    assert search(CHAINS, SOURCE, config, max_lengths=[9] * 3) == [[best] for best in expected]


@pytest.mark.parametrize("n_best", [1, 3, 5])
def test_search_returns_n_best(n_best: int) -> None:
    config = GenerationConfig(beam_size=5, n_best=n_best)
    actual = search(CHAINS, SOURCE, config, max_lengths=[9] * 3)
    assert [len(hypotheses) for hypotheses in actual] == [n_best] * 3
    beam = beam_search(CHAINS, SOURCE, config, [9] * 3, NO_PREFIXES)
    assert actual == [hypotheses[:n_best] for hypotheses in beam]


def test_search_method_sample_samples() -> None:
    config = GenerationConfig(method="sample", n_best=7, beam_size=1, seed=3)
    assert search(CHAINS, SOURCE, config, max_lengths=[9] * 3) == sample(CHAINS, SOURCE, config, [9] * 3, NO_PREFIXES)


@pytest.mark.parametrize("settings", [{"beam_size": 1}, {"beam_size": 3}, {"method": "sample"}])
def test_search_prefix_beyond_max_length_allows_one_more_token(settings: dict[str, object]) -> None:
    config = GenerationConfig.from_settings(settings)
    prefixes = [(3, 4, 5, 3), (), (2,)]
    actual = search(CHAINS, SOURCE, config, max_lengths=[2, 2, 2], prefixes=prefixes)
    assert actual[0][0].tokens[:4] == (3, 4, 5, 3)
    assert len(actual[0][0].log_probabilities) == 5
    assert all(len(hypothesis.log_probabilities) <= 2 for hypothesis in (*actual[1], *actual[2]))
    assert actual[2][0].tokens[0] == 2


def test_search_without_max_lengths_computes_them() -> None:
    """Chains that never end reach source length + max_length_offset, per sentence."""
    endless = random_chain(2, chains=5, vocabulary=5)
    endless.log_probabilities[..., END] = -torch.inf
    source = torch.tensor([[4, 3, 3, END], [4, END, PAD, PAD]])
    for beam in (1, 3):
        actual = search(endless, source, GenerationConfig(beam_size=beam, max_length_offset=2))
        assert [len(hypotheses[0].tokens) for hypotheses in actual] == [5, 3]


def test_config_n_best_above_beam_size_raises() -> None:
    with pytest.raises(HeedfulError, match="n_best 3 is larger than beam_size 2") as caught:
        GenerationConfig.from_settings({"beam_size": 2, "n_best": 3})
    assert caught.value.hint == "set beam_size to 3 or more"
    assert GenerationConfig.from_settings({"beam_size": 2, "n_best": 3, "method": "sample"}).n_best == 3
