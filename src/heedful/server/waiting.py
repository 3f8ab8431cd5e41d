"""The line of waiting work before one model: bounded in tokens, in turns, in batches of like length."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.text.glossary import Glossary

LOOK_AHEAD = 4
"""Budgets of waiting work among which sentences of similar length are looked for."""


@dataclass(frozen=True, slots=True)
class Work:
    """A sentence and all that decides what becomes of it."""

    text: str
    search: SearchConfig
    prefix: str = ""
    details: bool = False
    glossary: Glossary | None = None

    @property
    def kind(self) -> tuple[SearchConfig, bool, Glossary | None]:
        """What the works of one batch share."""
        return self.search, self.details, self.glossary


@dataclass(slots=True)
class Admission:
    """Whether work of a request has entered the queue: then the rest is not refused for want of room."""

    granted: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """Work that has been accepted, and how many wait for it."""

    work: Work
    tokens: int
    found: "asyncio.Future[Translation]"
    call: "Call"
    waiters: int = 0
    started: bool = False


@dataclass(slots=True, eq=False)
class Call:
    """What one request has brought; or, with ``worker``, its wish for a worker of its own."""

    arrived: float
    tokens: int = 0
    jobs: dict[Job, None] = field(default_factory=dict)
    worker: "asyncio.Future[None] | None" = None


class Line:
    """Calls in the order of their turns."""

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self.tokens = 0
        self._calls: OrderedDict[Call, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def first(self) -> Call:
        """The call whose turn it is."""
        return next(iter(self._calls))

    def add(self, call: Call) -> None:
        """A call at the end of the line."""
        self._calls[call] = None
        self.tokens += call.tokens

    def remove(self, call: Call) -> None:
        """A call for a worker that has got it, or needs it no more."""
        del self._calls[call]
        self.tokens -= call.tokens

    def drop(self, jobs: Iterable[Job]) -> None:
        """Take jobs out of the line; a call without jobs goes too."""
        for job in jobs:
            del job.call.jobs[job]
            self.tokens -= job.tokens
            if not job.call.jobs:
                del self._calls[job.call]

    def batch(self) -> list[Job]:
        """The jobs to translate next, out of the line: it is the others' turn then."""
        call = self.first
        self._calls.move_to_end(call)
        batch = self._around(next(iter(call.jobs)))
        self.drop(batch)
        return batch

    def _around(self, first: Job) -> list[Job]:
        """A batch of the first job and those nearest in length, within the budget when padded."""
        batch, longest = [first], first.tokens
        for job in sorted(self._candidates(first), key=lambda job: abs(job.tokens - first.tokens)):
            longest = max(longest, job.tokens)
            if longest * (len(batch) + 1) > self.batch_tokens:
                break
            batch.append(job)
        return batch

    def _candidates(self, first: Job) -> Iterator[Job]:
        """Others that could share its batch: one of each call, then another of each, not all of one call."""
        rows: Sequence[Iterator[Job]] = [iter(call.jobs) for call in self._calls]
        tokens = 0
        while rows and tokens < LOOK_AHEAD * self.batch_tokens:
            heads = [(row, next(row, None)) for row in rows]
            rows = [row for row, job in heads if job is not None]
            for _, job in heads:
                if job is not None and job is not first and job.work.kind == first.work.kind:
                    tokens += job.tokens
                    yield job


def total_tokens(jobs: Iterable[Job]) -> int:
    """Source tokens of the jobs."""
    return sum(job.tokens for job in jobs)
