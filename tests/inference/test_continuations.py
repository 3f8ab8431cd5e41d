"""What may come next after a prefix: the model's own probabilities, and where each token leads."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.tokenization.special_tokens import END, PAD

TEXT = "The dog is tired."
GREEDY = GenerationConfig(beam_size=1, max_length_offset=6)


@pytest.fixture(scope="module")
def native(quick_model: Path) -> Translator:
    return load(quick_model, engine="pytorch")


@pytest.fixture(scope="module")
def quick(quick_model: Path) -> Translator:
    return load(quick_model, engine="ctranslate2", workers=1)


def stepwise(engine: Translator, prefix: list[int]) -> Tensor:
    """The softmax after a prefix by the other way through the model: token by token, with its cache."""
    source = torch.tensor([[*engine.model_folder.tokenizer.source.encode(TEXT), END]])
    with torch.inference_mode():
        state = engine.model_folder.translation_model.start(source)
        for token in [PAD, *prefix]:
            scores, state = engine.model_folder.translation_model.step(torch.tensor([token]), state)
    return scores[0].exp()


def test_alternatives_probabilities_match_softmax(native: Translator) -> None:
    vocabulary = native.model_folder.tokenizer.target.vocab_size
    found = native.alternatives(TEXT, "", GREEDY, vocabulary)
    expected = stepwise(native, [])
    assert len(found) == vocabulary - 1  # all but the padding
    assert sum(each.probability for each in found) == pytest.approx(1, abs=1e-5)
    for each in found:
        assert each.probability == pytest.approx(float(expected[each.token_id]), abs=1e-6)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    assert [each.token_id for each in native.alternatives(TEXT, "", GREEDY, 3)] == [each.token_id for each in found[:3]]


def test_alternatives_translations_start_with_prefix_and_token(native: Translator) -> None:
    target = native.model_folder.tokenizer.target
    prefix = target.encode("Le chien")
    expected = stepwise(native, prefix)
    found = native.alternatives(TEXT, "Le chien ", GREEDY, 12)
    assert len({each.token_id for each in found}) == 12
    for each in found:
        assert each.probability == pytest.approx(float(expected[each.token_id]), abs=1e-6)
        assert each.token_id == END or each.subword.startswith("▁")  # the space is kept
        tokens = each.translation.alternatives[0].tokens
        written = [*prefix, *([] if each.token_id == END else [each.token_id])]
        assert list(tokens[: len(written)]) == target.ids_to_tokens(written)
        assert each.translation.text.startswith(target.decode(written))
        assert each.translation.text.startswith("Le chien " + each.word if each.word else "Le chien")


def test_alternatives_include_sentence_end(native: Translator) -> None:
    found = native.alternatives(TEXT, "Le chien ", GREEDY, native.model_folder.tokenizer.target.vocab_size)
    (end,) = (each for each in found if each.token_id == END)
    assert (end.subword, end.word, end.translation.text) == ("</s>", "", "Le chien")
    assert end.translation.complete
    assert end.translation.score == pytest.approx(native.score([TEXT], ["Le chien"])[0].score, abs=1e-5)


@pytest.mark.parametrize("text", [TEXT, "I am a student.", "The animal didn't cross the street."])
def test_alternatives_first_is_greedy_translation(native: Translator, quick: Translator, text: str) -> None:
    for engine in (native, quick):
        (whole,) = engine.translate([text], GREEDY)
        assert engine.alternatives(text, "", GREEDY, 2)[0].translation.text == whole.text
        (forced,) = engine.translate([text], GREEDY, ["Le chat"])
        first = engine.alternatives(text, "Le chat", GREEDY, 2)[0]
        assert first.translation.text == forced.text


@pytest.mark.parametrize("prefix", ["", "Le chien", "Le chi"])
def test_alternatives_ctranslate2_matches_pytorch(native: Translator, quick: Translator, prefix: str) -> None:
    ours, theirs = (engine.alternatives(TEXT, prefix, GREEDY) for engine in (native, quick))
    assert len(ours) == 8
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.token_id, mine.word, mine.probability) == (other.token_id, other.word, other.probability)
        assert mine.translation.text == other.translation.text
        assert mine.translation.score == pytest.approx(other.translation.score, abs=1e-3)


@pytest.mark.parametrize("start", ["Le", "Le chien est fatigué parce que le chat est large. Le"])
def test_alternatives_prefix_inside_word_completes_it(native: Translator, start: str) -> None:
    """ "Le chi" is spelled in pieces that the model would not write: it writes ▁chien."""
    target = native.model_folder.tokenizer.target
    (chien,) = target.encode("chien")
    first = target.encode(start)
    rest = target.encode(f"{start} chi")[len(first) :]
    assert len(rest) > 1
    found = native.alternatives(TEXT, f"{start} chi", GREEDY, 5)
    assert all(each.translation.text.startswith(f"{start} chi") for each in found)
    (completed,) = (each for each in found if each.token_id == chien)
    assert completed.word == "chien"
    # By hand: the share of ▁chien among all spellings of a word that begins so.
    ways, reached = 0.0, 1.0
    for place, token in enumerate(rest):
        row = stepwise(native, [*first, *rest[:place]])
        spelled = target.ids_to_bytes(rest[place:])
        longer = [each for each in target.ids_with_prefix(spelled) if target.ids_to_bytes([each]) != spelled]
        ways += reached * float(row[longer].sum())
        reached *= float(row[token])
    share = float(stepwise(native, first)[chien]) / (ways + reached)
    assert completed.probability == pytest.approx(share, abs=1e-5)


def test_alternatives_keep_surrounding_whitespace(native: Translator) -> None:
    plain = native.alternatives(TEXT, "Le", GREEDY, 3)
    spaced = native.alternatives(f"\n {TEXT} ", "Le", GREEDY, 3)
    assert [each.translation.text for each in spaced] == [f"\n {each.translation.text} " for each in plain]


def test_alternatives_not_one_sentence_raises_or_is_empty(native: Translator) -> None:
    assert native.alternatives("") == native.alternatives(" \n") == native.alternatives("\ufeff") == []
    with pytest.raises(HeedfulError, match="one sentence"):
        native.alternatives("The dog is tired. I am a student.")
    with pytest.raises(HeedfulError, match="count is 0"):
        native.alternatives(TEXT, count=0)
