"""Requests generated from the OpenAPI schema by schemathesis: never a 500, and every response matches the schema.

The requests are the same each time (``derandomize``) and go to a server on loopback.
"""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings

from heedful.inference.translator import Translator
from heedful.server.model_registry import ServedLanguageModel
from tests.interpret.small_models import new_model_folder
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import SECONDS, ask, served

OPERATIONS = [
    ("GET", "/languages"),
    ("POST", "/translate"),
    ("POST", "/detect"),
    ("GET", "/frontend/settings"),
    ("POST", "/translate_file"),
    ("GET", "/download_file/{name}"),
    ("POST", "/v2/translate"),
    ("GET", "/v2/languages"),
    ("POST", "/api/translate"),
    ("POST", "/api/alternatives"),
    ("GET", "/api/training"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/spec"),
]
TRACE_OPERATIONS = [
    ("GET", "/api/models"),
    ("POST", "/api/trace"),
    ("GET", "/api/trace/{name}/tensors"),
    ("GET", "/api/trace/{name}/cell"),
    ("GET", "/api/trace/{name}/alternatives"),
    ("GET", "/api/trace/{name}/page"),
    ("GET", "/api/trace/{name}/record"),
    ("POST", "/api/generate"),
    ("POST", "/api/fill"),
]
"""Operations that need a real model."""
REJECTING_OPERATIONS = [TRACE_OPERATIONS[index] for index in (1, 2, 3, 4, 7, 8)]
EXAMPLES = 20
"""Requests per operation and mode."""
MAX_EXAMPLES = {"/api/trace/{name}/page": 4}
"""The same for operations that take a second."""
EXPECTED_STATUS = {
    ("positive", "/download_file/{name}"): 404,
    ("positive", "/translate_file"): 400,
    **{("negative", path): 400 for method, path in OPERATIONS if method == "POST"},
}
"""A status that must occur, where it is not 200: generated file names do not exist or have no valid extension."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of two directions with a fake translator."""
    with served(FakeTranslator(), FakeTranslator(languages=("fr", "en"))) as server:
        yield server.address


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    """The schema, restricted to the languages of the server in native routes: others would be rejected."""
    import schemathesis

    result = ask(address, "/openapi.json").json
    for path in ("/api/translate", "/api/alternatives"):
        body = result["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for name in ("source", "target"):
            body["schema"]["properties"][name]["enum"] = ["en", "fr"]
    return schemathesis.openapi.from_dict(result)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        yield session


def test_schema_lists_all_operations(address: str) -> None:
    paths = ask(address, "/openapi.json").json["paths"]
    assert sorted([*OPERATIONS, *TRACE_OPERATIONS]) == sorted(
        (method.upper(), path) for path in paths for method in paths[path]
    )


POST_OPERATIONS = [operation for operation in OPERATIONS if operation[0] == "POST"]


@pytest.mark.parametrize(
    ("mode", "method", "path"),
    [
        *(("positive", *operation) for operation in OPERATIONS),
        *(("negative", *operation) for operation in POST_OPERATIONS),  # the others have no invalid requests
    ],
)
@pytest.mark.long
def test_responses_match_schema(
    address: str, schema: Any, session: requests.Session, mode: str, method: str, path: str
) -> None:
    """Requests that match the schema, and requests that do not."""
    statuses = run_requests(address, schema[path][method], session, mode)
    assert statuses[EXPECTED_STATUS.get((mode, path), 200)], statuses


def run_requests(address: str, operation: Any, session: requests.Session, mode: str) -> Counter[int]:
    """Send requests of an operation, check every response, and count the statuses."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    response_checks = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
    ]
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=MAX_EXAMPLES.get(operation.path, EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=GenerationMode(mode)))
    def run(case: Any) -> None:
        response = case.call(address, session, timeout=SECONDS)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=response_checks)

    run()
    return statuses


def test_schema_describes_all_responses(address: str) -> None:
    for path, methods in ask(address, "/openapi.json").json["paths"].items():
        [operation] = methods.values()
        for status, response in operation["responses"].items():
            contents = response["content"]
            assert all(media_type["schema"] for media_type in contents.values()), (path, status)


# ---- traces of a real model


@pytest.fixture(scope="module")
def trace_address(engine: Translator, quick_model: Path) -> Iterator[str]:
    """A server of a real model and two language models."""
    language_models = [
        ServedLanguageModel(Path(architecture), new_model_folder("bpe", architecture=architecture))
        for architecture in ("causal_lm", "masked_lm")
    ]
    with served(engine, folder=quick_model, language_models=language_models) as server:
        yield server.address


@pytest.fixture(scope="module")
def trace_schema(trace_address: str) -> Any:
    """The schema, restricted to values that exist in this model and in one trace of it."""
    import schemathesis

    result = ask(trace_address, "/openapi.json").json
    request_schema = result["paths"]["/api/trace"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    request_schema["properties"] |= {
        "source": {"enum": ["The dog was too tired.", "The dog was too tired. It was late.", "dog"]},
        "model": {"enum": ["", "en-fr"]},
        "segment": {"type": "integer", "minimum": 0, "maximum": 1},
        "checkpoint": {"enum": [None, *ask(trace_address, "/api/models").json[0]["checkpoints"]]},
        "ablated_heads": {"type": "array", "items": {"enum": ["encoder.0.1", "decoder.0.0", "cross.0.1"]}},
        "masked_source": {"type": "array", "maxItems": 3, "items": {"type": "integer", "minimum": 0, "maximum": 6}},
        "prefix_ids": {"type": "array", "items": {"type": "integer", "minimum": 2, "maximum": 90}},
    }
    for path, name in (("/api/generate", "causal_lm"), ("/api/fill", "masked_lm")):
        body = result["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        body["properties"] |= {"text": {"enum": ["The __", "__ dog"]}, "model": {"enum": ["", name]}}
        if "max_length" in body["properties"]:
            body["properties"]["max_length"] = {"type": "integer", "minimum": 9, "maximum": 20}
    manifest = ask(trace_address, "/api/trace", {"source": "The dog was too tired."}).json
    parameter_schemas = {
        "name": {"enum": [manifest["id"], manifest["id"], "evicted"]},
        "names": {"enum": [*manifest["tensors"], "lens.ids,encoder.0.self.weights", "unknown"]},
        "layer": {"type": "integer", "minimum": 0, "maximum": 1},
        "head": {"type": "integer", "minimum": 0, "maximum": 2},
        "row": {"type": "integer", "minimum": 0, "maximum": 6},
        "step": {"type": "integer", "minimum": 0, "maximum": 6},
    }
    for method, path in TRACE_OPERATIONS:
        for parameter in result["paths"][path][method.lower()].get("parameters", []):
            parameter["schema"] = parameter_schemas.get(parameter["name"], parameter["schema"])
    return schemathesis.openapi.from_dict(result)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "method", "path"),
    [*(("positive", *item) for item in TRACE_OPERATIONS), *(("negative", *item) for item in REJECTING_OPERATIONS)],
)
def test_trace_responses_match_schema(
    trace_address: str, trace_schema: Any, session: requests.Session, mode: str, method: str, path: str
) -> None:
    statuses = run_requests(trace_address, trace_schema[path][method], session, mode)
    assert statuses[200 if mode == "positive" else 400], statuses


@pytest.mark.parametrize(
    "options", [{"target": "Il"}, {"target_ids": []}, {"ablated_heads": ["cross.0.1"], "beam_size": 3}]
)
def test_traces_match_schema(
    trace_address: str, trace_schema: Any, session: requests.Session, options: dict[str, object]
) -> None:
    body = {"source": "The dog was too tired.", **options}
    response = session.post(f"{trace_address}/api/trace", json=body, timeout=SECONDS)
    assert response.status_code == 200
    trace_schema["/api/trace"]["POST"].validate_response(response)


# ---- requests that are not generated from the schema

DETAILS = {"n_best": 3, "alignments": True, "tokens": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/translate", {"q": "hello %s", "source": "auto", "target": "fr", "alternatives": 2}),
        ("/translate", {"q": ["hello", "a"], "source": "auto", "target": "fr", "alternatives": 2}),
        ("/translate", {"q": [], "source": "en", "target": "fr"}),
        ("/translate", {"q": "hello"}),
        ("/v2/translate", {"text": "hello", "target_lang": "FR", "show_billed_characters": True}),
        ("/v2/translate", {"text": "hello"}),
        ("/api/translate", {"text": ["hello", "hello %s"], "source": "en", "target": "fr", **DETAILS}),
        ("/api/translate", {"text": "<p>a <b>b</b></p>", "target": "fr", "format": "html", **DETAILS}),
        ("/api/translate", {"text": "hello", "source": "en", "target": "fr", "stream": True}),
        ("/api/translate", {"text": "poison", "source": "en", "target": "fr"}),
    ],
    ids=str,
)
def test_detailed_responses_match_schema(
    address: str, schema: Any, session: requests.Session, path: str, body: dict[str, object]
) -> None:
    """Requests that are unlikely to be generated."""
    response = session.post(address + path, json=body, timeout=SECONDS)
    schema[path]["POST"].validate_response(response)


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nText.\r\n--x'


@pytest.mark.parametrize(
    ("path", "kind", "body", "status"),
    [
        ("/detect", "application/json", b"{}", 400),
        ("/detect", "application/json", b'{"q": 5}', 400),
        ("/detect", "application/json", b'{"q": [[]]}', 400),
        ("/detect", "application/json", b"null", 400),
        ("/detect", "application/json", b"{" * 50_000, 400),
        ("/detect", "application/json", b'{"q": "' + b"a" * 50_001 + b'"}', 400),
        ("/detect", FORM, b"q", 200),
        ("/detect", FORM, b"%ff=%zz&q=%ff", 200),
        ("/detect", FORM, b"", 400),
        ("/detect", "text/plain", b"hello", 400),
        ("/detect", "a" * 5000, b"hello", 400),
        ("/v2/translate", "application/json", b'{"text": {}, "target_lang": "FR"}', 400),
        ("/v2/translate", "application/json", b'{"text": ["a"], "target_lang": ["FR"]}', 400),
        ("/v2/translate", FORM, b"text=a&target_lang=FR&target_lang=EN", 400),
        ("/v2/translate", MULTIPART, b"--x--", 400),
        ("/api/translate", "application/json", b"", 400),
        ("/api/translate", "application/json", b'{"text": "a", "target": "fr", "text": 1}', 400),
        ("/api/translate", "application/json", b'{"text": "a", "target": "fr", "n_best": 1e400}', 400),
        ("/api/translate", "application/json", b"\xef\xbb\xbf{}", 400),
        ("/api/translate", "application/json", b'{"text": "a", "target": "fr", "\\ud800": 1}', 400),
        ("/translate_file", "application/json", b'{"file": "a"}', 400),
        ("/translate_file", FORM, b"file=a&source=en&target=fr", 400),
        ("/translate_file", MULTIPART, FILE + b"--\r\n", 400),
        ("/translate_file", MULTIPART, FILE + FILE[3:] + b"--\r\n", 400),
        ("/translate_file", "multipart/form-data", FILE, 400),
        ("/translate_file", "multipart/form-data; boundary=", FILE, 400),
        ("/translate_file", "multipart/form-data; boundary=" + "x" * 5000, FILE, 400),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_malformed_request_returns_error(address: str, path: str, kind: str, body: bytes, status: int) -> None:
    """Requests that are never generated; each route has more in its own file."""
    response = ask(address, path, body, headers={"Content-Type": kind}, method="POST")
    assert response.status == status, response.body
    assert status == 200 or response.error


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/languages?" + "a=b&" * 2000, 200),
        ("/v2/languages?" + "a=b&" * 2000, 400),
        ("/v2/languages?type=other", 400),
        ("/v2/languages?type=source&type=target", 400),
        ("/v2/languages?%ff%fe=%00", 200),
        ("/download_file/" + "a" * 5000, 404),
        ("/download_file/%ff%00.txt", 404),
        ("/download_file/", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//translate", 404),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_malformed_path_returns_error(address: str, path: str, status: int) -> None:
    response = ask(address, path)
    assert response.status == status, response.body
    assert status == 200 or response.error


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/99\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),  # TLS to a plain port
    ],
    ids=lambda sent: ascii(sent)[:60],
)
def test_invalid_http_closes_connection(address: str, sent: bytes) -> None:
    """The connection is closed, with a 400 if possible; the server keeps running."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        with suppress(OSError):  # the server may close before everything is sent
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            assert connection.recv(1000)[:12] in (b"", b"HTTP/1.1 400")
    assert ask(address, "/health").json == {"status": "ok"}
