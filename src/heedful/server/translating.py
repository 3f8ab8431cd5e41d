"""What a client wishes, put to the models: languages found, markup and placeholders kept, n best."""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from heedful.config import merged
from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Translation
from heedful.errors import HeedfulError
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.server.models import Direction
from heedful.server.refusal import malformed
from heedful.server.rounds import driven
from heedful.server.state import Server
from heedful.server.texts import Manner, in_thread_if_long, translate_texts
from heedful.server.waiting import Admission
from heedful.text.glossary import Glossary
from heedful.text.languages import Detection, detect
from heedful.text.links import Link
from heedful.text.markup import translate_html
from heedful.text.protection import translate_protected
from heedful.text.spans import Rules
from heedful.text.translated import Rounds, Translated, together

AUTO = "auto"
PORTION = 8_000
"""Characters of a file that wait in the queue at a time, so that it leaves room for others."""
CERTAIN = 90.0
"""Confidence from which a text counts as being in the target language already."""
UNKNOWN = Detection("", 0.0)
_TAG = re.compile(r"<[^<>]*+>")
_INLINE = re.compile(
    "<(?!(?:html|head|title|meta|link|body|main|div|p|br|hr|h[1-6]|[uo]l|li|table|t[rdh]|blockquote)\\b)[a-z]",
    re.IGNORECASE,
)
"""A tag inside a sentence: to put it back needs to know which word comes from which, which costs."""
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for, whatever interface it came by."""

    source: str
    """A served language, or auto."""
    target: str
    markup: str = ""
    """html, xml, or nothing for plain text."""
    kept_tags: frozenset[str] = frozenset()
    """Elements of markup that stay as they are."""
    count: int = 1
    """Translations of each text."""
    deadline: float | None = None
    prefixes: tuple[str, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)
    """Settings of search other than the model's."""
    details: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    in_portions: bool = False
    """Whether long work goes through the queue bit by bit."""

    @property
    def rules(self) -> Rules:
        """What must stay, and what must become of terms."""
        try:
            return Rules(keep=self.kept, glossary=self.glossary)
        except HeedfulError as error:
            raise malformed(str(error)) from None

    @property
    def terms(self) -> Glossary | None:
        """The glossary, if there is one."""
        try:
            return Glossary.of(self.glossary) if self.glossary else None
        except HeedfulError as error:
            raise malformed(str(error)) from None


@dataclass(frozen=True, slots=True)
class Version:
    """One translation of a text."""

    text: str
    alignment: tuple[Link, ...] = ()
    alternative: Alternative | None = None
    """All the model says of it; None if it was put together from parts."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one text."""

    detection: Detection
    versions: tuple[Version, ...]
    """Best first, no two alike."""
    complete: bool = True
    segments: int = 1

    @property
    def text(self) -> str:
        """The best translation."""
        return self.versions[0].text

    @property
    def others(self) -> list[str]:
        """The other translations."""
        return [version.text for version in self.versions[1:]]


async def translate_wish(server: Server, texts: Sequence[str], wish: Wish) -> list[Result]:
    """Translate each text, from the language that it is in."""
    detections = await detect_sources(server, texts, wish)
    results: dict[int, Result] = {}
    for source in dict.fromkeys(detection.language for detection in detections):
        places = [place for place, detection in enumerate(detections) if detection.language == source]
        found = await _from_one_language(
            server, source, [texts[place] for place in places], _only(wish, places)
        )
        results |= dict(zip(places, found, strict=True))
    return await in_thread_if_long(
        lambda: [replace(results[place], detection=each) for place, each in enumerate(detections)], texts
    )


async def detect_sources(server: Server, texts: Sequence[str], wish: Wish) -> list[Detection]:
    """The language of each text: as told, or the likeliest of those that can become the wished one."""
    if wish.source != AUTO:
        return [Detection(wish.source, 100.0)] * len(texts)
    languages = server.directions.sources_of(wish.target)
    if not languages:
        raise malformed(f"nothing is translated into {wish.target} here")

    def found() -> list[Detection]:
        return [
            _detected(_TAG.sub(" ", text) if wish.markup else text, languages, wish.target) for text in texts
        ]

    return await asyncio.to_thread(found)


def _detected(text: str, languages: Sequence[str], target: str) -> Detection:
    """A source; or the target itself, whose text stays as it is, only if there is hardly a doubt."""
    best = detect(text, [*languages, target])[0]
    if best.language == target and best.confidence < CERTAIN:
        return detect(text, languages)[0]
    return best


def _only(wish: Wish, places: Sequence[int]) -> Wish:
    return replace(wish, prefixes=tuple(wish.prefixes[place] for place in places)) if wish.prefixes else wish


async def _from_one_language(server: Server, source: str, texts: list[str], wish: Wish) -> list[Result]:
    if source == wish.target:
        return [Result(UNKNOWN, (Version(text),)) for text in texts]
    direction = server.directions.find(source, wish.target)
    batcher = direction.batcher
    inline = await in_thread_if_long(lambda: bool(wish.markup) and any(map(_INLINE.search, texts)), texts)
    links = bool(wish.glossary) or inline
    portion = PORTION if wish.in_portions else math.inf
    search = search_of(direction, wish, server.config)
    manner = Manner(search, wish.deadline, wish.details or links, portion, wish.terms)
    work = _Translating(batcher, wish, manner)
    if wish.markup:
        return await work.marked_up(texts)
    if wish.prefixes:
        return await work.whole(texts, wish.prefixes)
    return await work.protected(texts)


