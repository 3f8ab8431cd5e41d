"""DeepL's API on a real server."""

import pytest

from heedful.inference.translator import Translator
from tests.server.server_process import ask

TEXTS = ["The dog is tired.", "I am a student."]
KEY = {"Authorization": "DeepL-Auth-Key any"}


def test_translate_json_and_form_return_translations(address: str, engine: Translator) -> None:
    expected = [{"detected_source_language": "EN", "text": result.text} for result in engine.translate(TEXTS)]
    body = {"text": TEXTS, "target_lang": "FR"}
    assert ask(address, "/v2/translate", body, headers=KEY).json == {"translations": expected}
    assert ask(address, "/v2/translate", form=body, headers=KEY).json == {"translations": expected}
    single = {"text": TEXTS[0], "target_lang": "FR", "source_lang": "EN-US"}
    assert ask(address, "/v2/translate", form=single).json == {"translations": expected[:1]}


@pytest.mark.parametrize("tag_handling", ["html", "xml"])
def test_translate_tags_preserved(address: str, tag_handling: str) -> None:
    body = {"text": ["<p>The <x id='1'>dog</x> is tired.</p>"], "target_lang": "FR", "tag_handling": tag_handling}
    [result] = ask(address, "/v2/translate", body).json["translations"]
    assert result["text"].startswith("<p>")
    assert result["text"].count("<x id='1'>") == result["text"].count("</x>") == 1


def test_translate_ignored_tags_unchanged(address: str) -> None:
    text = "<p>The dog is <X id='1'>very tired</X>. I am <keep>a student</keep>.</p>"
    for tags in ("x,keep", ["x", "keep"], ["X, keep"]):
        body = {"text": text, "target_lang": "FR", "tag_handling": "xml", "ignore_tags": tags}
        [result] = ask(address, "/v2/translate", body).json["translations"]
        assert "<X id='1'>very tired</X>" in result["text"]
        assert "<keep>a student</keep>" in result["text"]


@pytest.mark.parametrize("flag", [True, "1", "true"])
def test_translate_billed_characters_equal_source_lengths(address: str, flag: object) -> None:
    """The official DeepL client always requests them, and fails without them."""
    body = {"text": TEXTS, "target_lang": "FR"}
    result = ask(address, "/v2/translate", {**body, "show_billed_characters": flag}).json["translations"]
    assert [item["billed_characters"] for item in result] == [len(text) for text in TEXTS]
    result = ask(address, "/v2/translate", {**body, "show_billed_characters": False}).json["translations"]
    assert "billed_characters" not in result[0]


def test_translate_ignored_options_accepted(address: str) -> None:
    """Options that the official DeepL client sends."""
    body = {"text": TEXTS, "target_lang": "FR"}
    ignored = {
        "context": "A story.",
        "formality": "prefer_less",
        "split_sentences": "0",
        "preserve_formatting": True,
        "outline_detection": True,
        "model_type": "quality_optimized",
        "tag_handling_version": "v2",
        "glossary_id": None,
        "splitting_tags": [],
    }
    expected = ask(address, "/v2/translate", body).json
    assert ask(address, "/v2/translate", {**body, **ignored}).json == expected
    assert ask(address, "/v2/translate", form={**body, "formality": "default", "glossary_id": ""}).json == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("formality", "more"),
        ("split_sentences", "nonewlines"),
        ("outline_detection", False),
        ("glossary_id", "1"),
        ("style_id", "1"),
        ("splitting_tags", ["p"]),
        ("non_splitting_tags", "p"),
        ("custom_instructions", ["Be kind."]),
        ("something_new", 1),
    ],
)
def test_translate_unsupported_option_rejected(address: str, name: str, value: object) -> None:
    response = ask(address, "/v2/translate", {"text": TEXTS, "target_lang": "FR", name: value})
    assert response.status == 400
    assert name in response.error


def test_languages_list_sources_and_targets(address: str) -> None:
    assert ask(address, "/v2/languages").json == [{"language": "EN", "name": "English"}]
    assert ask(address, "/v2/languages?type=target").json == [{"language": "FR", "name": "French"}]


@pytest.mark.parametrize(
    "body",
    [
        {"text": TEXTS},
        {"target_lang": "FR"},
        {"text": TEXTS, "target_lang": "XX"},
        {"text": 5, "target_lang": "FR"},
        {"text": TEXTS, "target_lang": "FR", "tag_handling": "pdf"},
        {"text": TEXTS, "target_lang": "FR", "ignore_tags": [5]},
    ],
)
def test_errors_have_message_key(address: str, body: dict[str, object]) -> None:
    response = ask(address, "/v2/translate", body)
    assert response.status == 400
    assert response.json["message"] == response.error
