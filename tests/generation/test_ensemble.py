"""Ensembles: one member changes nothing; several predict the mean, in any architecture."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.generation.ensemble import Ensemble, average_log_probabilities
from heedful.generation.search import search
from heedful.models.base import Seq2SeqModel
from heedful.models.config import ModelConfig
from heedful.models.factory import new_model
from heedful.tokenization.special_tokens import END, PAD

SHAPE = {"source_vocab_size": 23, "target_vocab_size": 19, "share_embeddings": False, "d_model": 8, "heads": 2}
SOURCE = torch.tensor([[5, 7, 11, 13, END], [17, 6, END, PAD, PAD], [9, END, PAD, PAD, PAD]])
BEAM = GenerationConfig(beam_size=3, n_best=3, max_length_offset=7)


def new_member(seed: int, **settings: object) -> Seq2SeqModel:
    torch.manual_seed(seed)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_ff": 11}
    config = ModelConfig.from_settings({**SHAPE, **shape, "norm_placement": "pre", **settings})
    model = new_model(config).double().eval()
    assert isinstance(model, Seq2SeqModel)
    for parameter in model.parameters():
        parameter.data.mul_(3)  # makes the distributions less uniform
    return model


MEMBERS = [
    new_member(1),
    new_member(2, architecture="gru"),
    new_member(3, positions="rotary", decoder_layers=1, d_model=16),
]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ensemble_of_one_model_matches_the_model(count: int) -> None:
    for config in (BEAM, GenerationConfig(beam_size=1), GenerationConfig(method="sample", n_best=2)):
        alone = search(MEMBERS[0], SOURCE, config)
        together = search(Ensemble([MEMBERS[0]] * count), SOURCE, config)
        for ours, theirs in zip(together, alone, strict=True):
            assert [hypothesis.tokens for hypothesis in ours] == [hypothesis.tokens for hypothesis in theirs]
            assert [hypothesis.score for hypothesis in ours] == pytest.approx(
                [hypothesis.score for hypothesis in theirs], abs=1e-9
            )


@torch.inference_mode()
def test_ensemble_step_averages_members() -> None:
    """Each member predicts separately after the same tokens; the mean is computed here."""
    tokens = torch.tensor([PAD, PAD, PAD])
    alone = [model.step(tokens, model.start(SOURCE))[0].exp() for model in MEMBERS]
    ensemble = Ensemble(MEMBERS)
    log_probabilities, state = ensemble.step(tokens, ensemble.start(SOURCE))
    torch.testing.assert_close(log_probabilities.exp(), sum(alone) / 3, rtol=0, atol=1e-12)
    assert not torch.allclose(alone[0], alone[1], atol=0.01)

    rows = torch.tensor([[2], [0]])  # drop the second sentence, swap the others
    next_tokens = torch.tensor([8, 4])
    log_probabilities, _ = ensemble.step(next_tokens, state.reorder(rows))
    before = torch.tensor([[PAD, 8], [PAD, 4]])
    expected = sum(model.log_probabilities(SOURCE[[2, 0]], before)[:, -1].exp() for model in MEMBERS)
    torch.testing.assert_close(log_probabilities.exp(), expected / 3, rtol=0, atol=1e-9)


@torch.inference_mode()
@pytest.mark.parametrize("mean", ["probabilities", "logs"])
def test_ensemble_search_score_matches_forced_decoding(mean: str) -> None:
    ensemble = Ensemble(MEMBERS, mean)  # type: ignore[arg-type]
    for row, actual in enumerate(search(ensemble, SOURCE, BEAM)):
        for hypothesis in actual:
            target = [*hypothesis.tokens, END] if hypothesis.complete else list(hypothesis.tokens)
            log_probabilities = ensemble.score(SOURCE[row : row + 1], torch.tensor([target]))[0]
            assert hypothesis.log_probabilities == pytest.approx(log_probabilities.tolist(), abs=1e-9)


def test_ensemble_mean_of_logarithms_is_normalized() -> None:
    torch.manual_seed(5)
    log_probabilities = [torch.randn(3, 7).double().log_softmax(-1) for _ in range(4)]
    product = torch.stack(log_probabilities).mean(0).exp()
    expected = product / product.sum(-1, keepdim=True)
    torch.testing.assert_close(average_log_probabilities(log_probabilities, "logs").exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        average_log_probabilities(log_probabilities, "logs").exp().sum(-1), torch.ones(3).double()
    )


def test_ensemble_max_length_is_the_smallest() -> None:
    limited_members = [new_member(4, positions="learned", max_length=length) for length in (31, 17)]
    assert Ensemble([MEMBERS[0], *limited_members]).max_length == 17
    assert Ensemble(MEMBERS).max_length is None


def test_ensemble_unknown_mean_raises() -> None:
    with pytest.raises(HeedfulError, match="unknown ensemble mean 'median'"):
        Ensemble(MEMBERS, "median")  # type: ignore[arg-type]
