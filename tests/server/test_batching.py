"""The queue of a model: batches, turns, limits, duplicates, deadlines, failures."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from heedful.generation.config import GenerationConfig
from heedful.inference.translation import Translation
from heedful.server.api_errors import APIError
from heedful.server.batching import Admission, Batcher
from heedful.server.config import ServerConfig
from heedful.tokenization.sentence_splitter import TextSegment
from tests.server.fake_translators import FakeTranslator, add_ids

GREEDY = GenerationConfig(beam_size=1)


def with_batcher(
    work: Callable[[Batcher, FakeTranslator], Awaitable[Any]], seconds: float = 0.0, **settings: Any
) -> Any:
    """Run some work with a batcher that is then drained."""

    async def run() -> Any:
        engine = FakeTranslator(seconds)
        batcher = Batcher(engine, ServerConfig(**{"workers": 1, **settings}))
        result = await asyncio.wait_for(work(batcher, engine), 20)
        engine.gate.set()
        await asyncio.wait_for(batcher.drain(), 20)
        assert batcher.waiting_tokens == 0
        assert not batcher._in_flight
        return result

    return asyncio.run(run())


def texts_of(outcome: list[Translation]) -> list[str]:
    return [item.text for item in outcome]


async def translate(batcher: Batcher, texts: Sequence[str], *arguments: Any, **options: Any) -> list[Translation]:
    return await batcher.translate([add_ids(TextSegment(text, "")) for text in texts], *arguments, **options)


async def busy(batcher: Batcher, engine: FakeTranslator) -> "asyncio.Task[Any]":
    """Let the only worker begin with something that lasts until the gate is opened."""
    engine.gate.clear()
    task = asyncio.create_task(translate(batcher, ["in the way"]))
    while not engine.batches:
        await asyncio.sleep(0.001)
    return task


def test_translate_concurrent_requests_share_one_batch() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        outcome = await asyncio.gather(*(translate(batcher, [f"sentence {i}"]) for i in range(50)))
        assert [texts_of(item) for item in outcome] == [[f"SENTENCE {i}"] for i in range(50)]
        assert len(engine.batches) == 1
        assert batcher.metrics.batches == 1
        assert batcher.metrics.sentences == 50

    with_batcher(work, batch_window_ms=300)  # long enough on a busy machine


def test_translate_idle_model_waits_only_for_window() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        await translate(batcher, ["one"])
        await translate(batcher, ["two"])
        assert engine.batches == [["one"], ["two"]]

    with_batcher(work, batch_window_ms=1)


def test_translate_full_batch_starts_without_waiting() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        full = asyncio.create_task(translate(batcher, [f"word {i}" for i in range(4)]))  # 3 tokens each
        await asyncio.sleep(0)
        assert batcher._timer is None
        assert batcher.waiting_tokens == 0  # with the worker, before any time has passed
        await full
        less = asyncio.create_task(translate(batcher, [f"other {i}" for i in range(3)]))
        await asyncio.sleep(0)
        assert batcher._timer is not None
        assert batcher.waiting_tokens == 9
        await less
        assert engine.batches == [[f"word {i}" for i in range(4)], [f"other {i}" for i in range(3)]]

    with_batcher(work, batch_window_ms=200, max_batch_tokens=12)


def test_batch_mixed_lengths_fits_budget_and_groups_similar() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await busy(batcher, engine)
        short, long = [f"a{i}" for i in range(8)], [f"b{i} " + "word " * 14 for i in range(8)]
        mixed = [text for pair in zip(short, long, strict=True) for text in pair]
        later = asyncio.gather(*(translate(batcher, [text]) for text in mixed))
        await asyncio.sleep(0.01)
        engine.gate.set()
        await first
        assert [item[0].source for item in await later] == mixed
        for call in engine.batches[1:]:
            lengths = [len(text.split()) + 1 for text in call]
            assert max(lengths) * len(lengths) <= 64
        # 8 * 2 tokens fit with a long one or two at most; padding all together would take many more.
        assert [len(call) for call in engine.batches[1:]] != [1] * 16
        assert set(engine.batches[1]) >= set(short)

    with_batcher(work, max_batch_tokens=64)


def test_batch_different_settings_are_separate() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        await asyncio.gather(
            translate(batcher, ["one"], GREEDY), translate(batcher, ["two"]), translate(batcher, ["three"], GREEDY)
        )
        assert sorted(map(sorted, engine.batches)) == [["one", "three"], ["two"]]

    with_batcher(work)


def test_batch_different_details_are_separate() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        await asyncio.gather(
            translate(batcher, ["one"], details=True),
            translate(batcher, ["two"]),
            translate(batcher, ["three"], details=True),
        )
        assert sorted(map(sorted, engine.batches)) == [["one", "three"], ["two"]]

    with_batcher(work)


def test_admission_cached_or_shared_segment_not_granted() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        await translate(batcher, ["known"])
        engine.batches.clear()
        first = await busy(batcher, engine)
        waiting = asyncio.create_task(translate(batcher, ["a b c d e f g"]))  # 8 tokens
        await asyncio.sleep(0)
        admission = Admission()
        await translate(batcher, ["known"], admission=admission)
        assert not admission.granted
        shared = asyncio.create_task(translate(batcher, ["a b c d e f g"], admission=admission))
        await asyncio.sleep(0)
        assert not admission.granted
        with pytest.raises(APIError):
            await translate(batcher, ["h i"], admission=admission)
        assert not admission.granted
        small = asyncio.create_task(translate(batcher, ["h"], admission=admission))
        await asyncio.sleep(0)
        assert admission.granted
        engine.gate.set()
        await asyncio.gather(first, waiting, shared, small)

    with_batcher(work, max_queue_tokens=10)


def test_queue_full_rejects_with_503() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await busy(batcher, engine)
        waiting = asyncio.create_task(translate(batcher, ["a b c d e f g"]))  # 8 tokens
        await asyncio.sleep(0)
        with pytest.raises(APIError) as refused:
            await translate(batcher, ["h i"])
        assert refused.value.status == 503
        assert refused.value.retry_after == 1
        assert batcher.waiting_tokens == 8
        admitted = asyncio.create_task(translate(batcher, ["h i"], admission=Admission(True)))
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        assert texts_of(await waiting) == ["A B C D E F G"]
        assert texts_of(await admitted) == ["H I"]
        assert batcher.metrics.rejections == {"queue": 1}

    with_batcher(work, max_queue_tokens=10)


def test_queue_oversized_text_rejects_with_413() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        with pytest.raises(APIError) as refused:
            await translate(batcher, ["word " * 20])
        assert refused.value.status == 413

    with_batcher(work, max_queue_tokens=10)


def test_translate_duplicates_run_once() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        outcome = await asyncio.gather(*(translate(batcher, ["same", "same"]) for _ in range(5)))
        assert [texts_of(item) for item in outcome] == [["SAME", "SAME"]] * 5
        assert engine.batches == [["same"]]
        assert batcher.metrics.duplicates == 9
        await translate(batcher, ["same"])
        assert batcher.metrics.cached == 1
        await translate(batcher, ["same"], GREEDY)  # other settings are another matter
        await translate(batcher, ["same"], GREEDY, ["prefix"])
        assert len(engine.batches) == 3

    with_batcher(work)


def test_cache_full_evicts_least_recently_used() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        for text in ("one", "two", "one", "three", "two"):
            await translate(batcher, [text])
        assert engine.batches == [["one"], ["two"], ["three"], ["two"]]
        assert len(batcher._cache) == 2

    with_batcher(work, cache_entries=2, batch_window_ms=0)


def test_queue_long_request_does_not_delay_short_ones() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        long = asyncio.create_task(translate(batcher, [f"long sentence {i}" for i in range(400)]))
        await asyncio.sleep(0.001)
        short = await asyncio.gather(*(translate(batcher, [f"short sentence {i}"]) for i in range(3)))
        assert len(short) == 3
        assert not long.done()
        assert len(engine.batches) <= 4
        assert len(await long) == 400

    with_batcher(work, seconds=0.02, max_batch_tokens=32, batch_window_ms=0)


def test_queue_deadline_passed_drops_segment() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await busy(batcher, engine)
        with pytest.raises(APIError) as refused:
            await translate(batcher, ["too late"], deadline=asyncio.get_running_loop().time() + 0.02)
        assert refused.value.status == 503
        assert batcher.waiting_tokens == 0
        engine.gate.set()
        await first
        assert engine.batches == [["in the way"]]
        assert batcher.metrics.dropped == 1

    with_batcher(work)


def test_queue_cancelled_request_drops_unshared_segments() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await busy(batcher, engine)
        gone = asyncio.create_task(translate(batcher, ["mine alone", "shared"]))
        await asyncio.sleep(0)
        stays = asyncio.create_task(translate(batcher, ["shared"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        engine.gate.set()
        await first
        assert texts_of(await stays) == ["SHARED"]
        assert engine.batches == [["in the way"], ["shared"]]

    with_batcher(work)


def test_translate_cancelled_while_running_frees_worker() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await busy(batcher, engine)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        engine.gate.set()
        assert texts_of(await translate(batcher, ["after"])) == ["AFTER"]

    with_batcher(work)


def test_batch_failing_segment_fails_alone() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        outcome = await asyncio.gather(
            *(translate(batcher, [text]) for text in ("good", "poison", "fine")), return_exceptions=True
        )
        good, bad, fine = outcome
        assert isinstance(good, list)
        assert texts_of(good) == ["GOOD"]
        assert isinstance(fine, list)
        assert texts_of(fine) == ["FINE"]
        assert isinstance(bad, APIError)
        assert bad.status == 500
        assert "poison" not in bad.message
        assert texts_of(await translate(batcher, ["later"])) == ["LATER"]
        assert batcher.metrics.failures == 1

    with_batcher(work)


def test_drain_finishes_accepted_requests() -> None:
    async def run() -> None:
        engine = FakeTranslator(0.02)
        batcher = Batcher(engine, ServerConfig(workers=1, max_batch_tokens=4))
        tasks = [asyncio.create_task(translate(batcher, [f"text {i}"])) for i in range(6)]
        await asyncio.sleep(0)
        await asyncio.wait_for(batcher.drain(), 10)
        assert [texts_of(await task) for task in tasks] == [[f"TEXT {i}"] for i in range(6)]

    asyncio.run(run())


def test_workers_run_batches_in_parallel() -> None:
    async def work(batcher: Batcher, engine: FakeTranslator) -> None:
        engine.gate.clear()
        task = asyncio.create_task(translate(batcher, [f"text {i}" for i in range(4)]))
        while len(engine.batches) < 4:  # all four are inside; one after the other they would wait for ever
            await asyncio.sleep(0.01)
        engine.gate.set()
        assert texts_of(await task) == [f"TEXT {i}" for i in range(4)]

    with_batcher(work, workers=4, max_batch_tokens=3)


class TestStream:
    SEGMENTS = (add_ids(TextSegment("one two", "\n")), add_ids(TextSegment("three", "")))

    def test_stream_chunks_join_to_text(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            parts = [part async for part in batcher.stream(self.SEGMENTS, GREEDY)]
            assert parts == ["ONE ", "TWO ", "\n", "THREE ", ""]

        with_batcher(work)

    def test_stream_and_batches_take_turns(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream([add_ids(TextSegment("one two", "\n"))] * 200, GREEDY)
            assert await anext(stream) == "ONE "
            other = asyncio.create_task(translate(batcher, ["other"]))
            rest = [(part, other.done()) async for part in stream]
            assert other.done()  # between two of the segments, not after the last
            assert not rest[0][1]
            assert len(rest) == 200 * 3 - 1

        with_batcher(work, batch_window_ms=0, seconds=0.001)

    def test_stream_closed_frees_worker(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream([add_ids(TextSegment("word " * 1000, ""))], GREEDY)
            assert await anext(stream) == "WORD "
            await stream.aclose()
            assert texts_of(await translate(batcher, ["other"])) == ["OTHER"]

        with_batcher(work, seconds=0.001)

    def test_stream_slow_reader_holds_no_worker(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream(self.SEGMENTS, GREEDY)
            assert await anext(stream) == "ONE "
            assert texts_of(await translate(batcher, ["other"])) == ["OTHER"]
            assert [part async for part in stream] == ["TWO ", "\n", "THREE ", ""]

        with_batcher(work)

    def test_stream_deadline_passed_raises(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 1
            stream = batcher.stream([add_ids(TextSegment("word " * 20_000, ""))], GREEDY, deadline=deadline)
            assert await anext(stream) == "WORD "
            assert texts_of(await translate(batcher, ["other"])) == ["OTHER"]  # the worker is free again
            assert loop.time() >= deadline
            with pytest.raises(APIError, match="too long"):
                _ = [part async for part in stream]
            short = batcher.stream(self.SEGMENTS, GREEDY, deadline=loop.time() + 1)
            assert [await anext(short) for _ in range(2)] == ["ONE ", "TWO "]
            await asyncio.sleep(1)
            with pytest.raises(APIError, match="too long"):
                _ = [part async for part in short]
            assert batcher.metrics.rejections == {"deadline": 2}

        with_batcher(work, seconds=0.001)

    def test_stream_failure_or_full_queue_raises(self) -> None:
        async def work(batcher: Batcher, engine: FakeTranslator) -> None:
            with pytest.raises(APIError) as refused:
                _ = [part async for part in batcher.stream([add_ids(TextSegment("a poison", ""))], GREEDY)]
            assert refused.value.status == 500
            first = await busy(batcher, engine)
            waiting = asyncio.create_task(translate(batcher, ["a b c d e f g"]))
            await asyncio.sleep(0)
            for segment, status in (("h i", 503), ("h i " * 9, 413)):
                with pytest.raises(APIError) as refused:
                    await anext(batcher.stream([add_ids(TextSegment(segment, ""))], GREEDY))
                assert refused.value.status == status
            late = asyncio.get_running_loop().time() + 0.01
            with pytest.raises(APIError):
                await anext(batcher.stream([add_ids(TextSegment("h", ""))], GREEDY, deadline=late))
            engine.gate.set()
            await asyncio.gather(first, waiting)

        with_batcher(work, max_queue_tokens=10)
