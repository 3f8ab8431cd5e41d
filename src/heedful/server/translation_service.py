"""Translate the texts of a request, whatever API it came by.

Languages are detected, markup and placeholders are protected, and the segments of each text wait in the queue
of their model. Splitting, joining and glossary are the Translator's, as for the command line.
"""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from heedful.config import merge_settings
from heedful.data.glossary import Glossary
from heedful.documents.html import translate_html
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.placeholders import translate_with_rules
from heedful.inference.projection import TranslationGenerator, advance_generator, combine_generators
from heedful.inference.translation import Alternative, Translation
from heedful.inference.translator import join_translations
from heedful.server.api_errors import bad_request
from heedful.server.batching import Admission
from heedful.server.config import ServerConfig
from heedful.server.model_registry import ServedDirection
from heedful.server.state import ServerState
from heedful.tokenization.languages import Detection, detect_languages
from heedful.tokenization.protected_spans import ProtectionRules
from heedful.tokenization.sentence_splitter import TextSegment

AUTO = "auto"

DOCUMENT_CHUNK_CHARACTERS = 8_000
"""Characters of a file that wait in the queue at a time: the rest of the queue is for other requests."""

MIN_TARGET_CONFIDENCE = 90.0
"""A text detected with this confidence to be in the target language is not translated."""

MIN_THREAD_CHARACTERS = 5_000
"""Texts of more characters are processed in a thread, so that they do not block the event loop."""

_LINE_BREAK = re.compile("([\n\r\x0b\x0c\x85\u2028\u2029]\\s*+)")

_TAG = re.compile(r"<[^<>]*+>")

_INLINE_TAG = re.compile(
    "<(?!(?:html|head|title|meta|link|body|main|div|p|br|hr|h[1-6]|[uo]l|li|table|t[rdh]|blockquote)\\b)[a-z]",
    re.IGNORECASE,
)
"""A tag inside a sentence: restoring it needs word alignments, which cost time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TranslationRequest:
    """How the texts of one request are translated."""

    source: str
    """A served language, or auto."""
    target: str
    markup: str = ""
    """html, xml, or empty for plain text."""
    ignored_tags: frozenset[str] = frozenset()
    """Elements whose content is not translated."""
    n_best: int = 1
    """Translations of each text."""
    deadline: float | None = None
    """In the event loop's time."""
    prefixes: tuple[str, ...] = ()
    """What each translation must start with; empty, or one per text."""
    generation_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Generation settings that differ from the model's."""
    details: bool = False
    """Whether token probabilities and word alignments are needed."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    do_not_translate: tuple[str, ...] = ()
    in_chunks: bool = False
    """Whether the segments enter the queue chunk by chunk."""


async def translate_request(
    server: ServerState, texts: Sequence[str], request: TranslationRequest
) -> list[tuple[Detection, Translation]]:
    """Translate each text from its own language; the alternatives of a translation all differ."""
    detections = await detect_source_languages(server, texts, request)
    translations: dict[int, Translation] = {}
    for source in dict.fromkeys(detection.language for detection in detections):
        indices = [index for index, detection in enumerate(detections) if detection.language == source]
        prefixes = tuple(request.prefixes[index] for index in indices) if request.prefixes else ()
        group = await _translate_from(
            server, source, [texts[index] for index in indices], replace(request, prefixes=prefixes)
        )
        translations |= dict(zip(indices, group, strict=True))

    def drop_duplicates(translation: Translation) -> Translation:
        by_text: dict[str, Alternative] = {}
        for alternative in translation.alternatives:
            by_text.setdefault(alternative.text, alternative)  # keep the best rank
        return replace(translation, alternatives=tuple(by_text.values()))

    return await run_in_thread_if_long(
        lambda: [(detection, drop_duplicates(translations[index])) for index, detection in enumerate(detections)], texts
    )


async def translate_document(server: ServerState, text: str, request: TranslationRequest) -> str:
    """Translate a file chunk by chunk; line breaks are preserved."""
    request = replace(request, in_chunks=True)
    if request.source == AUTO:
        [detection] = await detect_source_languages(server, [text[:DOCUMENT_CHUNK_CHARACTERS]], request)
        request = replace(request, source=detection.language)
    lines = [text] if request.markup else text.splitlines(keepends=True)
    results = await translate_request(server, lines, request)
    return "".join(translation.text for _, translation in results)


async def stream_translation(
    server: ServerState, text: str, source: str, request: TranslationRequest
) -> AsyncGenerator[str, None]:
    """Yield a greedy or sampled translation chunk by chunk; at least one chunk, which may be empty."""
    if source == request.target:
        yield text
        return
    direction = server.registry.find_direction(source, request.target)
    greedy = replace(request, generation_overrides={**request.generation_overrides, "beam_size": 1})
    generation_config = resolve_generation_config(direction, greedy, server.config)
    [segments] = await _split_segments(direction, [text], generation_config)
    prefix = request.prefixes[0] if request.prefixes else ""
    async with aclosing(direction.batcher.stream(segments, generation_config, prefix, request.deadline)) as chunks:
        async for chunk in chunks:
            yield chunk


async def detect_source_languages(
    server: ServerState, texts: Sequence[str], request: TranslationRequest
) -> list[Detection]:
    """Return the language of each text: the requested one, or the most probable of those served."""
    if request.source != AUTO:
        return [Detection(request.source, 100.0)] * len(texts)
    languages = server.registry.get_source_languages(request.target)
    if not languages:
        raise bad_request(f"no model of this server translates into {request.target}")

    def detect(text: str) -> Detection:
        """A source language; or the target language, if the detection is nearly certain."""
        if request.markup:
            text = _TAG.sub(" ", text)
        best = detect_languages(text, [*languages, request.target])[0]
        if best.language == request.target and best.confidence < MIN_TARGET_CONFIDENCE:
            return detect_languages(text, languages)[0]
        return best

    return await asyncio.to_thread(lambda: [*map(detect, texts)])


def resolve_generation_config(
    direction: ServedDirection, request: TranslationRequest, config: ServerConfig
) -> GenerationConfig:
    """Apply the request's generation settings to the model's, within the server's limits."""
    base = direction.model_folder.config.generation
    if not request.generation_overrides and request.n_best == base.n_best:
        return base
    overrides: dict[str, Any] = {**request.generation_overrides, "n_best": request.n_best}
    if overrides.get("method", base.method) == "beam":
        overrides.setdefault("beam_size", max(base.beam_size, request.n_best))
        if overrides["beam_size"] > max(config.max_beam_size, base.beam_size, config.max_alternatives + 1):
            raise bad_request(f"beam_size is {overrides['beam_size']}, the maximum is {config.max_beam_size}")
    try:
        return GenerationConfig.from_settings(merge_settings(base.model_dump(), overrides))
    except HeedfulError as error:
        raise bad_request(str(error)) from None


