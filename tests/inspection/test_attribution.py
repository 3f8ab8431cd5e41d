"""Rollout by hand; gradient against finite differences; occlusion against a model that never saw the word."""

import pytest
import torch

from heedful.inspection import attribution
from heedful.inspection.attribution import (
    gradient_attribution,
    gradient_matrix,
    occlusion_attribution,
    occlusion_matrix,
    rollout,
    shares,
    target_rollout,
)
from heedful.inspection.trace import trace
from tests.inspection.models import new_bundle

SOURCE, TARGET = "The animal was tired.", "L'animal était fatigué."


def test_rollout_by_hand() -> None:
    seen = trace(new_bundle(layers=(2, 1)), SOURCE, TARGET)
    first, second = (seen.weights("encoder", layer).double().mean(0) for layer in (0, 1))
    eye = torch.eye(6, dtype=torch.float64)
    expected = (0.5 * eye + 0.5 * second) @ (0.5 * eye + 0.5 * first)
    torch.testing.assert_close(rollout(seen), expected)


def test_rollout_of_both_stacks_shares_out_one() -> None:
    seen = trace(new_bundle(), SOURCE, TARGET)
    source, target = target_rollout(seen)
    assert source.shape == (6, 6)
    assert target.shape == (6, 6)
    torch.testing.assert_close(source.sum(1) + target.sum(1), torch.ones(6, dtype=torch.float64))
    assert (target.triu(1) == 0).all()  # nothing comes from the future
    assert (source > 0).all()


def test_rollout_of_both_stacks_by_hand() -> None:
    seen = trace(new_bundle(layers=(2, 1)), SOURCE, TARGET)
    own, cross = (seen.weights(kind, 0).double().mean(0) for kind in ("decoder", "cross"))
    source, target = target_rollout(seen)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(target, (eye + own) / 4)
    torch.testing.assert_close(source, cross @ rollout(seen) / 2)


def test_matrices_have_a_row_for_every_written_word() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    for matrix, single in (
        (gradient_matrix(bundle, seen), gradient_attribution),
        (occlusion_matrix(bundle, seen), occlusion_attribution),
    ):
        assert matrix.shape == (6, 6)
        for step in range(6):
            torch.testing.assert_close(matrix[step], single(bundle, seen, step))
        assert not torch.allclose(matrix[0], matrix[3])


def test_occlusion_in_small_helpings(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    whole = occlusion_matrix(bundle, seen)
    monkeypatch.setattr(attribution, "MOST_LOGITS", 1)
    torch.testing.assert_close(occlusion_matrix(bundle, seen), whole, rtol=1e-4, atol=1e-4)


def test_shares_count_only_what_speaks_for_a_word() -> None:
    found = shares(torch.tensor([[3.0, -2.0, 1.0], [-1.0, -1.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradient_matches_finite_differences(norm: str) -> None:
    bundle = new_bundle(norm=norm)
    bundle.model.double()
    seen = trace(bundle, SOURCE, TARGET)
    step, rival = 2, 17
    found = gradient_attribution(bundle, seen, step, rival)
    assert found.shape == (6,)
    table = bundle.model.encoder.embedding.table.weight.data
    place = 3  # a word that stands only once
    identity = seen.source.ids[place]
    assert seen.source.ids.count(identity) == 1

    def margin() -> float:
        with torch.inference_mode():
            source, before = torch.tensor([seen.source.ids]), torch.tensor([seen.read.ids])
            logits = bundle.model.logits(bundle.model(source, before))[0, step]
        return float(logits[seen.written.ids[step]] - logits[rival])

    slopes = []
    for channel in range(table.size(1)):
        table[identity, channel] += 1e-5
        above = margin()
        table[identity, channel] -= 2e-5
        slopes.append((above - margin()) / 2e-5)
        table[identity, channel] += 1e-5
    assert float(found[place]) == pytest.approx(float(torch.tensor(slopes).norm()), rel=1e-4)


def test_the_strongest_rival_is_meant_by_default() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    logits = seen.tensors["logits"][1].clone()
    logits[seen.written.ids[1]] = -torch.inf
    strongest = int(logits.argmax())
    for method in (gradient_attribution, occlusion_attribution):
        default, named = method(bundle, seen, 1), method(bundle, seen, 1, strongest)
        if method is gradient_attribution:
            torch.testing.assert_close(default, named)
        assert not torch.allclose(named, method(bundle, seen, 1, 5))


def test_occlusion_hides_one_word_and_keeps_the_places() -> None:
    """Against a mask made by hand: the word's key and value are cut out of every attention."""
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    step, rival, place = 1, 9, 2
    found = occlusion_attribution(bundle, seen, step, rival)
    model = bundle.model
    source, before = torch.tensor([seen.source.ids]), torch.tensor([seen.read.ids])
    visible = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    visible[..., place] = False
    with torch.inference_mode():
        memory = model.encoder(source, visible)
        hidden = model.logits(model.decoder(before, memory, visible))[0, step]
    whole, token = seen.tensors["logits"][step], seen.written.ids[step]
    lost = (whole[token] - whole[rival]) - (hidden[token] - hidden[rival])
    assert float(found[place]) == pytest.approx(float(lost), abs=1e-4)


def test_looking_leaves_no_trace() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    gradient_attribution(bundle, seen, 0)
    assert all(parameter.grad is None for parameter in bundle.model.parameters())
    again = trace(bundle, SOURCE, TARGET)
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in seen.tensors.items())
