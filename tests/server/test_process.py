"""``heedful serve`` in a process: overload, signals, ports, keys, several models, missing packages."""

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
from tests.server.server_process import SECONDS, Response, ask, serve_process, wait_until

SENTENCES = list(dict.fromkeys(pair.source for pair in generate_pairs(400)))[:240]
NATIVE = ("--engine", "pytorch", "--device", "cpu")


def translate(address: str, text: str) -> Response:
    return ask(address, "/translate", {"q": text, "source": "en", "target": "fr"})


def count_in_flight(address: str) -> int:
    text = ask(address, "/metrics").body.decode()
    match = re.search(r"heedful_requests_in_flight (\d+)", text)
    assert match
    return int(match[1])


@pytest.mark.long
def test_overload_real_model_answers_correctly(quick_model: Path, engine: Translator) -> None:
    """Every response is the offline translation of its own sentence, or a 503."""
    expected = {
        source: translation.text for source, translation in zip(SENTENCES, engine.translate(SENTENCES), strict=True)
    }
    settings = ("--set", "server.max_queue_tokens=60", "--set", "server.cache_entries=0")
    with serve_process(quick_model, *NATIVE, *settings) as process:
        address = process.address
        with ThreadPoolExecutor(48) as pool:
            responses = list(pool.map(lambda text: translate(address, text), SENTENCES))
        metrics = ask(address, "/metrics").body.decode()
        assert process.stop(signal.SIGTERM) == 0
    accepted = [
        (source, response) for source, response in zip(SENTENCES, responses, strict=True) if response.status == 200
    ]
    assert {response.status for response in responses} == {200, 503}
    for source, response in accepted:
        assert response.json["translatedText"] == expected[source]
    assert all(response.headers["retry-after"] for response in responses if response.status == 503)
    batches = re.search(r'heedful_batches_total{model="en-fr"} (\d+)\.0', metrics)
    assert batches
    assert int(batches[1]) < len(accepted)


@pytest.mark.long
def test_sigterm_finishes_accepted_requests(quick_model: Path, engine: Translator) -> None:
    texts = [" ".join(SENTENCES[first : first + 40]) for first in range(0, 240, 40)]
    settings = ("--set", "server.workers=1", "--set", f"server.shutdown_timeout_seconds={SECONDS}")
    with serve_process(quick_model, *NATIVE, *settings) as process:
        address = process.address
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(translate, address, text) for text in texts]
            wait_until(lambda: count_in_flight(address) == len(texts) or all(item.done() for item in futures))
            process.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in process.output)
            late = pool.submit(send_late_request, address).result()
            responses = [item.result() for item in futures]
        assert process.process.wait(SECONDS) == 0
    assert late in (None, 503)
    assert [response.json["translatedText"] for response in responses] == [
        translation.text for translation in engine.translate(texts)
    ]
    assert process.output.endswith("stopped\n")


def send_late_request(address: str) -> int | None:
    """The status of a request during shutdown; None if the port is closed."""
    try:
        return translate(address, "late").status
    except OSError:
        return None


@pytest.mark.long
def test_second_signal_stops_at_once(quick_model: Path) -> None:
    with serve_process(quick_model, *NATIVE, "--set", "server.shutdown_timeout_seconds=600") as process:
        host, port = process.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:  # a request that is never completed
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            wait_until(lambda: count_in_flight(f"http://{host}:{port}") == 1)
            process.process.send_signal(signal.SIGINT)
            wait_until(lambda: "stopping" in process.output)
            time.sleep(0.3)
            assert process.process.poll() is None
            assert process.stop(signal.SIGINT) == 0


def copy_without_languages(model: Path, copy: Path) -> Path:
    """A copy of the model without its languages."""
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "languages": None}))
    return copy


@pytest.mark.long
def test_serve_unknown_languages_uses_source_and_target(quick_model: Path, tmp_path: Path) -> None:
    model = copy_without_languages(quick_model, tmp_path / "mine")
    with serve_process(model, *NATIVE) as process:
        address = process.address
        assert f"heedful serve {model}=SOURCE-TARGET, such as {model}=en-de" in process.output
        assert [item["code"] for item in ask(address, "/languages").json] == ["source", "target"]
        text = "The dog is tired."
        responses = [
            ask(address, "/translate", {"q": text, "source": source, "target": "target"})
            for source in ("source", "auto")
        ]
        texts = {response.json["translatedText"] for response in responses}
        deepl_response = ask(address, "/v2/translate", {"text": [text], "target_lang": "TARGET"}).json
        texts.add(deepl_response["translations"][0]["text"])
        assert len(texts) == 1
        assert texts != {text}
        assert ask(address, "/api/trace", {"model": "source-target", "source": text}).status == 200
        assert process.stop(signal.SIGTERM) == 0
    result = run_heedful("serve", model, copy_without_languages(quick_model, tmp_path / "yours"))
    assert result.status == 1
    assert "two models translate source-target" in result.err
    assert "=SOURCE-TARGET, such as" in result.err


@pytest.mark.long
def test_serve_two_models_with_keys_and_language_names(quick_model: Path, tmp_path: Path) -> None:
    other = copy_without_languages(quick_model, tmp_path / "other")
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
        assert process.stop(signal.SIGTERM) == 0


def serve(*models: str, **options: Any) -> None:
    """Run the command in this process."""
    overrides = {"port": 0, **options.pop("overrides", {})}
    serve_command(list(models), **overrides, **options, quiet=True)


class TestErrors:
    def test_serve_port_in_use_raises(self, tmp_path: Path) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            pytest.raises(HeedfulError, match=r"cannot listen on 127\.0\.0\.1, port .*choose another --port"),
        ):
            serve(str(tmp_path), overrides={"port": listener.getsockname()[1]})

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

    @pytest.mark.parametrize("package", ["uvicorn", "py3langid", "fastapi", "prometheus_client", "python_multipart"])
    def test_serve_missing_package_names_extra(self, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(HeedfulError, match=r"pip install 'heedful\[serve\]'"):
            serve("nowhere")
