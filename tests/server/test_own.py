"""Our own interface on a real server: all that the model knows, and streams."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from heedful.decoding.config import SearchConfig
from heedful.engines.segmented import SegmentedEngine
from tests.server.serving import ask

TEXT = "The dog is tired. I am a student."
ASKED = {"text": TEXT, "source": "en", "target": "fr"}


def only(address: str, **asked: Any) -> dict[str, Any]:
    answer = ask(address, "/api/translate", {**ASKED, **asked})
    assert answer.status == 200, answer.body
    [found] = answer.json["translations"]
    return dict(found)


def test_scores(address: str, engine: SegmentedEngine) -> None:
    [expected] = engine.translate([TEXT])
    found = only(address)
    assert found["text"] == expected.text
    assert found["score"] == pytest.approx(expected.score, rel=1e-4)
    assert found["log_probability"] == pytest.approx(expected.alternatives[0].log_probability, rel=1e-4)
    assert 0 < found["confidence"] < 1
    assert found["segments"] == expected.segments == 2
    assert found["complete"] == expected.complete
    assert found["source"] == "en"


def test_n_best_tokens_and_alignments(address: str, engine: SegmentedEngine) -> None:
    search = engine.bundle.config.search.model_copy(update={"n_best": 3, "beam": 4})
    [expected] = engine.translate([TEXT], search, details=True)
    found = only(address, n_best=3, search={"beam": 4}, alignments=True, tokens=True)
    versions = [found, *found["alternatives"]]
    for version, alternative in zip(versions, expected.alternatives, strict=True):
        assert version["text"] == alternative.text
        assert version["score"] == pytest.approx(alternative.score, rel=1e-4)
        assert version["tokens"] == list(alternative.tokens)
        assert version["token_log_probabilities"] == pytest.approx(
            list(alternative.token_log_probabilities), rel=1e-3, abs=1e-3
        )
        assert [tuple(link) for link in version["alignment"]] == list(alternative.alignment)


def test_prefix(address: str, engine: SegmentedEngine) -> None:
    found = only(address, prefix="Le chien")
    assert found["text"].startswith("Le chien")
    assert found["text"] == engine.translate([TEXT], prefixes=["Le chien"])[0].text
    asked = {**ASKED, "text": [TEXT, TEXT], "prefix": ["Le", "La"]}
    both = ask(address, "/api/translate", asked).json["translations"]
    assert [each["text"][:3] for each in both] == ["Le ", "La "]


def test_search_settings(address: str, engine: SegmentedEngine) -> None:
    greedy = only(address, search={"beam": 1})
    assert greedy["text"] == engine.translate([TEXT], SearchConfig(beam=1))[0].text
    settings = {"method": "sample", "seed": 3, "temperature": 0.8, "top_k": 20}
    drawn = [only(address, search=settings)["text"] for _ in range(2)]
    assert drawn[0] == drawn[1] != greedy["text"]


def test_glossary_and_kept_terms(address: str) -> None:
    found = only(address, glossary={"dog": "caniche"}, do_not_translate=["student"])
    assert "caniche" in found["text"]
    assert "student" in found["text"]
    assert found["score"] is None


def test_html(address: str) -> None:
    found = only(address, text="<p>The <b>dog</b>.</p>", format="html")
    assert found["text"].startswith("<p>")
    assert found["text"].count("<b>") == 1


@pytest.mark.parametrize(
    "wrong",
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
        {"search": {"beam": 0}},
        {"search": {"beam": 17}},
        {"search": {"beam": 10**12}},
        {"search": {"beams": 2}},
        {"search": {"batch_tokens": 2}},
        {"search": {"top_p": 5.0}},
        {"search": {"temperature": float("nan")}},
        {"search": 3},
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
        {"stream": True, "search": {"beam": 4}},
        {"stream": True, "format": "html"},
        {"stream": "yes"},
    ],
    ids=lambda wrong: str(wrong)[:60],
)
def test_wrong_requests(address: str, wrong: dict[str, object]) -> None:
    assert ask(address, "/api/translate", {**ASKED, **wrong}).status == 400


def events(address: str, **asked: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and data of each event, as they come."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    body = json.dumps({**ASKED, "stream": True, **asked})
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
def test_stream_is_the_greedy_translation(address: str, engine: SegmentedEngine, text: str) -> None:
    found = list(events(address, text=text))
    expected = engine.translate([text], SearchConfig(beam=1))[0].text
    assert found[-1] == ("done", {"text": expected, "source": "en"})
    assert "".join(data["delta"] for name, data in found if not name) == expected
    assert len(found) > 10 or not text


def test_stream_with_prefix(address: str, engine: SegmentedEngine) -> None:
    found = list(events(address, prefix="Le chien"))[-1][1]["text"]
    assert found == engine.translate([TEXT], SearchConfig(beam=1), ["Le chien"])[0].text


def test_a_glossary_is_obeyed_by_the_model_itself(address: str, engine: SegmentedEngine) -> None:
    """The sentence is searched for its term as a whole, and so has the score of a whole."""
    search = engine.bundle.config.search
    found = only(address, text="The dog is tired.", glossary={"dog": "caniche"})
    [offline] = engine.translate(["The dog is tired."], search, glossary={"dog": "caniche"})
    assert "caniche" in found["text"]
    assert found["text"] == offline.text
    assert found["score"] is not None
    plain = only(address, text="The dog is tired.")
    assert "caniche" not in plain["text"]  # and nobody else gets it
