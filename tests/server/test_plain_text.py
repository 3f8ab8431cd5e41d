"""Models of plain text behind HTTP: what they do, and that nobody takes them for translators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.engines.plain_text import continued, filled
from heedful.errors import HeedfulError
from heedful.server.models import Directions, PlainModel
from tests.inspection.models import new_bundle
from tests.server.engines import FakeEngine
from tests.server.serving import ask, multipart, served

BLANKS = "The __ crossed the __."


@pytest.fixture(scope="module")
def writer() -> Bundle:
    return new_bundle("bpe", family="language")


@pytest.fixture(scope="module")
def filler() -> Bundle:
    return new_bundle("bpe", family="mask")


@pytest.fixture(scope="module")
def address(writer: Bundle, filler: Bundle) -> Iterator[str]:
    """A server that does not translate."""
    plain = [PlainModel(Path("some/writer"), writer), PlainModel(Path("filler/model"), filler)]
    with served(plain=plain) as running:
        yield running.address


def test_it_goes_on_with_a_text(address: str, writer: Bundle) -> None:
    asked = {"text": "The animal", "n_best": 2, "longest": 20, "temperature": 0.7, "top_k": 9, "seed": 4}
    found = ask(address, "/api/generate", asked).json
    settings = SearchConfig(method="sample", n_best=2, temperature=0.7, top_k=9, seed=4)
    assert found == {"texts": continued(writer, "The animal", settings, 20)}
    assert len(ask(address, "/api/generate", {"longest": 5}).json["texts"]) == 1


def test_it_fills_in_blanks(address: str, filler: Bundle) -> None:
    found = ask(address, "/api/fill", {"text": BLANKS, "top": 3}).json["blanks"]
    for ours, expected in zip(found, filled(filler, BLANKS, 3), strict=True):
        assert [each["text"] for each in ours] == [guess.text for guess in expected]
        chances = [guess.probability for guess in expected]
        assert [each["probability"] for each in ours] == pytest.approx(chances)


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/api/generate", {"text": "a", "model": "filler/model"}, "there is no such model"),
        ("/api/generate", {"text": "a", "longest": 10_000}, "longest"),
        ("/api/generate", {"text": "a", "n_best": 50}, "n_best must be at most 9"),
        ("/api/generate", {"text": "a", "top_p": 2.0}, "top_p"),
        ("/api/generate", {"text": "a", "beam": 2}, "beam"),
        ("/api/generate", {"text": "a " * 60_000}, "characters"),
        ("/api/generate", {"text": "The animal didn't cross", "longest": 2}, "the prompt has"),
        ("/api/fill", {"text": "no blank"}, "there is no blank"),
        ("/api/fill", {}, "text"),
        ("/api/trace", {"source": "  "}, "empty"),
        ("/api/trace", {"source": "a", "model": "filler/model"}, "there is no blank"),
        ("/api/trace", {"source": "a", "target": "b"}, "target has no effect"),
        ("/translate", {"q": "a", "source": "auto", "target": "fr"}, "no model of this server translates"),
        ("/translate", {"q": "a", "source": "en", "target": "fr"}, "POST /api/generate"),
        ("/v2/translate", {"text": "a", "target_lang": "FR"}, "no model of this server translates"),
        ("/api/translate", {"text": "a", "target": "fr"}, "no model of this server translates"),
        ("/api/alternatives", {"text": "a", "target": "fr"}, "no model of this server translates"),
        ("/frontend/settings", None, "no model of this server translates"),
    ],
)
def test_what_is_refused(address: str, path: str, body: object, problem: str) -> None:
    found = ask(address, path, body)
    assert found.status == 400
    assert problem in found.error


def test_files_are_refused(address: str) -> None:
    body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a"))
    found = ask(address, "/translate_file", body, headers={"Content-Type": kind})
    assert found.status == 400
    assert "no model of this server translates" in found.error


def test_they_are_no_languages(address: str, writer: Bundle) -> None:
    assert ask(address, "/languages").json == []
    assert ask(address, "/v2/languages?type=target").json == []
    assert ask(address, "/detect", {"q": "Der Hund schläft heute nicht."}).json[0]["language"] == "de"
    with served(FakeEngine(), plain=[PlainModel(Path("writer"), writer)]) as running:
        assert [each["code"] for each in ask(running.address, "/languages").json] == ["en", "fr"]
        assert len(ask(running.address, "/api/generate", {"longest": 3}).json["texts"]) == 1
        assert ask(running.address, "/api/fill", {"text": "a __"}).status == 400


@pytest.mark.long
def test_both_can_be_looked_into(address: str) -> None:
    models = {each["name"]: each for each in ask(address, "/api/models").json}
    assert [(each["task"], each["layers"]) for each in models.values()] == [
        ("language", {"encoder": 0, "decoder": 2, "cross": 0}),
        ("mask", {"encoder": 3, "decoder": 0, "cross": 0}),
    ]
    for name, text, kind in (("writer", "The animal. It", "decoder"), ("filler/model", BLANKS, "encoder")):
        trace = ask(address, "/api/trace", {"source": text, "model": name})
        assert trace.status == 200, trace.body
        assert trace.json["segments"] == [[text, ""]]
        place = f"/api/trace/{trace.json['id']}"
        assert ask(address, f"{place}/cell?kind={kind}&layer=1&head=1&row=1").status == 200
        other = ask(address, f"{place}/cell?kind=cross&layer=0&head=0&row=0")
        assert (other.status, "no cross attention" in other.error) == (400, True)
        alternatives = ask(address, f"{place}/alternatives?step=2")
        assert alternatives.status == (200 if name == "writer" else 400), alternatives.body
        assert ask(address, f"{place}/page").status == 200


def test_names_must_differ(writer: Bundle) -> None:
    with pytest.raises(HeedfulError, match="two models are called writer"):
        Directions([], [PlainModel(Path("one/writer"), writer), PlainModel(Path("two/writer"), writer)])
