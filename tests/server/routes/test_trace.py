"""Trace routes: invalid requests return 400, every field has an effect, every route requires the key."""

import gzip
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from heedful.inference.translator import Translator
from heedful.interpret.attention_row import explain_row
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import MAX_TRACE_TOKENS, TraceRequest
from heedful.server.routes.trace import OMITTED_CELL_VALUES
from heedful.web.assets import load_assets
from tests.server.server_process import SECONDS, Response, ask, served

SENTENCE = "The dog was too tired."


@pytest.fixture(scope="module")
def address(engine: Translator, quick_model: Path) -> Iterator[str]:
    """A server of a real model."""
    with served(engine, folder=quick_model) as server:
        yield server.address


@pytest.fixture(scope="module")
def manifest(address: str) -> Any:
    """The trace of one sentence."""
    return trace(address).json


def trace(address: str, source: str = SENTENCE, **more: object) -> Response:
    return ask(address, "/api/trace", {"source": source, **more})


# ---- invalid requests


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "'source': missing"),
        ({"source": 5}, "'source'"),
        ({"source": ["a"]}, "'source'"),
        ({"source": None}, "'source'"),
        ({"source": ""}, "the text is empty"),
        ({"source": " \n "}, "the text is empty"),
        ({"source": "a", "sauce": 1}, "unknown setting 'sauce'"),
        ({"source": "a", "\ud800": 1}, "unknown setting"),
        ({"source": "a", "model": "xx-yy"}, "use one of en-fr"),
        ({"source": "a", "model": "\ud800"}, "does not exist"),
        ({"source": "a", "model": "x" * 521}, "'model'"),
        ({"source": "a", "model": 5}, "'model'"),
        ({"source": "a", "segment": -1}, "'segment'"),
        ({"source": "a", "segment": 1}, "segment 1 does not exist"),
        ({"source": "a", "segment": 10**30}, "does not exist"),
        ({"source": "a", "segment": "0"}, "'segment'"),
        ({"source": "a", "segment": 0.5}, "'segment'"),
        ({"source": "a", "segment": True}, "'segment'"),
        ({"source": "a", "checkpoint": 999_999}, "there is no checkpoint of update 999999"),
        ({"source": "a", "checkpoint": -1}, "'checkpoint'"),
        ({"source": "a", "checkpoint": 10**40}, "there is no checkpoint"),
        ({"source": "a", "beam_size": 0}, "'beam_size'"),
        ({"source": "a", "beam_size": 17}, "'beam_size'"),
        ({"source": "a", "beam_size": "4"}, "'beam_size'"),
        ({"source": "a", "temperature": 0}, "'temperature'"),
        ({"source": "a", "temperature": 20.5}, "'temperature'"),
        ({"source": "a", "temperature": "1"}, "'temperature'"),
        ({"source": "a", "ablated_heads": "cross.0.0"}, "'ablated_heads'"),
        ({"source": "a", "ablated_heads": [5]}, "'ablated_heads.0'"),
        ({"source": "a", "ablated_heads": ["cross.0"]}, "'cross.0' is not a valid head"),
        ({"source": "a", "ablated_heads": ["cross.0.9"]}, "head 10 does not exist"),
        ({"source": "a", "ablated_heads": ["cross.9.0"]}, "layer 10 does not exist"),
        ({"source": "a", "ablated_heads": ["cross.-1.0"]}, "is not a valid head"),
        ({"source": "a", "ablated_heads": ["cross." + "1" * 5000 + ".0"]}, "is not a valid head"),
        ({"source": "a", "ablated_heads": ["cross.0.\ud800"]}, "is not a valid head"),
        ({"source": "a", "ablated_heads": ["cross.0.0"] * 1025}, "'ablated_heads'"),
        ({"source": "a", "masked_source": 0}, "'masked_source'"),
        ({"source": "a", "masked_source": ["0"]}, "'masked_source.0'"),
        ({"source": "a", "masked_source": [True]}, "'masked_source.0'"),
        ({"source": "a", "masked_source": [0.0]}, "'masked_source.0'"),
        ({"source": "a", "masked_source": [99]}, "position 99, which does not exist"),
        ({"source": "a", "masked_source": [-1]}, "position -1, which does not exist"),
        ({"source": "a", "masked_source": [10**30]}, "which does not exist"),
        ({"source": "a", "masked_source": [0] * (MAX_TRACE_TOKENS + 1)}, "'masked_source'"),
        ({"source": "a", "prefix_ids": [0]}, "contains an invalid token id"),
        ({"source": "a", "prefix_ids": [1]}, "contains an invalid token id"),
        ({"source": "a", "prefix_ids": [-5]}, "contains an invalid token id"),
        ({"source": "a", "prefix_ids": [10**30]}, "contains an invalid token id"),
        ({"source": "a", "prefix_ids": ["5"]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [5.0]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [True]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [[5]]}, "'prefix_ids.0'"),
        ({"source": "a", "prefix_ids": [5] * (MAX_TRACE_TOKENS + 1)}, f"the maximum for a trace is {MAX_TRACE_TOKENS}"),
        ({"source": "a", "prefix": "le " * 3000}, f"the maximum for a trace is {MAX_TRACE_TOKENS}"),
        ({"source": "a", "prefix": "l" * 60_000}, "characters"),
        ({"source": "a", "prefix": "le", "prefix_ids": [5]}, "cannot be combined"),
        ({"source": "a", "target": "le", "target_ids": [5]}, "cannot be combined"),
        ({"source": "a", "target": "", "target_ids": [5]}, "cannot be combined"),
        ({"source": "a", "target": "le", "prefix": "le"}, "cannot be combined"),
        ({"source": "a", "target": "", "prefix_ids": [5]}, "cannot be combined"),
        ({"source": "a", "target_ids": [5], "prefix_ids": [5]}, "cannot be combined"),
        ({"source": "a", "target_ids": [0]}, "contains an invalid token id"),
        ({"source": "a", "target_ids": [5] * (MAX_TRACE_TOKENS + 1)}, f"the maximum for a trace is {MAX_TRACE_TOKENS}"),
        ({"source": "a", "target": 5}, "'target'"),
        ({"source": "a", "target": "l" * 60_000}, "characters"),
        ({"source": "a" * 60_000}, "characters"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_trace_invalid_request_returns_400(address: str, body: dict[str, object], problem: str) -> None:
    response = ask(address, "/api/trace", body)
    assert response.status == 400, response.body
    assert problem in response.error
    assert len(response.body) < 10_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{" * 50_000,
        b'{"source": "a", "temperature": NaN}',
        b'{"source": "a", "temperature": Infinity}',
        b'{"source": "a", "temperature": 1e400}',
        b'{"source": "a", "beam_size": ' + b"9" * 5000 + b"}",
        b'{"source": "\xff"}',
    ],
    ids=lambda body: ascii(body)[:40],
)
def test_trace_malformed_body_returns_400(address: str, body: bytes) -> None:
    assert ask(address, "/api/trace", body).status == 400


