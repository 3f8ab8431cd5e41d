"""Activations equal the values of the model, by subwords and by words."""

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    TokenSequence,
    aggregate_to_words,
    build_token_sequence,
    compute_activations,
    compute_activations_from_ids,
    regroup_words,
    sum_over_words,
    translate_ids,
)
from heedful.tokenization.special_tokens import END, PAD
from tests.interpret.small_models import new_model_folder

SOURCE, TARGET = "The animal didn't cross the street.", "L'animal n'a pas traversé la rue."


def test_compute_activations_has_expected_sequences_and_shapes() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    assert activations.source.words == ("The", "animal", "didn't", "cross", "the", "street", ".", "</s>")
    assert activations.decoder_input.words[:3] == ("<s>", "L'", "animal")
    assert activations.target.words[-2:] == (".", "</s>")
    assert activations.layers == {"encoder": 3, "decoder": 2, "cross": 2}
    assert activations.heads == 4
    shapes = {"encoder": (4, 8, 8), "decoder": (4, 10, 10), "cross": (4, 10, 8)}
    for kind in ATTENTION_KINDS:
        rows, columns = activations.queries_and_keys(kind)
        assert activations.weights(kind, 0).shape == shapes[kind] == (4, len(rows.words), len(columns.words))


def test_compute_activations_logits_match_model() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    source, decoder_input = torch.tensor([activations.source.ids]), torch.tensor([activations.decoder_input.ids])
    with torch.inference_mode():
        expected = model_folder.translation_model.logits(model_folder.translation_model(source, decoder_input))[0]
    assert torch.equal(activations.tensors["logits"], expected)


def test_compute_activations_without_target_translates() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE)
    second = compute_activations_from_ids(
        model_folder, activations.source.ids[:-1], translate_ids(model_folder, activations.source.ids[:-1])
    )
    assert len(activations.decoder_input.ids) > 1
    assert activations.decoder_input.ids[0] == PAD
    assert activations.target.ids[-1] == END
    assert activations.decoder_input.ids == second.decoder_input.ids
    assert torch.equal(activations.weights("cross", 1), second.weights("cross", 1))


def test_build_token_sequence_groups_subwords_into_words() -> None:
    model_folder = new_model_folder("bpe")
    activations = compute_activations(model_folder, "The unthinkable animal.", TARGET)
    assert activations.source.words == ("The", "unthinkable", "animal", ".", "</s>")
    assert len(activations.source.subwords) > len(activations.source.words)
    weights = activations.weights("encoder", 1)
    merged = aggregate_to_words(weights, *activations.queries_and_keys("encoder"))
    assert merged.shape == (4, 5, 5)
    torch.testing.assert_close(merged.sum(-1), torch.ones(4, 5))
    query, key = activations.source.positions_of_word(1), activations.source.positions_of_word(2)
    by_hand = sum(weights[2, i, j] for i in query for j in key) / len(query)
    torch.testing.assert_close(merged[2, 1, 2], by_hand)
    assert sum_over_words(torch.ones(len(activations.source.subwords)), activations.source).tolist() == [
        len(activations.source.positions_of_word(number)) for number in range(5)
    ]


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "character"])
def test_regroup_words_uses_given_words(kind: str) -> None:
    model_folder = new_model_folder(kind)
    source = ["The", "wolf", "(", "big", ")", "didn't", "sleep", "."]
    target = ["Est-ce", "que", "l'animal", "dort", "?"]
    activations = regroup_words(
        model_folder, compute_activations(model_folder, " ".join(source), " ".join(target)), source, target
    )
    assert list(activations.source.words) == [*source, "</s>"]
    assert list(activations.decoder_input.words) == ["<s>", *target]
    assert list(activations.target.words) == [*target, "</s>"]
    for tokens, tokenizer in (
        (activations.source, model_folder.tokenizer.source),
        (activations.decoder_input, model_folder.tokenizer.target),
        (activations.target, model_folder.tokenizer.target),
    ):
        for number, word in enumerate(tokens.words):
            word_ids = [tokens.ids[position] for position in tokens.positions_of_word(number)]
            assert tokenizer.decode(word_ids).strip() == ("" if word in ("<s>", "</s>") else word)


def test_regroup_words_handles_every_script() -> None:
    model_folder = new_model_folder()
    words = ["قلب", "中文", "👩‍🚀", "é̂", "▁x", "a$b_c"]
    activations = regroup_words(
        model_folder, compute_activations(model_folder, " ".join(words), "la rue"), words, ["la", "rue"]
    )
    for number, word in enumerate(words):
        word_ids = [activations.source.ids[position] for position in activations.source.positions_of_word(number)]
        assert model_folder.tokenizer.source.decode(word_ids).strip() == word


def test_aggregate_to_words_word_without_subwords_has_zero_weights() -> None:
    model_folder = new_model_folder()
    activations = compute_activations(model_folder, SOURCE, TARGET)
    tokens = TokenSequence((5, 6), ("a", "b"), (0, 2), ("a", "?", "b"))
    merged = aggregate_to_words(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), tokens, tokens)
    assert merged.tolist() == [[0.25, 0, 0.75], [0, 0, 0], [0.5, 0, 0.5]]
    assert activations.heads == 4


def test_find_word_by_spelling_case_or_number() -> None:
    tokens = build_token_sequence(
        new_model_folder().tokenizer.source, [*new_model_folder().tokenizer.source.encode(SOURCE), END]
    )
    assert tokens.find_word("the") == 4
    assert tokens.find_word("STREET") == 5
    assert tokens.find_word("2") == 1
    for wrong in ("elephant", "0", "99", ""):
        with pytest.raises(HeedfulError, match="is not in the sentence") as error:
            tokens.find_word(wrong)
        assert "The animal didn't" in error.value.hint


def test_compute_activations_empty_sentence_is_an_error() -> None:
    for text in ("", " \t "):
        with pytest.raises(HeedfulError, match="empty"):
            compute_activations(new_model_folder(), text)
