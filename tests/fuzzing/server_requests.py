"""HTTP requests to a server: bodies, content types, query strings, and malformed HTTP.

An input is a complete request as raw bytes. Every status below 500 and 503 is valid if errors are JSON; a missing
response or any other 5xx is a crash.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from heedful.errors import HeedfulError
from heedful.inference.translator import Translator
from tests.fuzzing import valid_files
from tests.fuzzing.mutations import corrupt_files, json_files, noise
from tests.fuzzing.outcomes import Reader
from tests.server.server_process import ask, served

SECONDS = 45.0
"""Timeout of one request."""
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
CONTENT_TYPES = (
    JSON,
    FORM,
    MULTIPART,
    "text/plain",
    "",
    "application/json; charset=utf-16",
    "application/problem+json",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=" + "-" * 200,
    "multipart/mixed; boundary=x",
    "\xff",
)
FILE = (
    b'--x\r\nContent-Disposition: form-data; name="source"\r\n\r\nen\r\n'
    b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nfr\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
    b"Content-Type: text/plain\r\n\r\nThe dog.\r\n--x--\r\n"
)
POSTS: dict[str, tuple[dict[str, object], ...]] = {
    "/translate": (
        {"q": "The dog.", "source": "en", "target": "fr", "format": "text", "alternatives": 1},
        {"q": ["a", "<b>b</b>"], "source": "auto", "target": "fr", "format": "html"},
    ),
    "/detect": ({"q": "The dog."},),
    "/v2/translate": ({"text": ["The dog."], "source_lang": "EN", "target_lang": "FR", "tag_handling": "html"},),
    "/api/translate": (
        {"text": "The dog.", "source": "en", "target": "fr", "n_best": 2, "alignments": True, "tokens": True},
        {"text": ["a", "b"], "source": "en", "target": "fr", "prefix": ["Le", ""], "glossary": {"dog": "chien"}},
        {"text": "The dog.", "source": "en", "target": "fr", "stream": True},
    ),
    "/api/alternatives": ({"text": "The dog.", "source": "en", "target": "fr", "prefix": "Le"},),
    "/api/trace": (
        {"source": "The dog.", "beam_size": 2, "ablated_heads": ["cross.0.1"], "masked_source": [1], "prefix_ids": [5]},
        {"source": "The dog.", "target": "Le chien.", "temperature": 0.5},
        {"source": "The dog.", "seed": 3, "top_k": 4, "top_p": 0.9},
    ),
}
GETS = (
    "/languages",
    "/v2/languages?type=target",
    "/download_file/a.txt",
    "/api/training?model=en-fr",
    "/api/trace/{name}/tensors?names=lens.ids,encoder.0.self.weights",
    "/api/trace/{name}/cell?kind=cross&layer=0&head=1&row=0",
    "/api/trace/{name}/alternatives?step=1",
    "/page/main.js",
)


@cache
def _server() -> str:
    """The address of a server in this process."""
    stack = ExitStack()
    threading._register_atexit(stack.close)  # type: ignore[attr-defined]  # before threads are joined
    folder = valid_files._model()
    return stack.enter_context(served(Translator.with_pytorch(valid_files.new_model_folder()), folder=folder)).address


@cache
def _trace() -> str:
    result: str = ask(_server(), "/api/trace", {"source": "The dog."}).json["id"]
    return result


def _read(folder: Path) -> None:
    """Send the request and check the response."""
    status, content_type, body = _send((folder / "request").read_bytes().replace(b"{name}", _trace().encode()))
    if status == 0 or (status == 400 and not body):  # an incomplete request
        raise HeedfulError("nothing to answer")
    assert status < 500 or status == 503, (status, body[:300])
    if status >= 400:
        if content_type.startswith(b"application/json"):
            # A HEAD response has no body; another response may follow the first.
            error = json.JSONDecoder().raw_decode(body.decode())[0] if body else {"error": "none"}
            raise HeedfulError(error["error"])
        assert body == b"Invalid HTTP request received.", body[:200]
        raise HeedfulError("invalid HTTP")


def _send(request: bytes) -> tuple[int, bytes, bytes]:
    """Status, content type and body of the first response; status 0 if there is none."""
    host, port = _server().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        answer = b"".join(_receive(connection, SECONDS if _is_complete(request) else 0.2))
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, b"", b""
    lines = head.split(b"\r\n")
    names = dict(line.lower().split(b": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), names.get(b"content-type", b""), body


def _is_complete(request: bytes) -> bool:
    """Whether the server must respond, however busy it is."""
    head, _, body = request.partition(b"\r\n\r\n")
    return f"\r\nContent-Length: {len(body)}\r\n".encode() in head


def _receive(connection: socket.socket, timeout: float) -> Iterator[bytes]:
    """Data until the server closes the connection; after the timeout, our side is closed for writing."""
    connection.settimeout(timeout)
    write_closed = False
    with suppress(ConnectionError):
        while True:
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                if write_closed:
                    return
                write_closed = True
                connection.settimeout(SECONDS)
                connection.shutdown(socket.SHUT_WR)
                continue
            if not data:
                return
            yield data


def _request(method: str, path: bytes, content_type: str, body: bytes) -> bytes:
    head = (
        f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\nContent-Type: {content_type}\r\n\r\n"
    )
    return method.encode() + b" " + path + b" HTTP/1.1\r\n" + head.encode("latin-1") + body


@st.composite
def _posts(draw: DrawFn, path: str, bodies: SearchStrategy[bytes], default_content_type: str) -> bytes:
    content_type = draw(st.sampled_from([default_content_type] * 12 + [*CONTENT_TYPES]))
    query = draw(st.sampled_from([b""] * 8) | _query())
    return _request("POST", path.encode() + query, content_type, draw(bodies))


def _query() -> SearchStrategy[bytes]:
    odd = st.sampled_from([b"%", b"%ff", b"%00", b"=", b"&", b"+", b"?", b"a", b"9" * 400, b"-1", b"%ED%A0%80"])
    names = st.sampled_from([b"model", b"names", b"row", b"kind", b"layer", b"step", b"q", b"source", b"target"])
    return st.lists(odd | names, max_size=8).map(lambda parts: b"?" + b"".join(parts))


@st.composite
def _gets(draw: DrawFn) -> bytes:
    path = draw(st.sampled_from(GETS)).encode()
    if draw(st.booleans()):
        path = draw(corrupt_files([path])).translate(None, b" \r\n\0")
    else:
        path = path.partition(b"?")[0] + draw(_query())
    return _request(draw(st.sampled_from(["GET"] * 6 + ["HEAD", "PUT", "OPTIONS"])), path, JSON, b"")


def _route_inputs(path: str) -> Callable[[Sequence[bytes]], SearchStrategy[bytes]]:
    seeds = [json.dumps(body).encode() for body in POSTS[path]]
    return lambda _: _posts(path, json_files(seeds), JSON)


def _uploads(_: Sequence[bytes]) -> SearchStrategy[bytes]:
    fragments = [b"--x\r\n", b"--x--", b"\r\n\r\n", b'name="file"', b"filename*=utf-8''%ff", b"\xef\xbb\xbf"]
    return _posts("/translate_file", corrupt_files([FILE], fragments) | noise(), MULTIPART)


def _raw(_: Sequence[bytes]) -> SearchStrategy[bytes]:
    """Requests corrupted anywhere, including request line and headers."""
    requests = [_first(path) for path in POSTS]
    fragments = [b"\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"]
    return corrupt_files(requests, fragments)


def _first(path: str) -> bytes:
    return _request("POST", path.encode(), JSON, json.dumps(POSTS[path][0]).encode())


def _request_writer(request: bytes) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        _trace()
        (folder / "request").write_bytes(request)

    return prepare


def _api(name: str, request: bytes, inputs: Callable[[Sequence[bytes]], SearchStrategy[bytes]]) -> Reader:
    return Reader(f"API: {name}", "request", _request_writer(request), _read, inputs, slow=8, connects=True)


REQUESTS = [
    *(_api(f"POST {path}", _first(path), _route_inputs(path)) for path in POSTS),
    _api("POST /translate_file", _request("POST", b"/translate_file", MULTIPART, FILE), _uploads),
    _api("GET", _request("GET", b"/languages", JSON, b""), lambda _: _gets()),
    _api("raw bytes", _first("/translate"), _raw),
]
