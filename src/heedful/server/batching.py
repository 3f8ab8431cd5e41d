"""Dynamic batching with admission control: many small requests share a few batches.

Queued work is counted in source tokens and bounded; what does not fit is rejected at once. Requests take
turns: a long text delays a short one by one batch, not by its length. A segment that several requests wait
for is translated once, then cached. One that nobody waits for any more (disconnect, deadline) is dropped
before it runs. All state belongs to the event loop's thread; only ``_translate_batch`` runs in workers.
"""

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from heedful.data.glossary import Glossary
from heedful.devices import available_cores
from heedful.generation.config import GenerationConfig
from heedful.inference.translation import Translation
from heedful.inference.translator import Translator
from heedful.server.api_errors import APIError, to_api_error
from heedful.server.config import ServerConfig
from heedful.server.metrics import BatcherMetrics
from heedful.tokenization.dependency_trees import SentenceIds
from heedful.tokenization.sentence_splitter import TextSegment

MAX_RETRY_SECONDS = 60

T = TypeVar("T")

LOOKAHEAD_BATCHES = 4
"""How many batches of queued tokens are searched for segments of similar length."""


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """A segment and everything that determines its translation: the key of the queue and of the cache."""

    text: str
    generation_config: GenerationConfig
    prefix: str = ""
    details: bool = False
    glossary: Glossary | None = None
    ids: SentenceIds = field(default=(), compare=False)
    """The source tokens of the text."""

    @property
    def tokens(self) -> int:
        """Source tokens, END included."""
        return len(self.ids) + 1

    @property
    def batch_key(self) -> tuple[GenerationConfig, bool, Glossary | None]:
        """What all segments of a batch have in common."""
        return self.generation_config, self.details, self.glossary


@dataclass(slots=True)
class Admission:
    """Whether a segment of a request entered the queue: then the others are not rejected when it is full."""

    granted: bool = False


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """The segments that a request has in the queue; or, with ``worker_ready``, a request for a worker of its own."""

    arrived_at: float
    tokens: int
    segments: dict[SegmentRequest, None] = field(default_factory=dict)
    worker_ready: "asyncio.Future[None] | None" = None


class RequestQueue:
    """Requests in the order of their turns."""

    def __init__(self, max_batch_tokens: int) -> None:
        self.max_batch_tokens = max_batch_tokens
        self.tokens = 0
        self._requests: OrderedDict[QueuedRequest, None] = OrderedDict()
        self._request_of: dict[SegmentRequest, QueuedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, segment: SegmentRequest) -> bool:
        return segment in self._request_of

    @property
    def first(self) -> QueuedRequest:
        return next(iter(self._requests))

    def add(self, queued_request: QueuedRequest) -> None:
        self._requests[queued_request] = None
        self._request_of |= dict.fromkeys(queued_request.segments, queued_request)
        self.tokens += queued_request.tokens

    def remove(self, queued_request: QueuedRequest) -> None:
        """Remove a request for a worker."""
        del self._requests[queued_request]
        self.tokens -= queued_request.tokens

    def drop(self, segments: Iterable[SegmentRequest]) -> None:
        """Remove segments, and requests that have no segments left."""
        for segment in segments:
            queued_request = self._request_of.pop(segment)
            del queued_request.segments[segment]
            self.tokens -= segment.tokens
            if not queued_request.segments:
                del self._requests[queued_request]

    def pop_batch(self) -> list[SegmentRequest]:
        """Remove and return the next batch; the request that started it moves to the end of the queue."""
        queued_request = self.first
        self._requests.move_to_end(queued_request)
        first = next(iter(queued_request.segments))
        batch, max_length = [first], first.tokens
        # Those nearest in length, within the token budget, padding included.
        for segment in sorted(self._iter_candidates(first), key=lambda segment: abs(segment.tokens - first.tokens)):
            max_length = max(max_length, segment.tokens)
            if max_length * (len(batch) + 1) > self.max_batch_tokens:
                break
            batch.append(segment)
        self.drop(batch)
        return batch

    def _iter_candidates(self, first: SegmentRequest) -> Iterator[SegmentRequest]:
        """Yield segments that could share its batch: one of each request in turn, so that none fills it alone."""
        iterators: Sequence[Iterator[SegmentRequest]] = [iter(request.segments) for request in self._requests]
        tokens = 0
        while iterators and tokens < LOOKAHEAD_BATCHES * self.max_batch_tokens:
            next_segments = [(iterator, next(iterator, None)) for iterator in iterators]
            iterators = [iterator for iterator, segment in next_segments if segment is not None]
            for _, segment in next_segments:
                if segment is not None and segment is not first and segment.batch_key == first.batch_key:
                    tokens += segment.tokens
                    yield segment


