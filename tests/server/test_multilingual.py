"""A multilingual model at the server: all its directions, one queue."""

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
from tests.server.server_process import Running, ask, running_server

ALL = (*LEARNED, ("fr", "de"), ("de", "fr"))
FOLDER = Path("several")
CONFIG = ServerConfig(workers=1)


def directions(word: str = str(FOLDER)) -> ModelRegistry:
    return load_registry([word], CONFIG, lambda _: Translator.with_pytorch(new_model_folder()))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_server(directions(), CONFIG) as server:
        yield server


def offline(target: str) -> str:
    return Translator.with_pytorch(new_model_folder().for_language(target)).translate([SENTENCE])[0].text


def test_languages_list_all_pairs(running: Running) -> None:
    result = {item["code"]: item["targets"] for item in ask(running.address, "/languages").json}
    assert result == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": ["de", "en"]}
    deepl = ask(running.address, "/v2/languages?type=target").json
    assert [item["language"] for item in deepl] == ["DE", "EN", "FR"]


@pytest.mark.parametrize(("source", "target"), ALL)
def test_every_api_translates_every_direction(running: Running, source: str, target: str) -> None:
    expected = offline(target)
    request_body = {"q": SENTENCE, "source": source, "target": target}
    assert ask(running.address, "/translate", request_body).json["translatedText"] == expected
    request_body = {"text": [SENTENCE], "source_lang": source.upper(), "target_lang": target.upper()}
    assert ask(running.address, "/v2/translate", request_body).json["translations"][0]["text"] == expected
    request_body = {"text": SENTENCE, "source": source, "target": target}
    assert ask(running.address, "/api/translate", request_body).json["translations"][0]["text"] == expected
    alternatives = ask(running.address, "/api/alternatives", {**request_body, "count": 2}).json["alternatives"]
    engine = Translator.with_pytorch(new_model_folder().for_language(target))
    assert [item["text"] for item in alternatives] == [
        item.translation.text for item in engine.alternatives(SENTENCE, count=2)
    ]


def test_stream_uses_requested_language(running: Running) -> None:
    request_body = {"text": SENTENCE, "source": "fr", "target": "de", "stream": True}
    body = ask(running.address, "/api/translate", request_body).body.decode()
    done = json.loads(body.split("event: done\ndata: ")[1])
    assert done["text"] == "".join(Translator.with_pytorch(new_model_folder().for_language("de")).stream(SENTENCE))


@pytest.mark.parametrize("options", [{}, {"alignments": True, "n_best": 2}, {"stream": True}])
def test_text_is_tokenized_once(running: Running, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting, counting in the queue and search use the same tokens."""
    encoded: list[str] = []
    encode = Tokenizer.encode

    def record(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", record)
    request_body = {"text": "The dog sleeps. A cat!\nA bird.", "source": "en", "target": "de", **options}
    assert ask(running.address, "/api/translate", request_body).status == 200
    assert encoded == [add_tags(sentence, "de") for sentence in ("The dog sleeps.", "A cat!", "A bird.")]


def test_detect_considers_source_languages(running: Running) -> None:
    request_body = {"q": "Der Hund schläft heute nicht.", "source": "auto", "target": "fr"}
    assert ask(running.address, "/translate", request_body).json["detectedLanguage"]["language"] == "de"
    assert ask(running.address, "/detect", {"q": "Le chien ne dort pas."}).json[0]["language"] == "fr"


def test_models_report_zero_shot_directions(running: Running) -> None:
    models = ask(running.address, "/api/models").json
    assert [item["name"] for item in models] == ["-".join(pair) for pair in ALL]
    assert [item["zero_shot"] for item in models] == [pair not in LEARNED for pair in ALL]
    assert [item["languages"] for item in models] == [list(pair) for pair in ALL]


def test_trace_uses_its_direction(running: Running) -> None:
    result = ask(running.address, "/api/trace", {"source": SENTENCE, "model": "fr-de"}).json
    assert result["sides"]["source"]["words"][0] == ">>de<<"
    assert result["translation"]["text"] == offline("de")
    assert result["model"]["name"] == "fr-de"


def test_metrics_count_shared_queue_once(running: Running) -> None:
    metrics = ask(running.address, "/metrics").body.decode()
    assert metrics.count("heedful_sentences_total{") == 1
    assert 'heedful_sentences_total{model="en-fr"}' in metrics
    assert len({id(direction.batcher) for direction in running.state.registry}) == 1


def test_load_registry_single_direction() -> None:
    assert [item.name for item in directions("several=fr-de")] == ["fr-de"]
    with pytest.raises(HeedfulError, match="does not translate it-de") as caught:
        directions("several=it-de")
    assert "en-fr, fr-en" in caught.value.hint


def test_load_registry_unknown_source_languages() -> None:
    result = load_registry(["several"], CONFIG, lambda _: Translator.with_pytorch(imported()))
    assert [item.name for item in result] == ["source-de", "source-en", "source-fr"]
    assert not any(item.is_zero_shot for item in result)
    [named] = load_registry(["several=en-fr"], CONFIG, lambda _: Translator.with_pytorch(imported()))
    assert named.model_folder.config.languages == ("en", "fr")
