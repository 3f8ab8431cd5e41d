"""Word alignment: links, error rate, and the choice of an aligner without gold alignments."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.data.demo_corpus.grammar import generate_pairs, split_words
from heedful.data.word_alignment import (
    NULL_WORD,
    align_by_attention,
    alignment_error_rate,
    alignment_posteriors,
    format_pharaoh,
    parse_gold_links,
    train_ibm_model1,
)
from heedful.errors import HeedfulError
from heedful.interpret.activations import Activations, compute_activations, regroup_words
from heedful.interpret.alignment import find_best_aligner
from heedful.interpret.heads import Aligner, default_aligner, list_aligners
from tests.interpret.small_models import new_model_folder


def replace_cross_weights(activations: Activations, layer: int, weights: Tensor) -> Activations:
    return replace(activations, tensors={**activations.tensors, f"decoder.{layer}.cross.weights": weights})


def test_aligner_links_follow_head_and_row() -> None:
    activations = compute_activations(
        new_model_folder(), "I am tired.", "Je suis fatigué."
    )  # 4 + 4 words, and the ends
    writes = torch.tensor([[0.6, 0.2, 0.1, 0.1, 0.0], [0.1, 0.7, 0.1, 0.1, 0.0], [0.3, 0.1, 0.2, 0.0, 0.4]])
    head = torch.cat([writes, torch.tensor([[0.0, 0.0, 0.1, 0.9, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])])
    layer = torch.stack([torch.eye(5), head, torch.eye(5), torch.eye(5)])
    activations = replace_cross_weights(activations, 1, layer)
    # Columns sum to 1.0, 1.0, 0.5 and 1.1 where words are written: "fatigué" has most of its third.
    assert Aligner(1, 1, shifted=False).extract_links(activations) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    # Where they are read, to 0.4, 1.8, 0.4 and 1.0.
    assert Aligner(1, 1, shifted=True).extract_links(activations) == [(1, 0), (0, 1), (3, 2), (1, 3)]
    mean = Aligner(1, None, shifted=False).weights(activations)
    torch.testing.assert_close(mean, layer.mean(0)[:4, :4])


def test_align_by_attention_single_word_links_to_its_largest_weight() -> None:
    activations = compute_activations(new_model_folder(), "I am tired.", "Je")
    weights = torch.tensor([[[0.01, 0.01, 0.97, 0.01, 0.0]] * 2] * 4)
    assert Aligner(1, 1, shifted=False).extract_links(replace_cross_weights(activations, 1, weights)) == [(2, 0)]


def test_align_by_attention_unattended_source_word_gets_no_link() -> None:
    rows = [[0.02, 0.0, 0.02, 0.9, 0.06], [0.8, 0.0, 0.1, 0.1, 0.0], [0.05, 0.001, 0.9, 0.0, 0.049]]
    assert align_by_attention(torch.tensor(rows)[:, :4].numpy()) == [(3, 0), (0, 1), (2, 2)]


def test_align_by_attention_word_attending_to_end_gets_no_link() -> None:
    assert align_by_attention(torch.tensor([[0.9, 0.1], [0.004, 0.003]]).numpy()) == [(0, 0)]
    assert align_by_attention(torch.zeros(2, 0).numpy()) == []
    assert align_by_attention(torch.zeros(2, 3).numpy()) == []


def test_default_aligner_uses_second_last_of_many_layers() -> None:
    for layers, expected in ((1, 0), (2, 1), (3, 1), (6, 4)):
        config = new_model_folder(layers=(1, layers)).config.model
        assert default_aligner(config) == Aligner(expected, None, shifted=False)


def test_list_aligners_has_every_head_and_readable_names() -> None:
    aligners = list_aligners(compute_activations(new_model_folder(), "A dog.", "Un chien."))
    assert len(aligners) == len(set(aligners)) == 2 * (4 + 1) * 2
    assert Aligner(0, 2, shifted=True).name == "decoder layer 1, head 3, the row that reads the word"
    assert Aligner(1, None, shifted=False).name == "decoder layer 2, the mean of heads, the row that writes the word"


def test_find_best_aligner_finds_aligning_head_without_gold() -> None:
    """One head of a random model gets the true alignment as its weights: it must be found."""
    model_folder = new_model_folder()
    traces = []
    for pair in generate_pairs(120, seed=3):
        source, target = split_words(pair.source), split_words(pair.target)
        activations = regroup_words(
            model_folder, compute_activations(model_folder, pair.source, pair.target), source, target
        )
        cross = activations.weights("cross", 0).clone()
        rows = torch.full((len(activations.target.ids), len(activations.source.ids)), 0.1)
        for i, j in pair.alignment:
            for position in activations.target.positions_of_word(j):
                rows[position, activations.source.positions_of_word(i)] = 1.0
        cross[2] = rows / rows.sum(-1, keepdim=True)
        traces.append(replace_cross_weights(activations, 0, cross))
    best, explanation = find_best_aligner(traces)
    assert best == Aligner(0, 2, shifted=False)
    assert explanation[best] > 0.2 + max(agreement for aligner, agreement in explanation.items() if aligner.layer == 1)


def test_train_ibm_model1_matches_hand_computation() -> None:
    """The classic example: "la" always occurs with "the", so "maison" must be "house"."""
    pairs = [(["the", "house"], ["la", "maison"]), (["the", "flower"], ["la", "fleur"])]
    first = train_ibm_model1(pairs, iterations=1)
    assert first["house", "maison"] == first["house", "la"] == 0.5
    assert first["the", "la"] == pytest.approx((1 / 3 + 1 / 3) / (4 / 3))
    later = train_ibm_model1(pairs, iterations=10)
    assert later["house", "maison"] > 0.9
    assert later["the", "la"] > 0.7
    for word in ("the", "house", "flower", NULL_WORD):
        assert sum(later[word, other] for other in ("la", "maison", "fleur")) == pytest.approx(1)
    posteriors = alignment_posteriors("maison", ["the", "house", "house"], later)
    assert sum(posteriors.values()) == pytest.approx(1)
    assert max(posteriors, key=lambda word: posteriors[word]) == "house"
    assert alignment_posteriors("inconnu", ["the"], later) == {}


def test_alignment_error_rate_matches_hand_computation() -> None:
    links = [[(0, 0), (1, 1), (2, 2)], [(0, 1)]]
    sure, possible = [[(0, 0), (2, 2)], [(0, 0)]], [[(1, 1)], []]
    # A = 4, S = 3, A and S = 2, A and P = 3 (sure ones are possible too)
    assert alignment_error_rate(links, sure, possible) == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert alignment_error_rate([[]], [[]], [[]]) == 0


def test_format_pharaoh_and_parse_gold_links_round_trip() -> None:
    assert format_pharaoh([(2, 0), (0, 1), (0, 0)]) == "0-0 0-1 2-0"
    assert format_pharaoh([]) == ""
    assert parse_gold_links("0-0 3p12") == ([(0, 0)], [(3, 12)])
    for wrong in ("1:2", "1-", "x-1", "0-0"):
        with pytest.raises(HeedfulError, match="invalid link"):
            parse_gold_links(wrong, first_index=1)
