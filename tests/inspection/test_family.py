"""Every member of the family can be looked into: the arithmetic that is shown is the model's own."""

import pytest
import torch

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.arithmetic import model_attention
from heedful.inspection.asked import Asked
from heedful.inspection.attribution import gradient_matrix, occlusion_matrix, rollout, target_rollout
from heedful.inspection.heads import head_profiles
from heedful.inspection.record import record
from heedful.inspection.trace import KINDS, place, trace
from heedful.inspection.word import explain_word
from heedful.model.config import TREE_POSITIONS
from tests.inspection.models import new_bundle
from tests.model.variants import VARIANTS

SENTENCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
DISTANCES = ("alibi", "relative", "relative-tree")
"""Variants in which a distance adds to the scores."""
HEADS = "2 4 4 0 6 4 11 11 11 11 4"
EVERY = pytest.mark.parametrize("name", VARIANTS)


def bundle_of(name: str) -> Bundle:
    settings = dict(VARIANTS[name])
    return new_bundle("bpe", settings.pop("norm", "post"), width=24, heads=3, **settings)


def source_of(name: str) -> str:
    """The sentence; with its tree, for models that read trees."""
    return f"{SENTENCE}\t{HEADS}" if VARIANTS[name].get("positions") in TREE_POSITIONS else SENTENCE


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_the_arithmetic_is_the_models_own(name: str, kind: str) -> None:
    bundle = bundle_of(name)
    seen = trace(bundle, source_of(name), TARGET)
    for layer in range(seen.layers[kind]):
        step, where = model_attention(bundle, seen, kind, layer), place(kind, layer)
        weights = torch.stack([head.attention.weights for head in step.heads])
        torch.testing.assert_close(weights, seen.weights(kind, layer).double(), rtol=0, atol=1e-5)
        outputs = torch.stack([head.attention.output for head in step.heads])
        torch.testing.assert_close(outputs, seen.tensors[f"{where}.heads"].double(), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(step.output, seen.tensors[f"{where}.residual"].double(), rtol=0, atol=1e-4)


@EVERY
def test_every_step_of_a_word_is_told(name: str) -> None:
    bundle = bundle_of(name)
    seen = trace(bundle, source_of(name), TARGET)
    for kind in KINDS:
        told = explain_word(bundle, seen, kind, 0, 1, 3)
        total = sum(w if w != "-inf" else 0 for w in told.values["weights"])
        assert total == pytest.approx(1)
        assert len(told.values["weights"]) == len(seen.sides(kind)[1].pieces)
        text = str(told)
        assert ("RMSNorm" in text) == (VARIANTS[name].get("normalization") == "rms")
        assert ("Rotary" in text) == (name == "rotary" and kind != "cross")
        assert ("+ distance" in text) == (name in DISTANCES and kind != "cross")


@EVERY
def test_a_record_has_every_tensor(name: str) -> None:
    found = record(bundle_of(name), Asked(source=source_of(name)))
    manifest = found.manifest
    assert manifest["model"]["positions"] == VARIANTS[name].get("positions", "sinusoidal")
    for tensor, entry in manifest["tensors"].items():
        assert tuple(found.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert ("encoder.0.self.pattern" in manifest["tensors"]) == name.startswith("bigbird")


def test_why_blocks_are_seen() -> None:
    """Blocks of two pieces: the first, the one itself, and in the encoder one by chance."""
    found = record(bundle_of("bigbird"), Asked(source=SENTENCE, target=TARGET))
    for kind in ("encoder", "decoder"):
        told = found.manifest["patterns"][f"{kind}.0.self"]
        mask = found.seen.tensors[f"{kind}.0.self.pattern"][::2, ::2]
        assert [row.nonzero().flatten().tolist() for row in mask] == told["rows"]
        for row, (seen, why) in enumerate(zip(told["rows"], told["reasons"], strict=True)):
            reasons = dict(zip(seen, why, strict=True))
            if row == 0:
                assert set(why) == {"first"}
                continue
            assert (reasons.pop(0), reasons.pop(row)) == ("first", "window")
            assert list(reasons.values()) == (["random"] if kind == "encoder" else [])


@EVERY
def test_attribution(name: str) -> None:
    bundle = bundle_of(name)
    seen = trace(bundle, source_of(name), TARGET)
    assert gradient_matrix(bundle, seen).isfinite().all()
    assert occlusion_matrix(bundle, seen).isfinite().all()
    assert len(head_profiles([seen])) == 3 * (3 + 2 + 2)
    if name == "linformer":
        with pytest.raises(HeedfulError, match="no rollout"):
            rollout(seen)
    else:
        both = torch.cat(target_rollout(seen), dim=1)
        torch.testing.assert_close(both.sum(1), torch.ones(len(both)).double())


@pytest.mark.parametrize("name", ["bigbird", "linformer", "relative", "tree", "relative-tree"])
def test_hidden_words(name: str) -> None:
    bundle = bundle_of(name)
    found = record(bundle, Asked(source=source_of(name), hidden=(2,)))
    step = model_attention(bundle, found.seen, "encoder", 0)
    weights = torch.stack([head.attention.weights for head in step.heads])
    torch.testing.assert_close(weights, found.seen.weights("encoder", 0).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["tree", "relative-tree"])
def test_a_tree_is_seen_and_its_ids_are_those_of_the_vocabulary(name: str) -> None:
    bundle = bundle_of(name)
    with_tree, without = (trace(bundle, text, TARGET) for text in (source_of(name), SENTENCE))
    assert with_tree.source == without.source
    assert max(with_tree.source.ids) < bundle.config.model.source_vocabulary
    memories = [seen.tensors["encoder.memory"] for seen in (with_tree, without)]
    assert not torch.allclose(*memories, atol=1e-3)
    told = record(bundle, Asked(source=source_of(name), target=TARGET)).manifest
    assert told["text"]["source"] == SENTENCE
    assert told["sides"]["source"]["ids"] == without.source.ids
    embedding = explain_word(bundle, with_tree, "encoder", 0, 0, 3).sections[1].tables[0]
    above = [sum(column) for column in zip(*embedding.cells[1:], strict=True)]
    assert embedding.foot[0][1] == pytest.approx(above, abs=1e-5)


@pytest.mark.parametrize("name", ["tree", "relative-tree"])
def test_without_a_tree_the_arithmetic_is_the_models_own_too(name: str) -> None:
    bundle = bundle_of(name)
    seen = trace(bundle, SENTENCE, TARGET)
    for layer in range(seen.layers["encoder"]):
        step = model_attention(bundle, seen, "encoder", layer)
        own = seen.tensors[f"{place('encoder', layer)}.residual"].double()
        torch.testing.assert_close(step.output, own, rtol=0, atol=1e-4)