async def _translate_from(
    server: ServerState, source: str, texts: list[str], request: TranslationRequest
) -> list[Translation]:
    """Translate texts of one language."""
    if source == request.target:
        return [Translation(text, (Alternative(text),)) for text in texts]
    direction = server.registry.find_direction(source, request.target)
    try:
        rules = ProtectionRules(keep=request.do_not_translate, glossary=request.glossary)
        glossary = Glossary.from_mapping(request.glossary) if request.glossary else None
    except HeedfulError as error:
        raise bad_request(str(error)) from None
    has_inline_tags = await run_in_thread_if_long(
        lambda: bool(request.markup) and any(map(_INLINE_TAG.search, texts)), texts
    )
    translator = _QueuedTranslator(
        direction,
        resolve_generation_config(direction, request, server.config),
        replace(request, details=request.details or bool(request.glossary) or has_inline_tags),
        rules,
        glossary,
    )
    if request.markup:
        return await translator.assemble(texts, lambda text: translate_html(text, rules, request.ignored_tags))
    if request.prefixes:
        return await translator.translate(texts, request.prefixes)
    return await translator.translate_protected(texts)


class _QueuedTranslator:
    """Translates the texts of one request through the queue of one model.

    A request that was admitted once is never rejected halfway: all its segments share one admission.
    """

    def __init__(
        self,
        direction: ServedDirection,
        generation_config: GenerationConfig,
        request: TranslationRequest,
        rules: ProtectionRules,
        glossary: Glossary | None,
    ) -> None:
        self.direction, self.generation_config, self.request = direction, generation_config, request
        self.rules, self.glossary = rules, glossary
        self.admission = Admission()

    async def translate(self, texts: Sequence[str], prefixes: Sequence[str] = ()) -> list[Translation]:
        """Translate texts as ``Translator.translate`` does, segment by segment through the queue."""
        segmented = await _split_segments(self.direction, texts, self.generation_config)
        max_characters = DOCUMENT_CHUNK_CHARACTERS if self.request.in_chunks else math.inf

        def build_chunks() -> list[list[tuple[TextSegment, str]]]:
            """Segments with words, in chunks; the first segment of each text gets its prefix."""
            chunks: list[list[tuple[TextSegment, str]]] = []
            characters = 0
            for segments, prefix in zip(segmented, prefixes or [""] * len(texts), strict=True):
                non_empty = [segment for segment in segments if segment.text]
                for segment, segment_prefix in zip(non_empty, [prefix] + [""] * len(non_empty), strict=False):
                    if not chunks or characters + len(segment.text) > max_characters:
                        chunks.append([])
                        characters = 0
                    chunks[-1].append((segment, segment_prefix))
                    characters += len(segment.text)
            return chunks

        results: list[Translation] = []
        for chunk in await run_in_thread_if_long(build_chunks, texts):
            results += await self.direction.batcher.translate(
                [segment for segment, _ in chunk],
                self.generation_config,
                [prefix for _, prefix in chunk],
                details=self.request.details,
                deadline=self.request.deadline,
                admission=self.admission,
                glossary=self.glossary,
            )
        remaining = iter(results)
        return await run_in_thread_if_long(
            lambda: [
                join_translations(
                    text,
                    segments,
                    [next(remaining) if item.text else None for item in segments],
                    self.generation_config,
                )
                for text, segments in zip(texts, segmented, strict=True)
            ],
            texts,
        )

    async def translate_protected(self, texts: Sequence[str]) -> list[Translation]:
        """Translate plain texts; those with placeholders or terms are assembled so that none is lost."""
        has_spans = await run_in_thread_if_long(lambda: [bool(self.rules.find_spans(text)) for text in texts], texts)
        plain_texts = [text for text, flag in zip(texts, has_spans, strict=True) if not flag]
        protected_texts = [text for text, flag in zip(texts, has_spans, strict=True) if flag]

        def translate_text(text: str) -> TranslationGenerator[Alternative]:
            [translated] = yield from translate_with_rules([text], self.rules)
            return translated

        plain = iter(await self.translate(plain_texts))
        protected = iter(await self.assemble(protected_texts, translate_text))
        return [next(protected if flag else plain) for flag in has_spans]

    async def assemble(
        self, texts: Sequence[str], start: Callable[[str], TranslationGenerator[Alternative]]
    ) -> list[Translation]:
        """Translate texts that are put together from translations of their parts.

        The i-th alternative of a text is put together from the i-th best translations of its parts. Parsing
        runs in a thread.
        """
        if not texts:
            return []
        translations: dict[str, Translation] = {}  # one search finds all alternatives of a part
        ranked: list[list[Alternative]] = []
        for rank in range(self.request.n_best):
            generator = combine_generators([start(text) for text in texts])
            parts, assembled = await asyncio.to_thread(advance_generator, generator, None)
            while parts is not None:
                new_parts = [part for part in dict.fromkeys(parts) if part not in translations]
                translations |= dict(zip(new_parts, await self.translate(new_parts), strict=True))
                translated = [_get_alternative(translations[part], rank) for part in parts]
                parts, assembled = await asyncio.to_thread(advance_generator, generator, translated)
            assert assembled is not None
            ranked.append(assembled)
        return [
            Translation(
                text,
                tuple(_add_scores(outputs[index], rank, translations.get(text)) for rank, outputs in enumerate(ranked)),
            )
            for index, text in enumerate(texts)
        ]


