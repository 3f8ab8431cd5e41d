"""What every engine shares: text into segments that the model can take, hypotheses back into text.

An engine adds how ids are searched, scored and streamed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from heedful.bundle import Bundle
from heedful.corpora.filters import clean_sentence
from heedful.decoding.config import SearchConfig
from heedful.decoding.constraints import Constraint
from heedful.decoding.hypothesis import Hypothesis, new_hypothesis
from heedful.engines.base import Alternative, Continuation, Translation
from heedful.engines.terms import TermSearch
from heedful.errors import HeedfulError
from heedful.places import pieces_of
from heedful.text.glossary import Glossary
from heedful.text.links import Link, word_links
from heedful.text.sentences import Segment, split_sentences, split_text
from heedful.text.tokenizer import END
from heedful.text.vocabulary import language_tag

if TYPE_CHECKING:
    from heedful.decoding.ensemble import Ensemble
    from heedful.model.translator import Translator


class Job(NamedTuple):
    """A segment of a text, as it goes through search."""

    text: int
    ids: list[int]
    prefix: list[int]
    constraints: tuple[Constraint, ...] = ()
    """What its translation must contain."""


EMPTY = new_hypothesis([], [], penalty=lambda length: 1.0, complete=True)


class SegmentedEngine(ABC):
    """A bundle at work."""

    name = ""
    windows_at_once = 1

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        # A segment is encoded to see whether it fits, and then to be translated.
        self._recently = lru_cache(maxsize=4096)(self._encode)

    @property
    def decoder(self) -> "Translator | Ensemble":
        """What predicts words, in PyTorch, which translating may not need."""
        return self.bundle.model

    @abstractmethod
    def _searched(self, jobs: Sequence[Job], settings: SearchConfig, details: bool) -> list[list[Hypothesis]]:
        """The hypotheses of each job, best first; none for an empty text. ``details``: with attention."""

    @abstractmethod
    def _scored(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of each target's tokens and its end."""

    @abstractmethod
    def _watched(self, ids: list[int], hypothesis: Hypothesis) -> Hypothesis:
        """The hypothesis with its attention to the source."""

    @abstractmethod
    def _written(self, ids: list[int], prefix: list[int], settings: SearchConfig) -> Iterator[int]:
        """Tokens one by one, greedily or drawn at random, without END."""

    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Mapping[str, str] | Glossary | None = None,
    ) -> list[Translation]:
        """Translate each text; what is longer than the model reads at once is split, never cut."""
        settings = search or self.bundle.config.search
        prefixes = prefixes or [""] * len(texts)
        if isinstance(texts, str) or len(prefixes) != len(texts):
            raise HeedfulError("translate takes a list of texts, and as many prefixes if any")
        split = [self.segments(text) for text in texts]
        jobs = [
            Job(
                number, self._encoded(segment.text, settings), self._prefix(prefixes[number]) if first else []
            )
            for number, segments in enumerate(split)
            for first, segment in _first_marked(segments)
        ]
        missing: list[list[str]] = [[] for _ in texts]
        if glossary:
            terms = TermSearch(self, Glossary.of(glossary), settings, details)
            wanted = terms.wanted([segment.text for segments in split for segment in segments])
            found = terms.searched(jobs, wanted)
            for job, hypotheses, each in zip(jobs, found, wanted, strict=True):
                missing[job.text] += [term.target for term in terms.missing(hypotheses, each)]
        else:
            found = self._searched(jobs, settings, details)
        grouped: list[list[list[Hypothesis]]] = [[] for _ in texts]
        for job, hypotheses in zip(jobs, found, strict=True):
            grouped[job.text].append(hypotheses)
        joined = [
            self._joined(text, segments, hypotheses, settings)
            for text, segments, hypotheses in zip(texts, split, grouped, strict=True)
        ]
        return [replace(each, missing=tuple(lost)) for each, lost in zip(joined, missing, strict=True)]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], search: SearchConfig | None = None
    ) -> list[Alternative]:
        """How likely the model finds these translations, each taken whole."""
        settings = search or self.bundle.config.search
        if len(sources) != len(targets):
            raise HeedfulError(f"{len(sources)} sources cannot be scored with {len(targets)} targets")
        ids = [self._target_ids(target) for target in targets]
        gained = self._scored([self._encoded(source, settings) for source in sources], ids)
        hypotheses = [
            new_hypothesis(tokens, values, penalty=settings.penalty, complete=True)
            for tokens, values in zip(ids, gained, strict=True)
        ]
        return [
            self._alternative([hypothesis], [Segment(target, "")], settings)
            for hypothesis, target in zip(hypotheses, targets, strict=True)
        ]

    def stream(self, text: str, search: SearchConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The translation of one text bit by bit, as it is written: greedy or sampled."""
        settings = search or self.bundle.config.search
        forced = self._prefix(prefix)
        for segment in self.segments(text):
            if segment.text:
                yield from self._streamed(segment.text, settings, forced)
                forced = []
            yield segment.separator

    def _streamed(self, text: str, settings: SearchConfig, forced: list[int]) -> Iterator[str]:
        written: list[int] = []
        whole = shown = ""
        for token in self._written(self._encoded(text, settings), forced, settings):
            written.append(token)
            whole = self.bundle.tokenizer.target.decode(written)
            if not whole.endswith("\ufffd"):  # in the middle of a character spelled in bytes
                yield whole[len(shown) :]
                shown = whole
        yield whole[len(shown) :]

    def continuations(
        self, text: str, prefix: str = "", search: SearchConfig | None = None, count: int = 8
    ) -> list[Continuation]:
        """The likeliest next tokens after ``prefix``, likeliest first, each with the translation it leads to.

        None for a text without words.
        """
        from heedful.engines.next_tokens import likeliest_next, next_probabilities  # by PyTorch

        if count < 1:
            raise HeedfulError(f"{count} continuations cannot be given", hint="ask for one or more")
        settings = search or self.bundle.config.search
        segments = self.segments(text)
        ids, forced = self._sentence(segments, settings), self._prefix(prefix)
        if not ids:
            return []
        new_word = bool(forced) and prefix[-1].isspace()
        rows = next_probabilities(self.decoder, ids, forced, self.bundle.model.output.weight.device)
        likeliest = likeliest_next(rows, self.bundle.tokenizer.target, forced, count, new_word=new_word)
        going_on = [each for each in likeliest if each.token != END]
        jobs = [Job(0, ids, [*forced[: each.kept], each.token]) for each in going_on]
        found = dict(zip(going_on, self._searched(jobs, settings, False), strict=True))
        if len(going_on) < len(likeliest):
            ending = next(each for each in likeliest if each.token == END)
            [gained] = self._scored([ids], [forced])
            found[ending] = [new_hypothesis(forced, gained, penalty=settings.penalty, complete=True)]
        return [
            Continuation(
                self.bundle.tokenizer.target.vocabulary.pieces[each.token],
                each.token,
                each.probability,
                self._word(found[each][0].tokens, each.kept),
                self._joined(
                    text, segments, [found[each] if part.text else [] for part in segments], settings
                ),
            )
            for each in likeliest
        ]

    def _sentence(self, segments: Sequence[Segment], settings: SearchConfig) -> list[int]:
        """The ids of the only segment with words; none if there is none."""
        texts = [segment.text for segment in segments if segment.text]
        if len(texts) > 1:
            raise HeedfulError(
                f"continuations are for one sentence, and this text has {len(texts)} parts",
                hint="give the sentence alone, with what its own translation begins with",
            )
        return self._encoded(texts[0], settings) if texts else []

    def _word(self, tokens: Sequence[int], place: int) -> str:
        """The word that the token in this place is of; empty at the end."""
        if place >= len(tokens):
            return ""
        target = self.bundle.tokenizer.target
        numbers = target.words(tokens)
        word = [token for token, number in zip(tokens, numbers, strict=True) if number == numbers[place]]
        return target.decode(word).strip()

    # ---- text to jobs

    def segments(self, text: str) -> list[Segment]:
        """The text in parts that the model can take, with the white space between them."""
        core = text.strip()
        if not core:
            return [Segment("", text)]
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        segments = [Segment("", before)] if before else []
        if self.bundle.source_parts(core)[1]:  # a tree is of the whole
            return [*segments, Segment(core, after)]
        for sentence in split_sentences(core) if self.bundle.config.by_sentence else [Segment(core, "")]:
            *parts, last = split_text(sentence.text, self._fits)
            segments += [*parts, Segment(last.text, last.separator + sentence.separator)]
        segments = self._each_asked(self.bundle.tokenizer.source.typed_tag(core), segments)
        return [*segments[:-1], Segment(segments[-1].text, segments[-1].separator + after)]

    @staticmethod
    def _each_asked(language: str, segments: list[Segment]) -> list[Segment]:
        """The language that was typed before a text is asked for in each of its segments."""
        if not language:
            return segments
        return [
            segment
            if first or not segment.text
            else segment._replace(text=language_tag(language) + segment.text)
            for first, segment in _first_marked(segments)
        ]

    def _fits(self, text: str) -> bool:
        return len(self._recently(text, "")) < self.bundle.config.longest_source

    def _encoded(self, text: str, settings: SearchConfig) -> list[int]:
        return list(self._recently(text, settings.language))

    def _encode(self, text: str, language: str) -> tuple[int, ...]:
        return tuple(self.bundle.source_ids(text, language))

    def _prefix(self, text: str) -> list[int]:
        return self._target_ids(text.rstrip()) if text.strip() else []

    def _target_ids(self, text: str) -> list[int]:
        return self.bundle.tokenizer.target.encode(clean_sentence(text, self.bundle.config.normalize))

    # ---- hypotheses to text

    def _joined(
        self,
        text: str,
        segments: Sequence[Segment],
        found: Sequence[list[Hypothesis]],
        settings: SearchConfig,
    ) -> Translation:
        """One translation from those of its segments: the i-th best of all make the i-th best."""
        count = max((len(hypotheses) for hypotheses in found), default=0) or 1
        alternatives = tuple(
            self._alternative(
                [each[min(i, len(each) - 1)] if each else EMPTY for each in found], segments, settings
            )
            for i in range(count)
        )
        complete = all(each[0].complete for each in found if each)
        return Translation(text, alternatives, max(1, len(segments)), complete)

    def _alternative(
        self, parts: Sequence[Hypothesis], segments: Sequence[Segment], settings: SearchConfig
    ) -> Alternative:
        target = self.bundle.tokenizer.target
        tokens = [token for part in parts for token in part.tokens]
        gained = [value for part in parts for value in part.log_probabilities]
        texts = [target.decode(part.tokens) for part in parts]
        total = sum(part.log_probability for part in parts)
        return Alternative(
            "".join(text + segment.separator for text, segment in zip(texts, segments, strict=True)),
            total / settings.penalty(sum(part.steps for part in parts)),
            total,
            tuple(target.pieces(tokens)),
            tuple(gained),
            tuple(self._links(parts, segments, texts, settings)),
        )

    def _links(
        self,
        parts: Sequence[Hypothesis],
        segments: Sequence[Segment],
        texts: Sequence[str],
        settings: SearchConfig,
    ) -> Iterator[Link]:
        """Links between the words (between spaces) of the whole text and of the whole translation."""
        tokenizer, before, written = self.bundle.tokenizer, "", ""
        for part, segment, text in zip(parts, segments, texts, strict=True):
            if part.attention is not None:
                ids = pieces_of(self._encoded(segment.text, settings))
                words = self._read_words(self.bundle.source_parts(segment.text)[0])
                source = tokenizer.source.within(ids, [word for _, word in words])
                target = tokenizer.target.within(part.tokens, text.split())
                for one, other in word_links(part.attention[:, : len(ids)], source, target):
                    yield words[one][0] + _words_before(before), other + _words_before(written)
            before, written = before + segment.text + segment.separator, written + text + segment.separator

    def _read_words(self, text: str) -> list[tuple[int, str]]:
        """The words that the model reads, each with its place in the text.

        Cleaning leaves nothing of some, such as a byte-order mark between spaces: they count all the same.
        """
        cleaned = (clean_sentence(word, self.bundle.config.normalize) for word in text.split())
        return [(place, word) for place, word in enumerate(cleaned) if word]


def _words_before(text: str) -> int:
    """The number of the word that the next letter belongs to."""
    return len(text.split()) - (bool(text) and not text[-1].isspace())


def _first_marked(segments: Sequence[Segment]) -> Iterator[tuple[bool, Segment]]:
    """Each segment, and whether it is the first that has words: there a prefix belongs."""
    seen = False
    for segment in segments:
        yield bool(segment.text) and not seen, segment
        seen = seen or bool(segment.text)