def test_trace_lone_surrogate_replaced(address: str) -> None:
    response = trace(address, "dog \ud83d", prefix="le \ud83d")
    assert response.status == 200
    assert response.json["request"]["source"] == "dog \ufffd"


def test_trace_long_sentence_split_or_rejected(address: str) -> None:
    """The text is split as the translator splits it, or rejected; nothing is silently cut off."""
    response = trace(address, "dog " * 600)
    if response.status == 200:
        manifest = response.json
        assert "".join(text + space for text, space in manifest["segments"]).split() == ["dog"] * 600
        assert len(manifest["sides"]["source"]["ids"]) <= MAX_TRACE_TOKENS + 1
    else:
        assert response.status == 400
        assert f"the maximum for a trace is {MAX_TRACE_TOKENS}" in response.error


CELL_QUERY = "kind=cross&layer=0&head=0&row=0"


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("tensors", 400, "names: Field required"),
        ("tensors?names=", 400, "tensor '' does not exist"),
        ("tensors?names=nothing", 400, "tensor 'nothing' does not exist"),
        ("tensors?names=lens.ids,nothing", 400, "tensor 'nothing' does not exist"),
        ("tensors?names=%ff%00", 400, "does not exist"),
        ("tensors?names=" + "a," * 9_000, 400, "does not exist"),
        ("tensors?names=" + "a," * 11_000, 400, "names: String should have at most"),
        ("cell", 400, "kind: Field required"),
        ("cell?kind=other&layer=0&head=0&row=0", 400, "kind: Input should be"),
        (f"cell?{CELL_QUERY}&key=-1", 400, "key: "),
        (f"cell?{CELL_QUERY}&key=999", 400, "subword 1000 does not exist"),
        ("cell?kind=cross&layer=9&head=0&row=0", 400, "layer 10 does not exist"),
        ("cell?kind=cross&layer=0&head=9&row=0", 400, "head 10 does not exist"),
        ("cell?kind=cross&layer=0&head=0&row=999", 400, "subword 1000 does not exist"),
        ("cell?kind=cross&layer=0&head=0&row=" + "9" * 30, 400, f"subword 1{'0' * 30} does not exist"),
        ("cell?kind=cross&layer=0&head=0&row=" + "9" * 5000, 400, "row: "),
        ("cell?kind=cross&layer=0.5&head=0&row=0", 400, "layer: "),
        ("cell?kind=cross&layer=NaN&head=0&row=0", 400, "layer: "),
        ("cell?kind=cross&layer=0&head=-1&row=0", 400, "head: "),
        ("alternatives", 400, "step: Field required"),
        ("alternatives?step=-1", 400, "step: "),
        ("alternatives?step=999", 400, "step 1000 does not exist"),
        ("alternatives?step=" + "9" * 30, 400, "does not exist"),
        ("alternatives?step=0&count=0", 400, "count: "),
        ("alternatives?step=0&count=21", 400, "count: "),
        ("alternatives?step=0&count=x", 400, "count: "),
        ("page?view=" + "a" * 20_001, 400, "view: "),
        ("nothing", 404, ""),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_trace_details_invalid_request_returns_error(
    address: str, manifest: Any, path: str, status: int, problem: str
) -> None:
    response = ask(address, f"/api/trace/{manifest['id']}/{path}")
    assert response.status == status, response.body
    assert problem in response.error


