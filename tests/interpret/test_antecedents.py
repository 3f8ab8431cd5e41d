"""Probes for the antecedent of "it": heads that are given the answer, and others."""

from dataclasses import replace

import pytest
import torch

from heedful.data.demo_corpus.grammar import generate_pairs, split_words
from heedful.interpret import head_report
from heedful.interpret.activations import Activations, compute_activations
from heedful.interpret.attribution import HeadIndex
from heedful.interpret.head_report import AntecedentProbe, genders_differ, measure_antecedents
from tests.interpret.small_models import new_model_folder


def test_measure_antecedents_finds_head_given_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoder layer 2 head 3 is given the answer for "it"; head 4 always attends to the first word."""
    pairs = generate_pairs(40, seed=5, validation=True)
    answers = {pair.source: pair.antecedent for pair in pairs}
    model_folder = new_model_folder()

    def compute_with_answer_head(model_folder: object, source: str, target: str) -> Activations:
        activations = compute_activations(model_folder, source, target)  # type: ignore[arg-type]
        weights = activations.tensors["encoder.1.self.weights"].clone()
        answer = answers[source]
        assert answer is not None
        it, noun = answer
        weights[2] = 0.01
        weights[2, it, noun] = 0.9
        weights[3] = torch.eye(weights.size(-1))[0]
        activations.tensors["encoder.1.self.weights"] = weights
        return activations

    by_source = {pair.source: pair for pair in pairs}

    def compute_with_answer_heads(model_folder: object, source: str, target: str) -> Activations:
        """Head 1 has the answer in the row of the adjective, head 2 of cross-attention in that of il/elle."""
        activations, pair = compute_with_answer_head(model_folder, source, target), by_source[source]
        assert pair.antecedent is not None
        weights = activations.tensors["encoder.1.self.weights"]
        weights[0] = 0.01
        weights[0, pair.adjective, pair.antecedent[1]] = 0.9
        cross = activations.tensors["decoder.0.cross.weights"].clone()
        cross[1] = 0.01
        cross[1, pair.pronoun, pair.antecedent[1]] = 0.9
        activations.tensors["decoder.0.cross.weights"] = cross
        return activations

    def answer_gradient(_: object, activations: Activations, step: int, contrast_id: int | None) -> torch.Tensor:
        """Correct only for il against elle, or elle against il."""
        request = {activations.target.words[step], model_folder.tokenizer.target.decode([contrast_id or 0]).strip()}
        pair = next(item for item in pairs if split_words(item.source) == list(activations.source.words[:-1]))
        assert pair.antecedent is not None
        assert request == {"il", "elle"}
        return torch.eye(len(activations.source.ids))[pair.antecedent[1]]

    monkeypatch.setattr(head_report, "compute_activations", compute_with_answer_heads)
    monkeypatch.setattr(head_report, "ATTRIBUTION_METHODS", {"gradient": answer_gradient})
    rates = measure_antecedents(model_folder, [*pairs, *(pair for pair in generate_pairs(9) if not pair.antecedent)])
    best = AntecedentProbe("attention", "it", HeadIndex("encoder", 1, 2))
    first = next(iter(rates))
    assert rates[first].top1 == 1
    assert rates[best].top1 == rates[best].preferred == rates[best].preferred_if_genders_differ == 1
    assert rates[best].sentences == 40
    assert rates[AntecedentProbe("attention", "it", HeadIndex("encoder", 1, 3))].top1 == 0
    assert rates[AntecedentProbe("attention", "adjective", HeadIndex("encoder", 1, 0))].top1 == 1
    assert rates[AntecedentProbe("attention", "pronoun", HeadIndex("cross", 0, 1))].top1 == 1
    assert rates[AntecedentProbe("gradient", "pronoun")].top1 == 1
    assert len(rates) == 3 * 4 * 2 + 2 * 4 + 1


def test_genders_differ_compares_noun_genders() -> None:
    """animal and street are l'animal (m) and la rue (f); dog and street differ too, cat and dog do not."""
    pair = next(pair for pair in generate_pairs(2000, validation=True) if set(pair.nouns) == {"animal", "street"})
    assert genders_differ(pair)
    assert not genders_differ(replace(pair, nouns=("dog", "cat")))
    assert not genders_differ(replace(pair, nouns=("cow", "street")))


def test_antecedent_probe_label_counts_from_one() -> None:
    index = HeadIndex("encoder", 1, 0)
    assert AntecedentProbe("attention", "it", index).label == 'encoder 2.1, row of "it"'
    assert AntecedentProbe("attention", "pronoun", HeadIndex("cross", 0, 3)).label == "cross 1.4, il/elle"
    assert AntecedentProbe("gradient", "pronoun").label == "gradient of il/elle"
