"""Glossary terms in search: one method after another until every term is in the translation.

The model first translates as usual, or reads the terms inline if it was trained to. Segments that lack a term
are searched again with constraints (generation/constrained.py), and what still lacks one is assembled around
its terms (inference/placeholders.py). A segment that already has its terms costs nothing extra.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from heedful.data.glossary import Glossary, Term, find_missing_terms
from heedful.errors import HeedfulError, has_extra
from heedful.generation.config import GenerationConfig
from heedful.generation.constraints import Constraint, SameWord
from heedful.generation.decoder_protocol import Hypothesis, new_hypothesis
from heedful.inference.placeholders import translate_with_rules
from heedful.inference.projection import run_generator
from heedful.inference.translation import Alternative, Backend, SearchInput, Translation
from heedful.tokenization.normalization import METASPACE, clean_sentence
from heedful.tokenization.protected_spans import is_within_word
from heedful.tokenization.tokenizer import Tokenizer

_PRECEDING_CHARACTERS = ("(", "a", "1")
"""One of each kind: after one of them a term is spelled as it is without a preceding space."""


class SegmentTerms(NamedTuple):
    """A segment as the model reads it, and its terms."""

    text: str
    terms: Sequence[Term]


class TermSearch:
    """Searches segments so that their translations contain the terms of a glossary."""

    def __init__(
        self,
        backend: Backend,
        glossary: Glossary,
        config: GenerationConfig,
        translate: Callable[..., list[Translation]],
        *,
        with_attention: bool,
    ) -> None:
        self.backend, self.glossary, self.config = backend, glossary, config
        self.translate, self.with_attention = translate, with_attention
        self.model_folder, self.tokenizer = backend.model_folder, backend.model_folder.tokenizer.target
        supports_inline = self.model_folder.config.inline_terms
        if config.glossary_mode == "inline" and not supports_inline:
            raise HeedfulError(
                "this model was not trained with inline terms",
                hint="omit the mode, or train a model with --set inline_terms.fraction=0.1",
            )
        if config.glossary_mode == "constrained" and config.method == "sample":
            raise HeedfulError("sampling does not support constraints", hint="use glossary mode split")
        self.uses_inline_terms = supports_inline and config.glossary_mode in ("auto", "inline")
        constrained = config.glossary_mode == "constrained" or (
            config.glossary_mode != "split" and has_extra("train")  # else the first possible mode is split
        )
        self.uses_constraints = config.method == "beam" and constrained

    def search(
        self, segments: Sequence[str], inputs: Sequence[SearchInput]
    ) -> tuple[list[list[Hypothesis]], list[tuple[str, ...]]]:
        """The hypotheses of each segment, best first, and the terms that the best one lacks."""
        normalization = self.model_folder.config.unicode_normalization
        cleaned = [clean_sentence(self.model_folder.source_parts(text)[0], normalization) for text in segments]
        segment_terms = [SegmentTerms(text, self.glossary.find_terms(text)) for text in cleaned]
        inline_inputs = [
            self._add_inline_terms(search_input, terms)
            for search_input, terms in zip(inputs, segment_terms, strict=True)
        ]
        n_best_lists = self._restore_attention(inputs, inline_inputs, self._search(inline_inputs))
        if self.uses_constraints:
            indices = self._find_incomplete(n_best_lists, segment_terms)
            constrained_inputs = [
                inline_inputs[i]._replace(
                    constraints=tuple(
                        spell_term(self.tokenizer, term.accepted_forms) for term in segment_terms[i].terms
                    )
                )
                for i in indices
            ]
            retried = self._search(constrained_inputs) if constrained_inputs else []
            retried = self._restore_attention([inputs[i] for i in indices], constrained_inputs, retried)
            self._replace_if_better(n_best_lists, segment_terms, indices, retried)
        indices = [i for i in self._find_incomplete(n_best_lists, segment_terms) if not inputs[i].prefix]
        if indices:
            assembled = self._translate_around_terms(
                [inputs[i] for i in indices], [segment_terms[i].text for i in indices]
            )
            self._replace_if_better(n_best_lists, segment_terms, indices, assembled)
        best_texts = [
            self.tokenizer.decode(hypotheses[0].tokens) if hypotheses else None for hypotheses in n_best_lists
        ]
        return n_best_lists, [
            () if text is None else tuple(term.target for term in find_missing_terms(text, terms.terms))
            for text, terms in zip(best_texts, segment_terms, strict=True)
        ]

    def _search(self, inputs: Sequence[SearchInput]) -> list[list[Hypothesis]]:
        return self.backend.search(inputs, self.config, with_attention=self.with_attention)

    def _add_inline_terms(self, search_input: SearchInput, segment_terms: SegmentTerms) -> SearchInput:
        """The input with its terms written into the source, if the model reads them and it still fits."""
        if not (self.uses_inline_terms and segment_terms.terms):
            return search_input
        ids = self.model_folder.source_ids(segment_terms.text, self.config.target_language, segment_terms.terms)
        return search_input._replace(ids=ids) if len(ids) < self.model_folder.config.max_source_length else search_input

    def _restore_attention(
        self,
        inputs: Sequence[SearchInput],
        inline_inputs: Sequence[SearchInput],
        n_best_lists: Sequence[list[Hypothesis]],
    ) -> list[list[Hypothesis]]:
        """With details, attention must refer to the source without inline terms."""
        return [
            [self.backend.add_attention(search_input.ids, hypothesis) for hypothesis in hypotheses]
            if self.with_attention and search_input.ids != inline_input.ids
            else hypotheses
            for search_input, inline_input, hypotheses in zip(inputs, inline_inputs, n_best_lists, strict=True)
        ]

    def _translate_around_terms(self, inputs: Sequence[SearchInput], texts: Sequence[str]) -> list[list[Hypothesis]]:
        """Translations assembled from the terms and the translated text between them."""
        cache: dict[str, Translation] = {}

        def translate_batch(rank: int, batch: list[str]) -> list[Alternative]:
            new_texts = [text for text in dict.fromkeys(batch) if text not in cache]
            cache.update(zip(new_texts, self.translate(new_texts, self.config, details=True), strict=True))
            results = []
            for translation in map(cache.__getitem__, batch):
                alternative = translation.alternatives[min(rank, len(translation.alternatives) - 1)]
                results.append(replace(alternative, complete=translation.complete))
            return results

        n_best_lists: list[list[Hypothesis]] = [[] for _ in inputs]
        for rank in range(self.config.n_best):
            assembled = run_generator(translate_with_rules(texts, self.glossary.rules), partial(translate_batch, rank))
            for hypotheses, search_input, translation in zip(n_best_lists, inputs, assembled, strict=True):
                hypothesis = self._to_hypothesis(search_input, translation)
                if hypothesis and hypothesis.tokens not in {existing.tokens for existing in hypotheses}:
                    hypotheses.append(hypothesis)
        return n_best_lists

    def _to_hypothesis(self, search_input: SearchInput, translation: Alternative) -> Hypothesis | None:
        """A text as a hypothesis with the model's own scores; None if it is longer than the model allows."""
        model_config = self.model_folder.config.model
        token_ids = self.model_folder.target_ids(translation.text)
        if model_config.has_max_length and len(token_ids) >= model_config.max_length:
            return None
        [log_probabilities] = self.backend.score([search_input.ids], [token_ids])
        log_probabilities = log_probabilities[: len(token_ids) + translation.complete]
        hypothesis = new_hypothesis(
            token_ids, log_probabilities, penalty=self.config.penalty, complete=translation.complete
        )
        return self.backend.add_attention(search_input.ids, hypothesis) if self.with_attention else hypothesis

    def _find_incomplete(
        self, n_best_lists: Sequence[list[Hypothesis]], segment_terms: Sequence[SegmentTerms]
    ) -> list[int]:
        return [
            i
            for i, segment in enumerate(segment_terms)
            if segment.terms and self._count_missing(n_best_lists[i], segment)
        ]

    def _count_missing(self, hypotheses: Sequence[Hypothesis], segment_terms: SegmentTerms) -> int:
        """Terms missing in all hypotheses together."""
        texts = self.tokenizer.decode_batch(hypothesis.tokens for hypothesis in hypotheses)
        return sum(len(find_missing_terms(text, segment_terms.terms)) for text in texts)

    def _replace_if_better(
        self,
        n_best_lists: list[list[Hypothesis]],
        segment_terms: Sequence[SegmentTerms],
        indices: Sequence[int],
        retried: Sequence[list[Hypothesis]],
    ) -> None:
        """Keep the n-best list that contains more of the terms."""
        for i, hypotheses in zip(indices, retried, strict=True):
            missing, missing_now = (
                self._count_missing(item, segment_terms[i]) for item in (n_best_lists[i], hypotheses)
            )
            if hypotheses and missing_now < missing:
                n_best_lists[i] = hypotheses


