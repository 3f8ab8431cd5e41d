"""One model of several languages at a server: all its directions, one queue."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.server.config import ServerConfig
from heedful.server.models import Directions, load_directions
from tests.server.serving import Running, ask, running_server
from tests.several import LEARNED, SENTENCE, imported, new_bundle

ALL = (*LEARNED, ("fr", "de"), ("de", "fr"))
FOLDER = Path("several")
CONFIG = ServerConfig(workers=1)


def directions(word: str = str(FOLDER)) -> Directions:
    return load_directions([word], CONFIG, lambda _: NativeEngine(new_bundle()))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with running_server(directions(), CONFIG) as server:
        yield server


def offline(target: str) -> str:
    return NativeEngine(new_bundle().writing(target)).translate([SENTENCE])[0].text


def test_languages_are_all_pairs(running: Running) -> None:
    found = {each["code"]: each["targets"] for each in ask(running.address, "/languages").json}
    assert found == {"de": ["en", "fr"], "en": ["de", "fr"], "fr": ["de", "en"]}
    deepl = ask(running.address, "/v2/languages?type=target").json
    assert [each["language"] for each in deepl] == ["DE", "EN", "FR"]


@pytest.mark.parametrize(("source", "target"), ALL)
def test_every_interface_translates_every_direction(running: Running, source: str, target: str) -> None:
    expected = offline(target)
    asked = {"q": SENTENCE, "source": source, "target": target}
    assert ask(running.address, "/translate", asked).json["translatedText"] == expected
    asked = {"text": [SENTENCE], "source_lang": source.upper(), "target_lang": target.upper()}
    assert ask(running.address, "/v2/translate", asked).json["translations"][0]["text"] == expected
    asked = {"text": SENTENCE, "source": source, "target": target}
    assert ask(running.address, "/api/translate", asked).json["translations"][0]["text"] == expected
    alternatives = ask(running.address, "/api/alternatives", {**asked, "count": 2}).json["alternatives"]
    engine = NativeEngine(new_bundle().writing(target))
    assert [each["text"] for each in alternatives] == [
        each.translation.text for each in engine.continuations(SENTENCE, count=2)
    ]


def test_a_stream_is_in_the_language_that_was_asked_for(running: Running) -> None:
    asked = {"text": SENTENCE, "source": "fr", "target": "de", "stream": True}
    body = ask(running.address, "/api/translate", asked).body.decode()
    done = json.loads(body.split("event: done\ndata: ")[1])
    assert done["text"] == "".join(NativeEngine(new_bundle().writing("de")).stream(SENTENCE))


def test_a_language_is_guessed_among_those_that_are_read(running: Running) -> None:
    asked = {"q": "Der Hund schläft heute nicht.", "source": "auto", "target": "fr"}
    assert ask(running.address, "/translate", asked).json["detectedLanguage"]["language"] == "de"
    assert ask(running.address, "/detect", {"q": "Le chien ne dort pas."}).json[0]["language"] == "fr"


def test_the_list_of_models_says_what_was_never_learned(running: Running) -> None:
    models = ask(running.address, "/api/models").json
    assert [each["name"] for each in models] == ["-".join(pair) for pair in ALL]
    assert [each["zero_shot"] for each in models] == [pair not in LEARNED for pair in ALL]
    assert [each["languages"] for each in models] == [list(pair) for pair in ALL]


def test_a_trace_is_of_its_direction(running: Running) -> None:
    found = ask(running.address, "/api/trace", {"source": SENTENCE, "model": "fr-de"}).json
    assert found["sides"]["source"]["words"][0] == ">>de<<"
    assert found["translation"]["text"] == offline("de")
    assert found["model"]["name"] == "fr-de"


def test_one_queue_counts_once(running: Running) -> None:
    metrics = ask(running.address, "/metrics").body.decode()
    assert metrics.count("heedful_sentences_total{") == 1
    assert 'heedful_sentences_total{model="en-fr"}' in metrics
    assert len({id(direction.batcher) for direction in running.state.directions}) == 1


def test_one_direction_alone_can_be_served() -> None:
    assert [each.name for each in directions("several=fr-de")] == ["fr-de"]
    with pytest.raises(HeedfulError, match="does not translate it-de") as caught:
        directions("several=it-de")
    assert "en-fr, fr-en" in caught.value.hint


def test_a_model_from_elsewhere_may_not_say_what_it_reads() -> None:
    found = load_directions(["several"], CONFIG, lambda _: NativeEngine(imported()))
    assert [each.name for each in found] == ["source-de", "source-en", "source-fr"]
    assert not any(each.zero_shot for each in found)
    [named] = load_directions(["several=en-fr"], CONFIG, lambda _: NativeEngine(imported()))
    assert named.bundle.config.languages == ("en", "fr")