@pytest.mark.parametrize("view", ["#/cell?kind=x&layer=" + "9" * 5000, "%ff%fe", "#//?&=&", "<script>"], ids=ascii)
@pytest.mark.long
def test_trace_page_any_view(address: str, view: str) -> None:
    name = trace(address, "dog").json["id"]  # a small page
    response = ask(address, f"/api/trace/{name}/page?view={quote(view, safe='%')}")
    assert response.status == 200
    assert b"<script>\x22" not in response.body


@pytest.mark.parametrize("name", ["nothing", "a" * 10_000, "%ff%00", "..", "%F0%9F%90%95"], ids=lambda name: name[:9])
@pytest.mark.parametrize(
    "path", ["tensors?names=lens.ids", f"cell?{CELL_QUERY}", "alternatives?step=0", "page", "record"]
)
def test_trace_unknown_id_returns_404(address: str, name: str, path: str) -> None:
    response = ask(address, f"/api/trace/{name}/{path}")
    assert response.status == 404
    assert response.error


# ---- every field has an effect


def test_trace_every_field_changes_trace(address: str, manifest: Any) -> None:
    """Every accepted field changes the id and the values of the trace."""
    [model] = ask(address, "/api/models").json
    assert len(model["checkpoints"]) > 1
    first, *_, last = model["checkpoints"]
    changes: list[dict[str, object]] = [
        {"segment": 1},
        {"checkpoint": first},
        {"checkpoint": last},
        {"beam_size": 2},
        {"beam_size": 3},
        {"temperature": 2.0},
        {"ablated_heads": ["cross.0.1"]},
        {"ablated_heads": ["cross.0.0"]},
        {"prefix": "un"},
        {"prefix_ids": [30]},
        {"target": "un"},
        {"target_ids": [31]},
        {"target_ids": []},
    ]
    text = f"{SENTENCE} The cat slept."
    result = [trace(address, text, **change) for change in changes]
    assert [response.status for response in result] == [200] * len(changes)
    other_manifests = [response.json for response in result]
    assert len({item["id"] for item in [manifest, *other_manifests]}) == len(changes) + 1
    numbers = [json.dumps([item["steps"], item["beam_search"], item["sides"]]) for item in [manifest, *other_manifests]]
    assert len(set(numbers)) >= len(numbers) - 1  # the last checkpoint may be the model itself
    assert [item["checkpoint"] for item in other_manifests[1:3]] == [first, last]


def test_trace_checkpoint_has_its_own_id(address: str, manifest: Any) -> None:
    """Otherwise the cache would return the wrong one."""
    checkpoint = ask(address, "/api/models").json[0]["checkpoints"][-1]
    assert trace(address, checkpoint=checkpoint).json["checkpoint"] == checkpoint
    second = trace(address).json
    assert second["checkpoint"] is None
    assert second["id"] == manifest["id"]


def test_trace_beam_size_applies_to_alternatives(address: str) -> None:
    def texts(beam: int) -> list[str]:
        name = trace(address, target="le chien", beam_size=beam).json["id"]
        result = ask(address, f"/api/trace/{name}/alternatives?step=1&count=20").json["alternatives"]
        return [item["text"] for item in result]

    assert texts(1) != texts(8)


