"""The PyTorch backend on a small trained model: splitting, batching, prefixes, scores, streaming."""

from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig, length_penalty
from heedful.inference.bulk import translate_lines
from heedful.inference.loading import load
from heedful.inference.translator import Translator

SENTENCES = ["The dog is tired.", "I am a student.", "", "The animal didn't cross the street.", "你好 👋"]


@pytest.fixture(scope="module")
def engine(quick_model: Path) -> Translator:
    return load(quick_model, engine="pytorch")


def test_translate_is_independent_of_batch(engine: Translator) -> None:
    engine.model_folder.translation_model.double()
    batched = engine.translate(SENTENCES)
    small = GenerationConfig(**{**engine.model_folder.config.generation.model_dump(), "max_batch_tokens": 1})
    alone = engine.translate(SENTENCES, small)
    engine.model_folder.translation_model.float()
    assert [translation.text for translation in batched] == [translation.text for translation in alone]
    assert [translation.score for translation in batched] == pytest.approx(
        [translation.score for translation in alone], abs=1e-9
    )


def test_translate_empty_text_is_empty(engine: Translator) -> None:
    assert engine.translate([]) == []
    (empty,) = engine.translate([""])
    assert (empty.text, empty.score, empty.segments) == ("", 0.0, 1)
    assert engine.translate([" \n "])[0].text.strip() == ""


def test_translate_long_text_is_split_and_joined(engine: Translator) -> None:
    sentences = ["The dog is tired.", "I am a student."] * 20
    text = "\n\n".join(sentences)
    (translation,) = engine.translate([text])
    sentence_translations = engine.translate(sentences)
    assert translation.segments == 40
    assert translation.text == "\n\n".join(sentence.text for sentence in sentence_translations)


def test_translate_overlong_word_is_split(engine: Translator) -> None:
    (translation,) = engine.translate(["x" * 10_000])
    max_length = engine.model_folder.config.max_source_length
    assert translation.segments >= 10_000 / max_length


def test_translate_prefix_is_kept(engine: Translator) -> None:
    for search in (GenerationConfig(beam_size=1), GenerationConfig(beam_size=3), GenerationConfig(method="sample")):
        (translation,) = engine.translate(["I am a student."], search, ["Le chat est"])
        assert translation.text.startswith("Le chat est")


def test_score_matches_search(engine: Translator) -> None:
    engine.model_folder.translation_model.double()
    search = GenerationConfig(beam_size=6, n_best=6, max_length_offset=2)
    (translation,) = engine.translate(["The dog is tired."], search, ["Le chien"])
    compared = 0
    for alternative in translation.alternatives:
        (scored,) = engine.score([translation.source], [alternative.text])
        if scored.tokens == alternative.tokens:  # the same text may have another tokenization
            length = len(alternative.token_log_probabilities)  # without END if incomplete
            expected = pytest.approx(scored.token_log_probabilities[:length], abs=1e-9)
            assert alternative.token_log_probabilities == expected
            compared += 1
    engine.model_folder.translation_model.float()
    assert compared


def test_score_matches_hand_computation(engine: Translator) -> None:
    (scored,) = engine.score(["The dog is tired."], ["Le chien est"])
    assert scored.tokens == ("▁Le", "▁chien", "▁est")
    assert len(scored.token_log_probabilities) == 4  # and the end
    assert scored.score == pytest.approx(sum(scored.token_log_probabilities) / length_penalty(4, 0.6))


def test_stream_matches_greedy_translation(engine: Translator) -> None:
    greedy = GenerationConfig(beam_size=1)
    for text in SENTENCES:
        chunks = list(engine.stream(text, greedy))
        assert "".join(chunks) == engine.translate([text], greedy)[0].text


def test_translate_truncated_output_is_not_complete(engine: Translator) -> None:
    forced = "Je Je Je Je Je Je Je Je Je"  # nine tokens for a source of four: only one more may follow
    (translation,) = engine.translate(["I am a"], GenerationConfig(beam_size=2, max_length_offset=1), [forced])
    best = translation.alternatives[0]
    assert len(best.tokens) in (9, 10)
    assert translation.complete == (len(best.token_log_probabilities) == len(best.tokens) + 1)
    assert translation.complete == (len(best.tokens) == 9)


def test_translate_lines_keeps_order(engine: Translator) -> None:
    lines = [SENTENCES[i % len(SENTENCES)] for i in range(40)]
    translations = list(translate_lines(engine, iter(lines), GenerationConfig(beam_size=1)))
    assert [translation.source for translation in translations] == lines


def test_translate_lines_failing_input_raises(engine: Translator) -> None:
    def lines():  # type: ignore[no-untyped-def]
        yield "I am a student."
        raise OSError("input failed")

    translations = translate_lines(engine, lines(), GenerationConfig(beam_size=1))
    assert next(translations).source == "I am a student."
    with pytest.raises(OSError, match="input failed"):
        next(translations)


def test_translate_splits_sentences(engine: Translator) -> None:
    """A model trained on single sentences would drop the second of two."""
    text = "  The dog is tired. I am a student.\n"
    (translation,) = engine.translate([text])
    first, second = engine.translate(["The dog is tired.", "I am a student."])
    assert translation.text == f"  {first.text} {second.text}\n"


def test_translate_control_characters_are_ignored(engine: Translator) -> None:
    clean, *stray = engine.translate(
        ["The dog is tired.", "\ufeffThe dog is tired.", "The\tdog  is tired.", "The dog\nis tired\x00."]
    )
    assert {translation.text for translation in stray[:2]} == {clean.text}
    assert engine.score(["The dog"], ["Le  chien "]) == engine.score(["The dog"], ["Le chien"])


def test_translate_string_instead_of_list_raises(engine: Translator) -> None:
    with pytest.raises(HeedfulError, match="list of texts"):
        engine.translate("I am a student.")
    with pytest.raises(HeedfulError, match="one prefix per text"):
        engine.translate(["I am a student."], prefixes=["Je", "Je"])
