"""BPE-dropout (Provilkov et al. 2020): in training, a word is cut now this way, now that way.

Works on stored ids and, unlike Hugging Face's own, can be seeded. The rule to remember: a word's variants
depend on the word alone, never on what came before, so a resumed training is bit-identical.
"""

import random as standard_random
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from heedful.errors import HeedfulError
from heedful.places import pieces_of
from heedful.text.spelling import SPACE
from heedful.text.tokenizer import Tokenizer

Word = tuple[int, ...]

VARIANTS = 16
"""Ways to cut that are kept of each word."""

_LONGEST_WORD = 64  # characters; longer ones are no words, and slow to merge in Python
_CACHED_WORDS = 200_000


class SubwordDropout:
    """Cuts the words of a sentence anew, skipping each merge with probability ``rate``."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        if tokenizer.kind != "bpe":
            raise HeedfulError(f"subword dropout needs a tokenizer of kind 'bpe', not {tokenizer.kind!r}")
        if not 0 <= rate < 1:
            raise HeedfulError(f"subword dropout {rate} is not a probability below 1")
        self.tokenizer = tokenizer
        self.rate = rate
        vocabulary = tokenizer.vocabulary
        self._identities = {piece: identity for identity, piece in enumerate(vocabulary.pieces)}
        merges = (merge.partition(" ") for merge in vocabulary.merges)
        self._ranks = {(left, right): rank for rank, (left, _, right) in enumerate(merges)}
        self._starts = [
            identity < vocabulary.silent or piece[0] == SPACE
            for identity, piece in enumerate(vocabulary.pieces)
        ]
        self._cache: dict[Word, list[Word | None]] = {}

    def __call__(self, ids: Sequence[int], random: np.random.Generator) -> list[int]:
        """The same text in other pieces."""
        given: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if self.rate == 0 or not given:
            return given
        starts, pieces = self._starts, pieces_of(given)
        borders = [place for place, identity in enumerate(pieces) if starts[identity] and place]
        choices = random.integers(VARIANTS, size=len(borders) + 1).tolist()
        result: list[int] = []
        for start, end, choice in zip([0, *borders], [*borders, len(given)], choices, strict=True):
            word = tuple(pieces[start:end])
            variants = self._cache.get(word)
            variant = variants[choice] if variants else None
            place = given[start] - pieces[start]  # of the word in a tree, if the ids carry one
            result.extend([place + piece for piece in variant or self._variant(word, choice)])
        return result

    def _variant(self, word: Word, choice: int) -> Word:
        """The variant, made and remembered."""
        if word not in self._cache:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()  # costs time, never changes a result
            self._cache[word] = [None] * VARIANTS
        variant = self._cut(word, choice)
        self._cache[word][choice] = variant
        return variant

    def _cut(self, word: Word, choice: int) -> Word:
        text = "".join(self.tokenizer.pieces(word))
        if min(word) < self.tokenizer.vocabulary.learned or len(text) > _LONGEST_WORD:
            return word
        seed = blake2b(f"{choice} {self.rate!r} {text}".encode(), digest_size=8).digest()
        random = standard_random.Random(int.from_bytes(seed))
        parts = [piece for part in self.tokenizer.split(text) for piece in self._merged(list(part), random)]
        return tuple(self._identities[piece] for piece in parts)

    def _merged(self, pieces: list[str], random: standard_random.Random) -> list[str]:
        """The best merge that is not dropped, again and again until all that are left are dropped."""
        while True:
            candidates = [
                (rank, place)
                for place in range(len(pieces) - 1)
                if (rank := self._ranks.get((pieces[place], pieces[place + 1]))) is not None
                and random.random() >= self.rate
            ]
            if not candidates:
                return pieces
            _, place = min(candidates)
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