@pytest.mark.parametrize(
    ("text", "segment", "sentence"), [("One. Two.", 0, "One."), ("One. Two.", 1, "Two."), ("\n\nOne. Two.", 0, "One.")]
)
def test_trace_segment_selects_sentence(address: str, text: str, segment: int, sentence: str) -> None:
    manifest = trace(address, text, segment=segment).json
    assert manifest["request"]["source"] == sentence
    assert manifest["segments"][manifest["segment"]][0] == sentence
    assert "".join(segment_text + space for segment_text, space in manifest["segments"]) == text


# ---- responses


def test_cell_omits_unused_values(address: str, manifest: Any, engine: Translator) -> None:
    response = ask(address, f"/api/trace/{manifest['id']}/cell?{CELL_QUERY}")
    values = response.json["values"]
    assert not OMITTED_CELL_VALUES & values.keys()
    assert len(values["w_query"]) == engine.model_folder.config.model.d_model
    files = ("views/cell.js", "parts/number_table.js", "lesson/steps.js", "lesson/example.js")
    scripts = "".join(load_assets()[name].content.decode() for name in files)
    assert "values.w_query" in scripts
    assert not [name for name in OMITTED_CELL_VALUES if re.search(rf"\b{name}\b", scripts)]


def test_cell_of_wide_model_is_small() -> None:
    from tests.interpret.small_models import new_model_folder

    model_folder = new_model_folder(d_model=128, heads=4, layers=(1, 1))
    with served(Translator.with_pytorch(model_folder)) as server:
        name = trace(server.address).json["id"]
        path = f"/api/trace/{name}/cell?kind=encoder&layer=0&head=1&row=2"
        assert len(ask(server.address, path).body) < 200_000
        compressed = ask(server.address, path, headers={"Accept-Encoding": "gzip"})
    assert len(compressed.body) < 80_000


def test_compressed_responses_are_equal(address: str, manifest: Any) -> None:
    for path in (f"cell?{CELL_QUERY}", "tensors?names=encoder.0.self.weights,logits.0"):
        plain, compressed = (
            ask(address, f"/api/trace/{manifest['id']}/{path}", headers=headers)
            for headers in ({}, {"Accept-Encoding": "br, gzip"})
        )
        assert "content-encoding" not in plain.headers
        assert compressed.headers["content-encoding"] == "gzip"
        assert plain.headers["vary"] == compressed.headers["vary"] == "Accept-Encoding"
        assert gzip.decompress(compressed.body) == plain.body


def test_trace_numbers_exact_cell_numbers_rounded(address: str, manifest: Any, engine: Translator) -> None:
    """A cell has nine digits, more than float32 precision."""
    exact = compute_trace(engine.model_folder, TraceRequest(source=SENTENCE))
    for expected, actual in zip(exact.manifest["steps"], manifest["steps"], strict=True):
        assert actual["id"] == expected["id"]
        for name in ("log_probability", "logit", "entropy"):  # rounding depends on the number of threads
            assert actual[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6)
    rounded = ask(address, f"/api/trace/{manifest['id']}/cell?{CELL_QUERY}").json["values"]
    values = explain_row(exact.model_folder, exact.activations, "cross", 0, 0, 0).values
    assert rounded["q"] == pytest.approx(values["q"], rel=1e-8)
    assert rounded["q"] != values["q"]


# ---- keys


@pytest.mark.long
def test_trace_routes_require_key(engine: Translator, quick_model: Path) -> None:
    with served(engine, folder=quick_model, api_keys=("secret",)) as server:
        address, key = server.address, {"Authorization": "Bearer secret"}
        for path in ("/", "/page/main.js", "/page/styles/base.css"):
            assert ask(address, path).status == 200  # the page itself is public
        assert trace(address).status == 403
        name = ask(address, "/api/trace", {"source": SENTENCE}, headers=key).json["id"]
        paths = ask(address, "/openapi.json").json["paths"]
        api_paths = [path for path in paths if path.startswith("/api/")]
        assert "/api/trace" in api_paths
        query = f"names=lens.ids&{CELL_QUERY}&step=0"
        for path in api_paths:
            [method] = paths[path]
            request_body = (
                f"{path.replace('{name}', name)}?{query}",
                {"source": SENTENCE} if method == "post" else None,
            )
            assert ask(address, *request_body).status == 403, path
            assert ask(address, *request_body, headers={"Authorization": "Bearer wrong"}).status == 403, path
            assert ask(address, *request_body, headers=key).status != 403, path


def test_trace_without_key_rejected_before_body(engine: Translator) -> None:
    with served(engine, api_keys=("secret",)) as server:
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            connection.sendall(b"POST /api/trace HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 403")
