"""Language models on the server: they generate text and fill blanks, and do not translate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.text_generation import fill_blanks, generate_text
from heedful.model_folder import ModelFolder
from heedful.server.model_registry import ModelRegistry, ServedLanguageModel
from tests.interpret.small_models import new_model_folder
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import ask, multipart, served

BLANKS = "The __ crossed the __."


@pytest.fixture(scope="module")
def causal_lm() -> ModelFolder:
    return new_model_folder("bpe", architecture="causal_lm")


@pytest.fixture(scope="module")
def masked_lm() -> ModelFolder:
    return new_model_folder("bpe", architecture="masked_lm")


@pytest.fixture(scope="module")
def address(causal_lm: ModelFolder, masked_lm: ModelFolder) -> Iterator[str]:
    """A server that does not translate."""
    language_models = [
        ServedLanguageModel(Path("some/writer"), causal_lm),
        ServedLanguageModel(Path("filler/model"), masked_lm),
    ]
    with served(language_models=language_models) as server:
        yield server.address


def test_generate_matches_library(address: str, causal_lm: ModelFolder) -> None:
    request_body = {"text": "The animal", "n_best": 2, "max_length": 20, "temperature": 0.7, "top_k": 9, "seed": 4}
    result = ask(address, "/api/generate", request_body).json
    settings = GenerationConfig(method="sample", n_best=2, temperature=0.7, top_k=9, seed=4)
    assert result == {"texts": generate_text(causal_lm, "The animal", settings, 20)}
    assert len(ask(address, "/api/generate", {"max_length": 5}).json["texts"]) == 1


def test_fill_matches_library(address: str, masked_lm: ModelFolder) -> None:
    result = ask(address, "/api/fill", {"text": BLANKS, "top": 3}).json["blanks"]
    for actual, expected in zip(result, fill_blanks(masked_lm, BLANKS, 3), strict=True):
        assert [item["text"] for item in actual] == [prediction.text for prediction in expected]
        probabilities = [prediction.probability for prediction in expected]
        assert [item["probability"] for item in actual] == pytest.approx(probabilities)


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("/api/generate", {"text": "a", "model": "filler/model"}, "does not support this or does not exist"),
        ("/api/generate", {"text": "a", "max_length": 10_000}, "max_length"),
        ("/api/generate", {"text": "a", "n_best": 50}, "n_best must be at most 9"),
        ("/api/generate", {"text": "a", "top_p": 2.0}, "top_p"),
        ("/api/generate", {"text": "a", "beam_size": 2}, "beam_size"),
        ("/api/generate", {"text": "a " * 60_000}, "characters"),
        ("/api/generate", {"text": "The animal didn't cross", "max_length": 2}, "the prompt has"),
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
def test_invalid_request_returns_400(address: str, path: str, body: object, problem: str) -> None:
    result = ask(address, path, body)
    assert result.status == 400
    assert problem in result.error


def test_translate_file_without_translator_returns_400(address: str) -> None:
    body, kind = multipart({"source": "en", "target": "fr"}, ("a.txt", b"a"))
    result = ask(address, "/translate_file", body, headers={"Content-Type": kind})
    assert result.status == 400
    assert "no model of this server translates" in result.error


def test_language_models_list_no_languages(address: str, causal_lm: ModelFolder) -> None:
    assert ask(address, "/languages").json == []
    assert ask(address, "/v2/languages?type=target").json == []
    assert ask(address, "/detect", {"q": "Der Hund schläft heute nicht."}).json[0]["language"] == "de"
    with served(FakeTranslator(), language_models=[ServedLanguageModel(Path("writer"), causal_lm)]) as server:
        assert [item["code"] for item in ask(server.address, "/languages").json] == ["en", "fr"]
        assert len(ask(server.address, "/api/generate", {"max_length": 3}).json["texts"]) == 1
        assert ask(server.address, "/api/fill", {"text": "a __"}).status == 400


@pytest.mark.long
def test_language_models_can_be_traced(address: str) -> None:
    models = {item["name"]: item for item in ask(address, "/api/models").json}
    assert [(item["task"], item["layers"]) for item in models.values()] == [
        ("generate", {"encoder": 0, "decoder": 2, "cross": 0}),
        ("fill", {"encoder": 3, "decoder": 0, "cross": 0}),
    ]
    for name, text, kind in (("writer", "The animal. It", "decoder"), ("filler/model", BLANKS, "encoder")):
        trace = ask(address, "/api/trace", {"source": text, "model": name})
        assert trace.status == 200, trace.body
        assert trace.json["segments"] == [[text, ""]]
        trace_path = f"/api/trace/{trace.json['id']}"
        assert ask(address, f"{trace_path}/cell?kind={kind}&layer=1&head=1&row=1").status == 200
        other = ask(address, f"{trace_path}/cell?kind=cross&layer=0&head=0&row=0")
        assert (other.status, "no cross attention" in other.error) == (400, True)
        alternatives = ask(address, f"{trace_path}/alternatives?step=2")
        assert alternatives.status == (200 if name == "writer" else 400), alternatives.body
        assert ask(address, f"{trace_path}/page").status == 200


def test_registry_duplicate_name_raises(causal_lm: ModelFolder) -> None:
    with pytest.raises(HeedfulError, match="two models are named writer"):
        ModelRegistry(
            [], [ServedLanguageModel(Path("one/writer"), causal_lm), ServedLanguageModel(Path("two/writer"), causal_lm)]
        )
