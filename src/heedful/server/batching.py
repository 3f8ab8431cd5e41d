"""Dynamic batching with admission: many small requests become few batches, and never more than fit.

Waiting work is counted in source tokens and bounded; what does not fit is refused at once. Requests take
turns, so that a long text delays a short one by a batch, not by its length. The same sentence with the same
settings is translated once while it waits, and remembered after. When nobody waits for it any more (the
client is gone, the deadline has passed) it is dropped before it runs.

All state belongs to the event loop's thread; only ``_translated`` runs in workers.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeVar

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine, Translation
from heedful.server.config import ServerConfig
from heedful.server.refusal import RefusedError
from heedful.server.remembering import Memory
from heedful.server.statistics import BatcherStatistics
from heedful.server.streaming import failure, pumped
from heedful.server.waiting import Admission, Call, Job, Line, Work, total_tokens
from heedful.text.glossary import Glossary
from heedful.text.sentences import Segment
from heedful.training.devices import available_cores

LONGEST_RETRY = 60
T = TypeVar("T")


class ServedEngine(Engine, Protocol):
    """An engine that also says how it splits a text, so that each part can wait for its own batch."""

    def segments(self, text: str) -> list[Segment]:
        """The text in parts that the model can take, with the white space between them."""
        ...


class Batcher:
    """The queue before one model."""

    def __init__(self, engine: ServedEngine, config: ServerConfig) -> None:
        self.engine, self.config = engine, config
        self.statistics = BatcherStatistics()
        self._line = Line(config.batch_tokens)
        self._workers = self._free = config.workers or available_cores()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="translate")
        self._in_flight: dict[Work, Job] = {}
        self._memory = Memory(config.cache_entries, config.cache_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._speed = 0.0  # tokens a second of one worker, smoothed; 0 before the first batch

    @property
    def waiting_tokens(self) -> int:
        """Source tokens in the queue."""
        return self._line.tokens

    async def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        deadline: float | None = None,
        admission: Admission | None = None,
        glossary: Glossary | None = None,
    ) -> list[Translation]:
        """Translate each text, in batches with what others have brought.

        ``deadline`` is a time of the event loop. With a granted ``admission`` the work belongs to a request
        that was let in before: it is not refused for want of room. What was remembered grants none.
        """
        settings = search or self.engine.bundle.config.search
        works = [
            Work(text, settings, prefix, details, glossary if glossary and glossary.terms(text) else None)
            for text, prefix in zip(texts, prefixes or [""] * len(texts), strict=True)
        ]
        known = {work: found for work in works if (found := self._memory.get(work)) is not None}
        self.statistics.cached += sum(work in known for work in works)
        jobs = self._entered([work for work in works if work not in known], admission or Admission())
        try:
            async with asyncio.timeout_at(deadline):
                await _all(job.found for job in jobs.values())
        except TimeoutError:
            raise self._refused("deadline", "the translation took too long") from None
        finally:
            self._leave(jobs.values())
        return [known[work] if work in known else jobs[work].found.result() for work in works]

    async def stream(
        self,
        segments: Sequence[Segment],
        search: SearchConfig,
        prefix: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[str, None]:
        """The translation of a text bit by bit; others have their turn after each segment.

        A worker is held while it writes a segment, not while the client is slow to read it.
        """
        admission = Admission()
        for segment in segments:
            if segment.text:
                parts = self._streamed(segment.text, search, prefix, deadline, admission)
                async with aclosing(parts):
                    async for part in parts:
                        yield part
                prefix = ""
            yield segment.separator

    async def _streamed(
        self, text: str, search: SearchConfig, prefix: str, deadline: float | None, admission: Admission
    ) -> AsyncGenerator[str, None]:
        try:
            await self._turn(self.count(text), deadline, admission)
            read = partial(self.engine.stream, text, search, prefix)
            parts = pumped(read, self._pool, deadline, self._release)
            async with aclosing(parts):
                async for part in parts:
                    yield part
        except TimeoutError:
            raise self._refused("deadline", "the translation took too long") from None

    async def run(self, work: Callable[[], T], tokens: int, deadline: float) -> T:
        """Some other work with the model, in a worker of its own, when its turn comes.

        It cannot be stopped half-way: the worker is held until it has ended, even if nobody waits any more.
        """

        def tried() -> T | Exception:
            try:
                return work()
            except Exception as error:
                return error

        try:
            await self._turn(tokens, deadline, Admission())
            running = asyncio.get_running_loop().run_in_executor(self._pool, tried)
            running.add_done_callback(lambda _: self._release())
            async with asyncio.timeout_at(deadline):
                found = await asyncio.shield(running)
        except TimeoutError:
            raise self._refused("deadline", "the translation took too long") from None
        if isinstance(found, Exception):
            raise failure(found) from found
        return found

    def count(self, text: str) -> int:
        """Source tokens of a text, with the one that ends it."""
        return len(self.engine.bundle.tokenizer.source.encode(text)) + 1

    async def drain(self) -> None:
        """Finish all that has been accepted, and stop."""
        await self._idle.wait()
        self._pool.shutdown()

    # ---- coming and going

    def _entered(self, works: Sequence[Work], admission: Admission) -> dict[Work, Job]:
        """The job of each work: one that is under way already, or a new one in the queue."""
        loop = asyncio.get_running_loop()
        call = Call(loop.time())
        new = [
            Job(work, self.count(work.text), loop.create_future(), call)
            for work in dict.fromkeys(works)
            if work not in self._in_flight
        ]
        if new:
            call.jobs, call.tokens = dict.fromkeys(new), total_tokens(new)
            self._enqueue(call, admission)
            self._in_flight |= {job.work: job for job in new}
        self.statistics.duplicates += len(works) - len(new)
        jobs = {work: self._in_flight[work] for work in works}
        for job in jobs.values():
            job.waiters += 1
        self._wake()
        return jobs

    def _enqueue(self, call: Call, admission: Admission) -> None:
        room = self.config.queue_tokens
        if call.tokens > room:
            self.statistics.refusals["size"] += 1
            raise RefusedError(413, f"the text has {call.tokens} tokens, and at most {room} can wait")
        if self.waiting_tokens + call.tokens > room and not admission.granted:
            raise self._refused("queue", "the server is busy")
        self._line.add(call)
        self._idle.clear()
        admission.granted = True

    def _leave(self, jobs: Iterable[Job]) -> None:
        """One fewer waits for these; what nobody waits for is dropped before it runs."""
        for job in jobs:
            job.waiters -= 1
            if not job.waiters and not job.started:
                del self._in_flight[job.work]
                self._line.drop([job])
                self.statistics.dropped += 1
        self._rest()

    def _rest(self) -> None:
        if not self._line and self._free == self._workers:
            self._idle.set()

    def _refused(self, reason: str, message: str) -> RefusedError:
        self.statistics.refusals[reason] += 1
        speed = self._speed * self._workers
        seconds = math.ceil(self.waiting_tokens / speed) if speed else 1
        return RefusedError(503, message, retry_after=min(max(seconds, 1), LONGEST_RETRY))

    # ---- queue to workers and back

    def _wake(self) -> None:
        """Give waiting work to free workers; little that has just come waits for more to share a batch."""
        loop = asyncio.get_running_loop()
        while self._free and self._line:
            due = self._line.first.arrived + self.config.window_ms / 1000
            if self.waiting_tokens < self.config.batch_tokens and loop.time() < due:
                if self._timer is None:
                    self._timer = loop.call_at(due, self._window_over)
                return
            self._launch()

    def _window_over(self) -> None:
        self._timer = None
        self._wake()

    def _launch(self) -> None:
        """Put a worker to the work whose turn it is."""
        self._free -= 1
        call = self._line.first
        if call.worker is not None:
            self._line.remove(call)
            call.worker.set_result(None)
            return
        batch = self._line.batch()
        for job in batch:
            job.started = True
        running = asyncio.get_running_loop().run_in_executor(self._pool, self._translated, batch)
        running.add_done_callback(lambda done: self._finish(batch, *done.result()))

    def _translated(self, batch: Sequence[Job]) -> tuple[list[Translation | Exception], float]:
        """In a worker: each job's translation or what went wrong with it, and the seconds it took."""
        begun = time.monotonic()
        found = self._tried(batch)
        if len(batch) > 1 and isinstance(found[0], Exception):  # one bad sentence must not fail the others
            found = [result for job in batch for result in self._tried([job])]
        return found, time.monotonic() - begun

    def _tried(self, batch: Sequence[Job]) -> list[Translation | Exception]:
        search, details, glossary = batch[0].work.kind
        texts, prefixes = [job.work.text for job in batch], [job.work.prefix for job in batch]
        try:
            return [*self.engine.translate(texts, search, prefixes, details=details, glossary=glossary)]
        except Exception as error:
            return [error] * len(batch)

    def _finish(self, batch: Sequence[Job], found: Sequence[Translation | Exception], seconds: float) -> None:
        """Hand the results out, and the worker to whoever is next."""
        for job, result in zip(batch, found, strict=True):
            del self._in_flight[job.work]
            if isinstance(result, Exception):
                self.statistics.failures += 1
                job.found.set_exception(failure(result))
                job.found.exception()  # seen: nobody may be waiting any more
            else:
                job.found.set_result(result)
                self._memory.put(job.work, result)
        self._count_batch(batch, seconds)
        self._release()

    def _count_batch(self, batch: Sequence[Job], seconds: float) -> None:
        tokens = total_tokens(batch)
        self.statistics.batches += 1
        self.statistics.sentences += len(batch)
        self.statistics.tokens += tokens
        self.statistics.batch_sentences.add(len(batch))
        self.statistics.batch_seconds.add(seconds)
        speed = tokens / max(seconds, 1e-6)
        self._speed = 0.8 * self._speed + 0.2 * speed if self._speed else speed

    def _release(self) -> None:
        self._free += 1
        self._wake()
        self._rest()

    async def _turn(self, tokens: int, deadline: float | None, admission: Admission) -> None:
        """Wait for a worker of one's own, which ``_release`` gives back."""
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            raise TimeoutError
        turn: asyncio.Future[None] = loop.create_future()
        call = Call(loop.time(), tokens, worker=turn)
        self._enqueue(call, admission)
        self._wake()
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait([turn])
        except BaseException:
            if turn.done():
                self._release()
            else:
                self._line.remove(call)
                self._rest()
            raise


async def _all(futures: Iterable["asyncio.Future[Translation]"]) -> None:
    """Wait for all, or for the first that fails; leave them be if nobody waits any more."""
    waiting = set(futures)
    if waiting:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        for future in waiting:
            if future.done():
                future.result()
