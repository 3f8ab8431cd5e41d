"""Learns the vocabulary of a tokenizer from text."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, trainers

from heedful.errors import HeedfulError
from heedful.tokenization.normalization import METASPACE, escape, mark_spaces
from heedful.tokenization.special_tokens import strip_tags
from heedful.tokenization.tokenizer import Tokenizer, TokenizerConfig
from heedful.tokenization.vocabulary import (
    TAG_NAME,
    TokenizerType,
    Vocabulary,
    build_pre_tokenizer,
    build_reserved_tokens,
)

MAX_SUBWORD_LENGTH = 24  # characters; without a limit, scripts without spaces learn full phrases


class _VocabularyEntries(NamedTuple):
    subwords: list[str]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()


def learn_tokenizer(texts: Iterable[str], config: TokenizerConfig, languages: Sequence[str] = ()) -> Tokenizer:
    """Learn a tokenizer from texts, which are read twice; each language gets a tag."""
    for language in languages:
        if not re.fullmatch(TAG_NAME, language):
            raise HeedfulError(f"invalid language code {language!r}", hint="use a code such as fr or pt-BR")
    if len(set(languages)) < len(languages):
        raise HeedfulError(f"duplicate language: {', '.join(languages)}", hint="name each language once")
    texts = list(texts) if isinstance(texts, Iterator) else texts
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(mark_spaces(escape(strip_tags(text))))
    if not counts.keys() - {METASPACE}:
        raise HeedfulError("no text to learn a vocabulary from", hint="check that cleaning left any pairs")
    # The most frequent characters; ties in code point order, so that the result is deterministic.
    characters = sorted(counts.keys() - {METASPACE}, key=lambda character: (-counts[character], character))
    alphabet = [METASPACE, *characters[: config.max_alphabet - 1]]
    reserved = build_reserved_tokens(languages)
    max_subwords = config.vocab_size - len(reserved)
    if max_subwords < len(alphabet):
        minimum = len(reserved) + len(alphabet)
        hint = f"set tokenizer.vocab_size to {minimum} or more"
        if max_subwords > 0:
            hint += f", or tokenizer.max_alphabet to {max_subwords} or less (rarer characters become bytes)"
        raise HeedfulError(
            f"vocabulary size {config.vocab_size} is too small: the data has {len(counts)} different characters; "
            f"an alphabet of {len(alphabet)} and {len(reserved)} specials and bytes need at least {minimum}",
            hint=hint,
        )
    marked_texts = (mark_spaces(escape(strip_tags(text))) for text in texts)
    if len(alphabet) < len(counts):  # line breaks in place of rare characters, so that no merge crosses them
        rare = re.compile(f"[^{re.escape(''.join(alphabet))}]+")
        marked_texts = (rare.sub("\n", text) for text in marked_texts)
    entries = _LEARNERS[config.model_type](marked_texts, alphabet, max_subwords)
    return Tokenizer(
        Vocabulary(
            model_type=config.model_type,
            languages=tuple(languages),
            tokens=(*reserved, *entries.subwords),
            merges=entries.merges,
            scores=(0.0,) * len(reserved) + entries.scores if entries.scores else (),
        )
    )


def _train_model(
    model: models.Model, model_type: TokenizerType, trainer: trainers.Trainer, texts: Iterator[str]
) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = build_pre_tokenizer(model_type)
    tokenizer.train_from_iterator(texts, trainer)
    state: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return state


def _learn_words(texts: Iterator[str], alphabet: list[str], max_subwords: int) -> _VocabularyEntries:
    """The alphabet, to spell unknown words, then the most frequent words."""
    trainer = trainers.WordLevelTrainer(vocab_size=max_subwords + 1, special_tokens=[], show_progress=False)
    words: dict[str, int] = _train_model(models.WordLevel(), "word", trainer, texts)["vocab"]
    by_frequency = sorted(words, key=lambda word: words[word])
    subwords = dict.fromkeys([*alphabet, *filter(set(alphabet).issuperset, by_frequency)])
    return _VocabularyEntries(list(subwords)[:max_subwords])


def _learn_merges(texts: Iterator[str], alphabet: list[str], max_subwords: int) -> _VocabularyEntries:
    trainer = trainers.BpeTrainer(
        vocab_size=max_subwords,
        min_frequency=2,
        special_tokens=[],
        # Given explicitly: the trainer would break ties in hash table order.
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=MAX_SUBWORD_LENGTH,
        show_progress=False,
    )
    state = _train_model(models.BPE(), "bpe", trainer, texts)
    subwords = sorted(state["vocab"], key=lambda subword: state["vocab"][subword])
    return _VocabularyEntries(subwords, merges=tuple(map(tuple, state["merges"])))


def _learn_unigrams(texts: Iterator[str], alphabet: list[str], max_subwords: int) -> _VocabularyEntries:
    trainer = trainers.UnigramTrainer(
        vocab_size=max_subwords, special_tokens=[], initial_alphabet=alphabet, show_progress=False
    )
    state = _train_model(models.Unigram(), "unigram", trainer, texts)
    alphabet_set = set(alphabet)  # without the line breaks in place of rare characters
    scores: dict[str, float] = {subword: score for subword, score in state["vocab"] if alphabet_set.issuperset(subword)}
    lowest = min(scores.values())
    character_scores = {character: scores.pop(character, lowest) for character in alphabet}
    best_subwords = sorted(scores, key=lambda subword: (-scores[subword], subword))[
        : max_subwords - len(character_scores)
    ]
    subword_scores = character_scores | {subword: scores[subword] for subword in best_subwords}
    return _VocabularyEntries(list(subword_scores), scores=tuple(subword_scores.values()))


_LEARNERS: dict[TokenizerType, Callable[[Iterator[str], list[str], int], _VocabularyEntries]] = {
    "word": _learn_words,
    "character": lambda texts, alphabet, max_subwords: _VocabularyEntries(alphabet),
    "bpe": _learn_merges,
    "unigram": _learn_unigrams,
}
