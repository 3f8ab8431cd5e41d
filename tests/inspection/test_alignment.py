"""Alignments: links by hand, the error rate by hand, and an aligner found without being told."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful.corpora.grammar import generate, words
from heedful.errors import HeedfulError
from heedful.inspection.alignment import (
    NOTHING,
    Aligner,
    aligners,
    alignment_error_rate,
    best_aligner,
    dictionary,
    parsed_links,
    shares_of,
    usual_aligner,
)
from heedful.inspection.trace import Trace, in_words, trace
from heedful.text.links import largest_shares, pharaoh
from tests.inspection.models import new_bundle


def with_cross(seen: Trace, layer: int, weights: Tensor) -> Trace:
    return replace(seen, tensors={**seen.tensors, f"decoder.{layer}.cross.weights": weights})


def test_links_follow_the_chosen_head_and_row() -> None:
    seen = trace(new_bundle(), "I am tired.", "Je suis fatigué.")  # 4 + 4 words, and the ends
    writes = torch.tensor([[0.6, 0.2, 0.1, 0.1, 0.0], [0.1, 0.7, 0.1, 0.1, 0.0], [0.3, 0.1, 0.2, 0.0, 0.4]])
    head = torch.cat([writes, torch.tensor([[0.0, 0.0, 0.1, 0.9, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])])
    layer = torch.stack([torch.eye(5), head, torch.eye(5), torch.eye(5)])
    seen = with_cross(seen, 1, layer)
    # Columns sum to 1.0, 1.0, 0.5 and 1.1 where words are written: "fatigué" has most of its third.
    assert Aligner(1, 1, reads=False).links(seen) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    # Where they are read, to 0.4, 1.8, 0.4 and 1.0.
    assert Aligner(1, 1, reads=True).links(seen) == [(1, 0), (0, 1), (3, 2), (1, 3)]
    mean = Aligner(1, None, reads=False).weights(seen)
    torch.testing.assert_close(mean, layer.mean(0)[:4, :4])


def test_one_word_looks_at_what_it_looks_at() -> None:
    seen = trace(new_bundle(), "I am tired.", "Je")
    weights = torch.tensor([[[0.01, 0.01, 0.97, 0.01, 0.0]] * 2] * 4)
    assert Aligner(1, 1, reads=False).links(with_cross(seen, 1, weights)) == [(2, 0)]


def test_a_word_that_nobody_looks_at_takes_no_link() -> None:
    rows = [[0.02, 0.0, 0.02, 0.9, 0.06], [0.8, 0.0, 0.1, 0.1, 0.0], [0.05, 0.001, 0.9, 0.0, 0.049]]
    assert largest_shares(torch.tensor(rows)[:, :4].numpy()) == [(3, 0), (0, 1), (2, 2)]


def test_a_word_that_looks_at_the_end_has_no_link() -> None:
    assert largest_shares(torch.tensor([[0.9, 0.1], [0.004, 0.003]]).numpy()) == [(0, 0)]
    assert largest_shares(torch.zeros(2, 0).numpy()) == []
    assert largest_shares(torch.zeros(2, 3).numpy()) == []


def test_the_usual_aligner_is_the_last_layer_but_one_of_many() -> None:
    for layers, expected in ((1, 0), (2, 1), (3, 1), (6, 4)):
        config = new_bundle(layers=(1, layers)).config.model
        assert usual_aligner(config) == Aligner(expected, None, reads=False)


def test_every_aligner_is_offered_and_named_for_people() -> None:
    offered = aligners(trace(new_bundle(), "A dog.", "Un chien."))
    assert len(offered) == len(set(offered)) == 2 * (4 + 1) * 2
    assert Aligner(0, 2, reads=True).name == "decoder layer 1, head 3, the row that reads the word"
    assert (
        Aligner(1, None, reads=False).name
        == "decoder layer 2, the mean of heads, the row that writes the word"
    )


def test_the_right_head_is_found_without_gold() -> None:
    """One head of a random model is given the true alignment, as weights: it must be found."""
    bundle = new_bundle()
    traces = []
    for pair in generate(120, seed=3):
        source, target = words(pair.source), words(pair.target)
        seen = in_words(bundle, trace(bundle, pair.source, pair.target), source, target)
        cross = seen.weights("cross", 0).clone()
        rows = torch.full((len(seen.written.ids), len(seen.source.ids)), 0.1)
        for i, j in pair.alignment:
            for piece in seen.written.of_word(j):
                rows[piece, seen.source.of_word(i)] = 1.0
        cross[2] = rows / rows.sum(-1, keepdim=True)
        traces.append(with_cross(seen, 0, cross))
    best, told = best_aligner(traces)
    assert best == Aligner(0, 2, reads=False)
    assert told[best] > 0.2 + max(share for aligner, share in told.items() if aligner.layer == 1)


def test_dictionary_by_hand() -> None:
    """The classic: "la" comes with "the" everywhere, so "maison" must be "house"."""
    pairs = [(["the", "house"], ["la", "maison"]), (["the", "flower"], ["la", "fleur"])]
    first = dictionary(pairs, rounds=1)
    assert first["house", "maison"] == first["house", "la"] == 0.5
    assert first["the", "la"] == pytest.approx((1 / 3 + 1 / 3) / (4 / 3))
    later = dictionary(pairs, rounds=10)
    assert later["house", "maison"] > 0.9
    assert later["the", "la"] > 0.7
    for word in ("the", "house", "flower", NOTHING):
        assert sum(later[word, other] for other in ("la", "maison", "fleur")) == pytest.approx(1)
    shares = shares_of("maison", ["the", "house", "house"], later)
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda word: shares[word]) == "house"
    assert shares_of("inconnu", ["the"], later) == {}


def test_error_rate_by_hand() -> None:
    found = [[(0, 0), (1, 1), (2, 2)], [(0, 1)]]
    sure, possible = [[(0, 0), (2, 2)], [(0, 0)]], [[(1, 1)], []]
    # A = 4, S = 3, A and S = 2, A and P = 3 (sure ones are possible too)
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert alignment_error_rate([[]], [[]], [[]]) == 0


def test_lines_of_links() -> None:
    assert pharaoh([(2, 0), (0, 1), (0, 0)]) == "0-0 0-1 2-0"
    assert pharaoh([]) == ""
    assert parsed_links("0-0 3p12") == ([(0, 0)], [(3, 12)])
    for wrong in ("1:2", "1-", "x-1", "0-0"):
        with pytest.raises(HeedfulError, match="cannot read the link"):
            parsed_links(wrong, first=1)
