"""Half a Transformer can be looked into: a language model, and one that fills in blanks."""

import pytest
import torch

from heedful.decoding.config import SearchConfig
from heedful.engines.plain_text import continued, filled
from heedful.errors import HeedfulError
from heedful.inspection.ablation import attention_module
from heedful.inspection.arithmetic import model_attention
from heedful.inspection.asked import Asked
from heedful.inspection.continuing import continuations
from heedful.inspection.heads import head_profiles
from heedful.inspection.record import record
from heedful.inspection.trace import place, trace
from heedful.inspection.word import explain_word
from tests.inspection.models import new_bundle
from tests.model.variants import VARIANTS

BEGINNING = "The animal didn't"
BLANKS = "The __ didn't cross the __ because it was tired."
KIND = {"language": "decoder", "mask": "encoder"}
TEXT = {"language": BEGINNING, "mask": BLANKS}
EVERY = pytest.mark.parametrize("family", ["language", "mask"])
NAMES = ["paper", "pre-norm", "relative", "rotary", "bigbird", "no-residuals"]


@EVERY
@pytest.mark.parametrize("name", NAMES)
def test_the_arithmetic_is_the_models_own(family: str, name: str) -> None:
    settings = dict(VARIANTS[name])
    norm = settings.pop("norm", "post")
    bundle = new_bundle("bpe", norm, width=24, heads=3, family=family, **settings)
    seen, kind = trace(bundle, TEXT[family]), KIND[family]
    assert {each: bool(n) for each, n in seen.layers.items()} == {
        each: each == kind for each in ("encoder", "decoder", "cross")
    }
    assert len(head_profiles([seen])) == 3 * seen.layers[kind]
    for layer in range(seen.layers[kind]):
        step, where = model_attention(bundle, seen, kind, layer), place(kind, layer)
        weights = torch.stack([head.attention.weights for head in step.heads])
        torch.testing.assert_close(weights, seen.weights(kind, layer).double(), rtol=0, atol=1e-5)
        torch.testing.assert_close(step.output, seen.tensors[f"{where}.residual"].double(), rtol=0, atol=1e-4)
    told = explain_word(bundle, seen, kind, 1, 2, 3)
    assert sum(told.values["weights"]) == pytest.approx(1)


@EVERY
def test_a_record_has_every_tensor(family: str) -> None:
    bundle = new_bundle("bpe", family=family)
    made = record(bundle, Asked(source=TEXT[family]))
    manifest = made.manifest
    for tensor, entry in manifest["tensors"].items():
        assert tuple(made.tensors.get(tensor).shape) == tuple(entry["shape"])
    assert manifest["ribbon"] is None
    assert ("decoder.mask" in manifest["tensors"]) == (family == "language")
    assert ("padding.visible" in manifest["tensors"]) == (family == "mask")
    ids, chances = made.tensors.get("lens.ids"), made.tensors.get("lens.probabilities")
    own = made.seen.tensors["logits"].softmax(-1).max(-1)
    assert ids[-1, :, 0].tolist() == own.indices.tolist()
    torch.testing.assert_close(chances[-1, :, 0], own.values, rtol=0, atol=1e-5)


def test_it_writes_what_generate_writes() -> None:
    bundle = new_bundle("bpe", family="language")
    made = record(bundle, Asked(source=BEGINNING)).manifest
    greedy = SearchConfig(beam=1, length_penalty=bundle.config.search.length_penalty)
    longest = made["translation"]["forced"] + bundle.config.search.extra_length
    assert [made["translation"]["text"]] == continued(bundle, BEGINNING, greedy, longest)
    assert made["translation"]["text"].startswith(BEGINNING)
    assert made["beam"]["width"] == 1
    drawn = record(bundle, Asked(source=BEGINNING, seed=3, temperature=0.7, top_k=20, top_p=0.9)).manifest
    settings = SearchConfig(method="sample", seed=3, temperature=0.7, top_k=20, top_p=0.9)
    assert [drawn["translation"]["text"]] == continued(bundle, BEGINNING, settings, longest)
    assert (drawn["beam"], drawn["translation"]["given"]) == (None, False)
    assert drawn["translation"]["text"] != made["translation"]["text"]