def _add_scores(assembled: Alternative, rank: int, translation: Translation | None) -> Alternative:
    """Add the model's scores if the text is exactly what it wrote for the plain text."""
    if translation is not None:
        alternative = _get_alternative(translation, rank)
        if alternative.text == assembled.text:
            return replace(alternative, alignment=assembled.alignment, complete=assembled.complete)
    return assembled


def _get_alternative(translation: Translation, rank: int) -> Alternative:
    return translation.alternatives[min(rank, len(translation.alternatives) - 1)]


async def _split_segments(
    direction: ServedDirection, texts: Sequence[str], generation_config: GenerationConfig
) -> list[list[TextSegment]]:
    def split_line(line: str) -> list[TextSegment]:
        return direction.split_segments(line, generation_config.target_language)

    return await run_in_thread_if_long(lambda: [split_lines(text, split_line) for text in texts], texts)


def split_lines(text: str, split_line: Callable[[str], list[TextSegment]]) -> list[TextSegment]:
    r"""Split every line into segments: a line break is never inside a segment.

    >>> [segment[:2] for segment in split_lines("a b\n\n c", lambda line: [TextSegment(line, "")])]
    [('a b', '\n\n '), ('c', '')]
    """
    lines_and_breaks = [*_LINE_BREAK.split(text), ""]  # line, break, line, break ...
    segments: list[TextSegment] = []
    for line, line_break in zip(lines_and_breaks[::2], lines_and_breaks[1::2], strict=True):
        *others, last = split_line(line)
        segments += [*others, last._replace(separator=last.separator + line_break)]
    return segments


async def run_in_thread_if_long(function: Callable[[], T], texts: Sequence[str]) -> T:
    """Call a function; in a thread if the texts are long, so that the event loop is not blocked."""
    return await asyncio.to_thread(function) if sum(map(len, texts)) > MIN_THREAD_CHARACTERS else function()
