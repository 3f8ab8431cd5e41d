"""A pass as others see it: the same numbers as without looking, names, sizes, search, what can be asked."""

import gzip
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.errors import HeedfulError
from heedful.inspection.ablation import Head, attention_module, without_heads
from heedful.inspection.asked import LONGEST, Asked
from heedful.inspection.record import Record, record
from heedful.inspection.record_tensors import PADDING, THUMBNAIL, stream_names
from heedful.inspection.trace import KINDS, Kind, place, trace, translated
from heedful.model.positions import sinusoids
from heedful.text.tokenizer import END, PAD
from tests.inspection.models import new_bundle

SENTENCE = "The animal didn't cross the street because it was too tired."
BEAM = 3


@pytest.fixture(scope="module", params=["post", "pre"])
def made(request: pytest.FixtureRequest) -> Record:
    """Of a model that knows nothing, post-norm and pre-norm."""
    return record(new_bundle(norm=request.param), Asked(source=SENTENCE, beam=BEAM))


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=tolerance)


# --- Looking changes nothing


def test_the_translation_is_the_models_own() -> None:
    bundle = new_bundle()
    made = record(bundle, Asked(source=SENTENCE))
    source = bundle.tokenizer.source.encode(SENTENCE)
    assert list(made.manifest["translation"]["ids"]) == translated(bundle, source)


@torch.inference_mode()
def test_the_logits_are_those_of_a_pass_that_is_not_recorded(made: Record) -> None:
    model, sides = made.bundle.model, made.manifest["sides"]
    source, read = (torch.tensor([sides[side]["ids"]]) for side in ("source", "read"))
    plain = model.logits(model(source, read))[0]
    for step in range(len(sides["written"]["ids"])):
        same(made.tensors.get(f"logits.{step}"), plain[step], 0)
    own = model.score(source, torch.tensor([sides["written"]["ids"]]))[0].tolist()
    told = [step["log_probability"] for step in made.manifest["steps"]]
    assert told == pytest.approx(own, abs=1e-5)


# --- Names, shapes, types


def test_every_tensor_is_as_the_manifest_says(made: Record) -> None:
    described = json.loads(json.dumps(made.manifest))["tensors"]
    loaded = load(made.tensors.to_bytes(described))
    kinds = {"F16": torch.float16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32}
    assert loaded.keys() == described.keys()
    for name, told in described.items():
        assert list(loaded[name].shape) == told["shape"], name
        assert loaded[name].dtype == kinds[told["dtype"]], name
    assert made.tensors.size(described) == sum(tensor.nbytes for tensor in loaded.values())


def test_names_follow_the_paper(made: Record) -> None:
    names = made.manifest["tensors"].keys()
    for kind in KINDS:
        for layer in range(made.manifest["model"]["layers"][kind]):
            parts = ("q", "k", "v", "scores", "weights", "heads", "output", "x")
            assert {f"{place(kind, layer)}.{part}" for part in parts} <= names
    assert {
        *stream_names(made.seen, "decoder"),
        "encoder.memory",
        "decoder.states",
        "decoder.mask",
        "lens.ids",
    } <= names


def test_attention_is_whole(made: Record) -> None:
    """Weights are softmax of the scores over sqrt(d_k), and what is masked weighs nothing."""
    mask = made.tensors.get("decoder.mask").bool()
    for kind in KINDS:
        rows, columns = made.seen.sides(kind)
        name = place(kind, 1)
        weights, scores = made.tensors.get(f"{name}.weights"), made.tensors.get(f"{name}.scores")
        assert weights.shape == (4, len(rows.ids), len(columns.ids))
        same(weights.float().sum(-1), torch.ones(weights.shape[:2]), 3e-3)
        scaled = scores.float() / math.sqrt(5)  # width 20, 4 heads
        if kind == "decoder":
            assert (weights[:, ~mask] == 0).all()
            scaled = scaled.masked_fill(~mask, -torch.inf)
        same(weights, scaled.softmax(-1), 5e-3)


