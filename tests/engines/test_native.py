"""The PyTorch engine on a small trained model: splitting, batching, prefixes, scores, streaming."""

from pathlib import Path

import pytest

from heedful.decoding.config import SearchConfig
from heedful.decoding.hypothesis import length_penalty
from heedful.engines.lines import translate_lines
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError

SENTENCES = ["The dog is tired.", "I am a student.", "", "The animal didn't cross the street.", "你好 👋"]


@pytest.fixture(scope="module")
def engine(quick_model: Path) -> NativeEngine:
    return NativeEngine.load(quick_model)


def test_a_text_is_translated_alike_alone_and_in_a_batch(engine: NativeEngine) -> None:
    engine.model.double()
    together = engine.translate(SENTENCES)
    small = SearchConfig(**{**engine.bundle.config.search.model_dump(), "batch_tokens": 1})
    alone = engine.translate(SENTENCES, small)
    engine.model.float()
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-9)


def test_nothing_in_nothing_out(engine: NativeEngine) -> None:
    assert engine.translate([]) == []
    (empty,) = engine.translate([""])
    assert (empty.text, empty.score, empty.segments) == ("", 0.0, 1)
    assert engine.translate([" \n "])[0].text.strip() == ""


def test_long_text_is_split_and_put_together(engine: NativeEngine) -> None:
    sentences = ["The dog is tired.", "I am a student."] * 20
    text = "\n\n".join(sentences)
    (whole,) = engine.translate([text])
    parts = engine.translate(sentences)
    assert whole.segments == 40
    assert whole.text == "\n\n".join(part.text for part in parts)


def test_every_part_of_an_endless_word_is_read(engine: NativeEngine) -> None:
    (translation,) = engine.translate(["x" * 10_000])
    longest = engine.bundle.config.longest_source
    assert translation.segments >= 10_000 / longest


def test_prefix_is_kept_word_for_word(engine: NativeEngine) -> None:
    for search in (SearchConfig(beam=1), SearchConfig(beam=3), SearchConfig(method="sample")):
        (translation,) = engine.translate(["I am a student."], search, ["Le chat est"])
        assert translation.text.startswith("Le chat est")


def test_score_of_a_translation_is_the_score_that_search_gave_it(engine: NativeEngine) -> None:
    engine.model.double()
    search = SearchConfig(beam=6, n_best=6, extra_length=2)
    (translation,) = engine.translate(["The dog is tired."], search, ["Le chien"])
    compared = 0
    for found in translation.alternatives:
        (scored,) = engine.score([translation.source], [found.text])
        if scored.tokens == found.tokens:  # the same text may be spelled in other pieces
            written = len(found.token_log_probabilities)  # an incomplete one has no end
            expected = pytest.approx(scored.token_log_probabilities[:written], abs=1e-9)
            assert found.token_log_probabilities == expected
            compared += 1
    engine.model.float()
    assert compared


def test_score_by_hand(engine: NativeEngine) -> None:
    (scored,) = engine.score(["The dog is tired."], ["Le chien est"])
    assert scored.tokens == ("▁Le", "▁chien", "▁est")
    assert len(scored.token_log_probabilities) == 4  # and the end
    assert scored.score == pytest.approx(sum(scored.token_log_probabilities) / length_penalty(4, 0.6))


def test_stream_is_the_greedy_translation(engine: NativeEngine) -> None:
    greedy = SearchConfig(beam=1)
    for text in SENTENCES:
        parts = list(engine.stream(text, greedy))
        assert "".join(parts) == engine.translate([text], greedy)[0].text


def test_incomplete_translations_say_so(engine: NativeEngine) -> None:
    forced = "Je Je Je Je Je Je Je Je Je"  # nine tokens for a source of four: only one more may follow
    (translation,) = engine.translate(["I am a"], SearchConfig(beam=2, extra_length=1), [forced])
    best = translation.alternatives[0]
    assert len(best.tokens) in (9, 10)
    assert translation.complete == (len(best.token_log_probabilities) == len(best.tokens) + 1)
    assert translation.complete == (len(best.tokens) == 9)


def test_lines_keep_order(engine: NativeEngine) -> None:
    lines = [SENTENCES[i % len(SENTENCES)] for i in range(40)]
    found = list(translate_lines(engine, iter(lines), SearchConfig(beam=1)))
    assert [each.source for each in found] == lines


def test_a_failing_source_of_lines_is_heard(engine: NativeEngine) -> None:
    def lines():  # type: ignore[no-untyped-def]
        yield "I am a student."
        raise OSError("the cable was pulled")

    found = translate_lines(engine, lines(), SearchConfig(beam=1))
    assert next(found).source == "I am a student."
    with pytest.raises(OSError, match="cable"):
        next(found)


def test_each_sentence_of_a_text_is_translated(engine: NativeEngine) -> None:
    """A model that learned from single sentences would drop the second of two."""
    text = "  The dog is tired. I am a student.\n"
    (whole,) = engine.translate([text])
    first, second = engine.translate(["The dog is tired.", "I am a student."])
    assert whole.text == f"  {first.text} {second.text}\n"


def test_stray_characters_do_not_matter(engine: NativeEngine) -> None:
    clean, *stray = engine.translate(
        ["The dog is tired.", "\ufeffThe dog is tired.", "The\tdog  is tired.", "The dog\nis tired\x00."]
    )
    assert {each.text for each in stray[:2]} == {clean.text}
    assert engine.score(["The dog"], ["Le  chien "]) == engine.score(["The dog"], ["Le chien"])


def test_a_text_is_no_list(engine: NativeEngine) -> None:
    with pytest.raises(HeedfulError, match="list of texts"):
        engine.translate("I am a student.")
    with pytest.raises(HeedfulError, match="as many prefixes"):
        engine.translate(["I am a student."], prefixes=["Je", "Je"])
