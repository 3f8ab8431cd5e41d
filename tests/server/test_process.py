"""``heedful serve`` as a process: overload, signals, ports, keys, several models, missing packages."""

import json
import re
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from heedful.cli.serve import serve as serve_command
from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.errors import HeedfulError
from heedful.inference.translator import Translator
from tests.conftest import run_heedful
from tests.server.server_process import Answer, ask, serve_process, wait_until

SENTENCES = list(dict.fromkeys(pair.source for pair in generate_pairs(400)))[:240]
NATIVE = ("--engine", "pytorch", "--device", "cpu")


def translate(address: str, text: str) -> Answer:
    return ask(address, "/translate", {"q": text, "source": "en", "target": "fr"})


def in_flight(address: str) -> int:
    text = ask(address, "/metrics").body.decode()
    outcome = re.search(r"heedful_requests_in_flight (\d+)", text)
    assert outcome
    return int(outcome[1])


@pytest.mark.long
def test_overload_real_model_answers_correctly(quick_model: Path, engine: Translator) -> None:
    """Every answer is the offline translation of its own sentence; the rest is refused, quickly."""
    expected = {source: outcome.text for source, outcome in zip(SENTENCES, engine.translate(SENTENCES), strict=True)}
    settings = ("--set", "server.max_queue_tokens=60", "--set", "server.cache_entries=0")
    with serve_process(quick_model, *NATIVE, *settings) as process:
        address = process.address
        with ThreadPoolExecutor(48) as pool:
            answers = list(pool.map(lambda text: translate(address, text), SENTENCES))
        metrics = ask(address, "/metrics").body.decode()
        assert process.end(signal.SIGTERM) == 0
    accepted = [(source, answer) for source, answer in zip(SENTENCES, answers, strict=True) if answer.status == 200]
    assert {answer.status for answer in answers} == {200, 503}
    for source, answer in accepted:
        assert answer.json["translatedText"] == expected[source]
    assert all(answer.headers["retry-after"] for answer in answers if answer.status == 503)
    batches = re.search(r'heedful_batches_total{model="en-fr"} (\d+)', metrics)
    assert batches
    assert int(batches[1]) < len(accepted)


@pytest.mark.long
def test_sigterm_finishes_accepted_requests(quick_model: Path, engine: Translator) -> None:
    texts = [" ".join(SENTENCES[first : first + 40]) for first in range(0, 240, 40)]
    with serve_process(quick_model, *NATIVE, "--set", "server.workers=1") as process:
        address = process.address
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(translate, address, text) for text in texts]
            wait_until(lambda: in_flight(address) == len(texts) or all(item.done() for item in waiting))
            process.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in process.output)
            late = pool.submit(_late, address).result()
            answers = [item.result() for item in waiting]
        assert process.process.wait(60) == 0
    assert late in (None, 503)
    assert [answer.json["translatedText"] for answer in answers] == [
        outcome.text for outcome in engine.translate(texts)
    ]
    assert process.output.endswith("stopped\n")


def _late(address: str) -> int | None:
    """The status of a request that comes too late; None if nobody listens any more."""
    try:
        return translate(address, "late").status
    except OSError:
        return None


@pytest.mark.long
def test_second_signal_stops_at_once(quick_model: Path) -> None:
    with serve_process(quick_model, *NATIVE, "--set", "server.shutdown_timeout_seconds=600") as process:
        host, port = process.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:  # a request that never ends
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            wait_until(lambda: in_flight(f"http://{host}:{port}") == 1)
            process.process.send_signal(signal.SIGINT)
            wait_until(lambda: "stopping" in process.output)
            time.sleep(0.3)
            assert process.process.poll() is None
            assert process.end(signal.SIGINT) == 0


def without_languages(model: Path, copy: Path) -> Path:
    """The same model as if nobody had said its languages when it was trained."""
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "languages": None}))
    return copy


