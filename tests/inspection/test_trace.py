"""A trace shows what the model really computed, in pieces and in words."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.inspection.trace import (
    KINDS,
    Tokens,
    by_words,
    in_words,
    new_tokens,
    trace,
    trace_ids,
    translated,
    word_sums,
)
from heedful.text.tokenizer import END, PAD
from tests.inspection.models import new_bundle

SOURCE, TARGET = "The animal didn't cross the street.", "L'animal n'a pas traversé la rue."


def test_sides_and_shapes() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    assert seen.source.words == ("The", "animal", "didn't", "cross", "the", "street", ".", "</s>")
    assert seen.read.words[:3] == ("<s>", "L'", "animal")
    assert seen.written.words[-2:] == (".", "</s>")
    assert seen.layers == {"encoder": 3, "decoder": 2, "cross": 2}
    assert seen.heads == 4
    shapes = {"encoder": (4, 8, 8), "decoder": (4, 10, 10), "cross": (4, 10, 8)}
    for kind in KINDS:
        rows, columns = seen.sides(kind)
        assert seen.weights(kind, 0).shape == shapes[kind] == (4, len(rows.words), len(columns.words))


def test_the_last_logits_are_the_models_own() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    source, before = torch.tensor([seen.source.ids]), torch.tensor([seen.read.ids])
    with torch.inference_mode():
        expected = bundle.model.logits(bundle.model(source, before))[0]
    assert torch.equal(seen.tensors["logits"], expected)


def test_without_a_target_the_model_translates() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE)
    again = trace_ids(bundle, seen.source.ids[:-1], translated(bundle, seen.source.ids[:-1]))
    assert len(seen.read.ids) > 1
    assert seen.read.ids[0] == PAD
    assert seen.written.ids[-1] == END
    assert seen.read.ids == again.read.ids
    assert torch.equal(seen.weights("cross", 1), again.weights("cross", 1))


def test_pieces_make_words() -> None:
    bundle = new_bundle("bpe")
    seen = trace(bundle, "The unthinkable animal.", TARGET)
    assert seen.source.words == ("The", "unthinkable", "animal", ".", "</s>")
    assert len(seen.source.pieces) > len(seen.source.words)
    weights = seen.weights("encoder", 1)
    merged = by_words(weights, *seen.sides("encoder"))
    assert merged.shape == (4, 5, 5)
    torch.testing.assert_close(merged.sum(-1), torch.ones(4, 5))
    query, key = seen.source.of_word(1), seen.source.of_word(2)
    by_hand = sum(weights[2, i, j] for i in query for j in key) / len(query)
    torch.testing.assert_close(merged[2, 1, 2], by_hand)
    assert word_sums(torch.ones(len(seen.source.pieces)), seen.source).tolist() == [
        len(seen.source.of_word(number)) for number in range(5)
    ]


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "character"])
def test_words_of_the_users_own(kind: str) -> None:
    bundle = new_bundle(kind)
    source = ["The", "wolf", "(", "big", ")", "didn't", "sleep", "."]
    target = ["Est-ce", "que", "l'animal", "dort", "?"]
    seen = in_words(bundle, trace(bundle, " ".join(source), " ".join(target)), source, target)
    assert list(seen.source.words) == [*source, "</s>"]
    assert list(seen.read.words) == ["<s>", *target]
    assert list(seen.written.words) == [*target, "</s>"]
    for tokens, tokenizer in (
        (seen.source, bundle.tokenizer.source),
        (seen.read, bundle.tokenizer.target),
        (seen.written, bundle.tokenizer.target),
    ):
        for number, word in enumerate(tokens.words):
            own = [tokens.ids[place] for place in tokens.of_word(number)]
            assert tokenizer.decode(own).strip() == ("" if word in ("<s>", "</s>") else word)


def test_words_in_every_script() -> None:
    bundle = new_bundle()
    words = ["قلب", "中文", "👩‍🚀", "é̂", "▁x", "a$b_c"]
    seen = in_words(bundle, trace(bundle, " ".join(words), "la rue"), words, ["la", "rue"])
    for number, word in enumerate(words):
        own = [seen.source.ids[place] for place in seen.source.of_word(number)]
        assert bundle.tokenizer.source.decode(own).strip() == word


def test_a_word_without_a_piece_of_its_own_looks_nowhere() -> None:
    bundle = new_bundle()
    seen = trace(bundle, SOURCE, TARGET)
    tokens = Tokens((5, 6), ("a", "b"), (0, 2), ("a", "?", "b"))
    merged = by_words(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), tokens, tokens)
    assert merged.tolist() == [[0.25, 0, 0.75], [0, 0, 0], [0.5, 0, 0.5]]
    assert seen.heads == 4


def test_finding_words() -> None:
    tokens = new_tokens(new_bundle().tokenizer.source, [*new_bundle().tokenizer.source.encode(SOURCE), END])
    assert tokens.find("the") == 4
    assert tokens.find("STREET") == 5
    assert tokens.find("2") == 1
    for wrong in ("elephant", "0", "99", ""):
        with pytest.raises(HeedfulError, match="does not stand in the sentence") as error:
            tokens.find(wrong)
        assert "The animal didn't" in error.value.hint


def test_an_empty_sentence_is_refused() -> None:
    for text in ("", " \t "):
        with pytest.raises(HeedfulError, match="empty"):
            trace(new_bundle(), text)
