"""Prefetched data stays below `queued.max.bytes`, measured by the memory that it holds."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.consumer.positions import PositionPhase
from fenceline.client.core import connection
from fenceline.client.core.fetch_memory import FetchMemory
from fenceline.client.core.fetched import Fetched, FetchedRun
from fenceline.client.reader.ranges import Budget, OffsetRange
from fenceline.client.reader.reader import AsyncRangeReader, RangeReader
from fenceline.ids import TopicPartition
from fenceline.records.arrow import batches_to_arrow
from fenceline.records.batch import assign_in_place
from fenceline.records.build import build_batch
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import REFUSE, ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}
_LIMIT = 800_000
_HIDDEN_BYTES = 100_000
_ROUNDS = 40
_LIMITS = {"queued.max.bytes": _LIMIT, "max.partition.fetch.bytes": _HIDDEN_BYTES + 10}
_HEADERS_BYTES = 20_000
"""More than what all answers hold beside records."""


def _piece(buffer: bytes, start: int, end: int) -> Fetched:
    run = FetchedRun(memoryview(buffer)[start:end], 0, 1)
    return Fetched("t", 0, (run,) if end > start else (), 0, 1, 0, end - start, 1)


def test_response_is_counted_whole_until_its_last_slice_is_released() -> None:
    memory = FetchMemory(1000)
    first, second = bytes(600), bytes(300)
    pieces = [_piece(first, 0, 10), _piece(first, 10, 590), _piece(second, 0, 5), _piece(second, 5, 5)]
    for piece in pieces:
        memory.hold(piece)
    assert memory.used_bytes == 900
    assert not memory.has_room
    memory.release([pieces[1], pieces[3]])
    assert memory.used_bytes == 900
    memory.release([pieces[0]])
    assert memory.used_bytes == 300
    memory.release([pieces[2]])
    assert memory.used_bytes == 0


def test_requests_share_the_remaining_budget_and_use_at_most_half() -> None:
    memory = FetchMemory(1000)
    assert [memory.reserve(5000), memory.reserve(5000, 2), memory.reserve(100)] == [500, 250, 100]
    assert memory.has_room
    memory.reserve(100)
    assert not memory.has_room
    memory.release_reservation(500)
    assert memory.reserve(5000) == 500


def test_oversized_response_blocks_requests_until_it_is_released() -> None:
    memory = FetchMemory(1000)
    piece = _piece(bytes(5000), 0, 5000)
    memory.release_reservation(memory.reserve(5000))
    memory.hold(piece)
    assert not memory.has_room
    memory.release([piece])
    assert memory.has_room


def _batch(base_offset: int, size_bytes: int, *, control: bool = False) -> bytes:
    raw = bytearray(build_batch([(1_000, b"\0\0\0\1", bytes(size_bytes), ())], control=control))
    assign_in_place(raw, 0, base_offset, 0)
    return bytes(raw)


@pytest.fixture
def hiding(cluster: ScriptedCluster) -> TopicPartition:
    """A large batch that readers skip precedes each record; every response holds one of each."""
    (tp,) = cluster.add_topic("t")
    for number in range(_ROUNDS):
        cluster.logs[tp].batches += [_batch(2 * number, _HIDDEN_BYTES, control=True), _batch(2 * number + 1, 1)]
    return tp


@pytest.fixture
def answers_bytes() -> Iterator[Callable[[], int]]:
    """The allocator's size of all responses that are still referenced."""

    def measure() -> int:
        only = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, connection.__file__)])
        return sum(trace.size for trace in only.traces if trace.size >= _HIDDEN_BYTES)

    batches_to_arrow([])  # Its imports are slow while memory is traced.
    tracemalloc.start()
    try:
        yield measure
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("arrow", [False, True])
def test_consumer_stays_within_queued_max_bytes(
    cluster: ScriptedCluster, hiding: TopicPartition, answers_bytes: Callable[[], int], arrow: bool
) -> None:
    with Consumer(cluster.bootstrap, **_QUICK, **_LIMITS) as consumer:
        consumer.assign([hiding])
        consumer.seek(hiding, 0)
        fetcher = consumer._async._fetcher
        found: list[int] = []

        def take() -> None:
            if arrow:
                found.extend(consumer.poll_arrow(5, max_bytes=1).column("offset").to_pylist())
            else:
                found.extend(record.offset for record in consumer.poll(5, max_records=1))

        for wanted in (1, 5, 20):
            eventually(lambda wanted=wanted: take() or len(found) >= wanted)
            eventually(lambda: fetcher._is_full or len(cluster.fetches) > _ROUNDS)
            assert _HIDDEN_BYTES < answers_bytes() <= _LIMIT + _HEADERS_BYTES
        eventually(lambda: take() or len(found) >= _ROUNDS)
        assert found == list(range(1, 2 * _ROUNDS, 2))
        eventually(lambda: take() or not fetcher._memory._held_bytes)


