"""Text to segments, segments to hypotheses, hypotheses to a ``Translation``; the same for every backend.

Long texts are split at sentence ends, never truncated; the prefix belongs to the first segment with words.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from heedful.data.glossary import Glossary
from heedful.data.word_alignment import WordLink, align_words
from heedful.errors import HeedfulError, check_extras
from heedful.generation.config import GenerationConfig
from heedful.generation.decoder_protocol import Hypothesis, new_hypothesis
from heedful.inference.translation import (
    Alternative,
    Backend,
    SearchInput,
    TokenAlternative,
    Translation,
)
from heedful.model_folder import ModelFolder
from heedful.tokenization.dependency_trees import SentenceIds, get_token_ids
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.sentence_splitter import TextSegment, split_sentences, split_text
from heedful.tokenization.special_tokens import END
from heedful.tokenization.vocabulary import language_tag

_EMPTY_HYPOTHESIS = new_hypothesis([], [], penalty=lambda length: 1.0, complete=True)


class Translator:
    """A model folder ready to translate."""

    def __init__(self, backend: Backend, name: str = "") -> None:
        self.backend, self.model_folder = backend, backend.model_folder
        self.name = name or backend.name

    @classmethod
    def with_pytorch(cls, model_folder: ModelFolder) -> Self:
        """A translator that runs in PyTorch, on the device of the weights."""
        check_extras("PyTorch's engine", "train")
        from heedful.inference.pytorch_backend import PyTorchBackend

        return cls(PyTorchBackend(model_folder))

    @property
    def concurrent_batches(self) -> int:
        """Batches of lines to submit at a time to keep the backend busy."""
        return self.backend.concurrent_batches

    def translate(
        self,
        texts: Sequence[str],
        generation_config: GenerationConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Mapping[str, str] | Glossary | None = None,
    ) -> list[Translation]:
        """Translate each text; ``prefixes`` are what the translations must start with.

        ``details`` adds token probabilities and word alignments, which takes longer. ``glossary`` maps terms
        to their translations; ``generation.glossary_mode`` says how they are enforced.
        """
        config = generation_config or self.model_folder.config.generation
        prefixes = prefixes or [""] * len(texts)
        if isinstance(texts, str) or len(prefixes) != len(texts):
            raise HeedfulError(
                "translate expects a list of texts and one prefix per text",
                hint='translate(["A text."], prefixes=["Ein"])',
            )
        segmented_texts = [self.split_segments(text, config.target_language) for text in texts]
        non_empty: list[TextSegment] = []
        segment_prefixes: list[str] = []
        for segments, prefix in zip(segmented_texts, prefixes, strict=True):
            parts = [segment for segment in segments if segment.text]
            non_empty += parts
            segment_prefixes += [prefix if number == 0 else "" for number in range(len(parts))]
        translations = iter(
            self.translate_segments(non_empty, config, segment_prefixes, details=details, glossary=glossary)
        )
        return [
            join_translations(
                text, segments, [next(translations) if segment.text else None for segment in segments], config
            )
            for text, segments in zip(texts, segmented_texts, strict=True)
        ]

    def translate_segments(
        self,
        segments: Sequence[TextSegment],
        generation_config: GenerationConfig,
        prefixes: Sequence[str],
        *,
        details: bool = False,
        glossary: Mapping[str, str] | Glossary | None = None,
    ) -> list[Translation]:
        """Translate segments that ``split_segments`` returned, all with words."""
        inputs = [
            SearchInput(segment.ids, self._encode_prefix(prefix))
            for segment, prefix in zip(segments, prefixes, strict=True)
        ]
        if not glossary:
            n_best_lists = self.backend.search(inputs, generation_config, with_attention=details)
            missing_terms: list[tuple[str, ...]] = [()] * len(segments)
        else:
            from heedful.inference.terminology import TermSearch

            term_search = TermSearch(
                self.backend, Glossary.from_mapping(glossary), generation_config, self.translate, with_attention=details
            )
            n_best_lists, missing_terms = term_search.search([segment.text for segment in segments], inputs)
        return [
            self._build_translation(segment, hypotheses, generation_config, missing)
            for segment, hypotheses, missing in zip(segments, n_best_lists, missing_terms, strict=True)
        ]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], generation_config: GenerationConfig | None = None
    ) -> list[Alternative]:
        """The model's scores of given translations; neither side is split."""
        config = generation_config or self.model_folder.config.generation
        if len(sources) != len(targets):
            raise HeedfulError(f"got {len(sources)} sources and {len(targets)} targets to score")
        segments = [self._encode(TextSegment(source, ""), config.target_language) for source in sources]
        target_ids = [self.model_folder.target_ids(target) for target in targets]
        log_probabilities = self.backend.score([segment.ids for segment in segments], target_ids)
        return [
            self._build_alternative(
                segment, new_hypothesis(token_ids, values, penalty=config.penalty, complete=True), config
            )
            for segment, token_ids, values in zip(segments, target_ids, log_probabilities, strict=True)
        ]

    def stream(self, text: str, generation_config: GenerationConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The translation of one text as it is generated, greedily or by sampling."""
        config = generation_config or self.model_folder.config.generation
        for segment in self.split_segments(text, config.target_language):
            if segment.text:
                yield from self.stream_segment(segment, config, prefix)
                prefix = ""
            yield segment.separator

    def stream_segment(self, segment: TextSegment, generation_config: GenerationConfig, prefix: str) -> Iterator[str]:
        """The translation of one segment, without its separator, as it is generated."""
        token_ids: list[int] = []
        decoded = emitted = ""
        for token_id in self.backend.stream(segment.ids, self._encode_prefix(prefix), generation_config):
            token_ids.append(token_id)
            decoded = self.model_folder.tokenizer.target.decode(token_ids)
            if not decoded.endswith("\ufffd"):  # inside a character spelled in bytes
                yield decoded[len(emitted) :]
                emitted = decoded
        yield decoded[len(emitted) :]

    def alternatives(
        self, text: str, prefix: str = "", generation_config: GenerationConfig | None = None, count: int = 8
    ) -> list[TokenAlternative]:
        """The most probable next tokens after ``prefix``, each with the translation it leads to.

        For one sentence; empty for a text without words. After a prefix that ends with a space a new word
        starts, or the sentence ends. If it ends inside a word, a token may complete the word.
        """
        check_extras("a list of alternatives", "train")
        from heedful.generation.search import top_next_tokens

        if count < 1:
            raise HeedfulError(f"count is {count}", hint="ask for one or more alternatives")
        config = generation_config or self.model_folder.config.generation
        segments, target = self.split_segments(text, config.target_language), self.model_folder.tokenizer.target
        sentences = [segment for segment in segments if segment.text]
        if len(sentences) > 1:
            raise HeedfulError(
                f"alternatives are for one sentence, this text has {len(sentences)} segments",
                hint="pass one sentence and the prefix of its own translation",
            )
        source_ids: SentenceIds = sentences[0].ids if sentences else []
        if not source_ids:
            return []
        prefix_ids = self._encode_prefix(prefix)
        candidates = top_next_tokens(
            self.backend.next_token_probabilities(source_ids, prefix_ids),
            target,
            prefix_ids,
            count,
            new_word=bool(prefix_ids) and prefix[-1].isspace(),
        )
        unfinished = [candidate for candidate in candidates if candidate.token_id != END]
        inputs = [
            SearchInput(source_ids, [*prefix_ids[: candidate.prefix_length], candidate.token_id])
            for candidate in unfinished
        ]
        n_best = dict(zip(unfinished, self.backend.search(inputs, config), strict=True))
        if len(unfinished) < len(candidates):
            end_candidate = next(candidate for candidate in candidates if candidate.token_id == END)
            [log_probabilities] = self.backend.score([source_ids], [prefix_ids])
            n_best[end_candidate] = [
                new_hypothesis(prefix_ids, log_probabilities, penalty=config.penalty, complete=True)
            ]
        alternatives = []
        for candidate in candidates:
            translation = self._build_translation(sentences[0], n_best[candidate], config)
            translations = [translation if segment.text else None for segment in segments]
            tokens, position = n_best[candidate][0].tokens, candidate.prefix_length
            word_tokens: list[int] = []
            if position < len(tokens):  # not at the end
                words = target.word_ids(tokens)
                word_tokens = [token for token, word in zip(tokens, words, strict=True) if word == words[position]]
            alternatives.append(
                TokenAlternative(
                    candidate.token_id,
                    target.vocabulary.tokens[candidate.token_id],
                    candidate.probability,
                    target.decode(word_tokens).strip(),
                    join_translations(text, segments, translations, config),
                )
            )
        return alternatives

    def split_segments(self, text: str, target_language: str = "") -> list[TextSegment]:
        """The text in segments that fit the model, with their tokens and the whitespace between them."""
        core = text.strip()
        if not core:
            return [TextSegment("", text)]
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        segments = [TextSegment("", before)] if before else []
        if self.model_folder.source_parts(core)[1]:  # a dependency tree covers the full text
            return [*segments, self._encode(TextSegment(core, after), target_language)]
        config = self.model_folder.config
        sentences = split_sentences(core, config.source_language) if config.split_sentences else [TextSegment(core, "")]
        for sentence in sentences:
            segments += self._split_sentence(sentence, target_language)
        if language := self.model_folder.tokenizer.source.leading_tag(core):  # typed before the text
            first = next(i for i, segment in enumerate(segments) if segment.text)
            segments = [
                self._encode(segment._replace(text=language_tag(language) + segment.text), target_language)
                if segment.text and i > first
                else segment
                for i, segment in enumerate(segments)
            ]
        return [*segments[:-1], segments[-1]._replace(separator=segments[-1].separator + after)]

    def _split_sentence(self, sentence: TextSegment, target_language: str) -> list[TextSegment]:
        """The sentence, or parts of it, as segments that fit; each keeps the tokens of the check that it fits."""
        max_length = self.model_folder.config.max_source_length
        fitting_ids: dict[str, SentenceIds] = {}

        def fits(part: str) -> bool:
            ids = self.model_folder.source_ids(part, target_language)
            if len(ids) < max_length:
                fitting_ids[part] = ids
            return len(ids) < max_length

        *parts, last = split_text(sentence.text, fits, self.model_folder.config.source_language)
        return [
            part._replace(ids=fitting_ids[part.text])
            if part.text in fitting_ids
            else self._encode(part, target_language)  # a single character that does not fit
            for part in (*parts, last._replace(separator=last.separator + sentence.separator))
        ]

    def _encode(self, segment: TextSegment, target_language: str) -> TextSegment:
        return segment._replace(ids=self.model_folder.source_ids(segment.text, target_language))

    def _encode_prefix(self, text: str) -> list[int]:
        return self.model_folder.target_ids(text.rstrip()) if text.strip() else []

    def _build_translation(
        self,
        segment: TextSegment,
        hypotheses: Sequence[Hypothesis],
        config: GenerationConfig,
        missing_terms: tuple[str, ...] = (),
    ) -> Translation:
        hypotheses = hypotheses or [_EMPTY_HYPOTHESIS]
        alternatives = tuple(self._build_alternative(segment, hypothesis, config) for hypothesis in hypotheses)
        return Translation(segment.text, alternatives, missing_terms=missing_terms)

    def _build_alternative(self, segment: TextSegment, hypothesis: Hypothesis, config: GenerationConfig) -> Alternative:
        target = self.model_folder.tokenizer.target
        text = target.decode(hypothesis.tokens)
        steps = len(hypothesis.tokens) + hypothesis.complete
        return Alternative(
            text,
            hypothesis.log_probability / config.penalty(steps),
            hypothesis.log_probability,
            tuple(target.ids_to_tokens(hypothesis.tokens)),
            hypothesis.log_probabilities,
            () if hypothesis.attention is None else self._align_words(segment, hypothesis, text),
            steps,
            hypothesis.complete,
        )

    def _align_words(self, segment: TextSegment, hypothesis: Hypothesis, translation: str) -> tuple[WordLink, ...]:
        """Links between the whitespace-separated words of a segment and of its translation."""
        assert hypothesis.attention is not None
        tokenizer, normalization = self.model_folder.tokenizer, self.model_folder.config.unicode_normalization
        ids = get_token_ids(segment.ids)
        sentence = self.model_folder.source_parts(segment.text)[0]
        words = [clean_sentence(word, normalization) for word in sentence.split()]
        # Cleaning removes some words, such as a byte-order mark between spaces; they still count.
        indices = [index for index, word in enumerate(words) if word]
        source = tokenizer.source.align_to_words(ids, [word for word in words if word])
        target = tokenizer.target.align_to_words(hypothesis.tokens, translation.split())
        links = align_words(hypothesis.attention[:, : len(ids)], source, target)
        return tuple((indices[source_word], target_word) for source_word, target_word in links)


def join_translations(
    source: str, segments: Sequence[TextSegment], translations: Sequence[Translation | None], config: GenerationConfig
) -> Translation:
    """Join the translations of the segments of a text; ``None`` stands for a segment without words.

    The i-th alternative of the text is made of the i-th alternatives of its segments.
    """
    translated = [translation for translation in translations if translation]
    count = max((len(translation.alternatives) for translation in translated), default=1)
    return Translation(
        source,
        tuple(_join_alternatives(segments, translations, rank, config) for rank in range(count)),
        max(1, len(segments)),
        tuple(term for translation in translated for term in translation.missing_terms),
    )


def _join_alternatives(
    segments: Sequence[TextSegment], translations: Sequence[Translation | None], rank: int, config: GenerationConfig
) -> Alternative:
    alternatives = [
        translation.alternatives[min(rank, len(translation.alternatives) - 1)] if translation else None
        for translation in translations
    ]
    translated = [alternative for alternative in alternatives if alternative]
    texts = [
        (alternative.text if alternative else "") + segment.separator
        for segment, alternative in zip(segments, alternatives, strict=True)
    ]
    alignment: list[WordLink] = []
    if any(alternative.alignment for alternative in translated):
        source_words, target_words = _WordCounter(), _WordCounter()
        for segment, alternative, text in zip(segments, alternatives, texts, strict=True):
            if alternative:
                source_start, target_start = source_words.next_index, target_words.next_index
                alignment += [
                    (source + source_start, target + target_start) for source, target in alternative.alignment
                ]
            source_words.add(segment.text + segment.separator)
            target_words.add(text)
    steps = sum(alternative.steps for alternative in translated) or 1
    log_probability = sum((alternative.log_probability for alternative in translated), 0.0)
    return Alternative(
        "".join(texts),
        translated[0].score if len(translated) == 1 else log_probability / config.penalty(steps),
        log_probability,
        tuple(token for alternative in translated for token in alternative.tokens),
        tuple(value for alternative in translated for value in alternative.token_log_probabilities),
        tuple(alignment),
        steps,
        all(alternative.complete for alternative in translated),
    )


class _WordCounter:
    """Counts the words of a text that is added part by part: a word may span two parts."""

    def __init__(self) -> None:
        self.count, self.inside_word = 0, False

    @property
    def next_index(self) -> int:
        """Index of the word that the next letter belongs to."""
        return self.count - self.inside_word

    def add(self, text: str) -> None:
        if text:
            self.count += len(text.split()) - (self.inside_word and not text[0].isspace())
            self.inside_word = not text[-1].isspace()