def test_positions_and_padding(made: Record) -> None:
    length = len(made.manifest["sides"]["source"]["ids"])
    same(made.tensors.get("encoder.positions"), sinusoids(length, 20), 0)
    assert made.tensors.get("padding.visible").tolist() == [1] * length + [0] * PADDING
    weights = made.tensors.get("padding.weights")
    assert (weights[:, :, length:] == 0).all()
    same(weights[:, :, :length], made.tensors.get("encoder.0.self.weights"), 1e-3)


def test_positions_that_end_with_the_sentence_leave_no_room_for_padding() -> None:
    bundle = new_bundle()
    length = len(bundle.tokenizer.source.encode(SENTENCE)) + 1
    config = bundle.config.model.model_copy(update={"positions": "learned", "longest": length})
    model = type(bundle.model)(config).eval()
    made = record(Bundle(bundle.config, bundle.tokenizer, model), Asked(source=SENTENCE, target="il était"))
    assert not [name for name in made.manifest["tensors"] if name.startswith("padding")]
    assert made.tensors.get("encoder.positions").shape == (length, 20)


@torch.inference_mode()
def test_the_last_reading_is_the_models_own(made: Record) -> None:
    """What the last layer would say is what the model says."""
    ids, chances = made.tensors.get("lens.ids"), made.tensors.get("lens.probabilities")
    assert ids.shape[0] == len(stream_names(made.seen, "decoder")) == 1 + 2 * 3
    for step, told in enumerate(made.manifest["steps"]):
        top = told["top"][: ids.size(-1)]
        assert ids[-1, step].tolist() == [each["id"] for each in top]
        assert chances[-1, step].tolist() == pytest.approx([each["probability"] for each in top], abs=1e-6)
    assert {str(identity) for identity in ids.flatten().tolist()} <= json.loads(json.dumps(made.manifest))[
        "pieces"
    ].keys()


@pytest.mark.parametrize(
    "source",
    [SENTENCE, " cafe\u0301  مرحبا بالعالم 👨‍👩‍👧 ok", "e\u0323\u0301 世界。"],
    ids=["plain", "mixed", "marks"],
)
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_spans_lead_from_pieces_to_the_text(kind: str, source: str) -> None:
    """Of the text that the model read, and of the translation: a word stands between its first and last."""
    bundle = new_bundle(kind)
    told = record(bundle, Asked(source=source, target="Le chien était à l'heure. 👍🏽")).manifest
    assert told["text"]["source"] == clean_sentence(source)
    for side, text in (("source", told["text"]["source"]), ("written", told["translation"]["text"])):
        tokens = told["sides"][side]
        assert len(tokens["spans"]) == len(tokens["ids"])
        assert tokens["spans"][-1] is None
        for number, word in enumerate(tokens["words"][:-1]):
            spans = [s for s, group in zip(tokens["spans"], tokens["groups"], strict=True) if group == number]
            assert text[min(start for start, _ in spans) : max(end for _, end in spans)] == word
    assert told["sides"]["read"]["spans"] == [None, *told["sides"]["written"]["spans"][:-1]]


# --- Sizes


def test_sizes_at_40_tokens() -> None:
    """The budgets of the page: manifest at most 60 kB, thumbnails at most 150 kB."""
    bundle = new_bundle(layers=(6, 6), heads=8, width=32)
    words = bundle.tokenizer.source.encode(SENTENCE)
    text = bundle.tokenizer.source.decode((words * 4)[:39])
    target = tuple((list(bundle.tokenizer.target.encode("il était trop fatigué .")) * 9)[:39])
    made = record(bundle, Asked(source=text, target_ids=target))
    assert len(made.seen.source.ids) == 40
    assert len(made.seen.read.ids) == 40
    told = json.dumps(made.manifest, ensure_ascii=False).encode()
    assert len(gzip.compress(told, 5)) <= 60_000
    thumbnails = [f"thumbnails.{kind}" for kind in KINDS]
    assert len(made.tensors.to_bytes(thumbnails)) <= 150_000
    assert made.tensors.get("thumbnails.cross").shape == (6, 8, THUMBNAIL, THUMBNAIL)
    whole = [name for name in made.manifest["tensors"] if not name.startswith("logits")]
    assert made.tensors.size(whole) <= 4_500_000


