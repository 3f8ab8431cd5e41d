"""BPE-dropout (Provilkov et al. 2020): training segments a word in varying ways.

Works on stored token ids and, unlike the one of Hugging Face, can be seeded. The variants of a word depend
on the word alone, so a resumed training is bit-identical.
"""

import random as standard_random
from hashlib import blake2b
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.tokenization.dependency_trees import SentenceIds, TreeToken, get_token_ids
from heedful.tokenization.normalization import METASPACE
from heedful.tokenization.tokenizer import Tokenizer

WordIds = tuple[int, ...]

VARIANTS_PER_WORD = 16
"""Segmentations to draw from for each word."""

_MAX_WORD_LENGTH = 64  # characters; merging longer ones in Python is slow
_CACHED_WORDS = 200_000


class BPEDropout:
    """Segments the words of a sentence again, skipping each merge with probability ``dropout``."""

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        if tokenizer.model_type != "bpe":
            raise HeedfulError(
                f"BPE-dropout does not work with a {tokenizer.model_type!r} tokenizer",
                hint="set tokenizer.bpe_dropout=0 or tokenizer.model_type=bpe",
            )
        if not 0 <= dropout < 1:
            raise HeedfulError(f"BPE-dropout {dropout} is out of range", hint="use a probability below 1")
        self.tokenizer = tokenizer
        self.dropout = dropout
        vocabulary = tokenizer.vocabulary
        self._token_ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
        self._ranks = {merge: rank for rank, merge in enumerate(vocabulary.merges)}
        self._starts_word = [
            token_id < vocabulary.special_count or token[0] == METASPACE
            for token_id, token in enumerate(vocabulary.tokens)
        ]
        self._cache: dict[WordIds, list[WordIds | None]] = {}

    def __call__(self, tokens: SentenceIds, random: np.random.Generator) -> SentenceIds:
        """The same text in other subwords, which keep the position of their word in the dependency tree."""
        tokens = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
        if self.dropout == 0 or not tokens:
            return tokens
        starts_word, token_ids = self._starts_word, get_token_ids(tokens)
        boundaries = [offset for offset, token_id in enumerate(token_ids) if starts_word[token_id] and offset]
        choices = random.integers(VARIANTS_PER_WORD, size=len(boundaries) + 1).tolist()
        result: list[Any] = []
        for start, end, choice in zip([0, *boundaries], [*boundaries, len(token_ids)], choices, strict=True):
            word = tuple(token_ids[start:end])
            variants = self._cache.get(word)
            variant = variants[choice] if variants else None
            variant = variant or self._compute_variant(word, choice)
            first = tokens[start]
            result += variant if isinstance(first, int) else [TreeToken(token_id, *first[1:]) for token_id in variant]
        return result

    def _compute_variant(self, word: WordIds, choice: int) -> WordIds:
        """Compute a variant and cache it."""
        text, variant = "".join(self.tokenizer.ids_to_tokens(word)), word
        if min(word) >= self.tokenizer.vocabulary.first_subword_id and len(text) <= _MAX_WORD_LENGTH:
            seed = blake2b(f"{choice} {self.dropout!r} {text}".encode(), digest_size=8).digest()
            random = standard_random.Random(int.from_bytes(seed))
            variant = tuple(
                self._token_ids[subword]
                for pre_token in self.tokenizer.pre_tokenize(text)
                for subword in self._apply_merges(list(pre_token), random)
            )
        if len(self._cache) >= _CACHED_WORDS and word not in self._cache:
            self._cache.clear()  # costs time, never changes a result
        self._cache.setdefault(word, [None] * VARIANTS_PER_WORD)[choice] = variant
        return variant

    def _apply_merges(self, symbols: list[str], random: standard_random.Random) -> list[str]:
        """Apply the best merge that is not dropped, until all remaining ones are dropped."""
        while True:
            candidates = [
                (rank, index)
                for index in range(len(symbols) - 1)
                if (rank := self._ranks.get((symbols[index], symbols[index + 1]))) is not None
                and random.random() >= self.dropout
            ]
            if not candidates:
                return symbols
            _, index = min(candidates)
            symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