def search_of(direction: Direction, wish: Wish, config: ServerConfig) -> SearchConfig:
    """The model's search with the client's settings on top, within the limits."""
    base = direction.bundle.config.search
    told: dict[str, Any] = {**wish.search, "n_best": wish.count}
    if told.get("method", base.method) == "beam":
        told.setdefault("beam", max(base.beam, wish.count))
        if told["beam"] > max(config.max_beam, base.beam, config.max_alternatives + 1):
            raise malformed(f"a beam of {told['beam']}, at most {config.max_beam} is allowed")
    try:
        return SearchConfig.checked(merged(base.model_dump(), told))
    except HeedfulError as error:
        raise malformed(str(error)) from None


class _Translating:
    """Texts of one language on their way through one model."""

    def __init__(self, batcher: Batcher, wish: Wish, manner: Manner) -> None:
        self.batcher, self.wish, self.manner, self.rules = batcher, wish, manner, wish.rules
        self.admission = Admission()
        self.seen: dict[str, Translation] = {}

    async def plain(self, texts: Sequence[str], prefixes: Sequence[str] = ()) -> list[Translation]:
        """Texts as they are; a request that was let in once is never turned away half-done."""
        return await translate_texts(self.batcher, texts, self.manner, prefixes, admission=self.admission)

    async def whole(self, texts: Sequence[str], prefixes: Sequence[str] = ()) -> list[Result]:
        """The same, as results."""
        found = await self.plain(texts, prefixes)
        return await in_thread_if_long(lambda: [*map(_whole, found)], texts)

    async def protected(self, texts: Sequence[str]) -> list[Result]:
        """Plain texts; those with something to keep are looked after."""
        marked = await in_thread_if_long(lambda: [bool(self.rules.spans(text)) for text in texts], texts)
        special = [place for place, has_spans in enumerate(marked) if has_spans]
        others = [place for place, has_spans in enumerate(marked) if not has_spans]
        results = dict(zip(others, await self.whole([texts[place] for place in others]), strict=True))
        kept = [texts[place] for place in special]
        versions = await self._ranked(lambda: translate_protected(kept, self.rules)) if kept else []
        for number, place in enumerate(special):
            found = [self._version(texts[place], rank, each[number]) for rank, each in enumerate(versions)]
            results[place] = Result(UNKNOWN, _distinct(found), versions[0][number].complete)
        return [results[place] for place in range(len(texts))]

    async def marked_up(self, texts: Sequence[str]) -> list[Result]:
        """Texts with tags."""
        kept = self.wish.kept_tags
        ranked = await self._ranked(
            lambda: together([translate_html(text, self.rules, kept) for text in texts])
        )
        return [
            Result(UNKNOWN, _distinct([Version(each.text) for each in versions]), versions[0].complete)
            for versions in zip(*ranked, strict=True)
        ]

    async def _ranked(self, new_rounds: Callable[[], Rounds[Outcome]]) -> list[Outcome]:
        """The outcome with the best translations, then with the second best, and so on."""
        return [
            await driven(new_rounds(), partial(self._translated, rank)) for rank in range(self.wish.count)
        ]

    async def _translated(self, rank: int, texts: Sequence[str]) -> list[Translated]:
        """Translations of a rank; one search finds those of all ranks."""
        new = [text for text in dict.fromkeys(texts) if text not in self.seen]
        self.seen |= dict(zip(new, await self.plain(new), strict=True))
        found = [self.seen[text] for text in texts]
        ranked = [_at_rank(each, rank) for each in found]
        return [
            Translated(each.text, each.alignment, whole.complete)
            for each, whole in zip(ranked, found, strict=True)
        ]

    def _version(self, source: str, rank: int, outcome: Translated) -> Version:
        """A translation with something kept; if it is just what the model wrote, with all that it says."""
        alternative = _at_rank(self.seen[source], rank) if source in self.seen else None
        same = alternative is not None and alternative.text == outcome.text
        return Version(outcome.text, outcome.links, alternative if same else None)


def _at_rank(found: Translation, rank: int) -> Alternative:
    return found.alternatives[min(rank, len(found.alternatives) - 1)]


def _whole(found: Translation) -> Result:
    versions = [Version(each.text, each.alignment, each) for each in found.alternatives]
    return Result(UNKNOWN, _distinct(versions), found.complete, found.segments)


def _distinct(versions: Sequence[Version]) -> tuple[Version, ...]:
    """Each text once, at its best rank."""
    found: dict[str, Version] = {}
    for version in versions:
        found.setdefault(version.text, version)
    return tuple(found.values())


async def translate_document(server: Server, text: str, wish: Wish) -> str:
    """A whole file, in portions; its lines stay lines."""
    wish = replace(wish, in_portions=True)
    if wish.source == AUTO:
        [found] = await detect_sources(server, [text[:PORTION]], wish)
        wish = replace(wish, source=found.language)
    lines = [text] if wish.markup else text.splitlines(keepends=True)
    results = await translate_wish(server, lines, wish)
    return "".join(result.text for result in results)