def test_thumbnails_keep_the_largest_of_a_patch(made: Record) -> None:
    small = made.tensors.get("thumbnails.encoder")
    weights = made.seen.weights("encoder", 2)
    assert small.shape[2:] == weights.shape[1:]  # a short sentence is not pooled
    same(small[2] / 255, weights, 0.5 / 255 + 1e-6)


# --- Search


def tokens_of(nodes: list[dict[str, Any]], node: dict[str, Any]) -> list[int]:
    """The whole hypothesis that a node ends."""
    found = [node["id"]]
    while node["parent"] >= 0:
        node = nodes[node["parent"]]
        found.insert(0, node["id"])
    return found


def test_search_is_a_tree_whose_totals_add_up(made: Record) -> None:
    beam = made.manifest["beam"]
    assert beam["width"] == BEAM
    nodes = beam["nodes"]
    for number, node in enumerate(nodes):
        assert -1 <= node["parent"] < number
        parent = nodes[node["parent"]] if node["parent"] >= 0 else {"step": -1, "total": 0.0, "fate": "kept"}
        assert parent["step"] == node["step"] - 1
        assert parent["fate"] == "kept"
        assert node["total"] == pytest.approx(parent["total"] + node["log_probability"], abs=1e-4)
    for step in {node["step"] for node in nodes}:
        assert sum(node["step"] == step and node["fate"] == "kept" for node in nodes) <= BEAM


def test_the_best_that_finished_is_the_translation() -> None:
    bundle = new_bundle(norm="pre")
    seen = record(bundle, Asked(source=SENTENCE)).seen.tensors
    usual, largest = seen["decoder.states"].mean(0), seen["logits"].max(-1).values.mean()
    with torch.no_grad():  # a model that knows nothing would not end: now END is likely now and then
        bundle.model.output.weight[END] = 0.8 * largest * usual / usual.dot(usual)
    found = record(bundle, Asked(source=SENTENCE, beam=BEAM)).manifest
    nodes = found["beam"]["nodes"]
    finished = [node for node in nodes if node["fate"] == "finished"]
    assert found["translation"]["complete"]
    assert len(finished) >= BEAM
    best = max(finished, key=lambda node: node["score"])
    assert tokens_of(nodes, best) == [*found["translation"]["ids"], END]
    assert best["total"] == pytest.approx(found["translation"]["log_probability"], abs=1e-3)
    assert best["score"] == pytest.approx(found["translation"]["score"], abs=1e-3)


def test_a_translation_that_never_ends_is_the_best_of_the_longest(made: Record) -> None:
    found = made.manifest
    nodes = found["beam"]["nodes"]
    assert not found["translation"]["complete"]
    assert not [node for node in nodes if node["fate"] == "finished"]
    best = max((node for node in nodes if node["step"] == nodes[-1]["step"]), key=lambda node: node["total"])
    assert tokens_of(nodes, best) == list(found["translation"]["ids"])
    assert best["total"] == pytest.approx(found["translation"]["log_probability"], abs=1e-3)


