"""Ensembles: one member changes nothing, several predict the mean, whatever family they are of."""

import pytest
import torch

from heedful.decoding.config import SearchConfig
from heedful.decoding.ensemble import Ensemble, averaged
from heedful.decoding.search import search
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.model.family import new_model
from heedful.model.translator import Translator
from heedful.text.tokenizer import END, PAD

SHAPE = {"source_vocabulary": 23, "target_vocabulary": 19, "joint": False, "width": 8, "heads": 2}
SOURCE = torch.tensor([[5, 7, 11, 13, END], [17, 6, END, PAD, PAD], [9, END, PAD, PAD, PAD]])
BEAM = SearchConfig(beam=3, n_best=3, extra_length=7)


def member(seed: int, **settings: object) -> Translator:
    torch.manual_seed(seed)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "feed_forward_width": 11}
    config = ModelConfig.checked({**SHAPE, **shape, "norm": "pre", **settings})
    model = new_model(config).double().eval()
    assert isinstance(model, Translator)
    for parameter in model.parameters():
        parameter.data.mul_(3)  # random models are undecided; these are not
    return model


FAMILY = [member(1), member(2, family="gru"), member(3, positions="rotary", decoder_layers=1, width=16)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_model_several_times_is_the_model(count: int) -> None:
    for config in (BEAM, SearchConfig(beam=1), SearchConfig(method="sample", n_best=2)):
        alone = search(FAMILY[0], SOURCE, config)
        together = search(Ensemble([FAMILY[0]] * count), SOURCE, config)
        for ours, theirs in zip(together, alone, strict=True):
            assert [each.tokens for each in ours] == [each.tokens for each in theirs]
            assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-9)


@torch.inference_mode()
def test_a_step_predicts_the_mean_of_what_the_members_predict() -> None:
    """Every member is asked alone, after the same words; the mean is computed here."""
    tokens = torch.tensor([PAD, PAD, PAD])
    alone = [model.step(tokens, model.start(SOURCE))[0].exp() for model in FAMILY]
    ensemble = Ensemble(FAMILY)
    predicted, state = ensemble.step(tokens, ensemble.start(SOURCE))
    torch.testing.assert_close(predicted.exp(), sum(alone) / 3, rtol=0, atol=1e-12)
    assert not torch.allclose(alone[0], alone[1], atol=0.01)

    rows = torch.tensor([[2], [0]])  # the second sentence leaves, the others change places
    words = torch.tensor([8, 4])
    predicted, _ = ensemble.step(words, state.reorder(rows))
    before = torch.tensor([[PAD, 8], [PAD, 4]])
    expected = sum(model.log_probabilities(SOURCE[[2, 0]], before)[:, -1].exp() for model in FAMILY)
    torch.testing.assert_close(predicted.exp(), expected / 3, rtol=0, atol=1e-9)


@torch.inference_mode()
@pytest.mark.parametrize("mean", ["probabilities", "logs"])
def test_what_search_gives_a_translation_is_its_score(mean: str) -> None:
    ensemble = Ensemble(FAMILY, mean)  # type: ignore[arg-type]
    for row, found in enumerate(search(ensemble, SOURCE, BEAM)):
        for hypothesis in found:
            written = [*hypothesis.tokens, END] if hypothesis.complete else list(hypothesis.tokens)
            gained = ensemble.score(SOURCE[row : row + 1], torch.tensor([written]))[0]
            assert hypothesis.log_probabilities == pytest.approx(gained.tolist(), abs=1e-9)


def test_a_mean_of_logarithms_sums_to_one() -> None:
    torch.manual_seed(5)
    some = [torch.randn(3, 7).double().log_softmax(-1) for _ in range(4)]
    product = torch.stack(some).mean(0).exp()
    expected = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close(averaged(some, "logs").exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(averaged(some, "logs").exp().sum(-1), torch.ones(3).double())


def test_the_shortest_limit_counts() -> None:
    limited = [member(4, positions="learned", longest=length) for length in (31, 17)]
    assert Ensemble([FAMILY[0], *limited]).longest == 17
    assert Ensemble(FAMILY).longest is None


def test_an_unknown_mean_is_refused() -> None:
    with pytest.raises(HeedfulError, match="no mean of 'median'"):
        Ensemble(FAMILY, "median")  # type: ignore[arg-type]
