"""Alternatives at a step: exact probabilities, and translations that start with the alternative."""

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.interpret.alternatives import generate_alternatives
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.tokenization.special_tokens import END
from tests.interpret.small_models import new_model_folder

SOURCE = "The animal didn't cross the street."
TARGET = "L'animal n'a pas traversé la rue."


@pytest.mark.parametrize(("kind", "step"), [("word", 3), ("bpe", 4)])
def test_generate_alternatives_probabilities_are_softmax_of_logits(kind: str, step: int) -> None:
    trace = compute_trace(new_model_folder(kind), TraceRequest(source=SOURCE, target=TARGET))
    logits = trace.activations.tensors["logits"][step].numpy().astype(np.float64)
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    alternatives = generate_alternatives(trace, step, 11)
    assert [alternative.token_id for alternative in alternatives] == np.argsort(-logits)[:11].tolist()
    np.testing.assert_allclose(
        [alternative.probability for alternative in alternatives],
        probabilities[[alternative.token_id for alternative in alternatives]],
        rtol=1e-12,
    )
    assert [alternative.subword for alternative in alternatives] == trace.model_folder.tokenizer.target.ids_to_tokens(
        [alternative.token_id for alternative in alternatives]
    )


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("ablated_heads", [(), ("cross.1.2", "decoder.0.1")])
def test_generate_alternatives_match_forced_prefix(kind: str, ablated_heads: tuple[str, ...]) -> None:
    model_folder = new_model_folder(kind)
    request = TraceRequest(source=SOURCE, beam_size=3, ablated_heads=ablated_heads)
    trace = compute_trace(model_folder, request)
    step = 2
    others = [
        alternative
        for alternative in generate_alternatives(trace, step, 4)
        if alternative.token_id != trace.activations.target.ids[step]
    ]
    assert len(others) >= 3
    for alternative in others:
        prefix = (*trace.activations.target.ids[:step], alternative.token_id)
        forced = compute_trace(model_folder, request.model_copy(update={"prefix_ids": prefix}))
        assert forced.activations.target.ids[: step + 1] == prefix
        assert alternative.translation.text == forced.manifest["translation"]["text"]
        side = forced.activations.target
        assert alternative.word == side.words[side.word_ids[step]]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_generate_alternatives_chosen_token_keeps_translation(kind: str) -> None:
    """Even if a search with this prefix would give another translation, as with a given target."""
    trace = compute_trace(new_model_folder(kind), TraceRequest(source=SOURCE, target=TARGET))
    step = 3
    token_id = trace.activations.target.ids[step]
    logits = trace.activations.tensors["logits"].clone()
    logits[step, token_id] = 100.0  # the most probable
    trace.activations.tensors["logits"] = logits
    [first, *_] = alternatives = generate_alternatives(trace, step, 2)
    assert (first.token_id, first.translation.text) == (token_id, TARGET)
    assert first.word == trace.activations.target.words[trace.activations.target.word_ids[step]]
    assert alternatives[1].translation.text != TARGET


def test_generate_alternatives_include_end() -> None:
    trace = compute_trace(new_model_folder(), TraceRequest(source=SOURCE, target=TARGET))
    last = len(trace.activations.target.ids) - 1
    logits = trace.activations.tensors["logits"].clone()
    logits[last, END] = 100.0
    trace.activations.tensors["logits"] = logits
    [end, other] = generate_alternatives(trace, last, 2)
    assert (end.token_id, end.word, end.translation.text) == (END, "", TARGET)
    assert end.probability == pytest.approx(1.0)
    assert other.translation.text.startswith(TARGET)
    assert generate_alternatives(trace, last, 1) == [end]


def test_generate_alternatives_missing_step_is_an_error() -> None:
    trace = compute_trace(new_model_folder(), TraceRequest(source=SOURCE, target=TARGET))
    steps = len(trace.activations.target.ids)
    with pytest.raises(HeedfulError, match=f"step {steps + 1} does not exist.*\n?.*steps 1 to {steps}"):
        generate_alternatives(trace, steps)
