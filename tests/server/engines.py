"""Engines for tests: words in capitals, at a pace and with accidents that the test decides."""

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Continuation, Translation
from heedful.text.glossary import Glossary
from heedful.text.sentences import Segment, split_sentences


class FakeEngine:
    """Translates by capitals; remembers every call; what is endless is cut."""

    name = "fake"
    windows_at_once = 1

    def __init__(self, seconds: float = 0.0, languages: tuple[str, str] | None = ("en", "fr")) -> None:
        self.seconds = seconds
        self.calls: list[list[str]] = []
        self.searches: list[SearchConfig | None] = []
        self.gate = threading.Event()
        self.gate.set()
        source = SimpleNamespace(encode=lambda text: text.split())
        self.bundle: Any = SimpleNamespace(
            config=SimpleNamespace(search=SearchConfig(), languages=languages, targets=()),
            tokenizer=SimpleNamespace(source=source),
        )
        self.bundle.writing = lambda language: self.bundle  # of one direction

    def segments(self, text: str) -> list[Segment]:
        return split_sentences(text) if text.strip() else [Segment("", text)]

    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        self.calls.append(list(texts))
        self.searches.append(search)
        time.sleep(self.seconds)
        assert self.gate.wait(10)
        if any("poison" in text for text in texts):
            raise ZeroDivisionError("poison")
        return [
            Translation(
                text,
                tuple(_alternative(text, rank) for rank in range(search.n_best if search else 1)),
                complete="endless" not in text,
            )
            for text in texts
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Alternative]:
        raise NotImplementedError

    def stream(self, text: str, search: SearchConfig | None = None, prefix: str = "") -> Iterator[str]:
        for word in text.split(" "):
            assert self.gate.wait(10)
            time.sleep(self.seconds)
            if word == "poison":
                raise ZeroDivisionError(word)
            yield word.upper() + " "

    def continuations(
        self, text: str, prefix: str = "", search: SearchConfig | None = None, count: int = 8
    ) -> list[Continuation]:
        found = self.translate([text] * count, search, [prefix] * count)
        return [
            Continuation("▁" + text.upper(), place, 1 / (place + 2), text.upper(), each)
            for place, each in enumerate(found)
        ]


def _alternative(text: str, rank: int) -> Alternative:
    words = tuple(text.upper().split())
    scores = tuple([-1.0 - rank] * (len(words) + 1))
    links = tuple((place, place) for place in range(len(words)))
    mark = "'" * rank
    return Alternative(text.upper() + mark, -1.0 - rank, sum(scores), words, scores, links)
