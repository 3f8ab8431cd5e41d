"""The queue before a model: batches, turns, bounds, duplicates, deadlines, accidents."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.server.batching import Batcher
from heedful.server.config import ServerConfig
from heedful.server.refusal import RefusedError
from heedful.server.waiting import Admission
from heedful.text.sentences import Segment
from tests.server.engines import FakeEngine

GREEDY = SearchConfig(beam=1)


def with_batcher(
    work: Callable[[Batcher, FakeEngine], Awaitable[Any]], seconds: float = 0.0, **settings: Any
) -> Any:
    """Run some work with a batcher that is then drained."""

    async def run() -> Any:
        engine = FakeEngine(seconds)
        batcher = Batcher(engine, ServerConfig(**{"workers": 1, **settings}))
        result = await asyncio.wait_for(work(batcher, engine), 20)
        engine.gate.set()
        await asyncio.wait_for(batcher.drain(), 20)
        assert batcher.waiting_tokens == 0
        assert not batcher._in_flight
        return result

    return asyncio.run(run())


def texts_of(found: list[Translation]) -> list[str]:
    return [each.text for each in found]


async def busy(batcher: Batcher, engine: FakeEngine) -> "asyncio.Task[Any]":
    """Let the only worker begin with something that lasts until the gate is opened."""
    engine.gate.clear()
    task = asyncio.create_task(batcher.translate(["in the way"]))
    while not engine.calls:
        await asyncio.sleep(0.001)
    return task


def test_many_requests_make_few_batches() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        found = await asyncio.gather(*(batcher.translate([f"sentence {i}"]) for i in range(50)))
        assert [texts_of(each) for each in found] == [[f"SENTENCE {i}"] for i in range(50)]
        assert len(engine.calls) == 1
        assert batcher.statistics.batches == 1
        assert batcher.statistics.sentences == 50

    with_batcher(work, window_ms=300)  # long enough on a busy machine


def test_an_idle_model_waits_for_the_window_only() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        await batcher.translate(["one"])
        await batcher.translate(["two"])
        assert engine.calls == [["one"], ["two"]]

    with_batcher(work, window_ms=1)


def test_a_full_budget_does_not_wait() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        full = asyncio.create_task(batcher.translate([f"word {i}" for i in range(4)]))  # 3 tokens each
        await asyncio.sleep(0)
        assert batcher._timer is None
        assert batcher.waiting_tokens == 0  # with the worker, before any time has passed
        await full
        less = asyncio.create_task(batcher.translate([f"other {i}" for i in range(3)]))
        await asyncio.sleep(0)
        assert batcher._timer is not None
        assert batcher.waiting_tokens == 9
        await less
        assert engine.calls == [[f"word {i}" for i in range(4)], [f"other {i}" for i in range(3)]]

    with_batcher(work, window_ms=200, batch_tokens=12)


def test_batches_keep_the_budget_and_hold_similar_lengths() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        first = await busy(batcher, engine)
        short, long = [f"a{i}" for i in range(8)], [f"b{i} " + "word " * 14 for i in range(8)]
        mixed = [text for pair in zip(short, long, strict=True) for text in pair]
        later = asyncio.gather(*(batcher.translate([text]) for text in mixed))
        await asyncio.sleep(0.01)
        engine.gate.set()
        await first
        assert [each[0].source for each in await later] == mixed
        for call in engine.calls[1:]:
            lengths = [len(text.split()) + 1 for text in call]
            assert max(lengths) * len(lengths) <= 64
        # 8 * 2 tokens fit with a long one or two at most; padding all together would take many more.
        assert [len(call) for call in engine.calls[1:]] != [1] * 16
        assert set(engine.calls[1]) >= set(short)

    with_batcher(work, batch_tokens=64)


def test_other_settings_make_another_batch() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        await asyncio.gather(
            batcher.translate(["one"], GREEDY),
            batcher.translate(["two"]),
            batcher.translate(["three"], GREEDY),
        )
        assert sorted(map(sorted, engine.calls)) == [["one", "three"], ["two"]]

    with_batcher(work)


def test_details_make_another_batch() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        await asyncio.gather(
            batcher.translate(["one"], details=True),
            batcher.translate(["two"]),
            batcher.translate(["three"], details=True),
        )
        assert sorted(map(sorted, engine.calls)) == [["one", "three"], ["two"]]

    with_batcher(work)


def test_what_is_remembered_or_shared_admits_nothing() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        await batcher.translate(["known"])
        engine.calls.clear()
        first = await busy(batcher, engine)
        waiting = asyncio.create_task(batcher.translate(["a b c d e f g"]))  # 8 tokens
        await asyncio.sleep(0)
        admission = Admission()
        await batcher.translate(["known"], admission=admission)
        assert not admission.granted
        shared = asyncio.create_task(batcher.translate(["a b c d e f g"], admission=admission))
        await asyncio.sleep(0)
        assert not admission.granted
        with pytest.raises(RefusedError):
            await batcher.translate(["h i"], admission=admission)
        assert not admission.granted
        small = asyncio.create_task(batcher.translate(["h"], admission=admission))
        await asyncio.sleep(0)
        assert admission.granted
        engine.gate.set()
        await asyncio.gather(first, waiting, shared, small)

    with_batcher(work, queue_tokens=10)


def test_what_does_not_fit_is_refused_at_once() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        first = await busy(batcher, engine)
        waiting = asyncio.create_task(batcher.translate(["a b c d e f g"]))  # 8 tokens
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            await batcher.translate(["h i"])
        assert refused.value.status == 503
        assert refused.value.retry_after == 1
        assert batcher.waiting_tokens == 8
        admitted = asyncio.create_task(batcher.translate(["h i"], admission=Admission(True)))
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        assert texts_of(await waiting) == ["A B C D E F G"]
        assert texts_of(await admitted) == ["H I"]
        assert batcher.statistics.refusals == {"queue": 1}

    with_batcher(work, queue_tokens=10)


def test_what_can_never_fit_is_too_large() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        with pytest.raises(RefusedError) as refused:
            await batcher.translate(["word " * 20])
        assert refused.value.status == 413

    with_batcher(work, queue_tokens=10)


def test_duplicates_are_translated_once() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        found = await asyncio.gather(*(batcher.translate(["same", "same"]) for _ in range(5)))
        assert [texts_of(each) for each in found] == [["SAME", "SAME"]] * 5
        assert engine.calls == [["same"]]
        assert batcher.statistics.duplicates == 9
        await batcher.translate(["same"])
        assert batcher.statistics.cached == 1
        await batcher.translate(["same"], GREEDY)  # other settings are another matter
        await batcher.translate(["same"], GREEDY, ["prefix"])
        assert len(engine.calls) == 3

    with_batcher(work)


def test_the_cache_is_bounded() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        for text in ("one", "two", "one", "three", "two"):
            await batcher.translate([text])
        assert engine.calls == [["one"], ["two"], ["three"], ["two"]]
        assert len(batcher._memory) == 2

    with_batcher(work, cache_entries=2, window_ms=0)


def test_a_long_request_does_not_hold_up_a_short_one() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        long = asyncio.create_task(batcher.translate([f"long sentence {i}" for i in range(400)]))
        await asyncio.sleep(0.001)
        short = await asyncio.gather(*(batcher.translate([f"short sentence {i}"]) for i in range(3)))
        assert len(short) == 3
        assert not long.done()
        assert len(engine.calls) <= 4
        assert len(await long) == 400

    with_batcher(work, seconds=0.02, batch_tokens=32, window_ms=0)


def test_expired_work_is_dropped() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        first = await busy(batcher, engine)
        with pytest.raises(RefusedError) as refused:
            await batcher.translate(["too late"], deadline=asyncio.get_running_loop().time() + 0.02)
        assert refused.value.status == 503
        assert batcher.waiting_tokens == 0
        engine.gate.set()
        await first
        assert engine.calls == [["in the way"]]
        assert batcher.statistics.dropped == 1

    with_batcher(work)


def test_abandoned_work_is_dropped_unless_another_wants_it() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        first = await busy(batcher, engine)
        gone = asyncio.create_task(batcher.translate(["mine alone", "shared"]))
        await asyncio.sleep(0)
        stays = asyncio.create_task(batcher.translate(["shared"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        engine.gate.set()
        await first
        assert texts_of(await stays) == ["SHARED"]
        assert engine.calls == [["in the way"], ["shared"]]

    with_batcher(work)


def test_the_work_of_one_gone_while_it_runs_is_no_harm() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        first = await busy(batcher, engine)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        engine.gate.set()
        assert texts_of(await batcher.translate(["after"])) == ["AFTER"]

    with_batcher(work)


def test_an_accident_fails_only_its_own_sentence() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        found = await asyncio.gather(
            *(batcher.translate([text]) for text in ("good", "poison", "fine")), return_exceptions=True
        )
        good, bad, fine = found
        assert isinstance(good, list)
        assert texts_of(good) == ["GOOD"]
        assert isinstance(fine, list)
        assert texts_of(fine) == ["FINE"]
        assert isinstance(bad, RefusedError)
        assert bad.status == 500
        assert "poison" not in bad.message
        assert texts_of(await batcher.translate(["later"])) == ["LATER"]
        assert batcher.statistics.failures == 1

    with_batcher(work)


def test_drain_finishes_what_was_accepted() -> None:
    async def run() -> None:
        engine = FakeEngine(0.02)
        batcher = Batcher(engine, ServerConfig(workers=1, batch_tokens=4))
        tasks = [asyncio.create_task(batcher.translate([f"text {i}"])) for i in range(6)]
        await asyncio.sleep(0)
        await asyncio.wait_for(batcher.drain(), 10)
        assert [texts_of(await task) for task in tasks] == [[f"TEXT {i}"] for i in range(6)]

    asyncio.run(run())


def test_workers_work_at_the_same_time() -> None:
    async def work(batcher: Batcher, engine: FakeEngine) -> None:
        engine.gate.clear()
        task = asyncio.create_task(batcher.translate([f"text {i}" for i in range(4)]))
        while len(engine.calls) < 4:  # all four are inside; one after the other they would wait for ever
            await asyncio.sleep(0.01)
        engine.gate.set()
        assert texts_of(await task) == [f"TEXT {i}" for i in range(4)]

    with_batcher(work, workers=4, batch_tokens=3)


class TestStream:
    SEGMENTS = (Segment("one two", "\n"), Segment("three", ""))

    def test_parts_make_the_text(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            parts = [part async for part in batcher.stream(self.SEGMENTS, GREEDY)]
            assert parts == ["ONE ", "TWO ", "\n", "THREE ", ""]

        with_batcher(work)

    def test_streams_and_batches_take_turns(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            stream = batcher.stream([Segment("one two", "\n")] * 200, GREEDY)
            assert await anext(stream) == "ONE "
            other = asyncio.create_task(batcher.translate(["other"]))
            rest = [(part, other.done()) async for part in stream]
            assert other.done()  # between two of the segments, not after the last
            assert not rest[0][1]
            assert len(rest) == 200 * 3 - 1

        with_batcher(work, window_ms=0, seconds=0.001)

    def test_a_stream_left_alone_frees_its_worker(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            stream = batcher.stream([Segment("word " * 1000, "")], GREEDY)
            assert await anext(stream) == "WORD "
            await stream.aclose()
            assert texts_of(await batcher.translate(["other"])) == ["OTHER"]

        with_batcher(work, seconds=0.001)

    def test_a_slow_reader_holds_no_worker(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            stream = batcher.stream(self.SEGMENTS, GREEDY)
            assert await anext(stream) == "ONE "
            assert texts_of(await batcher.translate(["other"])) == ["OTHER"]
            assert [part async for part in stream] == ["TWO ", "\n", "THREE ", ""]

        with_batcher(work)

    def test_a_stream_ends_at_its_deadline(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 1
            stream = batcher.stream([Segment("word " * 20_000, "")], GREEDY, deadline=deadline)
            assert await anext(stream) == "WORD "
            assert texts_of(await batcher.translate(["other"])) == ["OTHER"]  # the worker is free again
            assert loop.time() >= deadline
            with pytest.raises(RefusedError, match="too long"):
                _ = [part async for part in stream]
            short = batcher.stream(self.SEGMENTS, GREEDY, deadline=loop.time() + 1)
            assert [await anext(short) for _ in range(2)] == ["ONE ", "TWO "]
            await asyncio.sleep(1)
            with pytest.raises(RefusedError, match="too long"):
                _ = [part async for part in short]
            assert batcher.statistics.refusals == {"deadline": 2}

        with_batcher(work, seconds=0.001)

    def test_accidents_and_bounds(self) -> None:
        async def work(batcher: Batcher, engine: FakeEngine) -> None:
            with pytest.raises(RefusedError) as refused:
                _ = [part async for part in batcher.stream([Segment("a poison", "")], GREEDY)]
            assert refused.value.status == 500
            first = await busy(batcher, engine)
            waiting = asyncio.create_task(batcher.translate(["a b c d e f g"]))
            await asyncio.sleep(0)
            for segment, status in (("h i", 503), ("h i " * 9, 413)):
                with pytest.raises(RefusedError) as refused:
                    await anext(batcher.stream([Segment(segment, "")], GREEDY))
                assert refused.value.status == status
            late = asyncio.get_running_loop().time() + 0.01
            with pytest.raises(RefusedError):
                await anext(batcher.stream([Segment("h", "")], GREEDY, deadline=late))
            engine.gate.set()
            await asyncio.gather(first, waiting)

        with_batcher(work, queue_tokens=10)
