"""Places that know what "it" means: one that is made to know, against those that cannot."""

from dataclasses import replace

import pytest
import torch

from heedful.corpora.grammar import generate, words
from heedful.inspection import antecedents
from heedful.inspection.antecedents import Place, _genders_differ, antecedent_rates
from heedful.inspection.trace import Trace, trace
from tests.inspection.models import new_bundle


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoder layer 2 head 3 is given the answer for "it"; head 4 always looks at the first word."""
    pairs = generate(40, seed=5, held_out=True)
    answers = {pair.source: pair.antecedent for pair in pairs}
    bundle = new_bundle()

    def knowing(bundle: object, source: str, target: str) -> Trace:
        seen = trace(bundle, source, target)  # type: ignore[arg-type]
        weights = seen.tensors["encoder.1.self.weights"].clone()
        answer = answers[source]
        assert answer is not None
        it, noun = answer
        weights[2] = 0.01
        weights[2, it, noun] = 0.9
        weights[3] = torch.eye(weights.size(-1))[0]
        seen.tensors["encoder.1.self.weights"] = weights
        return seen

    by_source = {pair.source: pair for pair in pairs}

    def knowing_more(bundle: object, source: str, target: str) -> Trace:
        """Head 1 knows it in the row of the adjective, and head 2 of cross-attention in that of il/elle."""
        seen, pair = knowing(bundle, source, target), by_source[source]
        assert pair.antecedent is not None
        weights = seen.tensors["encoder.1.self.weights"]
        weights[0] = 0.01
        weights[0, pair.adjective, pair.antecedent[1]] = 0.9
        cross = seen.tensors["decoder.0.cross.weights"].clone()
        cross[1] = 0.01
        cross[1, pair.pronoun, pair.antecedent[1]] = 0.9
        seen.tensors["decoder.0.cross.weights"] = cross
        return seen

    def knowing_gradient(_: object, seen: Trace, step: int, rival: int | None) -> torch.Tensor:
        """Right only if it is asked about il or elle, against the other."""
        asked = {seen.written.words[step], bundle.tokenizer.target.decode([rival or 0]).strip()}
        pair = next(each for each in pairs if words(each.source) == list(seen.source.words[:-1]))
        assert pair.antecedent is not None
        assert asked == {"il", "elle"}
        return torch.eye(len(seen.source.ids))[pair.antecedent[1]]

    monkeypatch.setattr(antecedents, "trace", knowing_more)
    monkeypatch.setattr(antecedents, "METHODS", {"gradient": knowing_gradient})
    rates = antecedent_rates(bundle, [*pairs, *(pair for pair in generate(9) if not pair.antecedent)])
    best = Place("attention", "it", "encoder", 1, 2)
    first = next(iter(rates))
    assert rates[first].first == 1
    assert rates[best].first == rates[best].preferred == rates[best].preferred_if_telling == 1
    assert rates[best].sentences == 40
    assert rates[Place("attention", "it", "encoder", 1, 3)].first == 0
    assert rates[Place("attention", "adjective", "encoder", 1, 0)].first == 1
    assert rates[Place("attention", "pronoun", "cross", 0, 1)].first == 1
    assert rates[Place("gradient", "pronoun")].first == 1
    assert len(rates) == 3 * 4 * 2 + 2 * 4 + 1


def test_genders() -> None:
    """animal and street are l'animal (m) and la rue (f); dog and street differ too, cat and dog do not."""
    pair = next(pair for pair in generate(2000, held_out=True) if set(pair.nouns) == {"animal", "street"})
    assert _genders_differ(pair)
    assert not _genders_differ(replace(pair, nouns=("dog", "cat")))
    assert not _genders_differ(replace(pair, nouns=("cow", "street")))


def test_names() -> None:
    assert Place("attention", "it", "encoder", 1, 0).name == 'encoder layer 2 head 1, the row of "it"'
    assert Place("attention", "pronoun", "cross", 0, 3).name == (
        "decoder layer 1 head 4, cross-attention of il/elle"
    )
    assert Place("gradient", "pronoun").name == "gradient of il/elle"
