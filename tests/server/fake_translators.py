"""A translator for tests: it upper-cases words, with delays and failures that the test controls."""

import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from heedful.data.glossary import Glossary
from heedful.generation.config import GenerationConfig
from heedful.inference.translation import Alternative, TokenAlternative, Translation
from heedful.tokenization.sentence_splitter import TextSegment, split_sentences
from tests.server.server_process import SECONDS


class FakeTranslator:
    """Upper-cases text and records every batch; "poison" raises an error, "endless" is incomplete."""

    name = "fake"

    def __init__(self, seconds: float = 0.0, languages: tuple[str, str] | None = ("en", "fr")) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []
        self.generation_configs: list[GenerationConfig | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.model_folder: Any = SimpleNamespace(
            config=SimpleNamespace(generation=GenerationConfig(), languages=languages, target_languages=())
        )
        self.model_folder.for_language = lambda target, source: self.model_folder

    def split_segments(self, text: str, target_language: str = "") -> list[TextSegment]:
        segments = split_sentences(text) if text.strip() else [TextSegment("", text)]
        return [add_ids(segment) for segment in segments]

    def translate_segments(
        self,
        segments: Sequence[TextSegment],
        generation_config: GenerationConfig,
        prefixes: Sequence[str],
        *,
        details: bool = False,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        texts = [segment.text for segment in segments]
        self.batches.append(texts)
        self.generation_configs.append(generation_config)
        time.sleep(self.seconds)
        assert self.gate.wait(SECONDS)
        if any("poison" in text for text in texts):
            raise ZeroDivisionError("poison")
        return [
            Translation(
                text,
                tuple(_new_alternative(text, rank) for rank in range(generation_config.n_best)),
            )
            for text in texts
        ]

    def stream_segment(self, segment: TextSegment, generation_config: GenerationConfig, prefix: str) -> Iterator[str]:
        for word in segment.text.split(" "):
            assert self.gate.wait(SECONDS)
            time.sleep(self.seconds)
            if word == "poison":
                raise ZeroDivisionError(word)
            yield word.upper() + " "

    def alternatives(
        self, text: str, prefix: str = "", generation_config: GenerationConfig | None = None, count: int = 8
    ) -> list[TokenAlternative]:
        translations = self.translate_segments(
            [TextSegment(text, "")] * count, generation_config or GenerationConfig(), [prefix] * count
        )
        return [
            TokenAlternative(token_id, "▁" + text.upper(), 1 / (token_id + 2), text.upper(), translation)
            for token_id, translation in enumerate(translations)
        ]


def add_ids(segment: TextSegment) -> TextSegment:
    """The segment with one token per word."""
    return segment._replace(ids=tuple(range(len(segment.text.split()))))


def _new_alternative(text: str, rank: int) -> Alternative:
    tokens = tuple(text.upper().split())
    scores = tuple([-1.0 - rank] * (len(tokens) + 1))
    links = tuple((index, index) for index in range(len(tokens)))
    complete = "endless" not in text
    return Alternative(
        text.upper() + "'" * rank, -1.0 - rank, sum(scores), tokens, scores, links, len(scores), complete
    )
