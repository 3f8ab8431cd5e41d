"""DeepL's interface on a real server."""

import pytest

from heedful.engines.segmented import SegmentedEngine
from tests.server.serving import ask

TEXTS = ["The dog is tired.", "I am a student."]
KEY = {"Authorization": "DeepL-Auth-Key any"}


def test_json_and_form(address: str, engine: SegmentedEngine) -> None:
    expected = [{"detected_source_language": "EN", "text": found.text} for found in engine.translate(TEXTS)]
    asked = {"text": TEXTS, "target_lang": "FR"}
    assert ask(address, "/v2/translate", asked, headers=KEY).json == {"translations": expected}
    assert ask(address, "/v2/translate", form=asked, headers=KEY).json == {"translations": expected}
    single = {"text": TEXTS[0], "target_lang": "FR", "source_lang": "EN-US"}
    assert ask(address, "/v2/translate", form=single).json == {"translations": expected[:1]}


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_tags(address: str, kind: str) -> None:
    asked = {"text": ["<p>The <x id='1'>dog</x> is tired.</p>"], "target_lang": "FR", "tag_handling": kind}
    [found] = ask(address, "/v2/translate", asked).json["translations"]
    assert found["text"].startswith("<p>")
    assert found["text"].count("<x id='1'>") == found["text"].count("</x>") == 1


def test_ignored_tags_stay(address: str) -> None:
    text = "<p>The dog is <X id='1'>very tired</X>. I am <keep>a student</keep>.</p>"
    for tags in ("x,keep", ["x", "keep"], ["X, keep"]):
        asked = {"text": text, "target_lang": "FR", "tag_handling": "xml", "ignore_tags": tags}
        [found] = ask(address, "/v2/translate", asked).json["translations"]
        assert "<X id='1'>very tired</X>" in found["text"]
        assert "<keep>a student</keep>" in found["text"]


@pytest.mark.parametrize("yes", [True, "1", "true"])
def test_billed_characters(address: str, yes: object) -> None:
    """The client of DeepL itself asks for them always, and fails without."""
    asked = {"text": TEXTS, "target_lang": "FR"}
    found = ask(address, "/v2/translate", {**asked, "show_billed_characters": yes}).json["translations"]
    assert [each["billed_characters"] for each in found] == [len(text) for text in TEXTS]
    found = ask(address, "/v2/translate", {**asked, "show_billed_characters": False}).json["translations"]
    assert "billed_characters" not in found[0]


def test_options_without_effect(address: str) -> None:
    """As the Python package of DeepL sends them."""
    asked = {"text": TEXTS, "target_lang": "FR"}
    harmless = {
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
    expected = ask(address, "/v2/translate", asked).json
    assert ask(address, "/v2/translate", {**asked, **harmless}).json == expected
    assert (
        ask(address, "/v2/translate", form={**asked, "formality": "default", "glossary_id": ""}).json
        == expected
    )


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
def test_other_options_are_refused_by_name(address: str, name: str, value: object) -> None:
    answer = ask(address, "/v2/translate", {"text": TEXTS, "target_lang": "FR", name: value})
    assert answer.status == 400
    assert name in answer.error


def test_languages(address: str) -> None:
    assert ask(address, "/v2/languages").json == [{"language": "EN", "name": "English"}]
    assert ask(address, "/v2/languages?type=target").json == [{"language": "FR", "name": "French"}]


@pytest.mark.parametrize(
    "asked",
    [
        {"text": TEXTS},
        {"target_lang": "FR"},
        {"text": TEXTS, "target_lang": "XX"},
        {"text": 5, "target_lang": "FR"},
        {"text": TEXTS, "target_lang": "FR", "tag_handling": "pdf"},
        {"text": TEXTS, "target_lang": "FR", "ignore_tags": [5]},
    ],
)
def test_errors_have_deepls_name_too(address: str, asked: dict[str, object]) -> None:
    answer = ask(address, "/v2/translate", asked)
    assert answer.status == 400
    assert answer.json["message"] == answer.error
