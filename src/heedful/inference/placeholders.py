"""Translation that preserves placeholders, addresses and protected terms, and applies a glossary.

A text is first translated as a whole. If the translation drops, repeats or changes a span, the text between
the spans is translated instead. The rule to remember: at most two rounds, and every span occurs in the result
as often as in the source.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from heedful.inference.projection import (
    Alignment,
    ProjectedTranslation,
    TextChunk,
    TranslationGenerator,
    chain_links,
    join_chunks,
    word_ranges,
    words_in_range,
)
from heedful.inference.translation import Alternative
from heedful.tokenization.normalization import has_letters, is_word_character
from heedful.tokenization.protected_spans import (
    ProtectedSpan,
    ProtectionRules,
    Range,
    has_word_boundaries,
    placeholder_ranges,
)

_CLOSING_PUNCTUATION = ".,;:!?…)]}»”’、。，；：！？）】》」』"


class ProtectedText(NamedTuple):
    """A text and its protected spans, in order and without overlaps."""

    text: str
    spans: Sequence[ProtectedSpan]


def translate_with_rules(texts: Sequence[str], rules: ProtectionRules) -> TranslationGenerator[list[Alternative]]:
    """Translate texts, preserving the spans that the rules protect.

    >>> from heedful.inference.projection import run_generator
    >>> def forgetful(texts: list[str]) -> list[Alternative]:
    ...     return [Alternative(text.replace("%s", "").upper()) for text in texts]
    >>> run_generator(translate_with_rules(["Hello, %s! Welcome."], ProtectionRules()), forgetful)[0].text
    'HELLO, %s! WELCOME.'
    """
    projected = yield from translate_with_spans([ProtectedText(text, rules.find_spans(text)) for text in texts], rules)
    return [Alternative(result.text, alignment=result.links, complete=result.complete) for result in projected]


def translate_with_spans(
    sources: Sequence[ProtectedText], rules: ProtectionRules
) -> TranslationGenerator[list[ProjectedTranslation]]:
    """As ``translate_with_rules``, for given spans; the results contain the range of each span."""
    # A text with spans and nothing to translate around them is copied.
    results: list[ProjectedTranslation | None] = [
        None
        if not source.spans or any(has_letters(gap.core) for gap in _find_gaps(source))
        else _assemble(source, iter(()), rules)
        for source in sources
    ]
    pending = [index for index, result in enumerate(results) if result is None]
    if pending:
        translations = yield [sources[index].text for index in pending]
        for index, translation in zip(pending, translations, strict=True):
            source = sources[index]
            if not source.spans:
                if not rules.has_spurious_placeholder(translation.text):
                    results[index] = ProjectedTranslation(
                        translation.text, translation.alignment, (), translation.complete
                    )
            elif (ranges := _SpanLocator(source, translation).locate(rules)) is not None:
                results[index] = _substitute_spans(source, translation, ranges)
    rejected = [index for index in pending if results[index] is None]
    if rejected:
        gaps = [gap for index in rejected for gap in _find_gaps(sources[index]) if has_letters(gap.core)]
        translations = yield [gap.core for gap in gaps]
        remaining = iter(zip(gaps, translations, strict=True))
        for index in rejected:
            results[index] = _assemble(sources[index], remaining, rules)
    return [result for result in results if result is not None]


class _Gap(NamedTuple):
    """The text between two spans; only its core is translated."""

    lead: str
    core: str
    tail: str


def _find_gaps(source: ProtectedText) -> list[_Gap]:
    starts = [0, *(span.end for span in source.spans)]
    ends = [*(span.start for span in source.spans), len(source.text)]
    gaps = []
    for gap_start, gap_end in zip(starts, ends, strict=True):
        # The core has no whitespace around it, and no brackets and quotes that are joined to a span.
        text = source.text[gap_start:gap_end]
        start, end = 0, len(text)
        while gap_start and start < end and not (text[start].isspace() or is_word_character(text[start])):
            start += 1
        while gap_end < len(source.text) and start < end:
            if text[end - 1].isspace() or is_word_character(text[end - 1]):
                break
            end -= 1
        body = text[start:end].rstrip()
        core = body.lstrip(f"{_CLOSING_PUNCTUATION} \t\r\n\u00a0\u2028\u2029\u3000")
        start += len(body) - len(core)
        gaps.append(_Gap(text[:start], core, text[start + len(core) :]))
    return gaps


def _assemble(
    source: ProtectedText, translations: Iterator[tuple[_Gap, Alternative]], rules: ProtectionRules
) -> ProjectedTranslation:
    """Join the spans and the translations of the gaps, in the order of the source."""
    chunks: list[TextChunk] = []
    for index, gap in enumerate(_find_gaps(source)):
        core = TextChunk.verbatim(gap.core)
        if has_letters(gap.core):
            translation = next(translations)[1]
            # A translation with a spurious placeholder is discarded: the gap stays untranslated.
            if not (placeholder_ranges(translation.text) or rules.find_placeholders(translation.text)):
                text, links = translation.text.strip(), translation.alignment or None
                core = TextChunk(gap.core, text, links, complete=translation.complete)
        chunks += [TextChunk.verbatim(gap.lead), core, TextChunk.verbatim(gap.tail)]
        if index < len(source.spans):
            span = source.spans[index]
            chunks.append(TextChunk.substitute(source.text[span.start : span.end], span.target, index))
    return join_chunks(chunks)


class _SpanLocator:
    """Finds the spans of a text in its translation; no two get the same range."""

    def __init__(self, source: ProtectedText, translation: Alternative) -> None:
        self.source, self.translation = source, translation
        self.alignment = Alignment(source.text, translation.text, translation.alignment)
        self.occupied = bytearray(len(translation.text))
        self.ranges: dict[int, Range] = {}

    def locate(self, rules: ProtectionRules) -> list[Range] | None:
        """The range of every span, or None if one is missing, repeated or changed."""
        verbatim, terms = self._group_spans(verbatim=True), self._group_spans(verbatim=False)
        if not all(self._claim_occurrences(indices, text) for (text, _), indices in verbatim):
            return None
        if not all(all(self.occupied[start:end]) for start, end in rules.find_verbatim_ranges(self.translation.text)):
            return None  # a span that is not in the source, or longer than there
        texts = {index: span.target for index, span in enumerate(self.source.spans) if index in self.ranges}
        target_order = [texts[index] for index in sorted(texts, key=self.ranges.__getitem__)]
        if not rules.accepts_reordering([*texts.values()], target_order):
            return None
        for (text, target), indices in terms:
            if not (
                self._claim_occurrences(indices, target)
                or self._claim_occurrences(indices, text)
                or self._claim_by_alignment(indices)
            ):
                return None
        return [self.ranges[index] for index in range(len(self.source.spans))]

    def _group_spans(self, verbatim: bool) -> list[tuple[tuple[str, str], list[int]]]:
        """Indices of the spans with the same source and target, the longest source first."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, span in enumerate(self.source.spans):
            if span.is_verbatim == verbatim:
                groups.setdefault((self.source.text[span.start : span.end], span.target), []).append(index)
        return sorted(groups.items(), key=lambda group: -len(group[0][0]))

    def _claim_occurrences(self, indices: list[int], target_text: str) -> bool:
        """Assign the occurrences of ``target_text`` to the spans, if there are as many."""
        spans = [self.source.spans[index] for index in indices]
        needs_boundaries = all(has_word_boundaries(self.source.text, span.start, span.end) for span in spans)
        occurrences = [
            (start, end)
            for start, end in (match.span() for match in re.finditer(re.escape(target_text), self.translation.text))
            if not any(self.occupied[start:end])
            and (not needs_boundaries or has_word_boundaries(self.translation.text, start, end))
        ]
        return len(occurrences) == len(indices) and self._claim(indices, occurrences)

    def _claim_by_alignment(self, indices: list[int]) -> bool:
        """Assign to the spans the words that they are aligned with, if these are free."""
        spans = [self.source.spans[index] for index in indices]
        projected_ranges = [self.alignment.project_exclusive(span.start, span.end) for span in spans]
        free = [
            target_range
            for target_range in projected_ranges
            if target_range and not any(self.occupied[target_range[0] : target_range[1]])
        ]
        return len(set(free)) == len(indices) and self._claim(indices, free)

    def _claim(self, indices: list[int], ranges: Iterable[Range]) -> bool:
        for index, (start, end) in zip(indices, ranges, strict=True):
            self.ranges[index] = (start, end)
            self.occupied[start:end] = b"\1" * (end - start)
        return True


def _substitute_spans(source: ProtectedText, translation: Alternative, ranges: Sequence[Range]) -> ProjectedTranslation:
    """Replace the range of each span by its target, and update the links."""
    chunks, end = [], 0
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        start = ranges[index][0]
        chunks.append(TextChunk.verbatim(translation.text[end:start]))
        end = ranges[index][1]
        chunks.append(TextChunk.substitute(translation.text[start:end], source.spans[index].target, index))
    projected = join_chunks([*chunks, TextChunk.verbatim(translation.text[end:])])._replace(
        complete=translation.complete
    )
    if not translation.alignment:
        return projected._replace(links=())
    # Words of spans are linked to the words of the span in the translation, whatever the engine says.
    source_words, target_words = word_ranges(source.text), word_ranges(projected.text)
    span_links: dict[int, set[int]] = {}
    for span, target_range in zip(source.spans, projected.span_ranges, strict=True):
        for word in words_in_range(source_words, span.start, span.end):
            span_links.setdefault(word, set()).update(words_in_range(target_words, *target_range))
    links = {link for link in chain_links(translation.alignment, projected.links) if link[0] not in span_links}
    links |= {(word, target) for word, targets in span_links.items() for target in targets}
    return projected._replace(links=tuple(sorted(links)))
