"""Records of passes at the server: made one at a time, bounded in number and bytes, kept by content.

Seeing inside costs more than translating and uses PyTorch: a worker of its own keeps it from the others. What
many ask at the same time is made once; what nobody waits for any more is dropped before it begins.

All state belongs to the event loop's thread, except the checkpoint looked at last, which is the worker's.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.asked import Asked
from heedful.inspection.record import Record, record
from heedful.inspection.snapshots import at_snapshot
from heedful.server.models import Served
from heedful.server.refusal import RefusedError, malformed

WAITING = 16
"""Questions that may wait for the worker, with the one that it works on."""
KEPT_BYTES = 128_000_000
"""Of the tensors and manifests of all records that are kept, and of weights that only they use."""
MANIFEST_BYTES = 3
"""Of Python's objects for each letter of a manifest's JSON, about."""
RETRY_SECONDS = 2
T = TypeVar("T")


@dataclass(frozen=True)
class Kept:
    """A record and the model it belongs to."""

    name: str
    model: Served
    record: Record
    checkpoint: int | None
    bytes: int
    """Of its tensors, and about those of its manifest: a wide beam has thousands of candidates."""
    weights: dict[int, int]
    """Bytes of parameters that are not the served model's (a checkpoint's, or without a head), by id."""


@dataclass
class _Job(Generic[T]):
    """Something for the worker, and how many wait for it."""

    running: "Future[T]"
    found: "asyncio.Future[T]"
    waiters: int = 0


class Inspector:
    """All records of a server."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="inspect")
        self._waiting = 0
        self._records: OrderedDict[str, Kept] = OrderedDict()
        self._names: dict[str, str] = {}  # of the records, by question
        self._making: dict[str, _Job[Kept]] = {}
        self._old: tuple[str, int, Bundle] | None = None  # the checkpoint looked at last

    async def record(self, model: Served, asked: Asked, checkpoint: int | None, deadline: float) -> Kept:
        """The record of a question; the same question is answered from what is kept or being made."""
        question = json.dumps([model.name, checkpoint, asked.model_dump(mode="json")], sort_keys=True)
        known = self._names.get(question)
        if known is not None and known in self._records:
            return self.find(known)
        job = self._making.get(question)
        if job is None or job.running.cancelled():
            job = self._begun(lambda: self._made(model, asked, checkpoint, question))
            self._making[question] = job
            job.found.add_done_callback(lambda found: self._finish(question, found))
        return await self._awaited(job, deadline)

    def find(self, name: str) -> Kept:
        """A record that is still kept."""
        found = self._records.get(name)
        if found is None:
            raise RefusedError(404, "this trace is no longer kept: ask for it again")
        self._records.move_to_end(name)
        return found

    async def run(self, work: Callable[[], T], deadline: float) -> T:
        """Do something in the worker; what does not fit is refused, and a user's mistake is a 400."""
        return await self._awaited(self._begun(work), deadline)

    def close(self) -> None:
        """Begin nothing more; what has begun cannot be stopped half-way."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- the worker's queue

    def _begun(self, work: Callable[[], T]) -> _Job[T]:
        if self._waiting >= WAITING:
            raise RefusedError(503, "too many want to see inside", retry_after=RETRY_SECONDS)
        running = self._pool.submit(work)
        job = _Job(running, asyncio.wrap_future(running))
        self._waiting += 1
        job.found.add_done_callback(self._leave)
        return job

    def _leave(self, found: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not found.cancelled():
            found.exception()  # seen: nobody may be waiting any more

    async def _awaited(self, job: _Job[T], deadline: float) -> T:
        job.waiters += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(job.found)
        except HeedfulError as error:
            raise malformed(str(error)) from None
        except TimeoutError:
            raise RefusedError(503, "looking inside took too long", retry_after=RETRY_SECONDS) from None
        finally:
            job.waiters -= 1
            if not job.waiters:
                job.running.cancel()  # only if it has not begun; else the next who asks will have it

    # ---- records

    def _made(self, model: Served, asked: Asked, checkpoint: int | None, question: str) -> Kept:
        found = record(self._bundle(model, checkpoint), asked)
        size = sum(tensor.nbytes for tensor in found.seen.tensors.values())
        size += MANIFEST_BYTES * len(json.dumps(found.manifest))  # made here, not in the event loop
        name = hashlib.sha256(f"{question} {found.identity}".encode()).hexdigest()[:20]
        return Kept(name, model, found, checkpoint, size, _own_weights(found.bundle, model))

    def _bundle(self, model: Served, checkpoint: int | None) -> Bundle:
        bundle = model.bundle
        if checkpoint is None:
            return bundle
        if self._old is None or self._old[:2] != (model.name, checkpoint):
            self._old = model.name, checkpoint, at_snapshot(bundle, model.folder, checkpoint)
        return self._old[2]

    def _finish(self, question: str, found: "asyncio.Future[Kept]") -> None:
        """Keep what was made, even if nobody waits for it any more."""
        job = self._making.get(question)
        if job is not None and job.found is found:
            del self._making[question]
        if found.cancelled() or found.exception() is not None:
            return
        made = found.result()
        self._records[made.name] = made
        while len(self._records) > 1 and self.kept_bytes > KEPT_BYTES:
            self._records.popitem(last=False)
        self._names = {asked: name for asked, name in self._names.items() if name in self._records}
        self._names[question] = made.name

    @property
    def kept_bytes(self) -> int:
        """Of all records: tensors, and weights that several of them may share."""
        weights: dict[int, int] = {}
        for kept in self._records.values():
            weights |= kept.weights
        return sum(kept.bytes for kept in self._records.values()) + sum(weights.values())


def _own_weights(bundle: Bundle, model: Served) -> dict[int, int]:
    served = {id(parameter) for parameter in model.bundle.predictor.parameters()}
    return {
        id(parameter): parameter.nbytes
        for parameter in bundle.predictor.parameters()
        if id(parameter) not in served
    }


def told(kept: Kept) -> dict[str, Any]:
    """The manifest as the page gets it."""
    manifest = dict(kept.record.manifest)
    manifest["id"] = kept.name
    manifest["checkpoint"] = kept.checkpoint
    manifest["model"] = {**manifest["model"], "name": kept.model.name}
    return manifest
