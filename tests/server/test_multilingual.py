"""A multilingual model on the server: all its directions, one queue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import HeedfulError
from heedful.inference.translator import Translator
from heedful.server.config import ServerConfig
from heedful.server.model_registry import ModelRegistry, load_registry
from heedful.tokenization.special_tokens import add_tags
from heedful.tokenization.tokenizer import Tokenizer
from tests.multilingual_models import LEARNED, SENTENCE, imported, new_model_folder
from tests.server.server_process import RunningServer, ask, serve_registry

ALL_DIRECTIONS = (*LEARNED, ("fr", "de"), ("de", "fr"))
FOLDER = Path("several")
CONFIG = ServerConfig(workers=1)


def load_directions(arg: str = str(FOLDER)) -> ModelRegistry:
    return load_registry([arg], CONFIG, lambda _: Translator.with_pytorch(new_model_folder()))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_registry(load_directions(), CONFIG) as server:
        yield server


def translate_offline(target: str) -> str:
    return Translator.with_pytorch(new_model_folder().for_language(target)).translate([SENTENCE])[0].text


def test_languages_list_all_pairs(server: RunningServer) -> None:
    result = {item["code"]: item["targets"] for item in ask(server.address, "/languages").json}
    assert result == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": ["de", "en"]}
    deepl = ask(server.address, "/v2/languages?type=target").json
    assert [item["language"] for item in deepl] == ["DE", "EN", "FR"]


@pytest.mark.parametrize(("source", "target"), ALL_DIRECTIONS)
def test_every_api_translates_every_direction(server: RunningServer, source: str, target: str) -> None:
    expected = translate_offline(target)
    request_body = {"q": SENTENCE, "source": source, "target": target}
    assert ask(server.address, "/translate", request_body).json["translatedText"] == expected
    request_body = {"text": [SENTENCE], "source_lang": source.upper(), "target_lang": target.upper()}
    assert ask(server.address, "/v2/translate", request_body).json["translations"][0]["text"] == expected
    request_body = {"text": SENTENCE, "source": source, "target": target}
    assert ask(server.address, "/api/translate", request_body).json["translations"][0]["text"] == expected
    alternatives = ask(server.address, "/api/alternatives", {**request_body, "count": 2}).json["alternatives"]
    engine = Translator.with_pytorch(new_model_folder().for_language(target))
    assert [item["text"] for item in alternatives] == [
        item.translation.text for item in engine.alternatives(SENTENCE, count=2)
    ]


def test_stream_uses_requested_language(server: RunningServer) -> None:
    request_body = {"text": SENTENCE, "source": "fr", "target": "de", "stream": True}
    body = ask(server.address, "/api/translate", request_body).body.decode()
    final_event = json.loads(body.split("event: done\ndata: ")[1])
    assert final_event["text"] == "".join(
        Translator.with_pytorch(new_model_folder().for_language("de")).stream(SENTENCE)
    )


@pytest.mark.parametrize("options", [{}, {"alignments": True, "n_best": 2}, {"stream": True}])
def test_text_is_tokenized_once(
    server: RunningServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting, counting in the queue and search use the same tokens."""
    encoded: list[str] = []
    encode = Tokenizer.encode

    def record(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", record)
    request_body = {"text": "The dog sleeps. A cat!\nA bird.", "source": "en", "target": "de", **options}
    assert ask(server.address, "/api/translate", request_body).status == 200
    assert encoded == [add_tags(sentence, "de") for sentence in ("The dog sleeps.", "A cat!", "A bird.")]


def test_detect_considers_source_languages(server: RunningServer) -> None:
    request_body = {"q": "Der Hund schläft heute nicht.", "source": "auto", "target": "fr"}
    assert ask(server.address, "/translate", request_body).json["detectedLanguage"]["language"] == "de"
    assert ask(server.address, "/detect", {"q": "Le chien ne dort pas."}).json[0]["language"] == "fr"


def test_models_report_zero_shot_directions(server: RunningServer) -> None:
    models = ask(server.address, "/api/models").json
    assert [item["name"] for item in models] == ["-".join(pair) for pair in ALL_DIRECTIONS]
    assert [item["zero_shot"] for item in models] == [pair not in LEARNED for pair in ALL_DIRECTIONS]
    assert [item["languages"] for item in models] == [list(pair) for pair in ALL_DIRECTIONS]


def test_trace_uses_its_direction(server: RunningServer) -> None:
    result = ask(server.address, "/api/trace", {"source": SENTENCE, "model": "fr-de"}).json
    assert result["sides"]["source"]["words"][0] == ">>de<<"
    assert result["translation"]["text"] == translate_offline("de")
    assert result["model"]["name"] == "fr-de"


def test_metrics_count_shared_queue_once(server: RunningServer) -> None:
    metrics = ask(server.address, "/metrics").body.decode()
    assert metrics.count("heedful_sentences_total{") == 1
    assert 'heedful_sentences_total{model="en-fr"}' in metrics
    assert len({id(direction.batcher) for direction in server.state.registry}) == 1


def test_load_registry_single_direction() -> None:
    assert [item.name for item in load_directions("several=fr-de")] == ["fr-de"]
    with pytest.raises(HeedfulError, match="does not translate it-de") as error:
        load_directions("several=it-de")
    assert "en-fr, fr-en" in error.value.hint


def test_load_registry_unknown_source_languages() -> None:
    result = load_registry(["several"], CONFIG, lambda _: Translator.with_pytorch(imported()))
    assert [item.name for item in result] == ["source-de", "source-en", "source-fr"]
    assert not any(item.is_zero_shot for item in result)
    [named] = load_registry(["several=en-fr"], CONFIG, lambda _: Translator.with_pytorch(imported()))
    assert named.model_folder.config.languages == ("en", "fr")
