"""Detection and names of languages."""

import builtins
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.text import languages
from heedful.text.languages import Detection, detect, language_name

pytest.importorskip("py3langid")

SENTENCES = {
    "en": "The weather is nice today and we are going to the park.",
    "de": "Das Wetter ist heute schön und wir gehen in den Park.",
    "fr": "Il fait beau aujourd'hui et nous allons au parc.",
    "es": "Hoy hace buen tiempo y vamos al parque.",
    "ar": "الطقس جميل اليوم وسوف نذهب إلى الحديقة.",
    "zh": "今天天气很好，我们要去公园。",
    "ru": "Сегодня хорошая погода, и мы идём в парк.",
    "ja": "今日は天気がいいので公園に行きます。",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_sentences_are_known(code: str) -> None:
    best = detect(SENTENCES[code])[0]
    assert best.language == code
    assert 50 < best.confidence <= 100


@pytest.mark.parametrize("code", ["en", "de"])
def test_only_the_languages_given(code: str) -> None:
    found = detect(SENTENCES[code], among=["de", "en"])
    assert found[0].language == code
    assert {each.language for each in found} <= {"de", "en"}
    assert found == sorted(found, key=lambda each: -each.confidence)


def test_regions_and_scripts_share_a_language() -> None:
    assert detect(SENTENCES["zh"], among=["en", "zh-Hans"])[0].language == "zh-Hans"
    found = detect("Hoje está bom tempo e vamos ao parque.", among=["pt", "pt-BR"])
    assert [each.confidence for each in found] == [50.0, 50.0]


@pytest.mark.parametrize("text", ["", "  \n", "12345", "!?", "😀🎉👩‍👩‍👧", "\ud800", "\0"])
def test_text_without_letters_is_nothing_sure(text: str) -> None:
    assert detect(text) == [Detection("en", 0.0)]
    assert detect(text, among=["fr", "de"]) == [Detection("fr", 0.0)]


@pytest.mark.parametrize(
    "text", ["a", "é" * 10_000, SENTENCES["ar"] * 300, "中" * 10_000, "a\ud800b", "😀 ok"]
)
def test_odd_texts_do_no_harm(text: str) -> None:
    assert all(0 <= each.confidence <= 100 for each in detect(text))


def test_languages_that_nobody_knows() -> None:
    assert detect("hello there", among=["tlh", "xx"]) == [Detection("tlh", 0.0)]
    assert detect("hello there", among=[])[0] == detect("hello there")[0]


def test_without_the_library_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_detector(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("py3langid"):
            raise ImportError(name)
        return real(name, *rest, **named)

    languages._identifier.cache_clear()
    monkeypatch.setattr(builtins, "__import__", no_detector)
    with pytest.raises(HeedfulError) as caught:
        detect("hello")
    assert caught.value.hint == "pip install 'heedful[serve]'"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "English"),
        ("EN", "English"),
        ("pt-BR", "Portuguese (Brazil)"),
        ("pt_br", "Portuguese (Brazil)"),
        ("zh-Hans", "Chinese (Simplified)"),
        ("zh-Hant-TW", "Chinese (Traditional, Taiwan)"),
        ("es-419", "Spanish (Latin America)"),
        ("sr-Latn", "Serbian (Latin)"),
        ("nb", "Norwegian Bokmål"),
        ("de-XX", "German (XX)"),
        ("xx", "xx"),
        ("", ""),
        ("my-own", "Burmese (own)"),
        ("demo", "demo"),
    ],
)
def test_names(code: str, name: str) -> None:
    assert language_name(code) == name


def test_the_table_is_whole() -> None:
    two_letters = [code for code in languages._names() if len(code) == 2]
    assert len(two_letters) >= 184
    assert all(code.isalpha() and name[:1].isupper() for code, name in languages._names().items())
