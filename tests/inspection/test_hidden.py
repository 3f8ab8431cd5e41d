"""Words of the source that nobody may look at: masked like padding in the pass, in search, in arithmetic."""

import math
from pathlib import Path

import pytest
import torch

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.asked import LONGEST, Asked
from heedful.inspection.attribution import occlusion_attribution
from heedful.inspection.continuing import continuations
from heedful.inspection.heads import head_profiles
from heedful.inspection.record import Record, record
from heedful.inspection.trace import Kind
from heedful.inspection.word import explain_word
from tests.inspection.models import new_bundle

SOURCE = "The animal didn't cross the street because it was too tired."
TARGET = "L'animal n'a pas traversé la rue."
HIDDEN = (2, 5)
LOOKING_AT_THE_SOURCE: tuple[Kind, ...] = ("encoder", "cross")


@pytest.fixture(scope="module", params=[("word", "post"), ("bpe", "pre")], ids=lambda each: "-".join(each))
def made(request: pytest.FixtureRequest) -> Record:
    """Two pieces are hidden from a model that knows nothing."""
    return record(new_bundle(*request.param), Asked(source=SOURCE, target=TARGET, hidden=HIDDEN))


def test_nobody_looks_at_them_and_names_stay(made: Record) -> None:
    plain = record(made.bundle, Asked(source=SOURCE, target=TARGET))
    assert made.seen.source == plain.seen.source
    assert made.manifest["asked"]["hidden"] == list(HIDDEN)
    assert made.identity != plain.identity
    for kind in LOOKING_AT_THE_SOURCE:
        for layer in range(made.seen.layers[kind]):
            weights = made.seen.weights(kind, layer)
            assert (weights[..., list(HIDDEN)] == 0).all()
            assert (plain.seen.weights(kind, layer)[..., list(HIDDEN)] > 0).any()
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    same = made.tensors.get("encoder.0.self.weights")
    padded = made.tensors.get("padding.weights")[..., : same.size(-1)]
    torch.testing.assert_close(padded, same, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_the_loss_is_that_of_occlusion(kind: str) -> None:
    bundle = new_bundle(kind)
    plain = record(bundle, Asked(source=SOURCE, target=TARGET))
    step, rival, token = 2, 9, plain.seen.written.ids[2]
    lost = occlusion_attribution(bundle, plain.seen, step, rival)
    for place in (0, 3, len(plain.seen.source.ids) - 2):
        made = record(bundle, Asked(source=SOURCE, target=TARGET, hidden=(place,)))
        before, after = (each.seen.tensors["logits"][step] for each in (plain, made))
        found = (before[token] - before[rival]) - (after[token] - after[rival])
        assert float(found) == pytest.approx(float(lost[place]), abs=1e-4)
    without = record(bundle, Asked(source=SOURCE, target=TARGET, hidden=(0,))).seen
    again = occlusion_attribution(bundle, without, step, rival)
    assert float(again[0]) == pytest.approx(0, abs=1e-4)  # what is hidden already cannot be missed


def test_the_arithmetic_adds_up(made: Record) -> None:
    """A hidden key scores, is masked and weighs nothing; a hidden word's row is computed all the same."""
    for kind in LOOKING_AT_THE_SOURCE:
        for layer in range(made.seen.layers[kind]):
            for row in (1, HIDDEN[0]):
                found = explain_word(made.bundle, made.seen, kind, layer, 1, row, key=HIDDEN[0])
                values = found.values
                masked = torch.tensor(values["masked"])
                assert [n for n, each in enumerate(masked.isinf().tolist()) if each] == list(HIDDEN)
                weights = torch.tensor(values["weights"])
                torch.testing.assert_close(weights, masked.softmax(-1))
                own = made.seen.weights(kind, layer)[1, row]
                torch.testing.assert_close(weights, own, atol=1e-5, rtol=0)
                assert weights[list(HIDDEN)].tolist() == [0, 0]
                assert sum(values["products"]) == pytest.approx(values["scores"][HIDDEN[0]])
                name = f"{'encoder' if kind == 'encoder' else 'decoder'}.{layer}"
                stream = made.seen.tensors[f"{name}.{'self' if kind == 'encoder' else 'cross'}.residual"][row]
                torch.testing.assert_close(torch.tensor(values["result"]), stream, atol=1e-4, rtol=0)
                notes = [note for section in found.sections for note in section.notes]
                assert any("Hidden words are masked" in note for note in notes)
                is_hidden = kind == "encoder" and row in HIDDEN
                assert any("is hidden" in note for note in notes) == is_hidden
    table = explain_word(made.bundle, made.seen, "encoder", 0, 0, HIDDEN[0]).sections[1].tables[0]
    embedding, scaled, position = (torch.tensor(row) for row in table.cells[:3])
    assert not embedding.any()  # padding's
    torch.testing.assert_close(scaled + position, torch.tensor(table.foot[0][1]))


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_search_and_alternatives_do_not_see_them(kind: str) -> None:
    """The text of the translation is that of the model which reads padding there, forced words included."""
    bundle = new_bundle(kind)
    asked = Asked(source=SOURCE, beam=3, hidden=HIDDEN)
    found = record(bundle, asked)
    nodes = found.manifest["beam"]["nodes"]
    first = found.seen.tensors["logits"][0].log_softmax(-1)
    for node in (each for each in nodes if each["step"] == 0):
        assert node["log_probability"] == pytest.approx(float(first[node["id"]]), abs=1e-4)
    assert len(found.seen.written.ids) == len(record(bundle, Asked(source=SOURCE, beam=3)).seen.written.ids)
    for each in continuations(found, 2, 3):
        prefix = (*found.seen.written.ids[:2], each.id)
        forced = record(bundle, asked.model_copy(update={"prefix_ids": prefix}))
        assert each.text == forced.manifest["translation"]["text"]


def test_all_but_the_end_can_be_hidden() -> None:
    bundle = new_bundle()
    everything = tuple(range(len(bundle.tokenizer.source.encode(SOURCE))))
    found = record(bundle, Asked(source=SOURCE, target=TARGET, hidden=everything))
    assert (found.seen.weights("cross", 1)[..., -1] == 1).all()
    assert torch.isfinite(found.seen.tensors["decoder.states"]).all()
    assert {each.habit for each in head_profiles([found.seen]) if each.kind == "cross"} == {"end sink"}
    for wrong in (len(everything), -1, 10**30):
        with pytest.raises(HeedfulError, match=f"there is no piece {wrong} that could be hidden"):
            record(bundle, Asked(source=SOURCE, hidden=(0, wrong)))
    with pytest.raises(HeedfulError, match="hidden"):
        Asked.checked({"source": SOURCE, "hidden": [0] * (LONGEST + 1)})


def test_hidden_pieces_do_not_count_in_profiles() -> None:
    """The same weights with a column and a row that nobody sees: the same profile but for distances."""
    found = record(new_bundle(), Asked(source=SOURCE, target=TARGET, hidden=(0,)))
    seen = [n for n in range(len(found.seen.source.ids)) if n != 0]
    for profile in head_profiles([found.seen]):
        if profile.kind == "decoder":
            continue
        weights = found.seen.weights(profile.kind, profile.layer)[profile.head].double()[:, seen]
        rows = weights[seen] if profile.kind == "encoder" else weights
        bits = -torch.special.xlogy(rows, rows).sum(-1) / math.log(2)
        assert profile.entropy == pytest.approx(float(bits.mean()), abs=1e-6)
        assert profile.spread == pytest.approx(float(bits.mean()) / math.log2(len(seen)), abs=1e-6)


def test_what_a_trained_model_loses(demo_model: Path) -> None:
    """Without "tired" nothing says that somebody was tired: the word that says so becomes unlikely."""
    bundle = Bundle.load(demo_model)
    plain = record(bundle, Asked(source=SOURCE))
    words = plain.seen.source.words
    [tired] = plain.seen.source.of_word(words.index("tired"))
    ids = tuple(plain.manifest["translation"]["ids"])
    found = record(bundle, Asked(source=SOURCE, target_ids=ids, hidden=(tired,)))
    step = plain.seen.written.words.index("fatigué")
    changes = [
        after["log_probability"] - before["log_probability"]
        for before, after in zip(plain.manifest["steps"], found.manifest["steps"], strict=True)
    ]
    assert changes[step] < -1
    rewritten = record(bundle, Asked(source=SOURCE, hidden=(tired,)))
    assert rewritten.manifest["translation"]["text"] != plain.manifest["translation"]["text"]
