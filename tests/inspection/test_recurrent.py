"""A recurrent model can be looked into as far as it has something to see: its attention over the source."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.inspection.asked import Asked
from heedful.inspection.attribution import gradient_matrix, occlusion_matrix, rollout
from heedful.inspection.heads import head_profiles
from heedful.inspection.record import record
from heedful.inspection.trace import trace
from heedful.inspection.word import explain_word
from tests.inspection.models import new_bundle

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."


@pytest.mark.parametrize("family", ["gru", "lstm"])
def test_what_there_is_to_see(family: str) -> None:
    bundle = new_bundle("bpe", family=family)
    seen = trace(bundle, SENTENCE, TARGET)
    assert seen.layers == {"encoder": 0, "decoder": 0, "cross": 1}
    weights = seen.weights("cross", 0)
    assert weights.shape == (1, len(seen.written.ids), len(seen.source.ids))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, len(seen.written.ids)))
    assert len(head_profiles([seen])) == 1
    assert gradient_matrix(bundle, seen).isfinite().all()
    assert occlusion_matrix(bundle, seen).isfinite().all()
    with pytest.raises(HeedfulError, match="no rollout"):
        rollout(seen)
    with pytest.raises(HeedfulError, match="recurrent"):
        explain_word(bundle, seen, "cross", 0, 0, 1)


def test_a_record_of_it() -> None:
    bundle = new_bundle("bpe", family="gru")
    found = record(bundle, Asked(source=SENTENCE, hidden=(2,)))
    assert found.manifest["model"]["family"] == "gru"
    assert found.manifest["model"]["heads"] == 1
    for tensor, entry in found.manifest["tensors"].items():
        assert tuple(found.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert not found.tensors.get("decoder.0.cross.weights")[..., 2].any()
    with pytest.raises(HeedfulError, match="recurrent"):
        record(bundle, Asked(source=SENTENCE, off=("cross.0.0",)))
