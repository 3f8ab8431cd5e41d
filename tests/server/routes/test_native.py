"""The native API on a real server: details of translations, and streams."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from heedful.generation.config import GenerationConfig
from heedful.inference.translator import Translator
from tests.server.server_process import SECONDS, ask

TEXT = "The dog is tired. I am a student."
REQUEST = {"text": TEXT, "source": "en", "target": "fr"}


def translate_one(address: str, **request_body: Any) -> dict[str, Any]:
    response = ask(address, "/api/translate", {**REQUEST, **request_body})
    assert response.status == 200, response.body
    [result] = response.json["translations"]
    return dict(result)


def test_translate_scores_match_translator(address: str, engine: Translator) -> None:
    [expected] = engine.translate([TEXT])
    result = translate_one(address)
    assert result["text"] == expected.text
    assert result["score"] == pytest.approx(expected.score, rel=1e-4)
    assert result["log_probability"] == pytest.approx(expected.alternatives[0].log_probability, rel=1e-4)
    assert 0 < result["confidence"] < 1
    assert result["segments"] == expected.segments == 2
    assert result["complete"] == expected.complete
    assert result["source"] == "en"


def test_translate_details_match_translator(address: str, engine: Translator) -> None:
    search = engine.model_folder.config.generation.model_copy(update={"n_best": 3, "beam_size": 4})
    [expected] = engine.translate([TEXT], search, details=True)
    result = translate_one(address, n_best=3, generation={"beam_size": 4}, alignments=True, tokens=True)
    results = [result, *result["alternatives"]]
    for actual, alternative in zip(results, expected.alternatives, strict=True):
        assert actual["text"] == alternative.text
        assert actual["score"] == pytest.approx(alternative.score, rel=1e-4)
        assert actual["tokens"] == list(alternative.tokens)
        assert actual["token_log_probabilities"] == pytest.approx(
            list(alternative.token_log_probabilities), rel=1e-3, abs=1e-3
        )
        assert [tuple(link) for link in actual["alignment"]] == list(alternative.alignment)


def test_translate_prefix_is_kept(address: str, engine: Translator) -> None:
    result = translate_one(address, prefix="Le chien")
    assert result["text"].startswith("Le chien")
    assert result["text"] == engine.translate([TEXT], prefixes=["Le chien"])[0].text
    request_body = {**REQUEST, "text": [TEXT, TEXT], "prefix": ["Le", "La"]}
    both = ask(address, "/api/translate", request_body).json["translations"]
    assert [item["text"][:3] for item in both] == ["Le ", "La "]


def test_translate_generation_overrides_apply(address: str, engine: Translator) -> None:
    greedy = translate_one(address, generation={"beam_size": 1})
    assert greedy["text"] == engine.translate([TEXT], GenerationConfig(beam_size=1))[0].text
    settings = {"method": "sample", "seed": 3, "temperature": 0.8, "top_k": 20}
    samples = [translate_one(address, generation=settings)["text"] for _ in range(2)]
    assert samples[0] == samples[1] != greedy["text"]


def test_translate_glossary_and_do_not_translate(address: str) -> None:
    result = translate_one(address, glossary={"dog": "caniche"}, do_not_translate=["student"])
    assert "caniche" in result["text"]
    assert "student" in result["text"]
    assert result["score"] is None


def test_translate_html_preserves_tags(address: str) -> None:
    result = translate_one(address, text="<p>The <b>dog</b>.</p>", format="html")
    assert result["text"].startswith("<p>")
    assert result["text"].count("<b>") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"text": 5},
        {"text": [5]},
        {"target": None},
        {"target": "xx"},
        {"unknown": 1},
        {"n_best": 0},
        {"n_best": 10},
        {"n_best": "2"},
        {"n_best": 10**30},
        {"generation": {"beam_size": 0}},
        {"generation": {"beam_size": 17}},
        {"generation": {"beam_size": 10**12}},
        {"generation": {"beams": 2}},
        {"generation": {"max_batch_tokens": 2}},
        {"generation": {"top_p": 5.0}},
        {"generation": {"temperature": float("nan")}},
        {"generation": 3},
        {"prefix": ["a", "b"]},
        {"prefix": "a", "format": "html"},
        {"prefix": "a", "glossary": {"dog": "chien"}},
        {"glossary": {"dog": 5}},
        {"glossary": {"dog": ""}},
        {"do_not_translate": [""]},
        {"prefix": "a" * 1001},
        {"text": ["a"] * 100, "prefix": "a" * 600},
        {"glossary": {str(number): "a" for number in range(501)}},
        {"glossary": {"a" * 201: "a"}},
        {"glossary": {"a": "a" * 201}},
        {"do_not_translate": [str(number) for number in range(501)]},
        {"do_not_translate": ["a" * 201]},
        {"format": "pdf"},
        {"stream": True, "text": ["a", "b"]},
        {"stream": True, "n_best": 2},
        {"stream": True, "generation": {"beam_size": 4}},
        {"stream": True, "format": "html"},
        {"stream": "yes"},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_translate_invalid_request_returns_400(address: str, fields: dict[str, object]) -> None:
    assert ask(address, "/api/translate", {**REQUEST, **fields}).status == 400


def stream_events(address: str, **request_body: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and data of each server-sent event."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=SECONDS)
    body = json.dumps({**REQUEST, "stream": True, **request_body})
    connection.request("POST", "/api/translate", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    assert (response.getheader("content-type") or "").startswith("text/event-stream")
    name = ""
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))
    connection.close()


@pytest.mark.parametrize("text", [TEXT, "", "\n The dog.\n\nI am a student.\n"])
def test_stream_equals_greedy_translation(address: str, engine: Translator, text: str) -> None:
    result = list(stream_events(address, text=text))
    expected = engine.translate([text], GenerationConfig(beam_size=1))[0].text
    assert result[-1] == ("done", {"text": expected, "source": "en"})
    assert "".join(data["delta"] for name, data in result if not name) == expected
    assert len(result) > 10 or not text


def test_stream_with_prefix_equals_greedy_translation(address: str, engine: Translator) -> None:
    result = list(stream_events(address, prefix="Le chien"))[-1][1]["text"]
    assert result == engine.translate([TEXT], GenerationConfig(beam_size=1), ["Le chien"])[0].text


def test_translate_glossary_constrains_search(address: str, engine: Translator) -> None:
    """The term constrains the search of the complete sentence, so there is a score."""
    generation_config = engine.model_folder.config.generation
    result = translate_one(address, text="The dog is tired.", glossary={"dog": "caniche"})
    [offline] = engine.translate(["The dog is tired."], generation_config, glossary={"dog": "caniche"})
    assert "caniche" in result["text"]
    assert result["text"] == offline.text
    assert result["score"] is not None
    plain = translate_one(address, text="The dog is tired.")
    assert "caniche" not in plain["text"]  # other requests are not affected
