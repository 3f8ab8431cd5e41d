"""Codes, detection and names of languages."""

import sys

import pytest

from heedful.errors import HeedfulError
from heedful.tokenization import languages
from heedful.tokenization.languages import (
    Detection,
    detect_languages,
    find_matching_languages,
    language_name,
    languages_match,
    normalize_language,
)

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
    languages._load_identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid", None)
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
        ("en_US.UTF-8", "English (United States)"),
        ("sr_RS.UTF-8@latin", "Serbian (Latin, Serbia)"),
        ("de_DE@euro", "German (Germany)"),
        ("zt", "Chinese (Traditional)"),
        ("iw", "Hebrew"),
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
    assert len(two_letters) >= 180
    assert all(code.isalpha() and name[:1].isupper() for code, name in languages.LANGUAGE_NAMES.items())
    assert all(normalize_language(code) == code for code in languages.LANGUAGE_NAMES)


@pytest.mark.parametrize(
    "codes",
    [
        "zh-TW/zh-Hant",
        "zh-CN/zh-Hans",
        "he/iw",
        "id/in",
        "no/nb",
        "zh/cmn",
        "ar/arb",
        "sw/swh",
        "ms/zsm",
        "lv/lvs",
        "et/ekk",
        "tl/fil",
        "zt/zh-Hant",
        "zh-HK/zh-Hant",
        "ger/deu",
        "fre/fr",
        "cze/ces/cs",
        "en/en_US.UTF-8",
        "nb-NO/no",
        "sr@latin/sr-Latn",
        "pt-BR/pt",
        "ca@valencia/ca",
    ],
)
def test_languages_match_equivalent_codes(codes: str) -> None:
    first, *others = codes.split("/")
    for other in others:
        assert languages_match(first, other)
        assert languages_match(other.upper(), first)


@pytest.mark.parametrize(
    "codes",
    [
        "zh-TW/zh-CN",
        "zh-Hans/zh-Hant",
        "zh-TW/zh-Hans",
        "pt-BR/pt-PT",
        "en-US/en-GB",
        "nb/nn",
        "nb/da",
        "yue/zh",
        "ms/id",
        "hr/sr",
        "uk/ru",
        "sr-Latn/sr-Cyrl",
        "demo/de",
        "xx/yy",
        "english/en",
    ],
)
def test_languages_match_other_languages_and_variants_differ(codes: str) -> None:
    first, second = codes.split("/")
    assert not languages_match(first, second)
    assert not languages_match(second, first)


def test_find_matching_languages_nearest_first() -> None:
    assert find_matching_languages("zh-TW", ["en", "zh", "zh-Hans", "zh-Hant"]) == [3, 1]
    assert find_matching_languages("en", ["en-GB", "de", "eng", "en-US"]) == [2, 3, 0]
    assert find_matching_languages("no", ["nn", "nb"]) == [1]
    assert find_matching_languages("", ["en", "demo"]) == []


@pytest.mark.parametrize(
    "code", ["", " ", "C", "POSIX", "demo", "a b", "\0", "\ud800", "é", "x" * 1000, "-", "@.", "q-1"]
)
def test_normalize_language_invalid_codes_are_lowercased(code: str) -> None:
    assert normalize_language(code) == code.strip().lower()
    assert languages_match(code, code)
    assert language_name(code) == code
