"""The files of the page: validation by ETag, compression, headers, names."""

import gzip
import http.client
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful import web
from heedful.server.routes.page import MIN_COMPRESS_BYTES, PageFiles, build_headers
from heedful.web.assets import load_assets
from tests.server.fake_translators import FakeTranslator
from tests.server.server_process import ask, served

GZIP = {"Accept-Encoding": "br, gzip"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(FakeTranslator()) as server:
        yield server.address


def test_all_files_served_with_type_and_headers(address: str) -> None:
    for name, asset in load_assets().items():
        plain, compressed = (ask(address, f"/page/{name}", headers=headers) for headers in ({}, GZIP))
        assert plain.body == asset.content
        assert "content-encoding" not in plain.headers
        is_large = len(asset.content) >= MIN_COMPRESS_BYTES
        assert compressed.headers.get("content-encoding") == ("gzip" if is_large else None)
        assert (gzip.decompress(compressed.body) if is_large else compressed.body) == asset.content
        for response in (plain, compressed):
            assert response.headers["content-type"] == asset.media_type
            assert response.headers.get("vary") == ("Accept-Encoding" if is_large else None)
            assert build_headers().items() <= {key.title(): value for key, value in response.headers.items()}.items()
    assert ask(address, "/").body == load_assets()["index.html"].content


def test_unchanged_file_returns_304(address: str) -> None:
    for path in ("/", "/page/main.js"):
        etag = ask(address, path, headers=GZIP).headers["etag"]
        response = ask(address, path, headers={**GZIP, "If-None-Match": etag})
        assert (response.status, response.body) == (304, b"")
        assert response.headers["etag"] == etag
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["content-security-policy"] == build_headers()["Content-Security-Policy"]
        assert ask(address, path, headers={"If-None-Match": '"other"'}).status == 200


def test_upgraded_file_has_another_etag(tmp_path: Path) -> None:
    shutil.copytree(Path(web.__file__).parent / "static", tmp_path / "static")
    files = PageFiles(directory=tmp_path / "static")
    scope = {"type": "http", "method": "GET", "headers": []}

    def get_etag() -> str:
        path, status = files.lookup_path("main.js")
        assert status is not None
        return files.file_response(path, status, scope).headers["etag"]

    before = get_etag()
    assert get_etag() == before
    os.utime(tmp_path / "static" / "main.js", (1, 1))
    assert get_etag() != before


def test_head_returns_headers_only(address: str) -> None:
    for path in ("/", "/page/main.js"):
        expected = ask(address, path)
        response = ask(address, path, method="HEAD", headers=GZIP)
        assert (response.status, response.body) == (200, b"")
        for name in ("content-length", "content-type", "etag", "content-security-policy"):
            assert response.headers[name] == expected.headers[name]


@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/page/",
        "/page/views",
        "/page/nope.js",
        "/page/../__init__.py",
        "/page/..%2f__init__.py",
        "/page/%2e%2e/%2e%2e/errors.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/..%5c__init__.py",
        "/page/main.js%00",
        "/page/" + "a" * 5000,
        "/index.html",
    ],
)
def test_other_paths_return_json_error(address: str, path: str) -> None:
    response = ask(address, path, headers=GZIP)
    assert response.status == 404
    assert response.error == "Not Found"


def test_other_methods_return_json_error(address: str) -> None:
    for path in ("/", "/page/main.js"):
        response = ask(address, path, {})
        assert response.status == 405
        assert response.error == "Method Not Allowed"


def test_stream_is_not_compressed(address: str) -> None:
    """Each event arrives when it is sent; other routes are not compressed either."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    body = b'{"text": "one two three", "source": "en", "target": "fr", "stream": true}'
    connection.request("POST", "/api/translate", body, {**GZIP, "Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.getheader("content-encoding") is None
    assert response.readline().startswith((b"event:", b"data:"))
    connection.close()


def test_requests_counted_by_route(address: str) -> None:
    ask(address, "/")
    ask(address, "/page/main.js", headers={"If-None-Match": "*"})
    metrics = ask(address, "/metrics").body.decode()
    assert 'route="/",status="200"' in metrics
    assert 'route="/page/{name:path}",status="304"' in metrics
    assert "main.js" not in metrics
