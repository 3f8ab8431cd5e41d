"""LibreTranslate's API on a real server: every encoding, real clients, invalid requests."""

import json
from urllib.parse import urlencode

import pytest

from heedful.inference.translator import Translator
from tests.server.server_process import SECONDS, ask, multipart

TEXT = "The dog is tired."
REQUEST = {"q": TEXT, "source": "en", "target": "fr"}


@pytest.fixture(scope="module")
def expected(engine: Translator) -> str:
    return engine.translate([TEXT])[0].text


class TestEncodings:
    def test_translate_json_returns_translation(self, address: str, expected: str) -> None:
        assert ask(address, "/translate", REQUEST).json == {"translatedText": expected}

    def test_translate_form_returns_translation(self, address: str, expected: str) -> None:
        assert ask(address, "/translate", form=REQUEST).json == {"translatedText": expected}

    def test_translate_multipart_returns_translation(self, address: str, expected: str) -> None:
        body, kind = multipart(REQUEST)
        response = ask(address, "/translate", body, headers={"Content-Type": kind})
        assert response.json == {"translatedText": expected}

    def test_translate_query_string_of_post_returns_translation(self, address: str, expected: str) -> None:
        response = ask(address, f"/translate?{urlencode(REQUEST)}", method="POST")
        assert response.json == {"translatedText": expected}

    def test_translate_body_overrides_query(self, address: str, expected: str) -> None:
        response = ask(address, "/translate?q=other&source=en", {"q": TEXT, "target": "fr"})
        assert response.json == {"translatedText": expected}

    def test_translate_chunked_body_returns_translation(self, address: str, expected: str) -> None:
        import http.client

        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=SECONDS)
        body = json.dumps(REQUEST).encode()
        connection.request(
            "POST",
            "/translate",
            iter([body[:9], body[9:]]),
            {"Content-Type": "application/json"},
            encode_chunked=True,
        )
        assert json.loads(connection.getresponse().read()) == {"translatedText": expected}
        connection.close()

    def test_translate_utf_16_json_returns_translation(self, address: str, expected: str) -> None:
        body = json.dumps(REQUEST).encode("utf-16")
        response = ask(address, "/translate", body, headers={"Content-Type": "application/json"})
        assert response.json == {"translatedText": expected}


class TestClients:
    def test_libretranslatepy_client_works(self, address: str, expected: str) -> None:
        from libretranslatepy import LibreTranslateAPI

        client = LibreTranslateAPI(address)
        assert client.translate(TEXT, "en", "fr") == expected
        assert client.detect("The dog did not sleep.")[0]["language"] == "en"
        codes = {language["code"]: language["targets"] for language in client.languages()}
        assert codes == {"en": ["fr"], "fr": []}

    def test_deep_translator_client_works(self, address: str, expected: str) -> None:
        from deep_translator import LibreTranslator

        client = LibreTranslator(source="en", target="fr", api_key="any", custom_url=f"{address}/")
        assert client.translate(TEXT) == expected
        assert client.translate_batch([TEXT, TEXT]) == [expected, expected]

    def test_mastodon_request_keeps_html_and_detects_languages(self, address: str) -> None:
        """A request as Mastodon sends it: JSON, a list, HTML; it reads the language of each item."""
        texts = ['<p>The <b>dog</b> is <a href="https://x.org/?a=1&amp;b=2">tired</a>.</p>', "Hello there"]
        request_body = {"q": texts, "source": "en", "target": "fr", "format": "html", "api_key": ""}
        result = ask(address, "/translate", request_body).json["translatedText"]
        assert len(result) == 2
        assert result[0].startswith("<p>")
        assert result[0].endswith("</p>")
        assert result[0].count("<b>") == result[0].count("</b>") == 1
        assert '<a href="https://x.org/?a=1&amp;b=2">' in result[0]
        automatic = ask(address, "/translate", {**request_body, "source": "auto"}).json
        assert [item["language"] for item in automatic["detectedLanguage"]] == ["en", "en"]


