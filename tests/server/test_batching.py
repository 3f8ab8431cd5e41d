"""The request queue of a model: batches, fairness, limits, duplicates, deadlines, failures."""

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
from tests.server.server_process import SECONDS, read_value

GREEDY = GenerationConfig(beam_size=1)


def run_with_batcher(
    scenario: Callable[[Batcher, FakeTranslator], Awaitable[Any]], seconds: float = 0.0, **settings: Any
) -> Any:
    """Run a scenario with a batcher, which is then drained."""

    async def run() -> Any:
        engine = FakeTranslator(seconds)
        batcher = Batcher(engine, ServerConfig(**{"workers": 1, **settings}))
        result = await asyncio.wait_for(scenario(batcher, engine), SECONDS)
        engine.gate.set()
        await asyncio.wait_for(batcher.drain(), SECONDS)
        assert batcher.waiting_tokens == 0
        assert not batcher._in_flight
        return result

    return asyncio.run(run())


def get_texts(translations: list[Translation]) -> list[str]:
    return [translation.text for translation in translations]


async def translate(batcher: Batcher, texts: Sequence[str], *args: Any, **options: Any) -> list[Translation]:
    return await batcher.translate([add_ids(TextSegment(text, "")) for text in texts], *args, **options)


async def block_worker(batcher: Batcher, engine: FakeTranslator) -> "asyncio.Task[Any]":
    """Let the only worker start a batch that lasts until the gate is opened."""
    engine.gate.clear()
    task = asyncio.create_task(translate(batcher, ["blocking"]))
    while not engine.batches:
        await asyncio.sleep(0.001)
    return task


def test_translate_concurrent_requests_share_one_batch() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        tasks = [asyncio.create_task(translate(batcher, [f"sentence {i}"])) for i in range(50)]
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        assert [get_texts(await task) for task in tasks] == [[f"SENTENCE {i}"] for i in range(50)]
        assert [len(batch) for batch in engine.batches] == [1, 50]
        assert read_value(batcher.metrics.batches) == 2
        assert read_value(batcher.metrics.sentences) == 51

    run_with_batcher(scenario)


def test_translate_idle_model_waits_only_for_window() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        await translate(batcher, ["one"])
        await translate(batcher, ["two"])
        assert engine.batches == [["one"], ["two"]]

    run_with_batcher(scenario, batch_window_ms=1)


def test_translate_full_batch_starts_without_waiting() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
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

    run_with_batcher(scenario, batch_window_ms=200, max_batch_tokens=12)


def test_batch_mixed_lengths_fits_budget_and_groups_similar() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        short, long = [f"a{i}" for i in range(8)], [f"b{i} " + "word " * 14 for i in range(8)]
        mixed = [text for pair in zip(short, long, strict=True) for text in pair]
        tasks = asyncio.gather(*(translate(batcher, [text]) for text in mixed))
        while batcher.waiting_tokens < 8 * 2 + 8 * 16:
            await asyncio.sleep(0.001)
        engine.gate.set()
        await first
        assert [translations[0].source for translations in await tasks] == mixed
        for batch in engine.batches[1:]:
            lengths = [len(text.split()) + 1 for text in batch]
            assert max(lengths) * len(lengths) <= 64
        # The short sentences fit into one batch; padded to the length of the long ones they would not.
        assert [len(batch) for batch in engine.batches[1:]] != [1] * 16
        assert set(engine.batches[1]) >= set(short)

    run_with_batcher(scenario, max_batch_tokens=64)


def test_batch_different_settings_are_separate() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        tasks = [
            asyncio.create_task(translate(batcher, [text], config))
            for text, config in (("one", GREEDY), ("two", None), ("three", GREEDY))
        ]
        await asyncio.sleep(0)
        engine.gate.set()
        await asyncio.gather(first, *tasks)
        assert sorted(map(sorted, engine.batches[1:])) == [["one", "three"], ["two"]]

    run_with_batcher(scenario)


def test_batch_different_details_are_separate() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        tasks = [
            asyncio.create_task(translate(batcher, [text], details=details))
            for text, details in (("one", True), ("two", False), ("three", True))
        ]
        await asyncio.sleep(0)
        engine.gate.set()
        await asyncio.gather(first, *tasks)
        assert sorted(map(sorted, engine.batches[1:])) == [["one", "three"], ["two"]]

    run_with_batcher(scenario)


def test_admission_cached_or_shared_segment_not_granted() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        await translate(batcher, ["known"])
        engine.batches.clear()
        first = await block_worker(batcher, engine)
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

    run_with_batcher(scenario, max_queue_tokens=10)


