"""Small parts of the server: directions, rates, files, rounds, lines."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Translation
from heedful.errors import HeedfulError
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.server.files import FileStore
from heedful.server.models import Direction, Directions, load_directions
from heedful.server.parameters import well_formed
from heedful.server.rates import CLIENTS, RateLimit
from heedful.server.refusal import RefusedError
from heedful.server.remembering import Memory
from heedful.server.texts import LONG, _alignment, in_thread_if_long, split_lines
from heedful.server.waiting import Work
from heedful.text.sentences import Segment, split_sentences
from heedful.text.translated import Rounds, Translated, drive, together
from tests.server.engines import FakeEngine


def new_directions(*pairs: tuple[str, str]) -> Directions:
    config = ServerConfig(workers=1)
    return Directions(
        [Direction(*pair, Path("-".join(pair)), Batcher(FakeEngine(), config)) for pair in pairs]
    )


class TestDirections:
    def test_lookup(self) -> None:
        found = new_directions(("en", "fr"), ("en", "de"), ("de", "en"), ("en", "pt-BR"))
        assert found.sources == ["de", "en"]
        assert found.languages == ["de", "en", "fr", "pt-BR"]
        assert found.targets("en") == ["de", "fr", "pt-BR"]
        assert found.targets("fr") == []
        assert found.sources_of("en") == ["de"]
        assert found.find("en", "de").name == "en-de"
        with pytest.raises(RefusedError, match="fr is not translated into en"):
            found.find("fr", "en")

    @pytest.mark.parametrize(
        ("code", "language"),
        [("en", "en"), ("EN-us", "en"), ("en_GB", "en"), ("eng", "en"), ("PT-br", "pt-BR")],
    )
    def test_codes(self, code: str, language: str) -> None:
        assert new_directions(("en", "pt-BR")).language(code) == language

    @pytest.mark.parametrize("code", ["xx", "", "-", "pt", "e", "engl", "auto"])
    def test_unknown_codes(self, code: str) -> None:
        with pytest.raises(RefusedError):
            new_directions(("en", "pt-BR")).language(code)

    def test_one_model_a_direction(self) -> None:
        with pytest.raises(HeedfulError, match="two models translate en-fr"):
            new_directions(("en", "fr"), ("en", "fr"))

    def test_underscores_in_the_codes_of_models(self) -> None:
        found = new_directions(("en", "pt_BR"), ("pt-BR", "en"))
        assert found.languages == ["en", "pt-BR"]
        assert {found.language(code) for code in ("pt_BR", "pt-br", "PT_br")} == {"pt-BR"}
        assert found.find("en", "pt-BR").name == "en-pt-BR"
        with pytest.raises(HeedfulError, match="two models translate en-pt-BR"):
            new_directions(("en", "pt_BR"), ("en", "pt-BR"))

    def test_folders_and_languages(self, tmp_path: Path) -> None:
        (tmp_path / "a=b-c").mkdir()
        loaded: list[Path] = []

        def load(folder: Path) -> FakeEngine:
            loaded.append(folder)
            return FakeEngine()

        words = [str(tmp_path / "a=b-c"), "my-model=pt-BR:en", "other=de-en"]
        found = load_directions(words, ServerConfig(workers=1), load)
        assert [each.name for each in found] == ["en-fr", "pt-BR-en", "de-en"]
        assert loaded == [tmp_path / "a=b-c", Path("my-model"), Path("other")]


class TestMemory:
    def test_entries(self) -> None:
        one, two, three = (Work(text, SearchConfig()) for text in ("one", "two", "three"))
        memory = Memory(2, 10**6)
        for work in (one, two):
            memory.put(work, Translation(work.text, ()))
        assert memory.get(one)  # so two is the longest unused
        memory.put(three, Translation("three", ()))
        assert [memory.get(work) is not None for work in (one, two, three)] == [True, False, True]
        nothing = Memory(0, 10**6)
        nothing.put(one, Translation("one", ()))
        assert nothing.get(one) is None

    def test_size(self) -> None:
        """What is kept is never more than allowed, and something much too large pushes nothing out."""
        memory = Memory(10**6, 100_000)
        for number in range(300):
            memory.put(Work(f"{number} " * 50, SearchConfig()), Translation("", (_translated("a " * 40),)))
            assert memory.size <= 100_000
        kept = len(memory)
        assert 1 < kept < 100
        memory.put(Work("a" * 60_000, SearchConfig()), Translation("", ()))
        assert len(memory) == kept

    def test_the_same_again(self) -> None:
        work, memory = Work("a", SearchConfig()), Memory(10, 10**6)
        memory.put(work, Translation("a", (_translated("one"),)))
        size = memory.size
        memory.put(work, Translation("a", (_translated("two"),)))
        assert memory.size == size
        assert len(memory) == 1


@pytest.mark.parametrize("url", ["translate.example", "ftp://a.example", "https://a.example/?a", "https://"])
def test_a_public_url_is_a_url(url: str) -> None:
    with pytest.raises(HeedfulError, match="public_url"):
        ServerConfig.checked({"public_url": url})


@pytest.mark.parametrize("keys", [[""], ["a", " "]])
def test_a_key_is_not_empty(keys: list[str]) -> None:
    with pytest.raises(HeedfulError, match="an API key is empty"):
        ServerConfig.checked({"api_keys": keys})


class TestRates:
    def test_burst_and_refill(self) -> None:
        rate = RateLimit(60)
        assert [rate.wait("a", 0.0) for _ in range(61)] == [0] * 60 + [1]
        assert rate.wait("b", 0.0) == 0
        assert rate.wait("a", 0.5) == 1
        assert rate.wait("a", 1.0) == 0
        assert rate.wait("a", 1.0) == 1

    def test_off(self) -> None:
        assert not any(RateLimit(0).wait("a", 0.0) for _ in range(100))

    def test_memory_is_bounded(self) -> None:
        rate = RateLimit(1)
        for number in range(CLIENTS + 10):
            rate.wait(str(number), 0.0)
        assert len(rate._buckets) == CLIENTS


class TestFiles:
    def test_few_and_for_a_while(self) -> None:
        store = FileStore(2, 60)
        names = [store.put(b"a", "text/plain", "a.txt", ".txt") for _ in range(3)]
        assert len(set(names)) == 3
        assert [store.get(name) is not None for name in names] == [False, True, True]
        assert FileStore(2, -1).get(FileStore(2, -1).put(b"", "", "", "")) is None
        expired = FileStore(2, -1)
        assert expired.get(expired.put(b"a", "text/plain", "a.txt", ".txt")) is None


@pytest.mark.parametrize("text", ["", "\n", "a", " a \n\n b. C.\r\n", "a\u2028b\n", "x. Y\n\n\n  z  "])
@pytest.mark.parametrize("split", [split_sentences, lambda line: [Segment(line, "")]])
def test_lines_joined_are_the_text(text: str, split: Callable[[str], list[Segment]]) -> None:
    segments = split_lines(text, lambda line: split(line) or [Segment("", line)])
    assert "".join(segment.text + segment.separator for segment in segments) == text
    assert not any("\n" in segment.text for segment in segments)


@pytest.mark.parametrize(
    "text", ["a b\nc d\n\n e", "One two. Three!\nFour  five. Six", " a\n", "一。二三。 四"]
)
def test_links_count_the_words_of_the_whole_text(text: str) -> None:
    segments = split_lines(text, FakeEngine().segments)
    parts = [_translated(segment.text) for segment in segments]
    found = list(_alignment(segments, parts))
    before, expected = "", []
    for segment, part in zip(segments, parts, strict=True):
        start = len(before.split()) - (bool(before) and not before[-1].isspace())
        expected += [(one + start, other + start) for one, other in part.alignment]
        before += segment.text + segment.separator
    assert found == expected


def test_many_segments_take_no_time() -> None:
    segments = [Segment("a", "\n")] * 100_000
    begun = time.monotonic()
    links = list(_alignment(segments, [_translated("a")] * len(segments)))
    assert links == [(place, place) for place in range(len(segments))]
    assert time.monotonic() - begun < 20  # word by word from the start it would be minutes


def _translated(text: str) -> Alternative:
    words = tuple(text.split())
    return Alternative(text, 0.0, 0.0, words, (), tuple((place, place) for place in range(len(words))))


@pytest.mark.parametrize(("text", "elsewhere"), [("a" * LONG, False), ("a" * (LONG + 1), True)])
def test_much_work_is_done_beside_the_event_loop(text: str, elsewhere: bool) -> None:
    found = asyncio.run(in_thread_if_long(threading.get_ident, [text]))
    assert (found != threading.get_ident()) == elsewhere


def test_halves_of_characters() -> None:
    assert well_formed("a\ud83db\udc36c") == "a\ufffdb\ufffdc"
    assert well_formed("a🐶\ufeffb\0") == "a🐶\ufeffb\0"


def test_works_side_by_side_share_their_rounds() -> None:
    asked: list[list[str]] = []

    def work(*rounds: list[str]) -> Rounds[str]:
        written = ""
        for texts in rounds:
            written += "".join(answer.text for answer in (yield texts))
        return written

    def translate(texts: list[str]) -> list[Translated]:
        asked.append(texts)
        return [Translated(text.upper()) for text in texts]

    works: list[Any] = [work(["a"], ["b", "c"]), work(), work(["d"]), work([], ["e"], ["f"])]
    assert drive(together(works), translate) == ["ABC", "", "D", "EF"]
    assert asked == [["a", "d"], ["b", "c", "e"], ["f"]]