class TestResponses:
    def test_translate_list_returns_list(self, address: str, engine: Translator) -> None:
        texts = [TEXT, "", "  ", "I am a student.", TEXT]
        result = ask(address, "/translate", {**REQUEST, "q": texts}).json
        assert result == {"translatedText": [item.text for item in engine.translate(texts)]}

    def test_translate_auto_reports_detection(self, address: str, expected: str) -> None:
        result = ask(address, "/translate", {**REQUEST, "source": "auto"}).json
        assert result["translatedText"] == expected
        assert result["detectedLanguage"]["language"] == "en"
        assert 0 <= result["detectedLanguage"]["confidence"] <= 100

    def test_translate_text_in_target_language_unchanged(self, address: str) -> None:
        text = "Le chien n'a pas dormi parce qu'il était trop fatigué."
        result = ask(address, "/translate", {**REQUEST, "q": text, "source": "auto"}).json
        assert result["translatedText"] == text
        assert result["detectedLanguage"]["language"] == "fr"

    @pytest.mark.parametrize("count", [2, "2"])
    def test_translate_alternatives_differ(self, address: str, count: object) -> None:
        result = ask(address, "/translate", {**REQUEST, "alternatives": count}).json
        assert len({result["translatedText"], *result["alternatives"]}) == len(result["alternatives"]) + 1
        assert 1 <= len(result["alternatives"]) <= 2
        lists = ask(address, "/translate", {**REQUEST, "q": [TEXT], "alternatives": count}).json
        assert lists["alternatives"] == [result["alternatives"]]

    def test_translate_preserves_line_breaks(self, address: str, engine: Translator) -> None:
        text = f"\n {TEXT} I am a student.\r\n\r\n\tThe cat sleeps.\n\n\n{TEXT}\n"
        result = ask(address, "/translate", {**REQUEST, "q": text}).json["translatedText"]
        assert result == engine.translate([text])[0].text
        first, second, third = (
            engine.translate([sentence])[0].text for sentence in (TEXT, "I am a student.", "The cat sleeps.")
        )
        assert result == f"\n {first} {second}\r\n\r\n\t{third}\n\n\n{first}\n"

    def test_translate_preserves_placeholders(self, address: str) -> None:
        text = "The %1$s is tired, {name}: see https://example.org/a?b=c."
        result = ask(address, "/translate", {**REQUEST, "q": text}).json["translatedText"]
        for placeholder in ("%1$s", "{name}", "https://example.org/a?b=c"):
            assert result.count(placeholder) == 1

    def test_translate_region_codes_accepted(self, address: str, expected: str) -> None:
        result = ask(address, "/translate", {**REQUEST, "source": "en-US", "target": "FR"}).json
        assert result["translatedText"] == expected

    def test_detect_returns_language(self, address: str) -> None:
        for request_body in ({"q": "Le chien dort."}, {"q": ["Le chien dort.", "Il est fatigué."]}):
            assert ask(address, "/detect", request_body).json[0]["language"] == "fr"
        assert ask(address, "/detect", {"q": ""}).json[0]["confidence"] == 0

    def test_languages_ignores_body(self, address: str) -> None:
        result = ask(address, "/languages", {"some": "body"}, method="GET").json
        assert result[0] == {"code": "en", "name": "English", "targets": ["fr"]}

    def test_settings_health_and_spec_describe_server(self, address: str) -> None:
        settings = ask(address, "/frontend/settings").json
        assert settings["charLimit"] == 50_000
        assert settings["keyRequired"] is False
        assert settings["language"]["target"] == {"code": "fr", "name": "French"}
        assert ask(address, "/health").json == {"status": "ok"}
        spec = ask(address, "/spec").json
        assert spec == ask(address, "/openapi.json").json
        assert {"/translate", "/detect", "/languages", "/v2/translate", "/api/translate"} <= set(spec["paths"])
        schema = spec["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["required"]) == {"q", "source", "target"}


class TestFiles:
    def send(self, address: str, name: str, content: bytes) -> str:
        body, kind = multipart({"source": "en", "target": "fr"}, (name, content))
        response = ask(address, "/translate_file", body, headers={"Content-Type": kind})
        assert response.status == 200, response.body
        url = str(response.json["translatedFileUrl"])
        assert url.startswith(f"{address}/download_file/")
        return url.removeprefix(address)

    def test_translate_file_text_can_be_downloaded(self, address: str, engine: Translator) -> None:
        text = f"\ufeff{TEXT}\r\n\r\nI am a student.\n"
        path = self.send(address, "a b.TXT", text.encode())
        response = ask(address, path)
        assert response.body.decode() == engine.translate([text[1:]])[0].text
        assert response.headers["content-disposition"] == 'attachment; filename="a_b_fr.txt"'
        assert len(path) > 40
        assert self.send(address, "a b.TXT", text.encode()) != path

    def test_translate_file_html_keeps_markup(self, address: str) -> None:
        html = "<!DOCTYPE html><html><head><title>Dog</title></head><body><p>The <i>dog</i>.</p></body></html>"
        result = ask(address, self.send(address, "page.htm", html.encode())).body.decode()
        assert result.startswith("<!DOCTYPE html><html><head><title>")
        assert result.endswith("</p></body></html>")

    def test_translate_file_invalid_returns_400(self, address: str) -> None:
        for name, content in (("a.exe", b"MZ"), ("a", b"a"), ("a.txt", b"\xff\xfe\x00")):
            body, kind = multipart({"source": "en", "target": "fr"}, (name, content))
            assert ask(address, "/translate_file", body, headers={"Content-Type": kind}).status == 400
        body, kind = multipart({"source": "en", "target": "fr"})
        assert "missing file" in ask(address, "/translate_file", body, headers={"Content-Type": kind}).error
        assert ask(address, "/download_file/none.txt").status == 404
        assert ask(address, "/download_file/..%2F..%2Fetc%2Fpasswd").status == 404


INVALID_REQUESTS = [
    {**REQUEST, "alternatives": "lots"},
    {**REQUEST, "alternatives": -1},
    {**REQUEST, "alternatives": 1.5},
    {**REQUEST, "alternatives": True},
    {**REQUEST, "alternatives": [1]},
    {**REQUEST, "alternatives": 9},
    {**REQUEST, "alternatives": 10**400},
    {**REQUEST, "q": 5},
    {**REQUEST, "q": None},
    {**REQUEST, "q": {"a": "b"}},
    {**REQUEST, "q": ["a", 5]},
    {**REQUEST, "q": [["a"]]},
    {**REQUEST, "q": ["a"] * 501},
    {**REQUEST, "q": "a" * 50_001},
    {**REQUEST, "source": 5},
    {**REQUEST, "source": ["en"]},
    {**REQUEST, "source": ""},
    {**REQUEST, "source": "xx"},
    {**REQUEST, "source": "fr"} | {"target": "en"},
    {**REQUEST, "target": "auto"},
    {**REQUEST, "target": "en\u0000"},
    {**REQUEST, "target": None},
    {**REQUEST, "source": "auto", "target": "en"},
    {**REQUEST, "format": "pdf"},
    {**REQUEST, "format": 1},
    {"q": TEXT},
    {},
    [],
    "text",
    5,
]


class TestInvalidRequests:
    @pytest.mark.parametrize("body", INVALID_REQUESTS, ids=lambda body: json.dumps(body)[:60])
    def test_translate_invalid_value_returns_400(self, address: str, body: object) -> None:
        response = ask(address, "/translate", body)
        assert response.status == 400
        assert response.error.startswith("Invalid request: ")
        assert response.headers["x-request-id"]

    @pytest.mark.parametrize(
        ("body", "kind"),
        [
            (b"{bad", "application/json"),
            (b'{"q": "\xff"}', "application/json"),
            (b"[" * 100_000, "application/json"),
            (b'{"q": NaN}', "application/json"),
            (b"hello", "text/plain"),
            (b"hello", ""),
            (json.dumps(REQUEST).encode(), "application/x-www-form-urlencoded"),
            (b"&".join([b"q=a"] * 2000), "application/x-www-form-urlencoded"),
            (b"--x", "multipart/form-data; boundary=x"),
            (b"--x", "multipart/form-data"),
            (b"\x00\x01", "application/x-www-form-urlencoded"),
        ],
    )
    def test_translate_invalid_body_returns_400(self, address: str, body: bytes, kind: str) -> None:
        response = ask(address, "/translate", body, headers={"Content-Type": kind} if kind else {})
        assert response.status == 400
        assert response.error

    def test_translate_json_as_form_returns_hint(self, address: str) -> None:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        response = ask(address, "/translate", json.dumps(REQUEST).encode(), headers=kind)
        assert "Content-Type: application/json" in response.error

    def test_translate_huge_body_returns_413(self, address: str) -> None:
        response = ask(address, "/translate", {**REQUEST, "q": "a" * 2_100_000})
        assert response.status == 413
        assert "2000000 bytes" in response.error

    def test_unknown_path_or_method_returns_json_error(self, address: str) -> None:
        for path in ("/page/nope", "/nope", "/translate/", "/v2/nope", "/%00", "/docs"):
            assert ask(address, path).status == 404
            assert ask(address, path).error
        response = ask(address, "/translate")
        assert response.status == 405
        assert response.headers["allow"] == "POST"
        assert response.error
        assert ask(address, "/languages", {}).status == 405
        assert ask(address, "/translate", b"", method="PUT").error

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "\n\n",
            "\0",
            "a\0b",
            "a" * 10_000,
            "word " * 2_000,
            "👩‍👩‍👧‍👦🇫🇷 emoji",
            "مرحبا بالعالم. كيف حالك؟",
            "\ud83d",
            "\ufffe\uffff\u202e",
            ".",
            "<b>not html</b> & so",
        ],
        ids=lambda text: ascii(text[:9]),
    )
    @pytest.mark.parametrize("text_format", ["text", "html"])
    def test_translate_unusual_text_succeeds(self, address: str, text: str, text_format: str) -> None:
        response = ask(address, "/translate", {**REQUEST, "q": text, "format": text_format})
        assert response.status == 200, response.body
        assert isinstance(response.json["translatedText"], str)
        if not text.strip():
            assert response.json["translatedText"] == text

    def test_translate_empty_list_returns_empty_list(self, address: str) -> None:
        assert ask(address, "/translate", {**REQUEST, "q": []}).json == {"translatedText": []}