def test_queue_full_rejects_with_503() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        waiting = asyncio.create_task(translate(batcher, ["a b c d e f g"]))  # 8 tokens
        await asyncio.sleep(0)
        with pytest.raises(APIError) as error:
            await translate(batcher, ["h i"])
        assert error.value.status == 503
        assert error.value.retry_after == 1
        assert batcher.waiting_tokens == 8
        admitted = asyncio.create_task(translate(batcher, ["h i"], admission=Admission(True)))
        await asyncio.sleep(0)
        engine.gate.set()
        await first
        assert get_texts(await waiting) == ["A B C D E F G"]
        assert get_texts(await admitted) == ["H I"]
        assert read_value(batcher.metrics.rejections.labels("queue")) == 1

    run_with_batcher(scenario, max_queue_tokens=10)


def test_queue_oversized_text_rejects_with_413() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        with pytest.raises(APIError) as error:
            await translate(batcher, ["word " * 20])
        assert error.value.status == 413

    run_with_batcher(scenario, max_queue_tokens=10)


def test_translate_duplicates_run_once() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        results = await asyncio.gather(*(translate(batcher, ["same", "same"]) for _ in range(5)))
        assert [get_texts(translations) for translations in results] == [["SAME", "SAME"]] * 5
        assert engine.batches == [["same"]]
        assert read_value(batcher.metrics.duplicates) == 9
        await translate(batcher, ["same"])
        assert read_value(batcher.metrics.cached) == 1
        await translate(batcher, ["same"], GREEDY)  # other settings are not shared
        await translate(batcher, ["same"], GREEDY, ["prefix"])
        assert len(engine.batches) == 3

    run_with_batcher(scenario)


def test_cache_full_evicts_least_recently_used() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        for text in ("one", "two", "one", "three", "two"):
            await translate(batcher, [text])
        assert engine.batches == [["one"], ["two"], ["three"], ["two"]]
        assert len(batcher._cache) == 2

    run_with_batcher(scenario, cache_entries=2, batch_window_ms=0)


def test_queue_long_request_does_not_delay_short_ones() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        engine.gate.clear()
        long = asyncio.create_task(translate(batcher, [f"long sentence {i}" for i in range(400)]))
        while not engine.batches:
            await asyncio.sleep(0.001)
        short = asyncio.gather(*(translate(batcher, [f"short sentence {i}"]) for i in range(3)))
        await asyncio.sleep(0)
        engine.gate.set()
        assert len(await short) == 3
        assert len(await long) == 400
        first_sentences = [sentence for batch in engine.batches[:4] for sentence in batch]
        assert {f"short sentence {i}" for i in range(3)} < set(first_sentences)
        assert len(engine.batches) > 40

    run_with_batcher(scenario, max_batch_tokens=32, batch_window_ms=0)


def test_queue_deadline_passed_drops_segment() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        with pytest.raises(APIError) as error:
            await translate(batcher, ["too late"], deadline=asyncio.get_running_loop().time() + 0.02)
        assert error.value.status == 503
        assert batcher.waiting_tokens == 0
        engine.gate.set()
        await first
        assert engine.batches == [["blocking"]]
        assert read_value(batcher.metrics.dropped) == 1

    run_with_batcher(scenario)


