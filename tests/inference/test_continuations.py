"""Alternatives after a prefix: the probability of each next token, and the translation that it leads to."""

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
def pytorch(quick_model: Path) -> Translator:
    return load(quick_model, engine="pytorch")


@pytest.fixture(scope="module")
def ctranslate2(quick_model: Path) -> Translator:
    return load(quick_model, engine="ctranslate2", workers=1)


def step_probabilities(engine: Translator, prefix: list[int]) -> Tensor:
    """The softmax after a prefix, computed token by token with the cache."""
    source = torch.tensor([[*engine.model_folder.tokenizer.source.encode(TEXT), END]])
    with torch.inference_mode():
        state = engine.model_folder.translation_model.start(source)
        for token in [PAD, *prefix]:
            scores, state = engine.model_folder.translation_model.step(torch.tensor([token]), state)
    return scores[0].exp()


def test_alternatives_probabilities_match_softmax(pytorch: Translator) -> None:
    vocabulary = pytorch.model_folder.tokenizer.target.vocab_size
    alternatives = pytorch.alternatives(TEXT, "", GREEDY, vocabulary)
    expected = step_probabilities(pytorch, [])
    assert len(alternatives) == vocabulary - 1  # all but the padding
    assert sum(alternative.probability for alternative in alternatives) == pytest.approx(1, abs=1e-5)
    for alternative in alternatives:
        assert alternative.probability == pytest.approx(float(expected[alternative.token_id]), abs=1e-6)
    assert [alternative.probability for alternative in alternatives] == sorted(
        (alternative.probability for alternative in alternatives), reverse=True
    )
    assert [alternative.token_id for alternative in pytorch.alternatives(TEXT, "", GREEDY, 3)] == [
        alternative.token_id for alternative in alternatives[:3]
    ]


def test_alternatives_translations_start_with_prefix_and_token(pytorch: Translator) -> None:
    target = pytorch.model_folder.tokenizer.target
    prefix = target.encode("Le chien")
    expected = step_probabilities(pytorch, prefix)
    alternatives = pytorch.alternatives(TEXT, "Le chien ", GREEDY, 12)
    assert len({alternative.token_id for alternative in alternatives}) == 12
    for alternative in alternatives:
        assert alternative.probability == pytest.approx(float(expected[alternative.token_id]), abs=1e-6)
        assert alternative.token_id == END or alternative.subword.startswith("▁")  # the space is kept
        tokens = alternative.translation.alternatives[0].tokens
        prefix_and_token = [*prefix, *([] if alternative.token_id == END else [alternative.token_id])]
        assert list(tokens[: len(prefix_and_token)]) == target.ids_to_tokens(prefix_and_token)
        assert alternative.translation.text.startswith(target.decode(prefix_and_token))
        assert alternative.translation.text.startswith(
            "Le chien " + alternative.word if alternative.word else "Le chien"
        )


def test_alternatives_include_sentence_end(pytorch: Translator) -> None:
    alternatives = pytorch.alternatives(TEXT, "Le chien ", GREEDY, pytorch.model_folder.tokenizer.target.vocab_size)
    (end,) = (alternative for alternative in alternatives if alternative.token_id == END)
    assert (end.subword, end.word, end.translation.text) == ("</s>", "", "Le chien")
    assert end.translation.complete
    assert end.translation.score == pytest.approx(pytorch.score([TEXT], ["Le chien"])[0].score, abs=1e-5)


@pytest.mark.parametrize("text", [TEXT, "I am a student.", "The animal didn't cross the street."])
def test_alternatives_first_is_greedy_translation(pytorch: Translator, ctranslate2: Translator, text: str) -> None:
    for engine in (pytorch, ctranslate2):
        (translation,) = engine.translate([text], GREEDY)
        assert engine.alternatives(text, "", GREEDY, 2)[0].translation.text == translation.text
        (forced,) = engine.translate([text], GREEDY, ["Le chat"])
        first = engine.alternatives(text, "Le chat", GREEDY, 2)[0]
        assert first.translation.text == forced.text


@pytest.mark.parametrize("prefix", ["", "Le chien", "Le chi"])
def test_alternatives_ctranslate2_matches_pytorch(pytorch: Translator, ctranslate2: Translator, prefix: str) -> None:
    ours, theirs = (engine.alternatives(TEXT, prefix, GREEDY) for engine in (pytorch, ctranslate2))
    assert len(ours) == 8
    for pytorch_alternative, ctranslate2_alternative in zip(ours, theirs, strict=True):
        assert (pytorch_alternative.token_id, pytorch_alternative.word, pytorch_alternative.probability) == (
            ctranslate2_alternative.token_id,
            ctranslate2_alternative.word,
            ctranslate2_alternative.probability,
        )
        assert pytorch_alternative.translation.text == ctranslate2_alternative.translation.text
        assert pytorch_alternative.translation.score == pytest.approx(
            ctranslate2_alternative.translation.score, abs=1e-3
        )


@pytest.mark.parametrize("start", ["Le", "Le chien est fatigué parce que le chat est large. Le"])
def test_alternatives_prefix_inside_word_completes_it(pytorch: Translator, start: str) -> None:
    """ "Le chi" is tokenized into subwords that the model would not write: it writes ▁chien."""
    target = pytorch.model_folder.tokenizer.target
    (chien,) = target.encode("chien")
    first = target.encode(start)
    rest = target.encode(f"{start} chi")[len(first) :]
    assert len(rest) > 1
    alternatives = pytorch.alternatives(TEXT, f"{start} chi", GREEDY, 5)
    assert all(alternative.translation.text.startswith(f"{start} chi") for alternative in alternatives)
    (completed,) = (alternative for alternative in alternatives if alternative.token_id == chien)
    assert completed.word == "chien"
    # By hand: the probability of ▁chien among all tokenizations of words with this prefix.
    longer_probability, prefix_probability = 0.0, 1.0
    for index, token in enumerate(rest):
        row = step_probabilities(pytorch, [*first, *rest[:index]])
        remaining_bytes = target.ids_to_bytes(rest[index:])
        longer_ids = [
            token_id
            for token_id in target.ids_with_prefix(remaining_bytes)
            if target.ids_to_bytes([token_id]) != remaining_bytes
        ]
        longer_probability += prefix_probability * float(row[longer_ids].sum())
        prefix_probability *= float(row[token])
    expected = float(step_probabilities(pytorch, first)[chien]) / (longer_probability + prefix_probability)
    assert completed.probability == pytest.approx(expected, abs=1e-5)


def test_alternatives_keep_surrounding_whitespace(pytorch: Translator) -> None:
    plain = pytorch.alternatives(TEXT, "Le", GREEDY, 3)
    spaced = pytorch.alternatives(f"\n {TEXT} ", "Le", GREEDY, 3)
    assert [alternative.translation.text for alternative in spaced] == [
        f"\n {alternative.translation.text} " for alternative in plain
    ]


def test_alternatives_not_one_sentence_raises_or_is_empty(pytorch: Translator) -> None:
    assert pytorch.alternatives("") == pytorch.alternatives(" \n") == pytorch.alternatives("\ufeff") == []
    with pytest.raises(HeedfulError, match="one sentence"):
        pytorch.alternatives("The dog is tired. I am a student.")
    with pytest.raises(HeedfulError, match="count is 0"):
        pytorch.alternatives(TEXT, count=0)