ENTRY_BYTES, CHARACTER_BYTES, ITEM_BYTES = 1_000, 2, 64
"""Approximate bytes of an entry's objects, of a character (one to four), of a token, number or link."""


class LRUCache:
    """The most recently used translations of segments, bounded in number and memory."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self.size_bytes = 0
        self._translations: OrderedDict[SegmentRequest, Translation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._translations)

    def get(self, request: SegmentRequest) -> Translation | None:
        translation = self._translations.get(request)
        if translation is not None:
            self._translations.move_to_end(request)
        return translation

    def put(self, request: SegmentRequest, translation: Translation) -> None:
        """Cache a translation, unless it is larger than the whole cache."""
        self._evict(request)
        entry_bytes = estimate_bytes(request, translation)
        if not self.max_entries or entry_bytes > self.max_bytes:
            return
        while len(self) >= self.max_entries or self.size_bytes + entry_bytes > self.max_bytes:
            self._evict(next(iter(self._translations)))
        self._translations[request] = translation
        self.size_bytes += entry_bytes

    def _evict(self, request: SegmentRequest) -> None:
        translation = self._translations.pop(request, None)
        if translation is not None:
            self.size_bytes -= estimate_bytes(request, translation)


def estimate_bytes(request: SegmentRequest, translation: Translation) -> int:
    """Estimate the memory of an entry; alternatives with details dominate."""
    alternatives = translation.alternatives
    characters = len(request.text) + len(request.prefix) + sum(len(alternative.text) for alternative in alternatives)
    items = len(request.ids) + sum(
        len(alternative.tokens) + len(alternative.token_log_probabilities) + len(alternative.alignment)
        for alternative in alternatives
    )
    return ENTRY_BYTES + CHARACTER_BYTES * characters + ITEM_BYTES * items


class Batcher:
    """The queue and the workers of one model."""

    def __init__(self, translator: Translator, config: ServerConfig) -> None:
        self.translator, self.config = translator, config
        self.metrics = BatcherMetrics(lambda: self.waiting_tokens)
        self._queue = RequestQueue(config.max_batch_tokens)
        self._worker_count = self._free_workers = config.workers or available_cores()
        self._pool = ThreadPoolExecutor(self._worker_count, thread_name_prefix="translate")
        self._in_flight: dict[SegmentRequest, asyncio.Future[Translation]] = {}
        self._waiters: Counter[asyncio.Future[Translation]] = Counter()
        self._cache = LRUCache(config.cache_entries, config.cache_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._tokens_per_second = 0.0  # of one worker, smoothed; 0 before the first batch

    @property
    def waiting_tokens(self) -> int:
        """Source tokens in the queue."""
        return self._queue.tokens

    async def translate(
        self,
        segments: Sequence[TextSegment],
        generation_config: GenerationConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        deadline: float | None = None,
        admission: Admission | None = None,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        """Translate each segment, in batches shared with other requests.

        ``deadline`` is in the event loop's time. With a granted ``admission`` (the request queued other
        segments before), a full queue rejects nothing. Cached translations do not grant admission.
        """
        effective_config = generation_config or self.translator.model_folder.config.generation
        requests = [
            SegmentRequest(
                segment.text,
                effective_config,
                prefix,
                details,
                glossary if glossary and glossary.find_terms(segment.text) else None,
                segment.ids,
            )
            for segment, prefix in zip(segments, prefixes or [""] * len(segments), strict=True)
        ]
        cached = {request: translation for request in requests if (translation := self._cache.get(request)) is not None}
        self.metrics.cached.inc(sum(request in cached for request in requests))
        futures = self._submit([request for request in requests if request not in cached], admission or Admission())
        try:
            async with asyncio.timeout_at(deadline):
                if futures:
                    completed, _ = await asyncio.wait(futures.values(), return_when=asyncio.FIRST_EXCEPTION)
                    for future in completed:
                        future.result()  # raises the error of one that failed; none is cancelled
        except TimeoutError:
            raise self._unavailable_error("deadline", "the translation took too long") from None
        finally:
            self._release(futures)
        return [cached[request] if request in cached else futures[request].result() for request in requests]

    async def stream(
        self,
        segments: Sequence[TextSegment],
        generation_config: GenerationConfig,
        prefix: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """Stream the translation of a text; other requests have their turn after each segment.

        A worker is busy while it decodes a segment, not while the client is slow to read it.
        """
        admission = Admission()
        for segment in segments:
            if segment.text:
                chunks = self._stream_segment(segment, generation_config, prefix, deadline, admission)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        yield chunk
                prefix = ""
            yield segment.separator

    async def _stream_segment(
        self,
        segment: TextSegment,
        generation_config: GenerationConfig,
        prefix: str,
        deadline: float | None,
        admission: Admission,
    ) -> AsyncGenerator[str, None]:
        try:
            await self._acquire_worker(len(segment.ids) + 1, deadline, admission)
            start_stream = partial(self.translator.stream_segment, segment, generation_config, prefix)
            chunks = stream_from_thread(start_stream, self._pool, deadline, self._release_worker)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except TimeoutError:
            raise self._unavailable_error("deadline", "the translation took too long") from None

    async def run(self, function: Callable[[], T], tokens: int, deadline: float) -> T:
        """Run a function that uses the model in a worker of its own, when its turn comes.

        A running function cannot be cancelled: the worker stays busy until it returns, even if nobody waits.
        """

        def run_catching() -> T | Exception:
            try:
                return function()
            except Exception as error:
                return error

        try:
            await self._acquire_worker(tokens, deadline, Admission())
            future = asyncio.get_running_loop().run_in_executor(self._pool, run_catching)
            future.add_done_callback(lambda _: self._release_worker())
            async with asyncio.timeout_at(deadline):
                result = await asyncio.shield(future)
        except TimeoutError:
            raise self._unavailable_error("deadline", "the translation took too long") from None
        if isinstance(result, Exception):
            raise to_api_error(result) from result
        return result

    async def drain(self) -> None:
        """Finish all accepted work, and stop the workers."""
        await self._idle.wait()
        self._pool.shutdown()

    def _submit(
        self, requests: Sequence[SegmentRequest], admission: Admission
    ) -> "dict[SegmentRequest, asyncio.Future[Translation]]":
        """Return the future of each request: of one that is queued or running, or a new one."""
        loop = asyncio.get_running_loop()
        new = {request: None for request in requests if request not in self._in_flight}
        if new:
            self._enqueue(QueuedRequest(loop.time(), sum(request.tokens for request in new), new), admission)
            self._in_flight |= {request: loop.create_future() for request in new}
        self.metrics.duplicates.inc(len(requests) - len(new))
        futures = {request: self._in_flight[request] for request in requests}
        self._waiters.update(futures.values())
        self._dispatch()
        return futures

    def _enqueue(self, queued_request: QueuedRequest, admission: Admission) -> None:
        capacity = self.config.max_queue_tokens
        if queued_request.tokens > capacity:
            self.metrics.rejections.labels("size").inc()
            raise APIError(413, f"the text has {queued_request.tokens} tokens, the queue holds at most {capacity}")
        if self.waiting_tokens + queued_request.tokens > capacity and not admission.granted:
            raise self._unavailable_error("queue", "the server is busy")
        self._queue.add(queued_request)
        self._idle.clear()
        admission.granted = True

    def _release(self, futures: "Mapping[SegmentRequest, asyncio.Future[Translation]]") -> None:
        """Stop waiting for segments; those that nobody waits for are dropped unless they run."""
        for request, future in futures.items():
            self._waiters[future] -= 1
            if self._waiters[future]:
                continue
            del self._waiters[future]
            if not future.done() and request in self._queue:
                del self._in_flight[request]
                self._queue.drop([request])
                self.metrics.dropped.inc()
        self._update_idle()

    def _update_idle(self) -> None:
        if not self._queue and self._free_workers == self._worker_count:
            self._idle.set()

    def _unavailable_error(self, reason: str, message: str) -> APIError:
        self.metrics.rejections.labels(reason).inc()
        tokens_per_second = self._tokens_per_second * self._worker_count
        seconds = math.ceil(self.waiting_tokens / tokens_per_second) if tokens_per_second else 1
        return APIError(503, message, retry_after=min(max(seconds, 1), MAX_RETRY_SECONDS))

    def _dispatch(self) -> None:
        """Start batches on free workers; an idle model first waits for requests that can share a batch."""
        loop = asyncio.get_running_loop()
        while self._free_workers and self._queue:
            window_end = self._queue.first.arrived_at + self.config.batch_window_ms / 1000
            if self.waiting_tokens < self.config.max_batch_tokens and loop.time() < window_end:
                if self._timer is None:
                    self._timer = loop.call_at(window_end, self._on_window_end)
                return
            self._start_next()

    def _on_window_end(self) -> None:
        self._timer = None
        self._dispatch()

    def _start_next(self) -> None:
        """Start the next batch, or hand the worker to the request that waits for one."""
        self._free_workers -= 1
        queued_request = self._queue.first
        if queued_request.worker_ready is not None:
            self._queue.remove(queued_request)
            queued_request.worker_ready.set_result(None)
            return
        batch = self._queue.pop_batch()
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._translate_batch, batch)
        future.add_done_callback(lambda completed: self._finish_batch(batch, *completed.result()))

    def _translate_batch(self, batch: Sequence[SegmentRequest]) -> tuple[list[Translation | Exception], float]:
        """In a worker: return the translation or the error of each segment, and the seconds it took."""
        started_at = time.monotonic()
        results = self._try_batch(batch)
        if len(batch) > 1 and isinstance(results[0], Exception):  # one bad segment must not fail the others
            results = [result for request in batch for result in self._try_batch([request])]
        return results, time.monotonic() - started_at

    def _try_batch(self, batch: Sequence[SegmentRequest]) -> list[Translation | Exception]:
        generation_config, details, glossary = batch[0].batch_key
        segments = [TextSegment(request.text, "", request.ids) for request in batch]
        prefixes = [request.prefix for request in batch]
        try:
            translate = self.translator.translate_segments
            return [*translate(segments, generation_config, prefixes, details=details, glossary=glossary)]
        except Exception as error:
            return [error] * len(batch)

    def _finish_batch(
        self, batch: Sequence[SegmentRequest], results: Sequence[Translation | Exception], seconds: float
    ) -> None:
        """Deliver and cache the results, count them, and free the worker."""
        for request, result in zip(batch, results, strict=True):
            future = self._in_flight.pop(request)
            if isinstance(result, Exception):
                self.metrics.failures.inc()
                future.set_exception(to_api_error(result))
                future.exception()  # mark as retrieved: nobody may be waiting
            else:
                future.set_result(result)
                self._cache.put(request, result)
        tokens = sum(request.tokens for request in batch)
        self.metrics.batches.inc()
        self.metrics.sentences.inc(len(batch))
        self.metrics.tokens.inc(tokens)
        self.metrics.batch_sentences.observe(len(batch))
        self.metrics.batch_seconds.observe(seconds)
        tokens_per_second = tokens / max(seconds, 1e-6)
        self._tokens_per_second = (
            0.8 * self._tokens_per_second + 0.2 * tokens_per_second if self._tokens_per_second else tokens_per_second
        )
        self._release_worker()

    def _release_worker(self) -> None:
        self._free_workers += 1
        self._dispatch()
        self._update_idle()

    async def _acquire_worker(self, tokens: int, deadline: float | None, admission: Admission) -> None:
        """Wait for a worker of one's own; ``_release_worker`` gives it back."""
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            raise TimeoutError
        worker_ready: asyncio.Future[None] = loop.create_future()
        queued_request = QueuedRequest(loop.time(), tokens, worker_ready=worker_ready)
        self._enqueue(queued_request, admission)
        self._dispatch()
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait([worker_ready])
        except BaseException:
            if worker_ready.done():
                self._release_worker()
            else:
                self._queue.remove(queued_request)
                self._update_idle()
            raise


async def stream_from_thread(
    produce_chunks: Callable[[], Iterator[str]], pool: Executor, deadline: float | None, on_finish: Callable[[], None]
) -> AsyncGenerator[str, None]:
    """Yield the chunks that a thread produces; raise TimeoutError after the deadline (event loop time).

    The thread never waits for the reader. It stops at the next chunk when the reader is gone or the deadline
    has passed; then ``on_finish`` is called in the event loop.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
    cancelled = threading.Event()

    def read_chunks() -> None:
        sentinel: Exception | None = None
        try:
            for chunk in produce_chunks():
                if cancelled.is_set() or (deadline is not None and loop.time() >= deadline):
                    return
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
        except Exception as error:
            sentinel = error
        loop.call_soon_threadsafe(queue.put_nowait, sentinel)

    reader = loop.run_in_executor(pool, read_chunks)
    reader.add_done_callback(lambda _: on_finish())
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                chunk = await queue.get()
            if chunk is None:
                break
            if isinstance(chunk, Exception):
                raise to_api_error(chunk) from chunk
            yield chunk
    finally:
        cancelled.set()
        await asyncio.shield(reader)
