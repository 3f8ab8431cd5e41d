"""Sentences that were translated before: so many, in so much memory, the longest unused forgotten first."""

from collections import OrderedDict

from heedful.engines.base import Translation
from heedful.server.waiting import Work

ENTRY, CHARACTER, ITEM = 1_000, 2, 64
"""Bytes, about: of an entry's objects, of a character (one to four), of a token, number or link."""


class Memory:
    """What a model's queue has translated lately."""

    def __init__(self, entries: int, size: int) -> None:
        self.entries, self.most = entries, size
        self.size = 0
        """Bytes, as estimated."""
        self._found: OrderedDict[Work, Translation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, work: Work) -> Translation | None:
        """The translation, if it is remembered."""
        found = self._found.get(work)
        if found is not None:
            self._found.move_to_end(work)
        return found

    def put(self, work: Work, found: Translation) -> None:
        """Remember a translation, if there can be room for it."""
        self._forget(work)
        size = estimated_size(work, found)
        if not self.entries or size > self.most:
            return
        while len(self) >= self.entries or self.size + size > self.most:
            self._forget(next(iter(self._found)))
        self._found[work] = found
        self.size += size

    def _forget(self, work: Work) -> None:
        found = self._found.pop(work, None)
        if found is not None:
            self.size -= estimated_size(work, found)


def estimated_size(work: Work, found: Translation) -> int:
    """Bytes of memory, roughly; many alternatives with all their details are much."""
    written = found.alternatives
    characters = len(work.text) + len(work.prefix) + sum(len(each.text) for each in written)
    items = sum(
        len(each.tokens) + len(each.token_log_probabilities) + len(each.alignment) for each in written
    )
    return ENTRY + CHARACTER * characters + ITEM * items
