"""Detection and names of languages."""

import builtins
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.tokenization import languages
from heedful.tokenization.languages import Detection, detect_languages, language_name

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
def test_detect_languages_sentence_gives_its_language(code: str) -> None:
    best = detect_languages(SENTENCES[code])[0]
    assert best.language == code
    assert 50 < best.confidence <= 100


@pytest.mark.parametrize("code", ["en", "de"])
def test_detect_languages_candidates_limit_result(code: str) -> None:
    detections = detect_languages(SENTENCES[code], candidates=["de", "en"])
    assert detections[0].language == code
    assert {detection.language for detection in detections} <= {"de", "en"}
    assert detections == sorted(detections, key=lambda detection: -detection.confidence)


def test_detect_languages_variants_share_probability() -> None:
    assert detect_languages(SENTENCES["zh"], candidates=["en", "zh-Hans"])[0].language == "zh-Hans"
    detections = detect_languages("Hoje está bom tempo e vamos ao parque.", candidates=["pt", "pt-BR"])
    assert [detection.confidence for detection in detections] == [50.0, 50.0]


@pytest.mark.parametrize("text", ["", "  \n", "12345", "!?", "😀🎉👩‍👩‍👧", "\ud800", "\0"])
def test_detect_languages_text_without_letters_has_zero_confidence(text: str) -> None:
    assert detect_languages(text) == [Detection("en", 0.0)]
    assert detect_languages(text, candidates=["fr", "de"]) == [Detection("fr", 0.0)]


@pytest.mark.parametrize("text", ["a", "é" * 10_000, SENTENCES["ar"] * 300, "中" * 10_000, "a\ud800b", "😀 ok"])
def test_detect_languages_unusual_text_gives_valid_result(text: str) -> None:
    assert all(0 <= detection.confidence <= 100 for detection in detect_languages(text))


def test_detect_languages_unknown_candidates_have_zero_confidence() -> None:
    assert detect_languages("hello there", candidates=["tlh", "xx"]) == [Detection("tlh", 0.0)]
    assert detect_languages("hello there", candidates=[])[0] == detect_languages("hello there")[0]


def test_detect_languages_missing_library_raises_with_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    original_import = builtins.__import__

    def import_without_detector(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("py3langid"):
            raise ImportError(name)
        return original_import(name, *args, **options)

    languages._load_identifier.cache_clear()
    monkeypatch.setattr(builtins, "__import__", import_without_detector)
    with pytest.raises(HeedfulError) as caught:
        detect_languages("hello")
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
def test_language_name_known_and_unknown_codes(code: str, name: str) -> None:
    assert language_name(code) == name


def test_language_name_table_is_complete() -> None:
    two_letters = [code for code in languages.LANGUAGE_NAMES if len(code) == 2]
    assert len(two_letters) >= 184
    assert all(code.isalpha() and name[:1].isupper() for code, name in languages.LANGUAGE_NAMES.items())