def spell_term(tokenizer: Tokenizer, forms: Sequence[str]) -> Constraint:
    """The spellings of a term, with and without a preceding space."""
    spellings = [tuple(tokenizer.encode(form)) for form in forms]
    spellings += [spelling for form in forms if (spelling := _spell_without_space(tokenizer, form))]
    return tuple(dict.fromkeys(spellings))


def _spell_without_space(tokenizer: Tokenizer, form: str) -> tuple[int, ...]:
    """The tokens of a term right after another character; empty if they always merge."""
    for character in _PRECEDING_CHARACTERS:
        ids = tokenizer.encode(character + form)
        for position in range(1, len(ids)):
            if tokenizer.ids_to_bytes(ids[:position]) == (METASPACE + character).encode():
                return tuple(ids[position:])
    return ()


def build_same_word_predicate(tokenizer: Tokenizer) -> SameWord:
    """A function that tells whether two adjacent tokens are in one word; bytes of a character always are."""

    @lru_cache(maxsize=65_536)
    def token_text(token_id: int) -> str:
        return tokenizer.ids_to_bytes([token_id]).decode("utf-8", errors="replace").replace(METASPACE, " ")

    def is_same_word(left_id: int, right_id: int) -> bool:
        left, right = token_text(left_id)[-1:], token_text(right_id)[:1]
        if "\ufffd" in (left, right):
            return True
        return bool(left and right) and is_within_word(left, right)

    return is_same_word
