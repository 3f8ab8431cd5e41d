"""Traces at the server: computed one at a time in a worker of their own, cached up to a memory limit.

A trace costs more than a translation and needs PyTorch. Identical requests share one computation; one that
nobody waits for any more is dropped before it starts. All state belongs to the event loop's thread, except
the checkpoint loaded last, which is the worker's.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.server.api_errors import APIError, bad_request
from heedful.server.model_registry import ServedModel

if TYPE_CHECKING:
    from heedful.interpret.trace import Trace
    from heedful.interpret.trace_schema import TraceRequest

MAX_QUEUED = 16
"""Jobs that may be queued, including the running one."""

MAX_STORED_BYTES = 128_000_000
"""Maximum memory of the cached traces: tensors, manifests, and weights that only they use."""

BYTES_PER_MANIFEST_CHARACTER = 3
"""Approximate memory of a manifest per character of its JSON."""

RETRY_SECONDS = 2

T = TypeVar("T")


@dataclass(frozen=True)
class StoredTrace:
    """A trace and its model."""

    trace_id: str
    model: ServedModel
    trace: "Trace"
    checkpoint: int | None
    size_bytes: int
    """Of its tensors and, approximately, of its manifest: a large beam has thousands of candidates."""
    extra_weights: dict[int, int]
    """Bytes by id of parameters that the served model lacks: of a checkpoint, or with ablated heads."""


class _WorkerJob(Generic[T]):
    """A function in the worker's queue, and how many requests wait for it."""

    def __init__(self, thread_future: "Future[T]") -> None:
        self.thread_future, self.future = thread_future, asyncio.wrap_future(thread_future)
        self.waiters = 0


class TraceWorker:
    """Computes and caches the traces of a server."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trace")
        self._queued = 0
        self._traces: OrderedDict[str, StoredTrace] = OrderedDict()
        self._trace_ids: dict[str, str] = {}  # by cache key
        self._running_jobs: dict[str, _WorkerJob[StoredTrace]] = {}
        self._snapshot: tuple[str, int, ModelFolder] | None = None  # model name, update, weights

    async def get_or_create(
        self, model: ServedModel, trace_request: "TraceRequest", checkpoint: int | None, deadline: float
    ) -> StoredTrace:
        """Return the trace of a request: cached, being computed, or new."""
        cache_key = json.dumps([model.name, checkpoint, trace_request.model_dump(mode="json")], sort_keys=True)
        trace_id = self._trace_ids.get(cache_key)
        if trace_id is not None and trace_id in self._traces:
            return self.get_trace(trace_id)
        job = self._running_jobs.get(cache_key)
        if job is None or job.thread_future.cancelled():
            job = self._submit(lambda: self._create_trace(model, trace_request, checkpoint, cache_key))
            self._running_jobs[cache_key] = job
            job.future.add_done_callback(lambda future: self._store_result(cache_key, future))
        return await self._wait_for(job, deadline)

    def get_trace(self, trace_id: str) -> StoredTrace:
        """Return a cached trace."""
        stored = self._traces.get(trace_id)
        if stored is None:
            raise APIError(404, "this trace is no longer cached: request it again")
        self._traces.move_to_end(trace_id)
        return stored

    async def run(self, function: Callable[[], T], deadline: float) -> T:
        """Run a function in the worker; a full queue is a 503, a HeedfulError a 400."""
        return await self._wait_for(self._submit(function), deadline)

    def close(self) -> None:
        """Start no further jobs; a running one cannot be cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, function: Callable[[], T]) -> _WorkerJob[T]:
        if self._queued >= MAX_QUEUED:
            raise APIError(503, "too many trace requests", retry_after=RETRY_SECONDS)

        def on_done(future: "asyncio.Future[T]") -> None:
            self._queued -= 1
            if not future.cancelled():
                future.exception()  # mark as retrieved: nobody may be waiting

        job = _WorkerJob(self._pool.submit(function))
        self._queued += 1
        job.future.add_done_callback(on_done)
        return job

    async def _wait_for(self, job: _WorkerJob[T], deadline: float) -> T:
        job.waiters += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(job.future)
        except HeedfulError as error:
            raise bad_request(str(error)) from None
        except TimeoutError:
            raise APIError(503, "the trace took too long", retry_after=RETRY_SECONDS) from None
        finally:
            job.waiters -= 1
            if not job.waiters:
                job.thread_future.cancel()  # unless it runs: then its result is cached

    def _create_trace(
        self, model: ServedModel, trace_request: "TraceRequest", checkpoint: int | None, cache_key: str
    ) -> StoredTrace:
        """In the worker: load the checkpoint, compute the trace and measure its memory."""
        from heedful.interpret.trace import compute_trace
        from heedful.training.checkpoint import load_snapshot

        model_folder = model.model_folder
        served_ids = {id(parameter) for parameter in model_folder.model.parameters()}
        if checkpoint is not None:
            if self._snapshot is None or self._snapshot[:2] != (model.name, checkpoint):
                self._snapshot = model.name, checkpoint, load_snapshot(model_folder, model.folder, checkpoint)
            model_folder = self._snapshot[2]
        trace = compute_trace(model_folder, trace_request)
        size = sum(tensor.nbytes for tensor in trace.activations.tensors.values())
        size += BYTES_PER_MANIFEST_CHARACTER * len(json.dumps(trace.manifest))
        parameters = trace.model_folder.model.parameters()
        extra_weights = {id(weight): weight.nbytes for weight in parameters if id(weight) not in served_ids}
        trace_id = hashlib.sha256(f"{cache_key} {trace.fingerprint}".encode()).hexdigest()[:20]
        return StoredTrace(trace_id, model, trace, checkpoint, size, extra_weights)

    def _store_result(self, cache_key: str, future: "asyncio.Future[StoredTrace]") -> None:
        """Cache a new trace, even if nobody waits for it any more."""
        job = self._running_jobs.get(cache_key)
        if job is not None and job.future is future:
            del self._running_jobs[cache_key]
        if future.cancelled() or future.exception() is not None:
            return
        stored = future.result()
        self._traces[stored.trace_id] = stored
        while len(self._traces) > 1 and self.stored_bytes > MAX_STORED_BYTES:
            self._traces.popitem(last=False)
        self._trace_ids = {key: trace_id for key, trace_id in self._trace_ids.items() if trace_id in self._traces}
        self._trace_ids[cache_key] = stored.trace_id

    @property
    def stored_bytes(self) -> int:
        """Memory of the cached traces; weights that several of them share count once."""
        weights: dict[int, int] = {}
        for stored in self._traces.values():
            weights |= stored.extra_weights
        return sum(stored.size_bytes for stored in self._traces.values()) + sum(weights.values())


def describe_trace(stored: StoredTrace) -> dict[str, Any]:
    """The manifest as the page gets it."""
    manifest = stored.trace.export_manifest(name=stored.model.name, checkpoint=stored.checkpoint)
    return {**manifest, "id": stored.trace_id}
