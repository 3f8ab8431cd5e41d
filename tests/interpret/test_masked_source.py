"""Masked source tokens: like padding in the pass, in search and in explanations."""

import math
from pathlib import Path

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.interpret.activations import AttentionKind
from heedful.interpret.alternatives import generate_alternatives
from heedful.interpret.attention_row import explain_row
from heedful.interpret.attribution import occlusion_attribution
from heedful.interpret.heads import compute_head_profiles
from heedful.interpret.trace import Trace, compute_trace
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS, TraceRequest
from heedful.model_folder import ModelFolder
from tests.interpret.small_models import new_model_folder

SOURCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue."
MASKED_POSITIONS = (2, 5)
SOURCE_KINDS: tuple[AttentionKind, ...] = ("encoder", "cross")


@pytest.fixture(scope="module", params=[("word", "post"), ("bpe", "pre")], ids=lambda item: "-".join(item))
def trace(request: pytest.FixtureRequest) -> Trace:
    """Two subwords are masked in an untrained model."""
    return compute_trace(
        new_model_folder(*request.param), TraceRequest(source=SOURCE, target=TARGET, masked_source=MASKED_POSITIONS)
    )


def test_trace_masked_source_gets_no_weight_and_keeps_labels(trace: Trace) -> None:
    plain = compute_trace(trace.model_folder, TraceRequest(source=SOURCE, target=TARGET))
    assert trace.activations.source == plain.activations.source
    assert trace.manifest["request"]["masked_source"] == list(MASKED_POSITIONS)
    assert trace.fingerprint != plain.fingerprint
    for kind in SOURCE_KINDS:
        for layer in range(trace.activations.layers[kind]):
            weights = trace.activations.weights(kind, layer)
            assert (weights[..., list(MASKED_POSITIONS)] == 0).all()
            assert (plain.activations.weights(kind, layer)[..., list(MASKED_POSITIONS)] > 0).any()
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    same = trace.tensors.get("encoder.0.self.weights")
    padded = trace.tensors.get("padding.weights")[..., : same.size(-1)]
    torch.testing.assert_close(padded, same, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_trace_masked_source_matches_occlusion(kind: str) -> None:
    model_folder = new_model_folder(kind)
    plain = compute_trace(model_folder, TraceRequest(source=SOURCE, target=TARGET))
    step, contrast_id, token = 2, 9, plain.activations.target.ids[2]
    expected = occlusion_attribution(model_folder, plain.activations, step, contrast_id)
    for position in (0, 3, len(plain.activations.source.ids) - 2):
        trace = compute_trace(model_folder, TraceRequest(source=SOURCE, target=TARGET, masked_source=(position,)))
        before, after = (item.activations.tensors["logits"][step] for item in (plain, trace))
        actual = (before[token] - before[contrast_id]) - (after[token] - after[contrast_id])
        assert float(actual) == pytest.approx(float(expected[position]), abs=1e-4)
    masked = compute_trace(model_folder, TraceRequest(source=SOURCE, target=TARGET, masked_source=(0,))).activations
    repeated = occlusion_attribution(model_folder, masked, step, contrast_id)
    assert float(repeated[0]) == pytest.approx(0, abs=1e-4)  # masking it again changes nothing


def test_explain_row_masked_source_adds_up(trace: Trace) -> None:
    """A masked key has a score and no weight; the row of a masked word is still computed."""
    for kind in SOURCE_KINDS:
        for layer in range(trace.activations.layers[kind]):
            for row in (1, MASKED_POSITIONS[0]):
                explanation = explain_row(
                    trace.model_folder, trace.activations, kind, layer, 1, row, key=MASKED_POSITIONS[0]
                )
                values = explanation.values
                masked = torch.tensor(values["masked"])
                assert [n for n, item in enumerate(masked.isinf().tolist()) if item] == list(MASKED_POSITIONS)
                weights = torch.tensor(values["weights"])
                torch.testing.assert_close(weights, masked.softmax(-1))
                trace_weights = trace.activations.weights(kind, layer)[1, row]
                torch.testing.assert_close(weights, trace_weights, atol=1e-5, rtol=0)
                assert weights[list(MASKED_POSITIONS)].tolist() == [0, 0]
                assert sum(values["products"]) == pytest.approx(values["scores"][MASKED_POSITIONS[0]])
                name = f"{'encoder' if kind == 'encoder' else 'decoder'}.{layer}"
                stream = trace.activations.tensors[f"{name}.{'self' if kind == 'encoder' else 'cross'}.residual"][row]
                torch.testing.assert_close(torch.tensor(values["result"]), stream, atol=1e-4, rtol=0)
                notes = [note for section in explanation.sections for note in section.notes]
                assert any("Masked words get -inf" in note for note in notes)
                is_hidden = kind == "encoder" and row in MASKED_POSITIONS
                assert any("is masked: the model reads padding" in note for note in notes) == is_hidden
    table = (
        explain_row(trace.model_folder, trace.activations, "encoder", 0, 0, MASKED_POSITIONS[0]).sections[1].tables[0]
    )
    embedding, scaled, position = (torch.tensor(row) for row in table.cells[:3])
    assert not embedding.any()  # the embedding of PAD
    torch.testing.assert_close(scaled + position, torch.tensor(table.footer[0][1]))


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_generate_alternatives_masked_source_matches_forced_prefix(kind: str) -> None:
    """The translation is that of a model that reads padding there, with forced prefixes too."""
    model_folder = new_model_folder(kind)
    trace_request = TraceRequest(source=SOURCE, beam_size=3, masked_source=MASKED_POSITIONS)
    trace = compute_trace(model_folder, trace_request)
    nodes = trace.manifest["beam_search"]["nodes"]
    first = trace.activations.tensors["logits"][0].log_softmax(-1)
    for node in (item for item in nodes if item["step"] == 0):
        assert node["log_probability"] == pytest.approx(float(first[node["id"]]), abs=1e-4)
    assert len(trace.activations.target.ids) == len(
        compute_trace(model_folder, TraceRequest(source=SOURCE, beam_size=3)).activations.target.ids
    )
    for item in generate_alternatives(trace, 2, 3):
        prefix = (*trace.activations.target.ids[:2], item.token_id)
        forced = compute_trace(model_folder, trace_request.model_copy(update={"prefix_ids": prefix}))
        assert item.translation.text == forced.manifest["translation"]["text"]


def test_trace_masked_source_may_mask_all_but_end() -> None:
    model_folder = new_model_folder()
    everything = tuple(range(len(model_folder.tokenizer.source.encode(SOURCE))))
    trace = compute_trace(model_folder, TraceRequest(source=SOURCE, target=TARGET, masked_source=everything))
    assert (trace.activations.weights("cross", 1)[..., -1] == 1).all()
    assert torch.isfinite(trace.activations.tensors["decoder.states"]).all()
    assert {item.pattern for item in compute_head_profiles([trace.activations]) if item.kind == "cross"} == {"end sink"}
    for wrong in (len(everything), -1, 10**30):
        with pytest.raises(HeedfulError, match=f"masked_source has position {wrong}, which does not exist"):
            compute_trace(model_folder, TraceRequest(source=SOURCE, masked_source=(0, wrong)))
    with pytest.raises(HeedfulError, match="masked_source"):
        TraceRequest.from_settings({"source": SOURCE, "masked_source": [0] * (MAX_TRACE_TOKENS + 1)})


def test_compute_head_profiles_ignores_masked_source() -> None:
    """A masked row and column do not change the profile, except for distances."""
    trace = compute_trace(new_model_folder(), TraceRequest(source=SOURCE, target=TARGET, masked_source=(0,)))
    unmasked = [n for n in range(len(trace.activations.source.ids)) if n != 0]
    for profile in compute_head_profiles([trace.activations]):
        if profile.kind == "decoder":
            continue
        weights = trace.activations.weights(profile.kind, profile.layer)[profile.head].double()[:, unmasked]
        rows = weights[unmasked] if profile.kind == "encoder" else weights
        bits = -torch.special.xlogy(rows, rows).sum(-1) / math.log(2)
        assert profile.entropy == pytest.approx(float(bits.mean()), abs=1e-6)
        assert profile.normalized_entropy == pytest.approx(float(bits.mean()) / math.log2(len(unmasked)), abs=1e-6)


def test_trace_masked_source_changes_trained_translation(demo_model: Path) -> None:
    """Without "tired" in the source, its translation becomes improbable."""
    model_folder = ModelFolder.load(demo_model)
    plain = compute_trace(model_folder, TraceRequest(source=SOURCE))
    words = plain.activations.source.words
    [tired] = plain.activations.source.positions_of_word(words.index("tired"))
    ids = tuple(plain.manifest["translation"]["ids"])
    masked = compute_trace(model_folder, TraceRequest(source=SOURCE, target_ids=ids, masked_source=(tired,)))
    step = plain.activations.target.words.index("fatigué")
    changes = [
        after["log_probability"] - before["log_probability"]
        for before, after in zip(plain.manifest["steps"], masked.manifest["steps"], strict=True)
    ]
    assert changes[step] < -1
    rewritten = compute_trace(model_folder, TraceRequest(source=SOURCE, masked_source=(tired,)))
    assert rewritten.manifest["translation"]["text"] != plain.manifest["translation"]["text"]