def test_queue_cancelled_request_drops_unshared_segments() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        cancelled = asyncio.create_task(translate(batcher, ["mine alone", "shared"]))
        await asyncio.sleep(0)
        remaining = asyncio.create_task(translate(batcher, ["shared"]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        engine.gate.set()
        await first
        assert get_texts(await remaining) == ["SHARED"]
        assert engine.batches == [["blocking"], ["shared"]]

    run_with_batcher(scenario)


def test_translate_cancelled_while_running_frees_worker() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        first = await block_worker(batcher, engine)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        engine.gate.set()
        assert get_texts(await translate(batcher, ["after"])) == ["AFTER"]

    run_with_batcher(scenario)


def test_batch_failing_segment_fails_alone() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        results = await asyncio.gather(
            *(translate(batcher, [text]) for text in ("good", "poison", "fine")), return_exceptions=True
        )
        good, bad, fine = results
        assert isinstance(good, list)
        assert get_texts(good) == ["GOOD"]
        assert isinstance(fine, list)
        assert get_texts(fine) == ["FINE"]
        assert isinstance(bad, APIError)
        assert bad.status == 500
        assert "poison" not in bad.message
        assert get_texts(await translate(batcher, ["later"])) == ["LATER"]
        assert read_value(batcher.metrics.failures) == 1

    run_with_batcher(scenario)


def test_drain_finishes_accepted_requests() -> None:
    async def run() -> None:
        engine = FakeTranslator(0.02)
        batcher = Batcher(engine, ServerConfig(workers=1, max_batch_tokens=4))
        tasks = [asyncio.create_task(translate(batcher, [f"text {i}"])) for i in range(6)]
        await asyncio.sleep(0)
        await asyncio.wait_for(batcher.drain(), SECONDS)
        assert [get_texts(await task) for task in tasks] == [[f"TEXT {i}"] for i in range(6)]

    asyncio.run(run())


def test_workers_run_batches_in_parallel() -> None:
    async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
        engine.gate.clear()
        task = asyncio.create_task(translate(batcher, [f"text {i}" for i in range(4)]))
        while len(engine.batches) < 4:  # all four run at the same time; in sequence, the first would block the others
            await asyncio.sleep(0.01)
        engine.gate.set()
        assert get_texts(await task) == [f"TEXT {i}" for i in range(4)]

    run_with_batcher(scenario, workers=4, max_batch_tokens=3)


class TestStream:
    SEGMENTS = (add_ids(TextSegment("one two", "\n")), add_ids(TextSegment("three", "")))

    def test_stream_chunks_join_to_text(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            chunks = [chunk async for chunk in batcher.stream(self.SEGMENTS, GREEDY)]
            assert chunks == ["ONE ", "TWO ", "\n", "THREE ", ""]

        run_with_batcher(scenario)

    def test_stream_and_batches_take_turns(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream([add_ids(TextSegment("one two", "\n"))] * 200, GREEDY)
            assert await anext(stream) == "ONE "
            other = asyncio.create_task(translate(batcher, ["other"]))
            rest = [(chunk, other.done()) async for chunk in stream]
            assert other.done()  # between two segments, not after the last
            assert not rest[0][1]
            assert len(rest) == 200 * 3 - 1

        run_with_batcher(scenario, batch_window_ms=0, seconds=0.001)

    def test_stream_closed_frees_worker(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream([add_ids(TextSegment("word " * 1000, ""))], GREEDY)
            assert await anext(stream) == "WORD "
            await stream.aclose()
            assert get_texts(await translate(batcher, ["other"])) == ["OTHER"]

        run_with_batcher(scenario, seconds=0.001)

    def test_stream_slow_reader_holds_no_worker(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            stream = batcher.stream(self.SEGMENTS, GREEDY)
            assert await anext(stream) == "ONE "
            assert get_texts(await translate(batcher, ["other"])) == ["OTHER"]
            assert [chunk async for chunk in stream] == ["TWO ", "\n", "THREE ", ""]

        run_with_batcher(scenario)

    def test_stream_deadline_passed_raises(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + 2
            stream = batcher.stream([add_ids(TextSegment("word " * 20_000, ""))], GREEDY, deadline=deadline)
            assert await anext(stream) == "WORD "
            assert get_texts(await translate(batcher, ["other"])) == ["OTHER"]  # the worker is free again
            assert loop.time() >= deadline
            with pytest.raises(APIError, match="too long"):
                _ = [chunk async for chunk in stream]
            short = batcher.stream(self.SEGMENTS, GREEDY, deadline=loop.time() + 2)
            assert [await anext(short) for _ in range(2)] == ["ONE ", "TWO "]
            await asyncio.sleep(2)
            with pytest.raises(APIError, match="too long"):
                _ = [chunk async for chunk in short]
            assert read_value(batcher.metrics.rejections.labels("deadline")) == 2

        run_with_batcher(scenario, seconds=0.001)

    def test_stream_failure_or_full_queue_raises(self) -> None:
        async def scenario(batcher: Batcher, engine: FakeTranslator) -> None:
            with pytest.raises(APIError) as error:
                _ = [chunk async for chunk in batcher.stream([add_ids(TextSegment("a poison", ""))], GREEDY)]
            assert error.value.status == 500
            first = await block_worker(batcher, engine)
            waiting = asyncio.create_task(translate(batcher, ["a b c d e f g"]))
            await asyncio.sleep(0)
            for segment, status in (("h i", 503), ("h i " * 9, 413)):
                with pytest.raises(APIError) as error:
                    await anext(batcher.stream([add_ids(TextSegment(segment, ""))], GREEDY))
                assert error.value.status == status
            late = asyncio.get_running_loop().time() + 0.01
            with pytest.raises(APIError):
                await anext(batcher.stream([add_ids(TextSegment("h", ""))], GREEDY, deadline=late))
            engine.gate.set()
            await asyncio.gather(first, waiting)

        run_with_batcher(scenario, max_queue_tokens=10)
