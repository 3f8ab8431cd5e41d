"""Rollout by hand; gradient against finite differences; occlusion against a model with the word masked."""

import pytest
import torch

from heedful.interpret import attribution
from heedful.interpret.activations import compute_activations
from heedful.interpret.attribution import (
    attention_rollout,
    gradient_attribution,
    gradient_matrix,
    normalize_attribution,
    occlusion_attribution,
    occlusion_matrix,
    target_rollout,
)
from tests.interpret.small_models import new_model_folder

SOURCE, TARGET = "The animal was tired.", "L'animal était fatigué."


def test_attention_rollout_matches_hand_computation() -> None:
    activations = compute_activations(new_model_folder(layers=(2, 1)), SOURCE, TARGET)
    first, second = (activations.weights("encoder", layer).double().mean(0) for layer in (0, 1))
    eye = torch.eye(6, dtype=torch.float64)
    expected = (0.5 * eye + 0.5 * second) @ (0.5 * eye + 0.5 * first)
    torch.testing.assert_close(attention_rollout(activations), expected)


def test_target_rollout_rows_sum_to_one() -> None:
    activations = compute_activations(new_model_folder(), SOURCE, TARGET)
    source, target = target_rollout(activations)
    assert source.shape == (6, 6)
    assert target.shape == (6, 6)
    torch.testing.assert_close(source.sum(1) + target.sum(1), torch.ones(6, dtype=torch.float64))
    assert (target.triu(1) == 0).all()  # no weight on future positions
    assert (source > 0).all()


def test_target_rollout_matches_hand_computation() -> None:
    activations = compute_activations(new_model_folder(layers=(2, 1)), SOURCE, TARGET)
    own, cross = (activations.weights(kind, 0).double().mean(0) for kind in ("decoder", "cross"))
    source, target = target_rollout(activations)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(target, (eye + own) / 4)
    torch.testing.assert_close(source, cross @ attention_rollout(activations) / 2)


def test_attribution_matrices_match_single_steps() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    for matrix, single in (
        (gradient_matrix(model_folder, activations), gradient_attribution),
        (occlusion_matrix(model_folder, activations), occlusion_attribution),
    ):
        assert matrix.shape == (6, 6)
        for step in range(6):
            torch.testing.assert_close(matrix[step], single(model_folder, activations, step))
        assert not torch.allclose(matrix[0], matrix[3])


def test_occlusion_matrix_in_small_batches_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    expected = occlusion_matrix(model_folder, activations)
    monkeypatch.setattr(attribution, "MAX_LOGITS", 1)
    torch.testing.assert_close(occlusion_matrix(model_folder, activations), expected, rtol=1e-4, atol=1e-4)


def test_normalize_attribution_ignores_negative_values() -> None:
    normalized = normalize_attribution(torch.tensor([[3.0, -2.0, 1.0], [-1.0, -1.0, 0.0]]))
    torch.testing.assert_close(normalized, torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradient_attribution_matches_finite_differences(norm: str) -> None:
    model_folder = new_model_folder(norm_placement=norm)
    model_folder.translation_model.double()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    step, contrast_id = 2, 17
    attribution_row = gradient_attribution(model_folder, activations, step, contrast_id)
    assert attribution_row.shape == (6,)
    table = model_folder.translation_model.encoder.embedding.table.weight.data
    position = 3  # a word that occurs once
    token_id = activations.source.ids[position]
    assert activations.source.ids.count(token_id) == 1

    def margin() -> float:
        with torch.inference_mode():
            source, decoder_input = (
                torch.tensor([activations.source.ids]),
                torch.tensor([activations.decoder_input.ids]),
            )
            logits = model_folder.translation_model.logits(model_folder.translation_model(source, decoder_input))[
                0, step
            ]
        return float(logits[activations.target.ids[step]] - logits[contrast_id])

    slopes = []
    for channel in range(table.size(1)):
        table[token_id, channel] += 1e-5
        above = margin()
        table[token_id, channel] -= 2e-5
        slopes.append((above - margin()) / 2e-5)
        table[token_id, channel] += 1e-5
    assert float(attribution_row[position]) == pytest.approx(float(torch.tensor(slopes).norm()), rel=1e-4)


def test_attribution_default_contrast_is_strongest_other_token() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    logits = activations.tensors["logits"][1].clone()
    logits[activations.target.ids[1]] = -torch.inf
    strongest = int(logits.argmax())
    for method in (gradient_attribution, occlusion_attribution):
        default, named = method(model_folder, activations, 1), method(model_folder, activations, 1, strongest)
        if method is gradient_attribution:
            torch.testing.assert_close(default, named)
        assert not torch.allclose(named, method(model_folder, activations, 1, 5))


def test_occlusion_attribution_masks_one_token_and_keeps_positions() -> None:
    """Against an explicit mask that removes the word's key and value from every attention."""
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    step, contrast_id, position = 1, 9, 2
    attribution_row = occlusion_attribution(model_folder, activations, step, contrast_id)
    model = model_folder.translation_model
    source, decoder_input = torch.tensor([activations.source.ids]), torch.tensor([activations.decoder_input.ids])
    attention_mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    attention_mask[..., position] = False
    with torch.inference_mode():
        memory = model.encoder(source, attention_mask)
        masked_logits = model.logits(model.decoder(decoder_input, memory, attention_mask))[0, step]
    logits, token = activations.tensors["logits"][step], activations.target.ids[step]
    expected = (logits[token] - logits[contrast_id]) - (masked_logits[token] - masked_logits[contrast_id])
    assert float(attribution_row[position]) == pytest.approx(float(expected), abs=1e-4)


def test_attribution_leaves_model_unchanged() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    gradient_attribution(model_folder, activations, 0)
    assert all(parameter.grad is None for parameter in model_folder.translation_model.parameters())
    second = compute_activations(model_folder, SOURCE, TARGET)
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in activations.tensors.items())
