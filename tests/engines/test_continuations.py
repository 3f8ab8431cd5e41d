"""What may come next after a prefix: the model's own probabilities, and where each token leads."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful.api import load
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.text.tokenizer import END, PAD

TEXT = "The dog is tired."
GREEDY = SearchConfig(beam=1, extra_length=6)


@pytest.fixture(scope="module")
def native(quick_model: Path) -> NativeEngine:
    return NativeEngine.load(quick_model)


@pytest.fixture(scope="module")
def quick(quick_model: Path) -> SegmentedEngine:
    return load(quick_model, engine="ctranslate2", workers=1)


def stepwise(engine: NativeEngine, prefix: list[int]) -> Tensor:
    """The softmax after a prefix by the other way through the model: token by token, with its cache."""
    source = torch.tensor([[*engine.bundle.tokenizer.source.encode(TEXT), END]])
    with torch.inference_mode():
        state = engine.model.start(source)
        for token in [PAD, *prefix]:
            scores, state = engine.model.step(torch.tensor([token]), state)
    return scores[0].exp()


def test_probabilities_are_the_full_softmax(native: NativeEngine) -> None:
    vocabulary = native.bundle.tokenizer.target.size
    found = native.continuations(TEXT, "", GREEDY, vocabulary)
    expected = stepwise(native, [])
    assert len(found) == vocabulary - 1  # all but the padding
    assert sum(each.probability for each in found) == pytest.approx(1, abs=1e-5)
    for each in found:
        assert each.probability == pytest.approx(float(expected[each.token]), abs=1e-6)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    assert [each.token for each in native.continuations(TEXT, "", GREEDY, 3)] == [
        each.token for each in found[:3]
    ]


def test_each_goes_on_from_prefix_and_token(native: NativeEngine) -> None:
    target = native.bundle.tokenizer.target
    prefix = target.encode("Le chien")
    expected = stepwise(native, prefix)
    found = native.continuations(TEXT, "Le chien ", GREEDY, 12)
    assert len({each.token for each in found}) == 12
    for each in found:
        assert each.probability == pytest.approx(float(expected[each.token]), abs=1e-6)
        assert each.token == END or each.piece.startswith("▁")  # the space is kept
        tokens = each.translation.alternatives[0].tokens
        written = [*prefix, *([] if each.token == END else [each.token])]
        assert list(tokens[: len(written)]) == target.pieces(written)
        assert each.translation.text.startswith(target.decode(written))
        assert each.translation.text.startswith("Le chien " + each.word if each.word else "Le chien")


def test_the_end_is_among_them(native: NativeEngine) -> None:
    found = native.continuations(TEXT, "Le chien ", GREEDY, native.bundle.tokenizer.target.size)
    (end,) = (each for each in found if each.token == END)
    assert (end.piece, end.word, end.translation.text) == ("</s>", "", "Le chien")
    assert end.translation.complete
    assert end.translation.score == pytest.approx(native.score([TEXT], ["Le chien"])[0].score, abs=1e-5)


@pytest.mark.parametrize("text", [TEXT, "I am a student.", "The animal didn't cross the street."])
def test_the_first_is_the_greedy_translation(native: NativeEngine, quick: SegmentedEngine, text: str) -> None:
    for engine in (native, quick):
        (whole,) = engine.translate([text], GREEDY)
        assert engine.continuations(text, "", GREEDY, 2)[0].translation.text == whole.text
        (forced,) = engine.translate([text], GREEDY, ["Le chat"])
        first = engine.continuations(text, "Le chat", GREEDY, 2)[0]
        assert first.translation.text == forced.text


@pytest.mark.parametrize("prefix", ["", "Le chien", "Le chi"])
def test_both_engines_agree(native: NativeEngine, quick: SegmentedEngine, prefix: str) -> None:
    ours, theirs = (engine.continuations(TEXT, prefix, GREEDY) for engine in (native, quick))
    assert len(ours) == 8
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.token, mine.word, mine.probability) == (other.token, other.word, other.probability)
        assert mine.translation.text == other.translation.text
        assert mine.translation.score == pytest.approx(other.translation.score, abs=1e-3)


@pytest.mark.parametrize("start", ["Le", "Le chien est fatigué parce que le chat est large. Le"])
def test_an_unfinished_word_is_completed(native: NativeEngine, start: str) -> None:
    """ "Le chi" is spelled in pieces that the model would not write: it writes ▁chien."""
    target = native.bundle.tokenizer.target
    (chien,) = target.encode("chien")
    first = target.encode(start)
    rest = target.encode(f"{start} chi")[len(first) :]
    assert len(rest) > 1
    found = native.continuations(TEXT, f"{start} chi", GREEDY, 5)
    assert all(each.translation.text.startswith(f"{start} chi") for each in found)
    (completed,) = (each for each in found if each.token == chien)
    assert completed.word == "chien"
    # By hand: the share of ▁chien among all spellings of a word that begins so.
    ways, reached = 0.0, 1.0
    for place, token in enumerate(rest):
        row = stepwise(native, [*first, *rest[:place]])
        spelled = target.spelled(rest[place:])
        longer = [each for each in target.beginning_with(spelled) if target.spelled([each]) != spelled]
        ways += reached * float(row[longer].sum())
        reached *= float(row[token])
    share = float(stepwise(native, first)[chien]) / (ways + reached)
    assert completed.probability == pytest.approx(share, abs=1e-5)


def test_space_around_the_sentence_stays(native: NativeEngine) -> None:
    plain = native.continuations(TEXT, "Le", GREEDY, 3)
    spaced = native.continuations(f"\n {TEXT} ", "Le", GREEDY, 3)
    assert [each.translation.text for each in spaced] == [f"\n {each.translation.text} " for each in plain]


def test_what_is_no_sentence(native: NativeEngine) -> None:
    assert native.continuations("") == native.continuations(" \n") == native.continuations("\ufeff") == []
    with pytest.raises(HeedfulError, match="one sentence"):
        native.continuations("The dog is tired. I am a student.")
    with pytest.raises(HeedfulError, match="0 continuations"):
        native.continuations(TEXT, count=0)