def test_the_future_is_masked() -> None:
    """What comes later changes nothing before it: the rows of the beginning stay the same."""
    bundle = new_bundle("bpe", family="language")
    made = record(bundle, Asked(source=BEGINNING))
    ids = made.manifest["translation"]["ids"]
    again = record(bundle, Asked(source=BEGINNING, target_ids=(*ids[:4], 9, 8)))
    assert again.manifest["translation"]["given"]
    before, after = made.seen.weights("decoder", 1), again.seen.weights("decoder", 1)
    torch.testing.assert_close(before[:, :5, :5], after[:, :5, :5], rtol=0, atol=1e-6)
    assert not before.triu(1).any()


def test_it_can_be_led_elsewhere() -> None:
    bundle = new_bundle("bpe", family="language")
    made = record(bundle, Asked(source=BEGINNING))
    step = made.manifest["translation"]["forced"]
    found = continuations(made, step, 4)
    assert all(each.text.startswith(BEGINNING) for each in found)
    forced = (*made.manifest["translation"]["ids"][:step], found[1].id)
    other = record(bundle, Asked(source=BEGINNING, prefix_ids=forced)).manifest
    assert other["translation"]["text"] == found[1].text
    assert other["translation"]["forced"] == step + 1


def test_its_guesses_are_those_of_fill() -> None:
    bundle = new_bundle("bpe", family="mask")
    manifest = record(bundle, Asked(source=BLANKS)).manifest
    guesses = filled(bundle, BLANKS, 5)
    assert len(manifest["blanks"]) == len(guesses) == 2
    assert [manifest["sides"]["source"]["pieces"][blank] for blank in manifest["blanks"]] == ["__", "__"]
    for blank, expected in zip(manifest["blanks"], guesses, strict=True):
        top = manifest["steps"][blank]["top"][:5]
        shown = [manifest["pieces"][each["id"]].replace("▁", " ").strip() for each in top]
        assert shown == [guess.text for guess in expected]
        chances = [guess.probability for guess in expected]
        assert [each["probability"] for each in top] == pytest.approx(chances, rel=1e-4)
    total = sum(manifest["steps"][blank]["log_probability"] for blank in manifest["blanks"])
    assert manifest["translation"]["log_probability"] == pytest.approx(total)


@EVERY
def test_heads_switched_off(family: str) -> None:
    bundle = new_bundle("bpe", family=family)
    kind = KIND[family]
    whole = record(bundle, Asked(source=TEXT[family]))
    asked = Asked(source=TEXT[family], off=(f"{kind}.1.2",), target_ids=whole.manifest["translation"]["ids"])
    off = record(bundle, asked)
    assert not attention_module(off.bundle.predictor, kind, 1).output.weight[:, 10:15].any()
    assert off.manifest["translation"]["text"] == whole.manifest["translation"]["text"]
    assert off.manifest["steps"][3]["log_probability"] != whole.manifest["steps"][3]["log_probability"]


@pytest.mark.parametrize(
    ("family", "asked", "problem"),
    [
        ("language", {"source": " "}, "the sentence is empty"),
        ("language", {"source": "a", "prefix": "b"}, "prefix has no effect"),
        ("language", {"source": "a", "hidden": (0,)}, "hidden has no effect"),
        ("language", {"source": "a", "off": ("cross.0.0",)}, "no cross attention"),
        ("language", {"source": "a", "beam": 2, "seed": 1}, "seed and beam"),
        ("language", {"source": "a", "top_k": 2}, "drawing at random"),
        ("mask", {"source": "no blank"}, "there is no blank"),
        ("mask", {"source": ""}, "there is no blank"),
        ("mask", {"source": "a __", "beam": 2}, "beam has no effect"),
        ("mask", {"source": "a __", "target_ids": (5,)}, "blanks filled"),
    ],
)
def test_what_makes_no_sense_is_refused(family: str, asked: dict[str, object], problem: str) -> None:
    bundle = new_bundle("bpe", family=family)
    with pytest.raises(HeedfulError, match=problem):
        record(bundle, Asked.checked(asked))


def test_a_learned_table_ends() -> None:
    """A text that is cut where positions end can still be looked into."""
    bundle = new_bundle("bpe", family="language", positions="learned", longest=12)
    made = record(bundle, Asked(source=BEGINNING))
    assert len(made.seen.read.ids) <= 12
    with pytest.raises(HeedfulError, match="too many"):
        record(bundle, Asked(source="The animal didn't cross the street because it was too tired."))
