"""Alternatives at a step: exact probabilities, and translations that really start as they say."""

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.inspection.asked import Asked
from heedful.inspection.continuing import continuations
from heedful.inspection.record import record
from heedful.inspection.trace import END_LABEL
from heedful.text.tokenizer import END
from tests.inspection.models import new_bundle

SOURCE = "The animal didn't cross the street."
TARGET = "L'animal n'a pas traversé la rue."


@pytest.mark.parametrize(("kind", "step"), [("word", 3), ("bpe", 4)])
def test_probabilities_are_the_softmax_of_the_logits(kind: str, step: int) -> None:
    made = record(new_bundle(kind), Asked(source=SOURCE, target=TARGET))
    logits = made.seen.tensors["logits"][step].numpy().astype(np.float64)
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    found = continuations(made, step, 11)
    assert [each.id for each in found] == np.argsort(-logits)[:11].tolist()
    np.testing.assert_allclose(
        [each.probability for each in found], chances[[e.id for e in found]], rtol=1e-12
    )
    assert [each.piece for each in found] == made.bundle.tokenizer.target.pieces([e.id for e in found])


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("off", [(), ("cross.1.2", "decoder.0.1")])
def test_each_is_what_forcing_it_gives(kind: str, off: tuple[str, ...]) -> None:
    bundle = new_bundle(kind)
    asked = Asked(source=SOURCE, beam=3, off=off)
    made = record(bundle, asked)
    step = 2
    others = [each for each in continuations(made, step, 4) if each.id != made.seen.written.ids[step]]
    assert len(others) >= 3
    for each in others:
        prefix = (*made.seen.written.ids[:step], each.id)
        forced = record(bundle, asked.model_copy(update={"prefix_ids": prefix}))
        assert forced.seen.written.ids[: step + 1] == prefix
        assert each.text == forced.manifest["translation"]["text"]
        side = forced.seen.written
        assert each.word == side.words[side.groups[step]]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_what_was_written_leads_to_what_is_shown(kind: str) -> None:
    """Also where a search that is forced to begin so would end otherwise, as with a given translation."""
    made = record(new_bundle(kind), Asked(source=SOURCE, target=TARGET))
    step = 3
    own = made.seen.written.ids[step]
    logits = made.seen.tensors["logits"].clone()
    logits[step, own] = 100.0  # among the likeliest
    made.seen.tensors["logits"] = logits
    [first, *_] = found = continuations(made, step, 2)
    assert (first.id, first.text) == (own, TARGET)
    assert first.word == made.seen.written.words[made.seen.written.groups[step]]
    assert found[1].text != TARGET


def test_the_end_is_an_alternative() -> None:
    made = record(new_bundle(), Asked(source=SOURCE, target=TARGET))
    last = len(made.seen.written.ids) - 1
    logits = made.seen.tensors["logits"].clone()
    logits[last, END] = 100.0
    made.seen.tensors["logits"] = logits
    [end, other] = continuations(made, last, 2)
    assert (end.id, end.word, end.text) == (END, END_LABEL, TARGET)
    assert end.probability == pytest.approx(1.0)
    assert other.text.startswith(TARGET)
    assert continuations(made, last, 1) == [end]


def test_a_step_that_there_is_not() -> None:
    made = record(new_bundle(), Asked(source=SOURCE, target=TARGET))
    steps = len(made.seen.written.ids)
    with pytest.raises(HeedfulError, match=f"no step {steps + 1}.*\n?.*steps 1 to {steps}"):
        continuations(made, steps)
