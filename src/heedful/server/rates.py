"""How often one client may come: a bucket of requests that fills again at an even rate."""

import math
from collections import OrderedDict

CLIENTS = 10_000
"""Addresses remembered; the one longest unseen is forgotten, its bucket being the fullest."""


class RateLimit:
    """So many requests a minute from each client, at once or spread; 0 for any number."""

    def __init__(self, requests_a_minute: int) -> None:
        self.most = requests_a_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, as of when

    def wait(self, client: str, now: float) -> int:
        """0 if the client may come now, and one request is counted; else the seconds until it may."""
        if not self.most:
            return 0
        rate = self.most / 60
        left, since = self._buckets.get(client, (float(self.most), now))
        left = min(self.most, left + (now - since) * rate)
        if left < 1:
            return math.ceil((1 - left) / rate)
        self._buckets[client] = (left - 1, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0
