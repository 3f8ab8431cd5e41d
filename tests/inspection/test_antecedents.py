"""Places that know what "it" means: one that is made to know, against those that cannot."""

import pytest
import torch

from heedful.corpora.grammar import generate
from heedful.inspection import antecedents
from heedful.inspection.antecedents import Place, antecedent_rates
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

    monkeypatch.setattr(antecedents, "trace", knowing)
    rates = antecedent_rates(bundle, [*pairs, *(pair for pair in generate(9) if not pair.antecedent)])
    best = Place("attention", "it", "encoder", 1, 2)
    assert next(iter(rates)) == best
    assert rates[best].first == rates[best].preferred == rates[best].preferred_if_telling == 1
    assert rates[best].sentences == 40
    assert rates[Place("attention", "it", "encoder", 1, 3)].first == 0
    assert len(rates) == 3 * 4 * 2 + 2 * 4 + 2


def test_names() -> None:
    assert Place("attention", "it", "encoder", 1, 0).name == 'encoder layer 2 head 1, the row of "it"'
    assert Place("attention", "pronoun", "cross", 0, 3).name == (
        "decoder layer 1 head 4, cross-attention of il/elle"
    )
    assert Place("gradient", "pronoun").name == "gradient of il/elle"