@pytest.mark.long
def test_serve_unknown_languages_uses_source_and_target(quick_model: Path, tmp_path: Path) -> None:
    model = without_languages(quick_model, tmp_path / "mine")
    with serve_process(model, *NATIVE) as process:
        address = process.address
        assert f"heedful serve {model}=SOURCE-TARGET, such as {model}=en-de" in process.output
        assert [item["code"] for item in ask(address, "/languages").json] == ["source", "target"]
        text = "The dog is tired."
        answers = [
            ask(address, "/translate", {"q": text, "source": source, "target": "target"})
            for source in ("source", "auto")
        ]
        texts = {answer.json["translatedText"] for answer in answers}
        by_deepl = ask(address, "/v2/translate", {"text": [text], "target_lang": "TARGET"}).json
        texts.add(by_deepl["translations"][0]["text"])
        assert len(texts) == 1
        assert texts != {text}
        assert ask(address, "/api/trace", {"model": "source-target", "source": text}).status == 200
        assert process.end(signal.SIGTERM) == 0
    done = run_heedful("serve", model, without_languages(quick_model, tmp_path / "yours"))
    assert done.status == 1
    assert "two models translate source-target" in done.err
    assert "=SOURCE-TARGET, such as" in done.err


@pytest.mark.long
def test_serve_two_models_with_keys_and_language_names(quick_model: Path, tmp_path: Path) -> None:
    other = without_languages(quick_model, tmp_path / "other")
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    with serve_process(quick_model, f"{other}=fr:pt-BR", *NATIVE, "--api-key-file", keys) as process:
        address = process.address
        assert "en-fr: " in process.output
        assert "fr-pt-BR: " in process.output
        names = {item["code"]: (item["name"], item["targets"]) for item in ask(address, "/languages").json}
        assert names["fr"] == ("French", ["pt-BR"])
        assert names["pt-BR"][0] == "Portuguese (Brazil)"
        request_body = {"q": "Le chien.", "source": "fr", "target": "pt-br"}
        assert ask(address, "/translate", request_body).status == 403
        assert ask(address, "/translate", {**request_body, "api_key": "second-key"}).status == 200
        assert process.end(signal.SIGTERM) == 0


def serve(*models: str, **options: Any) -> None:
    """The command without its process."""
    overrides = {"port": 0, **options.pop("overrides", {})}
    serve_command(list(models), **overrides, **options, quiet=True)


class TestErrors:
    def test_serve_port_in_use_raises(self, tmp_path: Path) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(HeedfulError, match=r"cannot listen on 127\.0\.0\.1, port .*choose another --port"),
        ):
            serve(str(tmp_path), overrides={"port": taken.getsockname()[1]})

    @pytest.mark.parametrize(
        ("model", "options", "problem"),
        [
            ("nowhere", {}, "no such folder: nowhere"),
            ("nowhere=en", {}, "cannot read languages 'en'"),
            ("nowhere", {"overrides": {"host": "no.such.host.invalid"}}, "cannot listen on no.such.host"),
            ("nowhere", {"overrides": {"port": 70_000}}, "setting 'port'"),
            ("nowhere", {"settings": ("server.prot=1",)}, "did you mean 'port'"),
            ("nowhere", {"settings": ("generation.beam_size=1",)}, "has no effect here"),
            ("nowhere", {"key_file": Path("nothing")}, "cannot read the API keys in nothing"),
            ("nowhere", {"engine": "steam"}, "unknown engine 'steam'"),
        ],
    )
    def test_serve_invalid_options_raise(self, model: str, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(HeedfulError, match=problem):
            serve(model, **options)

    def test_serve_empty_key_file_raises(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("\n \n")
        with pytest.raises(HeedfulError, match="has no API key"):
            serve("nowhere", key_file=tmp_path / "keys")

    @pytest.mark.parametrize("package", ["uvicorn", "py3langid", "fastapi", "python_multipart"])
    def test_serve_missing_package_names_extra(self, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(HeedfulError, match=r"pip install 'heedful\[serve\]'"):
            serve("nowhere")