# --- Heads that are off


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_is_off_is_a_head_without_its_rows_of_w_output(kind: Kind) -> None:
    bundle = new_bundle()
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    target = tuple(bundle.tokenizer.target.encode("il était trop fatigué ."))
    plain = record(bundle, Asked(source=SENTENCE, target_ids=target))
    off = record(bundle, Asked(source=SENTENCE, target_ids=target, off=(f"{kind}.1.2",)))

    by_hand = attention_module(bundle.model, kind, 1).output.weight.detach().clone()
    by_hand[:, 10:15] = 0  # head 3 of 4 heads with 5 channels each
    same(attention_module(off.bundle.model, kind, 1).output.weight, by_hand, 0)
    changed = {
        name for name, tensor in off.bundle.model.state_dict().items() if not tensor.equal(before[name])
    }
    assert len(changed) == 1

    name = place(kind, 1)
    heads, output = off.seen.tensors[f"{name}.heads"], off.seen.tensors[f"{name}.output"]
    bias = attention_module(bundle.model, kind, 1).output.bias.detach()
    same(output, heads.transpose(0, 1).flatten(1) @ by_hand.T + bias, 1e-5)
    assert off.identity != plain.identity
    assert off.manifest["translation"]["log_probability"] != plain.manifest["translation"]["log_probability"]
    for key, tensor in bundle.model.state_dict().items():
        assert tensor.equal(before[key]), key  # the model itself stays as it was
    again = record(bundle, Asked(source=SENTENCE, target_ids=target))
    assert again.identity == plain.identity


def test_no_head_off_is_the_same_model() -> None:
    bundle = new_bundle()
    assert without_heads(bundle, []) is bundle
    with pytest.raises(HeedfulError, match="there is no head 5"):
        without_heads(bundle, [Head("cross", 0, 4)])
    with pytest.raises(HeedfulError, match="is not a head"):
        record(bundle, Asked(source=SENTENCE, off=("cross.first.0",)))


# --- What can be asked


def test_a_prefix_as_text_or_ids() -> None:
    bundle = new_bundle()
    ids = tuple(bundle.tokenizer.target.encode("il était"))
    by_text = record(bundle, Asked(source=SENTENCE, prefix="il était"))
    by_ids = record(bundle, Asked(source=SENTENCE, prefix_ids=ids))
    assert tuple(by_ids.manifest["translation"]["ids"][: len(ids)]) == ids
    assert by_text.manifest["translation"] == by_ids.manifest["translation"]
    with pytest.raises(HeedfulError, match="cannot both be given"):
        record(bundle, Asked(source=SENTENCE, prefix="il", prefix_ids=ids))


def test_a_given_translation_is_read_not_searched() -> None:
    bundle = new_bundle()
    made = record(bundle, Asked(source=SENTENCE, target="il était trop fatigué ."))
    told = made.manifest["translation"]
    assert told["text"] == "il était trop fatigué ."
    assert told["given"]
    assert made.manifest["beam"] is None
    seen = trace(bundle, SENTENCE, "il était trop fatigué .")
    same(made.tensors.get("logits.0"), seen.tensors["logits"][0], 0)
    assert told["log_probability"] == pytest.approx(sum(s["log_probability"] for s in made.manifest["steps"]))


@pytest.mark.parametrize("wrong", [-1, PAD, END, 10**6])
@pytest.mark.parametrize("field", ["prefix_ids", "target_ids"])
def test_ids_that_cannot_be_written_are_refused(field: str, wrong: int) -> None:
    with pytest.raises(HeedfulError, match=f"{field} has an id that cannot be written"):
        record(new_bundle(), Asked.checked({"source": SENTENCE, field: [5, wrong]}))


def test_long_sentences() -> None:
    bundle = new_bundle()
    many = bundle.tokenizer.source.decode(bundle.tokenizer.source.encode(SENTENCE) * 15)
    made = record(bundle, Asked(source=many, target="il était trop fatigué ."))
    assert len(made.seen.source.ids) > 170
    assert made.tensors.get("thumbnails.encoder").shape[2:] == (THUMBNAIL, THUMBNAIL)
    with pytest.raises(HeedfulError, match=f"at most {LONGEST} are looked into"):
        record(bundle, Asked(source=" ".join([many] * 4)))
    with pytest.raises(HeedfulError, match="the target has"):
        record(bundle, Asked(source=SENTENCE, target_ids=(5,) * (LONGEST + 1)))


def test_an_unknown_tensor_is_refused(made: Record) -> None:
    with pytest.raises(HeedfulError, match=r"there is no tensor 'encoder\.9\.self\.weights'"):
        made.tensors.to_bytes(["encoder.9.self.weights"])
