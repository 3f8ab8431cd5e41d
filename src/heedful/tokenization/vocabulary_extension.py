"""Extends the BPE vocabulary of a trained model: new merges after the old ones.

Old ids stay and old merges come first, so a word without a new merge is segmented as before; a new token
starts from the embeddings of the old ones that spelled it.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise

from heedful.errors import HeedfulError
from heedful.tokenization.pair_tokenizer import PairTokenizer, TextPairFactory
from heedful.tokenization.tokenizer import Tokenizer
from heedful.tokenization.vocabulary import Vocabulary
from heedful.tokenization.vocabulary_training import MAX_SUBWORD_LENGTH

MIN_FREQUENCY = 5
"""Minimum count of a new token: rarer ones have too few examples to learn from."""

MAX_TEXTS = 400_000
"""Maximum number of texts to read."""

TEXTS_PER_BATCH = 10_000


def extend_pair_tokenizer(tokenizer: PairTokenizer, pairs: TextPairFactory, limit: int) -> PairTokenizer:
    """Add up to ``limit`` tokens to the joint vocabulary or to each of two."""
    if tokenizer.joint:
        shared = extend_tokenizer(tokenizer.source, (side for pair in pairs() for side in pair[:2]), limit)
        return PairTokenizer(shared, shared)
    source = extend_tokenizer(tokenizer.source, (pair[0] for pair in pairs()), limit)
    target = extend_tokenizer(tokenizer.target, (pair[1] for pair in pairs()), limit)
    return PairTokenizer(source, target)


def check_extendable(tokenizer: Tokenizer) -> None:
    """Raise if the vocabulary has no merges to extend."""
    if tokenizer.model_type != "bpe":
        raise HeedfulError(
            f"cannot extend a {tokenizer.model_type!r} vocabulary: it has no merges",
            hint="omit finetuning.new_subwords; new words are spelled in old subwords",
        )


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], limit: int) -> Tokenizer:
    """Add up to ``limit`` tokens: characters that were encoded as bytes, then merges."""
    check_extendable(tokenizer)
    vocabulary = tokenizer.vocabulary
    words = _count_words(tokenizer, texts)
    tokens = dict.fromkeys(vocabulary.tokens)
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for subword in word:
            if subword not in tokens:
                counts[subword] += count
    new_characters = [
        character for character, count in counts.items() if count >= MIN_FREQUENCY and character != "\ufffd"
    ]
    new_characters.sort(key=lambda character: (-counts[character], character))
    tokens |= dict.fromkeys(new_characters[:limit])
    # Runs of at least two known tokens inside words.
    runs = [
        (run, count)
        for word, count in words.items()
        for is_known, group in groupby(word, key=tokens.__contains__)
        if is_known and len(run := list(group)) > 1
    ]
    merges: list[tuple[str, str]] = []
    for left, right in _find_merges(runs, set(vocabulary.tokens[: vocabulary.first_subword_id])):
        if left + right not in tokens and len(tokens) >= len(vocabulary.tokens) + limit:
            break
        tokens[left + right] = None
        merges.append((left, right))
    changes = {"tokens": tuple(tokens), "merges": (*vocabulary.merges, *merges)}
    return Tokenizer(Vocabulary.from_settings(vocabulary.model_dump() | changes))


def spell_new_tokens(old: Vocabulary, new: Vocabulary) -> list[list[int]]:
    """For each new token of an extended vocabulary the old ids that spelled it."""
    old_ids = {token: token_id for token_id, token in enumerate(old.tokens)}
    merge_parts: dict[str, tuple[str, str]] = {}
    for left, right in new.merges[len(old.merges) :]:
        merge_parts.setdefault(left + right, (left, right))

    def spell(token: str) -> list[int]:
        if token in old_ids:
            return [old_ids[token]]
        if token in merge_parts:
            return [token_id for part in merge_parts[token] for token_id in spell(part)]
        return [old.special_count + byte for byte in token.encode()]

    return [spell(token) for token in new.tokens[len(old.tokens) :]]


def _count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[tuple[str, ...]]:
    """Counts of words, each a sequence of old tokens, or of characters where these are bytes."""
    counts: Counter[tuple[int, ...]] = Counter()
    special_count, remaining_texts = tokenizer.vocabulary.special_count, islice(texts, MAX_TEXTS)
    while batch := list(islice(remaining_texts, TEXTS_PER_BATCH)):
        for token_ids in tokenizer.encode_batch(batch):
            word_tokens = zip(tokenizer.word_ids(token_ids), token_ids, strict=True)
            for _, word in groupby(word_tokens, key=lambda item: item[0]):
                counts[tuple(token_id for _, token_id in word if token_id >= special_count)] += 1
    words: Counter[tuple[str, ...]] = Counter()
    for word_ids, count in counts.items():
        words[tuple(_spell_word(tokenizer, word_ids))] += count
    return words


def _spell_word(tokenizer: Tokenizer, word_ids: Sequence[int]) -> Iterator[str]:
    first_subword_id = tokenizer.vocabulary.first_subword_id
    for is_bytes, token_ids in groupby(word_ids, key=lambda token_id: token_id < first_subword_id):
        if is_bytes:
            yield from tokenizer.ids_to_bytes(token_ids).decode("utf-8", errors="replace")
        else:
            yield from tokenizer.ids_to_tokens(token_ids)


def _find_merges(words: list[tuple[list[str], int]], reserved: set[str]) -> Iterator[tuple[str, str]]:
    """Merges in the order of byte-pair encoding, down to MIN_FREQUENCY; none gives a ``reserved`` token."""
    counts: Counter[tuple[str, str]] = Counter()
    words_with_pair: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for word_index, (word, count) in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += count
            words_with_pair[pair].add(word_index)
    # Possible next merges, by count, then alphabetically.
    heap = [(-count, *pair) for pair, count in counts.items() if count >= MIN_FREQUENCY]
    heapq.heapify(heap)
    while heap:
        negative_count, left, right = heapq.heappop(heap)
        pair = (left, right)
        if -negative_count != counts[pair] or len(left + right) > MAX_SUBWORD_LENGTH or left + right in reserved:
            continue  # an outdated count: the heap has a newer entry
        yield pair
        count_changes: Counter[tuple[str, str]] = Counter()
        for word_index in words_with_pair.pop(pair):
            word, count = words[word_index]
            merged_word = _apply_merge(word, pair)
            for old_pair in pairwise(word):
                count_changes[old_pair] -= count
            for new_pair in pairwise(merged_word):
                count_changes[new_pair] += count
                words_with_pair[new_pair].add(word_index)
            words[word_index] = (merged_word, count)
        for changed_pair, change in count_changes.items():
            counts[changed_pair] += change
            if change and counts[changed_pair] >= MIN_FREQUENCY:
                heapq.heappush(heap, (-counts[changed_pair], *changed_pair))


def _apply_merge(word: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """The word with every adjacent occurrence of the pair merged."""
    result: list[str] = []
    for subword in word:
        if result and (result[-1], subword) == pair:
            result[-1] += subword
        else:
            result.append(subword)
    return result
