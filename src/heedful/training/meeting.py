"""How processes that torchrun has started find each other, also after some were lost.

torchrun keeps one store for all its restarts, and in it the addresses of processes that are gone. So a group
first agrees on a name that no earlier one had, and then meets under it.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from heedful.errors import HeedfulError

PAUSE = 0.02
"""Seconds between two looks."""


def fresh_store(seconds: float) -> tuple[Store, int, int]:
    """A place for this group alone, this process's rank, and how many there are."""
    store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=seconds))))
    until = time.monotonic() + seconds
    name = _call(store, size, until) if rank == 0 else _answer(store, rank, until)
    return PrefixStore(name, store), rank, size


def _call(store: Store, size: int, until: float) -> str:
    """The leader names the group, and tells everybody who asks until all have heard it."""
    name, others = uuid4().hex, range(1, size)
    while not all(store.check([f"{name}/{rank}"]) for rank in others):
        for rank in others:
            if store.check([f"asks/{rank}"]):  # perhaps one that is gone: it costs an answer
                store.set(f"answer/{store.get(f'asks/{rank}').decode()}", name)
        _pause(until)
    return name


def _answer(store: Store, rank: int, until: float) -> str:
    """Another asks under a name of its own, so that no old answer can be meant for it."""
    own = uuid4().hex
    store.set(f"asks/{rank}", own)
    while not store.check([f"answer/{own}"]):
        _pause(until)
    name: str = store.get(f"answer/{own}").decode()
    store.set(f"{name}/{rank}", "heard")
    return name


def _pause(until: float) -> None:
    if time.monotonic() > until:
        raise HeedfulError(
            "not all processes that torchrun has started came together",
            hint="can every host reach the others? training.silence is how long they wait",
        )
    time.sleep(PAUSE)
