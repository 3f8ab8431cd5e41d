"""More pieces for a vocabulary that a model has learned already: new merges behind the old ones.

The rule to remember: old ids stay, and old merges come first, so a word that no new merge touches is cut as
before; and each new piece is known by the old ones that spelled it.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.text.tokenizer import Pairs, PairTokenizer, Tokenizer
from heedful.text.vocabulary import LONGEST_PIECE, Vocabulary

LEAST = 5
"""Times that a new piece must be there: what is rarer has too little to learn from."""
MOST_TEXTS = 400_000
"""So many are read at most: the commonest pieces are among them."""
AT_ONCE = 10_000


class _Piece(NamedTuple):
    """A merge that could be next; the commonest comes first, and of equals the first by the alphabet."""

    minus_count: int
    left: str
    right: str


def extended_pair(tokenizer: PairTokenizer, pairs: Pairs, limit: int) -> PairTokenizer:
    """Up to ``limit`` new pieces for the vocabulary, or for each of two."""
    if tokenizer.joint:
        shared = extended(tokenizer.source, (side for pair in pairs() for side in pair[:2]), limit)
        return PairTokenizer(shared, shared, tokenizer.config, tokenizer.languages)
    source = extended(tokenizer.source, (pair[0] for pair in pairs()), limit)
    target = extended(tokenizer.target, (pair[1] for pair in pairs()), limit)
    return PairTokenizer(source, target, tokenizer.config, tokenizer.languages)


def check_extendable(tokenizer: Tokenizer) -> None:
    """An error that says why not, if it is not."""
    if tokenizer.kind != "bpe":
        raise HeedfulError(
            f"a vocabulary of kind {tokenizer.kind!r} cannot be extended: it has no merges to add to",
            hint="leave out tuning.new_pieces; the words of the new text are spelled in the old pieces",
        )


def extended(tokenizer: Tokenizer, texts: Iterable[str], limit: int) -> Tokenizer:
    """A tokenizer with up to ``limit`` more pieces: letters that had to be spelled in bytes, then merges."""
    check_extendable(tokenizer)
    old = tokenizer.vocabulary
    words = _words(tokenizer, texts)
    letters = _new_letters(words, set(old.pieces), limit)
    known = dict.fromkeys([*old.pieces, *letters])
    merges: list[str] = []
    for left, right in _merges(_spelled(words, known), set(old.pieces[: old.learned])):
        if left + right not in known and len(known) >= len(old.pieces) + limit:
            break
        known[left + right] = None
        merges.append(f"{left} {right}")
    changed = {"pieces": tuple(known), "merges": (*old.merges, *merges)}
    return Tokenizer(Vocabulary.checked(old.model_dump() | changed))


def spelled_before(old: Vocabulary, new: Vocabulary) -> list[list[int]]:
    """For each new piece of an extended vocabulary the old ids that spelled it."""
    ids = {piece: identity for identity, piece in enumerate(old.pieces)}
    parts: dict[str, tuple[str, str]] = {}
    for merge in new.merges[len(old.merges) :]:
        left, _, right = merge.partition(" ")
        parts.setdefault(left + right, (left, right))

    def spelled(piece: str) -> list[int]:
        if piece in ids:
            return [ids[piece]]
        if piece in parts:
            return [identity for part in parts[piece] for identity in spelled(part)]
        return [old.silent + byte for byte in piece.encode()]

    return [spelled(piece) for piece in new.pieces[len(old.pieces) :]]


def _words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[tuple[str, ...]]:
    """How often each word is there, as the old pieces and as letters where these are bytes."""
    counts: Counter[tuple[int, ...]] = Counter()
    silent, rest = tokenizer.vocabulary.silent, islice(texts, MOST_TEXTS)
    while chunk := list(islice(rest, AT_ONCE)):
        for ids in tokenizer.encode_batch(chunk):
            numbered = zip(tokenizer.words(ids), ids, strict=True)
            for _, word in groupby(numbered, key=lambda item: item[0]):
                counts[tuple(identity for _, identity in word if identity >= silent)] += 1
    words: Counter[tuple[str, ...]] = Counter()
    for pieces, count in counts.items():
        words[tuple(_letters(tokenizer, pieces))] += count
    return words


def _letters(tokenizer: Tokenizer, word: Sequence[int]) -> Iterator[str]:
    learned = tokenizer.vocabulary.learned
    for in_bytes, ids in groupby(word, key=lambda identity: identity < learned):
        if in_bytes:
            yield from tokenizer.spelled(ids).decode("utf-8", errors="replace")
        else:
            yield from tokenizer.pieces(ids)


def _new_letters(words: Counter[tuple[str, ...]], known: set[str], limit: int) -> list[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for piece in word:
            if piece not in known:
                counts[piece] += count
    common = [letter for letter, count in counts.items() if count >= LEAST and letter != "\ufffd"]
    return sorted(common, key=lambda letter: (-counts[letter], letter))[:limit]


def _spelled(words: Counter[tuple[str, ...]], known: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Words of known pieces, parted where a letter is still none."""
    pieces = set(known)
    for word, count in words.items():
        for whole, run in groupby(word, key=pieces.__contains__):
            found = list(run)
            if whole and len(found) > 1:
                yield found, count


def _merges(words: Iterator[tuple[list[str], int]], taken: set[str]) -> Iterator[tuple[str, str]]:
    """Merges in the order in which byte-pair encoding finds them, while they are common enough.

    None gives a text that is ``taken``, the name of a special or a byte.
    """
    spelled = list(words)
    counts: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, (word, count) in enumerate(spelled):
        for pair in pairwise(word):
            counts[pair] += count
            places[pair].add(number)
    heap = [_Piece(-count, *pair) for pair, count in counts.items() if count >= LEAST]
    heapq.heapify(heap)
    while heap:
        minus_count, left, right = heapq.heappop(heap)
        pair = (left, right)
        if -minus_count != counts[pair] or len(left + right) > LONGEST_PIECE or left + right in taken:
            continue  # it has become rarer meanwhile, and stands in the heap anew
        yield pair
        changed: Counter[tuple[str, str]] = Counter()
        for number in places.pop(pair):
            word, count = spelled[number]
            merged = _merged(word, pair)
            for gone in pairwise(word):
                changed[gone] -= count
            for come in pairwise(merged):
                changed[come] += count
                places[come].add(number)
            spelled[number] = (merged, count)
        for other, change in changed.items():
            counts[other] += change
            if change and counts[other] >= LEAST:
                heapq.heappush(heap, _Piece(-counts[other], *other))


def _merged(word: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """The word with the two pieces joined wherever they stand side by side."""
    result: list[str] = []
    for piece in word:
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return result
