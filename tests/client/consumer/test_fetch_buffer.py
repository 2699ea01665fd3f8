"""The guarantee of `poll`: no record that was fetched before a truncation is returned once the client knows of it.

Each test stops the client between fetching and returning, and truncates the log there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fenceline.client.consumer import async_consumer, fetch_buffer
from fenceline.client.consumer import consumer as consumer_module
from fenceline.client.consumer.async_consumer import AsyncConsumer
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.consumer.positions import PositionPhase
from fenceline.client.core.errors import LogTruncationError, TopicReplacedError
from fenceline.client.reader import reader as reader_module
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import AsyncRangeReader, RangeReader
from fenceline.ids import TopicPartition
from fenceline.records.batch import Codec, assign_in_place
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}
_OLD = 10
_CUT = 6
_VERSIONS = [pytest.param({}, id="fetch-reports"), pytest.param({ApiKey.FETCH: (4, 11)}, id="validation-reports")]


def _until(done: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s, "the expected state was not reached"
        time.sleep(0.001)


def _batch(base_offset: int, epoch: int, value: bytes, *, codec: Codec = Codec.NONE, count: int = 1) -> bytes:
    raw = bytearray(build_batch([(1_000, None, value, ())] * count, codec=codec))
    assign_in_place(raw, 0, base_offset, epoch)
    return bytes(raw)


def _fill(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    cluster.logs[tp].batches = [_batch(offset, 0, b"old%d" % offset) for offset in range(_OLD)]


def _cut(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    """A new leader truncates the log's end and appends its own records."""
    with cluster.lock:
        log = cluster.logs[tp]
        log.elect(2, cut_to=_CUT)
        log.batches += [_batch(_CUT + number, log.leader_epoch, b"new%d" % number) for number in range(8)]


def _prefetched(consumer: AsyncConsumer, tp: TopicPartition, end: int) -> bool:
    state = consumer.positions.get(tp)
    return state is not None and state.fetch_position is not None and state.fetch_position.offset >= end


def _expected(first: int) -> list[bytes]:
    return [b"old%d" % offset for offset in range(first, _CUT)] + [b"new%d" % number for number in range(8)]


# -- before a poll looks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("arrow", [False, True])
def test_prefetched_records_are_held_once_metadata_names_a_new_leader(
    cluster: ScriptedCluster, arrow: bool, begun: bool
) -> None:
    """The poll happens before the consumer's own loop has checked the metadata."""
    (tp,) = cluster.add_topic("t")
    _fill(cluster, tp)
    if begun:
        cluster.logs[tp].batches = [_batch(0, 0, b"old", count=_OLD)]

    async def story() -> None:
        async with AsyncConsumer(cluster.bootstrap, **_QUICK) as consumer:

            async def offsets() -> list[int]:
                if arrow and consumer.positions.of(tp).position.offset:  # type: ignore[union-attr]
                    batch = await consumer.poll_arrow(0, max_bytes=1)
                    return list(batch.column("offset").to_pylist())
                return [record.offset for record in await consumer.poll(0, max_records=2)]

            consumer.assign([tp])
            consumer.seek(tp, 0)
            await asyncio.to_thread(_until, lambda: _prefetched(consumer, tp, _OLD))
            assert await offsets() == [0, 1]
            assert consumer.cluster.metadata.accept_hint(tp, 2, 1)
            assert await offsets() == []
            assert consumer.positions.of(tp).phase is PositionPhase.AWAIT_VALIDATION
            cluster.logs[tp].elect(2)
            found: list[int] = []
            while len(found) < _OLD - 2:
                found += await offsets()
                await asyncio.sleep(0.001)
            assert found == list(range(2, _OLD)), "the position is valid, so the records are returned"

    asyncio.run(story())


