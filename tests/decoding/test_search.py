"""The door: which search runs, how long outputs may be, what is returned."""

import pytest
import torch

from heedful.decoding.beam import beam_search
from heedful.decoding.config import SearchConfig
from heedful.decoding.sampling import greedy, sampled
from heedful.decoding.search import output_limits, search
from heedful.errors import HeedfulError
from heedful.text.tokenizer import END, PAD
from tests.decoding.markov import random_chain, sources

CHAINS = random_chain(1, chains=3, words=7, contrast=1.0)
SOURCE = sources([0, 1, 2])
FREE: list[tuple[int, ...]] = [()] * 3


def test_limits_are_the_source_and_some_more() -> None:
    source = torch.tensor([[7, 8, 9, 5, END], [7, END, PAD, PAD, PAD], [END, PAD, PAD, PAD, PAD]])
    assert output_limits(source, SearchConfig()) == [54, 51, 50]
    assert output_limits(source, SearchConfig(extra_length=3)) == [7, 4, 3]


def test_beam_of_one_is_greedy_and_gives_one() -> None:
    config = SearchConfig(beam=1)
    expected = greedy(CHAINS, SOURCE, config, [9] * 3, FREE)
    assert search(CHAINS, SOURCE, config, limits=[9] * 3) == [[best] for best in expected]


@pytest.mark.parametrize("n_best", [1, 3, 5])
def test_the_n_best_of_the_beam(n_best: int) -> None:
    config = SearchConfig(beam=5, n_best=n_best)
    found = search(CHAINS, SOURCE, config, limits=[9] * 3)
    assert [len(hypotheses) for hypotheses in found] == [n_best] * 3
    whole = beam_search(CHAINS, SOURCE, config, [9] * 3, FREE)
    assert found == [hypotheses[:n_best] for hypotheses in whole]


def test_sampling_is_a_method() -> None:
    config = SearchConfig(method="sample", n_best=7, beam=1, seed=3)
    assert search(CHAINS, SOURCE, config, limits=[9] * 3) == sampled(CHAINS, SOURCE, config, [9] * 3, FREE)


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 3}, {"method": "sample"}])
def test_a_prefix_longer_than_the_limit_leaves_room_for_one_more(settings: dict[str, object]) -> None:
    config = SearchConfig.checked(settings)
    prefixes = [(3, 4, 5, 3), (), (2,)]
    found = search(CHAINS, SOURCE, config, limits=[2, 2, 2], prefixes=prefixes)
    assert found[0][0].tokens[:4] == (3, 4, 5, 3)
    assert len(found[0][0].log_probabilities) == 5
    assert all(len(hypothesis.log_probabilities) <= 2 for hypothesis in (*found[1], *found[2]))
    assert found[2][0].tokens[0] == 2


def test_own_limits_are_used_when_none_are_given() -> None:
    """Chains without an end run into source + extra_length, each sentence into its own."""
    endless = random_chain(2, chains=5, words=5)
    endless.log_probabilities[..., END] = -torch.inf
    source = torch.tensor([[4, 3, 3, END], [4, END, PAD, PAD]])
    for beam in (1, 3):
        found = search(endless, source, SearchConfig(beam=beam, extra_length=2))
        assert [len(hypotheses[0].tokens) for hypotheses in found] == [5, 3]


def test_a_beam_cannot_give_more_than_it_holds() -> None:
    with pytest.raises(HeedfulError, match="a beam of 2 cannot give 3 translations") as caught:
        SearchConfig.checked({"beam": 2, "n_best": 3})
    assert caught.value.hint == "set the beam to 3 or more"
    assert SearchConfig.checked({"beam": 2, "n_best": 3, "method": "sample"}).n_best == 3