def test_range_reader_stays_within_queued_max_bytes(
    cluster: ScriptedCluster, hiding: TopicPartition, answers_bytes: Callable[[], int]
) -> None:
    wanted = {hiding: OffsetRange(0, 2 * _ROUNDS)}

    async def fill_up() -> int:
        async with AsyncRangeReader(cluster.bootstrap, **_QUICK, **_LIMITS) as reader:
            budget, pieces = Budget(_LIMIT), list[Fetched]()
            task = asyncio.ensure_future(reader.fetch_all(wanted, pieces.append, budget))
            await asyncio.to_thread(eventually, lambda: not budget._memory.has_room or task.done())
            held_bytes = answers_bytes()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return held_bytes

    assert _HIDDEN_BYTES < asyncio.run(fill_up()) <= _LIMIT + _HEADERS_BYTES
    with RangeReader(cluster.bootstrap, **_QUICK, **_LIMITS) as reader:
        rows = [offset for batch in reader.read(wanted) for offset in batch.column("offset").to_pylist()]
        assert rows == list(range(1, 2 * _ROUNDS, 2))
        records = [record.offset for records in reader.read(wanted, arrow=False) for record in records]
        assert records == rows


def test_request_to_an_unresponsive_leader_does_not_starve_others_of_memory(cluster: ScriptedCluster) -> None:
    waiting, served = cluster.add_topic("t", 2)
    cluster.logs[waiting].batches = [_batch(0, 1), _batch(1, 2 * _LIMIT, control=True), _batch(2, 1)]
    cluster.logs[served].batches = [_batch(offset, 1) for offset in range(5)]
    found: dict[TopicPartition, list[int]] = {waiting: [], served: []}
    with Consumer(cluster.bootstrap, **_QUICK, **{"queued.max.bytes": _LIMIT}) as consumer:
        fetcher, positions = consumer._async._fetcher, consumer._async.positions

        def take() -> None:
            for record in consumer.poll(5, max_records=1):
                found[TopicPartition(record.topic, record.partition)].append(record.offset)

        consumer.assign([waiting, served])
        consumer.seek(waiting, 0, 0)
        eventually(lambda: waiting in fetcher._buffered_by_tp)
        with cluster.lock:
            cluster.node_rule = lambda node, key: REFUSE if key is ApiKey.OFFSET_FOR_LEADER_EPOCH else None
            cluster.logs[waiting].elect(2)
        consumer._on_loop(consumer._async.cluster.request_refresh)
        eventually(lambda: positions.of(waiting).phase is PositionPhase.AWAIT_VALIDATION)
        consumer.seek(served, 0)
        eventually(lambda: take() or len(found[served]) == 5)
        assert found == {waiting: [], served: [0, 1, 2, 3, 4]}
        with cluster.lock:
            cluster.node_rule = None
        eventually(lambda: take() or len(found[waiting]) == 2)
        assert found == {waiting: [0, 2], served: [0, 1, 2, 3, 4]}