def test_recreated_topic_discards_prefetched_records_immediately(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    _fill(cluster, tp)

    async def story() -> None:
        async with AsyncConsumer(cluster.bootstrap, **_QUICK) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            await asyncio.to_thread(_until, lambda: _prefetched(consumer, tp, _OLD))
            assert len(await consumer.poll(0, max_records=2)) == 2
            cluster.add_topic("t")
            known = consumer.cluster.metadata.topics["t"]
            consumer.cluster.metadata.topics["t"] = type(known)(
                "t", cluster.ids["t"], known.partitions, known.is_internal, known.error
            )
            consumer.cluster.metadata.update_version += 1
            with pytest.raises(TopicReplacedError):
                await consumer.poll(60_000)

    asyncio.run(story())


# -- while it decodes ----------------------------------------------------------------------------------------------


class Gate:
    """Runs `once` inside a decoder's first call with rows, and blocks there until `known`."""

    def __init__(self) -> None:
        self.once: Callable[[], None] | None = None
        self.known: Callable[[], bool] = lambda: True
        self.lock = threading.Lock()

    def around(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*given: Any, **options: Any) -> Any:
            with self.lock:
                once, self.once = (self.once, None) if given[0] else (None, self.once)
            if once is not None:
                once()
                _until(self.known)
            return decode(*given, **options)

        return gated


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    for module in (consumer_module, async_consumer, reader_module):
        monkeypatch.setattr(module, "to_arrow", made.around(module.to_arrow))
    monkeypatch.setattr(async_consumer, "_LONG_BYTES", 0)
    return made


def _in_doubt(consumer: AsyncConsumer, tp: TopicPartition) -> Callable[[], bool]:
    """True once the client knows that the log of `tp` has diverged or may have."""
    serial = consumer.positions.of(tp).serial
    return lambda: (state := consumer.positions.of(tp)).serial != serial or not state.is_readable


@pytest.mark.parametrize("versions", _VERSIONS)
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("read_before", [0, 2, _CUT + 2])
def test_table_being_built_when_truncation_is_detected_is_not_returned(
    gate: Gate, versions: dict[ApiKey, tuple[int, int]], blocking: bool, read_before: int
) -> None:
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        _fill(cluster, tp)
        face = Consumer(cluster.bootstrap, **_QUICK) if blocking else _Driven(cluster.bootstrap)
        with face as consumer:
            core = consumer._async
            consumer.assign([tp])
            consumer.seek(tp, 0)
            _until(lambda: _prefetched(core, tp, _OLD))
            before = list[bytes | None]()
            while len(before) < read_before:
                before += [record.value for record in consumer.poll(50, max_records=read_before - len(before))]

            def cut() -> None:
                gate.known = _in_doubt(core, tp)
                _cut(cluster, tp)
                consumer._on_loop(core.cluster.request_refresh)

            gate.once = cut
            found: list[bytes | None] = []

            def poll() -> None:
                found.extend(consumer.poll_arrow(50).column("value").to_pylist())

            if read_before > _CUT:
                with pytest.raises(LogTruncationError) as caught:
                    _until(lambda: poll() or found)
                assert (caught.value.truncated_from, caught.value.divergent_offset) == (read_before, _CUT)
            else:
                _until(lambda: poll() or len(found) >= len(_expected(read_before)))
                assert found == _expected(read_before), "no record was returned twice or from the truncated log"
                assert consumer.truncations() == []


class _Driven(Consumer):
    """`poll_arrow` of the asyncio consumer, driven from a thread."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, **_QUICK)

    def poll_arrow(self, timeout_ms: float = 0, *, max_bytes: int = 8 * 1024 * 1024, **options: Any) -> Any:
        return self._loop_thread.run(self._async.poll_arrow(timeout_ms, max_bytes=max_bytes, **options))


@pytest.mark.parametrize("what", ["seek", "pause"])
def test_table_is_not_returned_after_a_seek_or_pause(cluster: ScriptedCluster, gate: Gate, what: str) -> None:
    """Other threads may seek or pause while one polls."""
    (tp,) = cluster.add_topic("t")
    _fill(cluster, tp)
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        _until(lambda: _prefetched(consumer._async, tp, _OLD))
        gate.once = (lambda: consumer.seek(tp, 8)) if what == "seek" else (lambda: consumer.pause([tp]))
        first = consumer.poll_arrow(50).column("offset").to_pylist()
        consumer.resume([tp])
        found = list(first)
        _until(lambda: found.extend(consumer.poll_arrow(50).column("offset").to_pylist()) or found[-1:] == [9])
        assert (first if what == "pause" else []) == []
        assert found == (list(range(8, 10)) if what == "seek" else list(range(10)))


def test_decoded_records_do_not_wait_for_a_slow_decode(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that waited for the second partition's records would return the first one's after the truncation."""
    short, long = cluster.add_topic("t", 2)
    _fill(cluster, short)
    words = b"".join(b"%x" % (number * 2654435761 % 2**32) for number in range(200))
    cluster.logs[long].batches = [_batch(0, 0, words, codec=Codec.SNAPPY, count=2_000)]
    gate = Gate()
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.poll.records": 5_000}) as consumer:
        core = consumer._async
        to_records = fetch_buffer.to_records
        gated = gate.around(to_records)
        monkeypatch.setattr(
            fetch_buffer, "to_records", lambda piece: (gated if piece.partition == 1 else to_records)(piece)
        )

        def is_known() -> bool:
            return core.positions.of(short).truncation is not None

        def cut() -> None:
            gate.known = lambda: is_known() or core.positions.of(short).position.offset == 0  # type: ignore[union-attr]
            _cut(cluster, short)
            consumer._on_loop(core.cluster.request_refresh)

        gate.once = cut
        consumer.assign([short, long])
        consumer.seek(short, 0)
        _until(lambda: _prefetched(core, short, _OLD))
        consumer.seek(long, 0)
        _until(lambda: _prefetched(core, long, 2_000))
        counts = {0: 0, 1: 0}

        def poll() -> None:
            for record in consumer.poll(50):
                assert record.partition == 1 or not is_known()
                counts[record.partition] += 1

        with pytest.raises(LogTruncationError):
            _until(poll)
        assert counts[0] == _OLD
        consumer.seek(short, _CUT)
        _until(lambda: poll() or counts == {0: _OLD + 8, 1: 2_000})


# -- ranges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("versions", _VERSIONS)
def test_range_reader_returns_nothing_after_detecting_truncation(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, versions: dict[ApiKey, tuple[int, int]], arrow: bool
) -> None:
    """Spark executors use it: the rows of a task are those in the log when the task ended."""
    monkeypatch.setattr(reader_module, "to_records", gate.around(reader_module.to_records))
    known = _known(monkeypatch)
    with ScriptedCluster(nodes=2, versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        _fill(cluster, tp)
        gate.once, gate.known = lambda: _cut_when_all_is_fetched(cluster, tp), lambda: bool(known)
        progress: dict[TopicPartition, int] = {}
        given: list[Any] = []
        with RangeReader(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 1}) as reader:
            batches: Iterator[Any] = reader.read({tp: OffsetRange(0, 30)}, arrow=arrow, progress=progress)  # type: ignore[call-overload]
            with pytest.raises(LogTruncationError) as caught:
                given.extend(batches)
        assert caught.value.divergent_offset == _CUT
        assert given == []
        assert progress == {}


def _cut_when_all_is_fetched(cluster: ScriptedCluster, tp: TopicPartition) -> None:
    _until(lambda: cluster.fetches[-1][2].partitions[0].fetch_offset == _OLD)
    _cut(cluster, tp)


def test_async_range_reader_returns_nothing_after_detecting_truncation(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = _known(monkeypatch)
    (tp,) = cluster.add_topic("t")
    _fill(cluster, tp)

    given: list[int] = []

    async def story() -> None:
        async with AsyncRangeReader(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 1}) as reader:
            async for piece in reader.fetch({tp: OffsetRange(0, 30)}):
                given.append(piece.next_offset)
                if not known:
                    await asyncio.to_thread(_cut_when_all_is_fetched, cluster, tp)
                    await asyncio.to_thread(_until, lambda: known)

    with pytest.raises(LogTruncationError):
        asyncio.run(story())
    assert given == [1]


def _known(monkeypatch: pytest.MonkeyPatch) -> list[LogTruncationError]:
    """The truncations that a reader's loop has detected."""
    found: list[LogTruncationError] = []
    fetch_all = AsyncRangeReader.fetch_all

    async def watched(self: AsyncRangeReader, ranges: Any, deliver: Callable[[Any], None], budget: Any) -> None:
        def note(item: Any) -> None:
            deliver(item)
            if isinstance(item, LogTruncationError):
                found.append(item)

        await fetch_all(self, ranges, note, budget)

    monkeypatch.setattr(AsyncRangeReader, "fetch_all", watched)
    return found
