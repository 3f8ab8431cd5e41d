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
        {"text": TEXTS, "target_lang": "FR", "glossary_id": "1"},
    ],
)
def test_errors_have_deepls_name_too(address: str, asked: dict[str, object]) -> None:
    answer = ask(address, "/v2/translate", asked)
    assert answer.status == 400
    assert answer.json["message"] == answer.error
