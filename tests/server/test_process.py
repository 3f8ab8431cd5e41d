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

from heedful.commands.serve import ServeOptions, serve_command
from heedful.corpora.grammar import generate
from heedful.engines.segmented import SegmentedEngine
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from tests.conftest import run_heedful
from tests.server.serving import Answer, ask, serve_process, wait_until

SENTENCES = list(dict.fromkeys(pair.source for pair in generate(400)))[:240]
NATIVE = ("--engine", "pytorch", "--device", "cpu")


def translate(address: str, text: str) -> Answer:
    return ask(address, "/translate", {"q": text, "source": "en", "target": "fr"})


def in_flight(address: str) -> int:
    text = ask(address, "/metrics").body.decode()
    found = re.search(r"heedful_requests_in_flight (\d+)", text)
    assert found
    return int(found[1])


@pytest.mark.long
def test_overload_of_a_real_model(quick_model: Path, engine: SegmentedEngine) -> None:
    """Every answer is the offline translation of its own sentence; the rest is refused, quickly."""
    expected = {
        source: found.text for source, found in zip(SENTENCES, engine.translate(SENTENCES), strict=True)
    }
    settings = ("--set", "server.queue_tokens=60", "--set", "server.cache_entries=0")
    with serve_process(quick_model, *NATIVE, *settings) as process:
        address = process.address
        with ThreadPoolExecutor(48) as pool:
            answers = list(pool.map(lambda text: translate(address, text), SENTENCES))
        metrics = ask(address, "/metrics").body.decode()
        assert process.end(signal.SIGTERM) == 0
    accepted = [
        (source, answer) for source, answer in zip(SENTENCES, answers, strict=True) if answer.status == 200
    ]
    assert {answer.status for answer in answers} == {200, 503}
    for source, answer in accepted:
        assert answer.json["translatedText"] == expected[source]
    assert all(answer.headers["retry-after"] for answer in answers if answer.status == 503)
    batches = re.search(r'heedful_batches_total{model="en-fr"} (\d+)', metrics)
    assert batches
    assert int(batches[1]) < len(accepted)


def test_accepted_requests_are_answered_before_it_ends(quick_model: Path, engine: SegmentedEngine) -> None:
    texts = [" ".join(SENTENCES[first : first + 40]) for first in range(0, 240, 40)]
    with serve_process(quick_model, *NATIVE, "--set", "server.workers=1") as process:
        address = process.address
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(translate, address, text) for text in texts]
            wait_until(lambda: in_flight(address) == len(texts) or all(each.done() for each in waiting))
            process.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in process.output)
            late = pool.submit(_late, address).result()
            answers = [each.result() for each in waiting]
        assert process.process.wait(60) == 0
    assert late in (None, 503)
    assert [answer.json["translatedText"] for answer in answers] == [
        found.text for found in engine.translate(texts)
    ]
    assert process.output.endswith("stopped\n")


def _late(address: str) -> int | None:
    """The status of a request that comes too late; None if nobody listens any more."""
    try:
        return translate(address, "late").status
    except OSError:
        return None


def test_a_second_signal_ends_it_at_once(quick_model: Path) -> None:
    with serve_process(quick_model, *NATIVE, "--set", "server.drain_seconds=600") as process:
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
def test_a_model_that_does_not_say_its_languages(quick_model: Path, tmp_path: Path) -> None:
    model = without_languages(quick_model, tmp_path / "mine")
    with serve_process(model, *NATIVE) as process:
        address = process.address
        assert f"heedful serve {model}=SOURCE-TARGET, such as {model}=en-de" in process.output
        assert [each["code"] for each in ask(address, "/languages").json] == ["source", "target"]
        text = "The dog is tired."
        answers = [
            ask(address, "/translate", {"q": text, "source": source, "target": "target"})
            for source in ("source", "auto")
        ]
        told = {answer.json["translatedText"] for answer in answers}
        by_deepl = ask(address, "/v2/translate", {"text": [text], "target_lang": "TARGET"}).json
        told.add(by_deepl["translations"][0]["text"])
        assert len(told) == 1
        assert told != {text}
        assert ask(address, "/api/trace", {"model": "source-target", "source": text}).status == 200
        assert process.end(signal.SIGTERM) == 0
    done = run_heedful("serve", model, without_languages(quick_model, tmp_path / "yours"))
    assert done.status == 1
    assert "two models translate source-target" in done.err
    assert "=SOURCE-TARGET, such as" in done.err


def test_two_models_keys_and_a_name_for_languages(quick_model: Path, tmp_path: Path) -> None:
    other = without_languages(quick_model, tmp_path / "other")
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    with serve_process(quick_model, f"{other}=fr:pt-BR", *NATIVE, "--api-key-file", keys) as process:
        address = process.address
        assert "en-fr: " in process.output
        assert "fr-pt-BR: " in process.output
        names = {each["code"]: (each["name"], each["targets"]) for each in ask(address, "/languages").json}
        assert names["fr"] == ("French", ["pt-BR"])
        assert names["pt-BR"][0] == "Portuguese (Brazil)"
        asked = {"q": "Le chien.", "source": "fr", "target": "pt-br"}
        assert ask(address, "/translate", asked).status == 403
        assert ask(address, "/translate", {**asked, "api_key": "second-key"}).status == 200
        assert process.end(signal.SIGTERM) == 0


def serve(*models: str, **options: Any) -> None:
    """The command without its process."""
    told = {"port": 0, **options.pop("told", {})}
    serve_command(ServeOptions(models, told=told, **options), Reporter(quiet=True))


class TestMistakes:
    def test_port_in_use(self, tmp_path: Path) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(HeedfulError, match=r"cannot listen on 127\.0\.0\.1, port .*--port takes another"),
        ):
            serve(str(tmp_path), told={"port": taken.getsockname()[1]})

    @pytest.mark.parametrize(
        ("model", "options", "problem"),
        [
            ("nowhere", {}, "there is no folder nowhere"),
            ("nowhere=en", {}, "cannot read languages 'en'"),
            ("nowhere", {"told": {"host": "no.such.host.invalid"}}, "cannot listen on no.such.host"),
            ("nowhere", {"told": {"port": 70_000}}, "setting 'port'"),
            ("nowhere", {"settings": ("server.prot=1",)}, "did you mean 'port'"),
            ("nowhere", {"settings": ("search.beam=1",)}, "has no effect here"),
            ("nowhere", {"api_key_file": Path("nothing")}, "cannot read the keys in nothing"),
            ("nowhere", {"engine": "steam"}, "there is no engine 'steam'"),
        ],
    )
    def test_words(self, model: str, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(HeedfulError, match=problem):
            serve(model, **options)

    def test_a_file_without_keys(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("\n \n")
        with pytest.raises(HeedfulError, match="has no key"):
            serve("nowhere", api_key_file=tmp_path / "keys")

    @pytest.mark.parametrize("package", ["uvicorn", "py3langid", "fastapi", "python_multipart"])
    def test_missing_packages(self, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(HeedfulError, match=r"pip install 'heedful\[serve\]'"):
            serve("nowhere")
