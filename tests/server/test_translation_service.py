"""Components of the server: registry, cache, rate limiter, files, lines."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.data.word_alignment import WordLink
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.projection import TranslationGenerator, combine_generators, run_generator
from heedful.inference.translation import Alternative, Translation
from heedful.inference.translator import join_translations
from heedful.server.api_errors import APIError
from heedful.server.batching import Batcher, LRUCache, SegmentRequest
from heedful.server.config import ServerConfig
from heedful.server.middleware import MAX_CLIENTS, RateLimiter
from heedful.server.model_registry import ModelRegistry, ServedDirection, load_registry
from heedful.server.parameters import replace_lone_surrogates
from heedful.server.state import FileStore
from heedful.server.translation_service import MIN_THREAD_CHARACTERS, run_in_thread_if_long, split_lines
from heedful.tokenization.sentence_splitter import TextSegment, split_sentences
from tests.server.fake_translators import FakeTranslator


def new_registry(*pairs: tuple[str, str]) -> ModelRegistry:
    config = ServerConfig(workers=1)
    return ModelRegistry(
        [ServedDirection(*pair, Path("-".join(pair)), Batcher(FakeTranslator(), config)) for pair in pairs]
    )


class TestRegistry:
    def test_split_segments_invalid_text_is_a_client_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def split(text: str, target_language: str) -> list[TextSegment]:
            raise HeedfulError("invalid dependency heads")

        direction = new_registry(("en", "fr")).find_direction("en", "fr")
        monkeypatch.setattr(direction.batcher.translator, "split_segments", split)
        with pytest.raises(APIError, match="invalid dependency heads") as raised:
            direction.split_segments("A text\t7")
        assert raised.value.status == 400

    def test_registry_finds_directions(self) -> None:
        result = new_registry(("en", "fr"), ("en", "de"), ("de", "en"), ("en", "pt-BR"))
        assert result.source_languages == ["de", "en"]
        assert result.languages == ["de", "en", "fr", "pt-BR"]
        assert result.get_target_languages("en") == ["de", "fr", "pt-BR"]
        assert result.get_target_languages("fr") == []
        assert result.get_source_languages("en") == ["de"]
        assert result.find_direction("en", "de").name == "en-de"
        with pytest.raises(APIError, match="fr is not translated into en"):
            result.find_direction("fr", "en")

    @pytest.mark.parametrize(
        ("code", "language"), [("en", "en"), ("EN-us", "en"), ("en_GB", "en"), ("eng", "en"), ("PT-br", "pt-BR")]
    )
    def test_resolve_language_accepts_variants(self, code: str, language: str) -> None:
        assert new_registry(("en", "pt-BR")).resolve_language(code) == language

    @pytest.mark.parametrize("code", ["xx", "", "-", "pt", "e", "engl", "auto"])
    def test_resolve_language_unknown_raises(self, code: str) -> None:
        with pytest.raises(APIError):
            new_registry(("en", "pt-BR")).resolve_language(code)

    def test_registry_duplicate_direction_raises(self) -> None:
        with pytest.raises(HeedfulError, match="two models translate en-fr"):
            new_registry(("en", "fr"), ("en", "fr"))

    def test_registry_underscore_codes_normalized(self) -> None:
        result = new_registry(("en", "pt_BR"), ("pt-BR", "en"))
        assert result.languages == ["en", "pt-BR"]
        assert {result.resolve_language(code) for code in ("pt_BR", "pt-br", "PT_br")} == {"pt-BR"}
        assert result.find_direction("en", "pt-BR").name == "en-pt-BR"
        with pytest.raises(HeedfulError, match="two models translate en-pt-BR"):
            new_registry(("en", "pt_BR"), ("en", "pt-BR"))

    def test_load_registry_parses_folders_and_languages(self, tmp_path: Path) -> None:
        (tmp_path / "a=b-c").mkdir()
        loaded: list[Path] = []

        def load(folder: Path) -> FakeTranslator:
            loaded.append(folder)
            return FakeTranslator()

        args = [str(tmp_path / "a=b-c"), "my-model=pt-BR:en", "other=de-en"]
        result = load_registry(args, ServerConfig(workers=1), load)
        assert [item.name for item in result] == ["en-fr", "pt-BR-en", "de-en"]
        assert loaded == [tmp_path / "a=b-c", Path("my-model"), Path("other")]


class TestCache:
    def test_cache_max_entries_evicts_oldest(self) -> None:
        one, two, three = (SegmentRequest(text, GenerationConfig()) for text in ("one", "two", "three"))
        cache = LRUCache(2, 10**6)
        for request in (one, two):
            cache.put(request, Translation(request.text, ()))
        assert cache.get(one)  # so two is the least recently used
        cache.put(three, Translation("three", ()))
        assert [cache.get(request) is not None for request in (one, two, three)] == [True, False, True]
        empty_cache = LRUCache(0, 10**6)
        empty_cache.put(one, Translation("one", ()))
        assert empty_cache.get(one) is None

    def test_cache_max_bytes_evicts(self) -> None:
        """The cache never exceeds its limit, and an entry that is too large evicts nothing."""
        cache = LRUCache(10**6, 100_000)
        for number in range(300):
            cache.put(
                SegmentRequest(f"{number} " * 50, GenerationConfig()), Translation("", (new_alternative("a " * 40),))
            )
            assert cache.size_bytes <= 100_000
        stored = len(cache)
        assert 1 < stored < 100
        cache.put(SegmentRequest("a" * 60_000, GenerationConfig()), Translation("", ()))
        assert len(cache) == stored

    def test_cache_put_twice_replaces(self) -> None:
        request, cache = SegmentRequest("a", GenerationConfig()), LRUCache(10, 10**6)
        cache.put(request, Translation("a", (new_alternative("one"),)))
        size = cache.size_bytes
        cache.put(request, Translation("a", (new_alternative("two"),)))
        assert cache.size_bytes == size
        assert len(cache) == 1


@pytest.mark.parametrize("url", ["translate.example", "ftp://a.example", "https://a.example/?a", "https://"])
def test_public_url_invalid_raises(url: str) -> None:
    with pytest.raises(HeedfulError, match="public_url"):
        ServerConfig.from_settings({"public_url": url})


@pytest.mark.parametrize("keys", [[""], ["a", " "]])
def test_api_key_empty_raises(keys: list[str]) -> None:
    with pytest.raises(HeedfulError, match="an API key is empty"):
        ServerConfig.from_settings({"api_keys": keys})


class TestRateLimiter:
    def test_rate_limiter_burst_then_refill(self) -> None:
        rate = RateLimiter(60)
        assert [rate.acquire("a", 0.0) for _ in range(61)] == [0] * 60 + [1]
        assert rate.acquire("b", 0.0) == 0
        assert rate.acquire("a", 0.5) == 1
        assert rate.acquire("a", 1.0) == 0
        assert rate.acquire("a", 1.0) == 1

    def test_rate_limiter_zero_allows_all(self) -> None:
        assert not any(RateLimiter(0).acquire("a", 0.0) for _ in range(100))

    def test_rate_limiter_drops_oldest_client(self) -> None:
        rate = RateLimiter(1)
        for number in range(MAX_CLIENTS + 10):
            rate.acquire(str(number), 0.0)
        assert len(rate._buckets) == MAX_CLIENTS


class TestFileStore:
    def test_file_store_bounded_in_number_and_time(self) -> None:
        store = FileStore(2, 60)
        names = [store.put(b"a", "text/plain", "a.txt", ".txt") for _ in range(3)]
        assert len(set(names)) == 3
        assert [store.get(name) is not None for name in names] == [False, True, True]
        assert FileStore(2, -1).get(FileStore(2, -1).put(b"", "", "", "")) is None
        expired = FileStore(2, -1)
        assert expired.get(expired.put(b"a", "text/plain", "a.txt", ".txt")) is None


@pytest.mark.parametrize("text", ["", "\n", "a", " a \n\n b. C.\r\n", "a\u2028b\n", "x. Y\n\n\n  z  "])
@pytest.mark.parametrize("split", [split_sentences, lambda line: [TextSegment(line, "")]])
def test_split_lines_joined_equals_text(text: str, split: Callable[[str], list[TextSegment]]) -> None:
    segments = split_lines(text, lambda line: split(line) or [TextSegment("", line)])
    assert "".join(segment.text + segment.separator for segment in segments) == text
    assert not any("\n" in segment.text for segment in segments)


@pytest.mark.parametrize("text", ["a b\nc d\n\n e", "One two. Three!\nFour  five. Six", " a\n", "一。二三。 四"])
def test_join_alignments_offsets_by_preceding_words(text: str) -> None:
    segments = split_lines(text, FakeTranslator().split_segments)
    alternatives = [new_alternative(segment.text) for segment in segments]
    result = list(join_alignment(segments, alternatives))
    before, expected = "", []
    for segment, alternative in zip(segments, alternatives, strict=True):
        start = len(before.split()) - (bool(before) and not before[-1].isspace())
        expected += [(source + start, target + start) for source, target in alternative.alignment]
        before += segment.text + segment.separator
    assert result == expected


def test_join_alignments_many_segments_is_linear() -> None:
    segments = [TextSegment("a", "\n")] * 100_000
    start_time = time.process_time()
    links = list(join_alignment(segments, [new_alternative("a")] * len(segments)))
    assert links == [(index, index) for index in range(len(segments))]
    assert time.process_time() - start_time < 60  # quadratic code needs many minutes


def join_alignment(segments: list[TextSegment], alternatives: list[Alternative]) -> tuple[WordLink, ...]:
    translations = [Translation("", (alternative,)) for alternative in alternatives]
    [joined] = join_translations("", segments, translations, GenerationConfig()).alternatives
    return joined.alignment


def new_alternative(text: str) -> Alternative:
    tokens = tuple(text.split())
    return Alternative(text, 0.0, 0.0, tokens, (), tuple((index, index) for index in range(len(tokens))))


@pytest.mark.parametrize(
    ("text", "in_thread"), [("a" * MIN_THREAD_CHARACTERS, False), ("a" * (MIN_THREAD_CHARACTERS + 1), True)]
)
def test_run_in_thread_if_long_uses_thread(text: str, in_thread: bool) -> None:
    result = asyncio.run(run_in_thread_if_long(threading.get_ident, [text]))
    assert (result != threading.get_ident()) == in_thread


def test_replace_lone_surrogates_keeps_valid_text() -> None:
    assert replace_lone_surrogates("a\ud83db\udc36c") == "a\ufffdb\ufffdc"
    assert replace_lone_surrogates("a🐶\ufeffb\0") == "a🐶\ufeffb\0"


def test_combine_generators_shares_rounds() -> None:
    batches: list[list[str]] = []

    def generate(*rounds: list[str]) -> TranslationGenerator[str]:
        text_so_far = ""
        for texts in rounds:
            text_so_far += "".join(response.text for response in (yield texts))
        return text_so_far

    def translate(texts: list[str]) -> list[Alternative]:
        batches.append(texts)
        return [Alternative(text.upper()) for text in texts]

    generators: list[Any] = [generate(["a"], ["b", "c"]), generate(), generate(["d"]), generate([], ["e"], ["f"])]
    assert run_generator(combine_generators(generators), translate) == ["ABC", "", "D", "EF"]
    assert batches == [["a", "d"], ["b", "c", "e"], ["f"]]
