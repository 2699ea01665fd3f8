"""Data outside the page cache is read by threads, in bounded memory, and never on the event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.log.compaction.compaction import Limits
from fenceline.log.core import disk as disk_module
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import FileSlice, OsDisk, OsMapping, replace_file
from fenceline.log.core.index import AbortedTransaction, encode_aborted
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.partition.reading import MAP_FROM_BYTES
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.api.fetch.fetching import FetchHandler
from fenceline.node.api.fetch.load_pace import LoadPace
from fenceline.node.api.fetch.reads import FetchResult
from fenceline.node.api.handlers.offsets import list_offsets
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.clock import SystemClock
from fenceline.node.context import RequestContext
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.turns import Turns
from fenceline.records.batch import iter_headers
from fenceline.records.markers import end_marker
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request
from fenceline.wire.frame import parse_response_header
from tests.log.compaction_story import compact_all
from tests.log.helpers import append, batch, open_log

TOPIC = "rain"
VERSION = 12
SMALL = LogConfig(segment_bytes=16 << 10)


class WatchedDisk(SimDisk):
    """A disk with an empty page cache that records the reading threads."""

    def __init__(self) -> None:
        super().__init__(resident=lambda: False)
        self.readers: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        self._note()
        return super().pread(fd, size_bytes, position)

    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        return super().pread(fd, size_bytes, position) if self.resident() else None

    def open_read(self, path: str) -> int:
        self._note()
        return super().open_read(path)

    def _note(self) -> None:
        self.readers.add(threading.get_ident())
        assert self.gate.wait(60)


class _Broker:
    """The parts of a broker that reading needs: partition n of `TOPIC` is the nth log."""

    def __init__(self, *logs: PartitionLog) -> None:
        self.loop = asyncio.get_running_loop()
        self.disk_threads = ThreadPoolExecutor(2)
        self.metrics = NodeMetrics()
        self.clock = SystemClock()
        self.failed: list[Any] = []
        self.replicas = [self._replica(log) for log in logs]
        self.partitions = SimpleNamespace(
            open_by_id={},  # so nothing is read in compiled code, which leaves cold reads to this path
            hosted=lambda topic, topic_id, index: self.replicas[index],
            get=lambda topic, index: self.replicas[index],
            storage_failed=lambda replica, error: self.failed.append(error),
        )
        self.replication = SimpleNamespace(fetched=lambda replica, replica_id, **_: None, eligible_epoch=lambda _: -1)

    @staticmethod
    def _replica(log: PartitionLog) -> Any:
        log.advance_high_watermark(log.log_end_offset)
        leader = SimpleNamespace(
            check_follower=lambda *_, **__: ErrorCode.NONE,
            hides_end_offset=lambda replica_id: False,
            isr=frozenset(),
        )
        return SimpleNamespace(
            log=log,
            leader=leader,
            leader_epoch=0,
            is_recovering=False,
            is_being_cut=False,
            high_watermark=log.log_end_offset,
            waiters=set(),
            follower_waiters=set(),
        )

    def fetching(self, **limits: Any) -> FetchHandler:
        given = {
            "max_response_bytes": 50 << 20,
            "max_load_bytes": 64 << 20,
            "load_floor_byte_rate": 0,
            "max_sessions": 10,
            "name_of": lambda topic_id: None,
        } | limits
        parts: Any = self
        return FetchHandler(
            parts.partitions,
            parts.replication,
            loop=self.loop,
            turns=Turns(self.loop, self.clock.monotonic_ms),
            clock=self.clock,
            metrics=self.metrics,
            hints=LeaderHints(lambda: EMPTY_IMAGE),
            threads=self.disk_threads,
            rng=Random(1),
            **given,
        )

    def list_offsets(self, context: RequestContext, request: Any) -> Any:
        return list_offsets(self.partitions, self.disk_threads, context, request)  # type: ignore[arg-type]

    def context(self, version: int = VERSION) -> RequestContext:
        return RequestContext(version, 7, "test", "peer", "host", "PLAINTEXT")


class _Peer:
    """The connection of one fetch."""

    def __init__(
        self, broker: _Broker, fetching: FetchHandler, *partitions: int, takes_files: bool = False, **fields: Any
    ) -> None:
        topics = [
            {
                "topic": TOPIC,
                "partitions": [
                    {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in partitions
                ],
            }
        ]
        request = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 50 << 20, "topics": topics, **fields}
        self.parts: list[Any] = []
        self.let_go: Callable[[], None] | None = None
        self.closed: list[str] = []
        self.is_answered = asyncio.Event()
        context = broker.context()
        context.takes_files = takes_files
        outcome = fetching.handle(context, memoryview(write_request(ApiKey.FETCH, VERSION, request)))
        self.is_pending = isinstance(outcome, PendingAnswer)
        if isinstance(outcome, PendingAnswer):
            self.pending = outcome
            outcome.attach(self)  # type: ignore[arg-type]
        else:
            self.answer_pending(None, outcome)

    def answer_pending(self, pending: Any, parts: Any, let_go: Callable[[], None] | None = None) -> None:
        self.parts, self.let_go = parts, let_go
        self.is_answered.set()

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def abort(self) -> None:
        self.closed.append("at once")

    async def answered(self) -> list[Any]:
        """Partitions of the answer."""
        await self.is_answered.wait()
        frame = b"".join(_bytes_of(part) for part in self.parts)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        _, position = parse_response_header(ApiKey.FETCH, VERSION, frame[4:])
        return list(read_response(ApiKey.FETCH, VERSION, frame[4 + position :]).responses[0].partitions)

    def sent(self) -> None:
        assert self.let_go is not None
        self.let_go()


def _bytes_of(part: Any) -> bytes:
    return os.pread(part.fd, len(part), part.position) if isinstance(part, FileSlice) else bytes(part)


def _offsets(partition: Any) -> list[int]:
    assert partition.error_code == 0
    return [header.base_offset for header in iter_headers(memoryview(partition.records))]


def _log(disk: Any, index: int = 0, *, batches: int = 40, size: int = 1000, directory: str = "/data") -> PartitionLog:
    log = open_log(disk, f"{directory}/{TOPIC}-{index}", config=SMALL)
    log.topic_partition = TopicPartition(TOPIC, index)
    for number in range(batches):
        append(log, size=size, timestamp=1_000 + number)
    return log


@pytest.fixture
def disk() -> Iterator[WatchedDisk]:
    watched = WatchedDisk()
    watched.mkdir("/data")
    yield watched
    watched.gate.set()


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def reported(story: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_cold_fetch_reads_in_a_thread(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk, 0), _log(disk, 1))
        disk.readers.clear()
        partitions = await _Peer(broker, broker.fetching(), 0, 1).answered()
        assert [_offsets(each)[0] for each in partitions] == [0, 0]
        assert disk.readers
        assert threading.get_ident() not in disk.readers

    reported(story)


def test_indexes_from_before_the_start_are_loaded_in_a_thread(disk: WatchedDisk) -> None:
    async def story() -> None:
        old = _log(disk)
        old.close()
        log = open_log(disk, f"/data/{TOPIC}-0", config=SMALL, clean=True, high_watermark=old.log_end_offset)
        assert log.segments[0].index is None, "otherwise this tests nothing"
        broker = _Broker(log)
        disk.readers.clear()
        disk.resident = lambda: True
        [partition] = await _Peer(broker, broker.fetching(), 0).answered()
        assert _offsets(partition)[0] == 0
        assert threading.get_ident() not in disk.readers

    reported(story)


def test_aborted_transactions_are_loaded_in_a_thread(disk: WatchedDisk) -> None:
    async def story() -> None:
        log = _log(disk)
        entry = AbortedTransaction(producer_id=9, first_offset=2, last_offset=4, last_stable_offset=5)
        fd = disk.open_append(log.segments[0].stem + ".txnindex")
        disk.write(fd, encode_aborted([entry]))
        disk.close(fd)
        log.segments[0].aborted = None
        broker = _Broker(log)
        fetching = broker.fetching()
        disk.readers.clear()
        disk.resident = lambda: True
        peer = _Peer(broker, fetching, 0, isolation_level=1)
        assert peer.is_pending
        [partition] = await peer.answered()
        assert [(each.producer_id, each.first_offset) for each in partition.aborted_transactions] == [(9, 2)]
        assert _offsets(partition)[0] == 0
        assert threading.get_ident() not in disk.readers
        again = _Peer(broker, fetching, 0, isolation_level=1)
        assert not again.is_pending, "they are loaded now"
        assert [each.producer_id for each in (await again.answered())[0].aborted_transactions] == [9]

    reported(story)


@pytest.mark.parametrize("removal", ["retention", "compaction", "damage"])
def test_aborted_transactions_of_a_segment_that_leaves_the_log(disk: WatchedDisk, removal: str) -> None:
    """Its records are read by a descriptor of the old file: without the aborted transactions of that file they would be
    taken for committed. A damaged file fails the partition."""

    async def story() -> None:
        old = _log(disk, batches=1)
        transactional = batch(producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        old.append_as_leader(transactional, leader_epoch=0, now_ms=1_000)
        abort = memoryview(end_marker(False, 9, 0, 0, 1_000))
        old.append_as_leader(abort, leader_epoch=0, now_ms=1_000, origin=Origin.COORDINATOR)
        old.roll(1_000)
        append(old)
        old.close()
        config = LogConfig(cleanup_policy=frozenset({"compact", "delete"}))
        log = open_log(disk, f"/data/{TOPIC}-0", config=config, clean=True, high_watermark=old.log_end_offset)
        assert log.segments[0].aborted is None, "otherwise this tests nothing"
        broker = _Broker(log)
        may_read = threading.Event()
        for _ in range(2):  # occupies every thread
            broker.disk_threads.submit(may_read.wait, 60)
        peer = _Peer(broker, broker.fetching(), 0, isolation_level=1)
        await _turns()
        if removal == "retention":
            log.advance_log_start(log.segments[1].base_offset)
            log.enforce_retention(1_000)
        elif removal == "compaction":
            log.producers.expire(1 << 60, 0)  # else its last batch would stay, empty
            for now_ms in (2_000, 3_000):
                compact_all(log, now_ms, Limits())
            assert log.segments[0].aborted_transactions() == []
        else:
            replace_file(disk, log.segments[0].stem + ".txnindex", b"no entries")
        may_read.set()
        [partition] = await peer.answered()
        if removal == "damage":
            assert partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            return
        assert partition.error_code == ErrorCode.NONE
        assert broker.failed == []
        aborted = [(each.producer_id, each.first_offset) for each in partition.aborted_transactions]
        has_aborted_records = 1 in [
            header.base_offset for header in iter_headers(memoryview(partition.records)) if header.record_count
        ]
        assert aborted == ([(9, 1)] if has_aborted_records else [])

    reported(story)


def test_disk_error_fails_one_partition(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk, 0), _log(disk, 1))
        disk.fail("read", f"{TOPIC}-0/00000000000000000000.log")
        broken, fine = await _Peer(broker, broker.fetching(), 0, 1).answered()
        assert (broken.error_code, broken.records) == (56, b"")
        assert _offsets(fine)[0] == 0
        assert len(broker.failed) == 1

    reported(story)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_segment_deleted_before_the_read_is_not_a_disk_failure(disk: WatchedDisk, is_deleted: bool) -> None:
    """Retention deleted it while the read waited for a thread (operations, game 6000070): the answer has no records,
    and the reader retries. A file that vanished otherwise is an error of the partition."""

    async def story() -> None:
        old = _log(disk)
        old.close()
        log = open_log(disk, f"/data/{TOPIC}-0", config=SMALL, clean=True, high_watermark=old.log_end_offset)
        broker = _Broker(log)
        may_read = threading.Event()
        for _ in range(2):  # occupies every thread
            broker.disk_threads.submit(may_read.wait, 60)
        peer = _Peer(broker, broker.fetching(), 0)
        await _turns()
        if is_deleted:
            log.advance_log_start(log.segments[1].base_offset)
            for removed in log.enforce_retention(1_000):
                removed.delete()
        else:
            disk.unlink(log.segments[0].path)
            disk.unlink(f"{log.segments[0].stem}.index")
        may_read.set()
        [partition] = await peer.answered()
        assert (partition.error_code, partition.records) == ((0, b"") if is_deleted else (56, b""))
        assert len(broker.failed) == (not is_deleted)

    reported(story)


def _log_on_disk(root: Path, *sizes: int) -> PartitionLog:
    """A log in real files, with a batch of one record for each value size."""
    (root / f"{TOPIC}-0").mkdir(parents=True)
    log = open_log(OsDisk(), f"{root}/{TOPIC}-0")
    for size in sizes:
        append(log, size=size)
    return log


def test_hot_records_are_sent_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a consumer asks for: neither in memory nor mapped, in one answer, and with no load."""
    monkeypatch.setattr(disk_module._PageCounts, "are_known", lambda fd: True)
    monkeypatch.setattr(disk_module._PageCounts, "has_all", lambda fd, start, end: True)
    most = 2**31 - 1

    async def story() -> None:
        broker = _Broker(*(_log_on_disk(tmp_path / str(number), *[10_000] * 30) for number in range(3)))
        fetching = broker.fetching(load_floor_byte_rate=1)
        broker.metrics.woken_fetches += 1  # an urgent request: what comes from the disk would have to wait
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(OsDisk, "map", lambda *_: pytest.fail("mapped"))
        rows = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": most} for index in range(3)]
        topics = [{"topic": TOPIC, "partitions": rows}]
        for _ in range(4):
            peer = _Peer(broker, fetching, takes_files=True, topics=topics, max_bytes=most)
            assert not peer.is_pending
            assert [type(part) for part in peer.parts if isinstance(part, FileSlice)] == [FileSlice] * 3
            assert sum(len(part) for part in peer.parts if not isinstance(part, FileSlice)) < 300
            for partition in await peer.answered():
                assert _offsets(partition) == list(range(30))
        least = _Peer(broker, fetching, 0, 1, takes_files=True, max_bytes=1)
        assert [_offsets(partition) for partition in await least.answered()] == [[0], []], "one batch: progress"
        assert len(os.listdir("/proc/self/fd")) == before + 3, "one descriptor for each segment, however many answers"

    asyncio.run(story())


def test_threads_load_what_the_next_request_will_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        broker = _Broker(_log_on_disk(tmp_path, *[10_000] * 30))
        fetching = broker.fetching()
        with monkeypatch.context() as patched:
            cold = await _cold(patched, broker, fetching, max_bytes=150_000)
            assert _offsets((await cold.answered())[0]) == list(range(14))
            broker.disk_threads.shutdown()
        partition = {"partition": 0, "fetch_offset": 14, "partition_max_bytes": 1 << 20}
        following = _Peer(broker, fetching, 0, topics=[{"topic": TOPIC, "partitions": [partition]}])
        assert not following.is_pending
        assert _offsets((await following.answered())[0]) == list(range(14, 30))

    reported(story)


async def _cold(monkeypatch: pytest.MonkeyPatch, broker: _Broker, fetching: FetchHandler, **fields: Any) -> _Peer:
    """A fetch whose records are not in the page cache."""
    monkeypatch.setattr(OsMapping, "is_resident", lambda self, start, end: False)
    monkeypatch.setattr(disk_module._PageCounts, "has_all", lambda fd, start, end: False)
    peer = _Peer(broker, fetching, 0, **fields)
    assert peer.is_pending
    await peer.is_answered.wait()
    return peer


def test_large_reads_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sent as file ranges, and every descriptor is closed afterwards."""

    async def story() -> None:
        broker = _Broker(_log_on_disk(tmp_path, *[10_000] * 30))
        fetching = broker.fetching()
        disk_module._nowhere()  # is opened once
        before = len(os.listdir("/proc/self/fd"))
        hot = _Peer(broker, fetching, 0)
        assert not hot.is_pending
        assert not any(isinstance(part, FileSlice) for part in hot.parts), "hot data is sent from memory"
        assert _offsets((await hot.answered())[0]) == list(range(30))
        with monkeypatch.context() as patched:
            cold = await _cold(patched, broker, fetching)
        loaded = _Peer(broker, fetching, 0)
        assert not loaded.is_pending, "it is resident now"
        for peer in (cold, loaded):
            assert _offsets((await peer.answered())[0]) == list(range(30))
            assert sum(len(part) for part in peer.parts if isinstance(part, FileSlice)) >= 300_000
            assert sum(len(part) for part in peer.parts if not isinstance(part, FileSlice)) < 200
        cold.sent()
        hot.parts = cold.parts = loaded.parts = []
        broker.disk_threads.submit(int).result()
        log = broker.replicas[0].log
        log.release(log.segments)
        assert len(os.listdir("/proc/self/fd")) <= before + 2, "the threads of the pool may have been created"

    reported(story)


def test_without_descriptors_the_answer_is_copied_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        broker = _Broker(_log_on_disk(tmp_path, *[10_000] * 30))
        monkeypatch.setattr("fenceline.log.core.disk.MAX_OPEN_SLICES", 0)
        monkeypatch.setattr(OsMapping, "is_resident", lambda self, start, end: False)
        peer = _Peer(broker, broker.fetching(), 0)
        offsets = _offsets((await peer.answered())[0])
        assert offsets == list(range(len(offsets)))
        assert 0 < sum(len(part) for part in peer.parts) <= MAP_FROM_BYTES + 200

    reported(story)


def test_without_descriptors_one_large_batch_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to be sent whole, and exceeds the reserved budget."""

    async def story() -> None:
        broker = _Broker(_log_on_disk(tmp_path, 3 * MAP_FROM_BYTES, 10))
        monkeypatch.setattr("fenceline.log.core.disk.MAX_OPEN_SLICES", 0)
        monkeypatch.setattr(OsMapping, "is_resident", lambda self, start, end: False)
        peer = _Peer(broker, broker.fetching(), 0)
        assert _offsets((await peer.answered())[0]) == [0]
        [records] = [part for part in peer.parts if len(part) > MAP_FROM_BYTES]
        assert isinstance(records, memoryview)
        assert not isinstance(records.obj, (bytes, bytearray)), "a view of the mapped file"

    reported(story)


def test_memory_of_cold_answers_is_bounded(disk: WatchedDisk) -> None:
    """A request without budget waits until another answer has been sent."""

    async def story() -> None:
        broker = _Broker(_log(disk))
        fetching = broker.fetching(max_load_bytes=2 * MAP_FROM_BYTES)
        first, second = _Peer(broker, fetching, 0), _Peer(broker, fetching, 0)
        await first.answered()
        await second.answered()
        budget = fetching.load_budget
        assert budget.used_bytes == 2 * MAP_FROM_BYTES
        third, gone, last = (_Peer(broker, fetching, 0) for _ in range(3))
        await _turns()
        assert budget.waiting_count == 3
        descriptors = disk.open_descriptors
        gone.pending.abandon()  # its peer disconnected
        await _turns()
        assert budget.waiting_count == 2
        first.sent()
        assert _offsets((await third.answered())[0])[0] == 0
        assert disk.open_descriptors < descriptors, "files of abandoned answers are closed"
        assert not last.is_answered.is_set()
        third.sent()
        await last.answered()
        for peer in (second, last):
            peer.sent()
        assert budget.used_bytes == 0
        assert not gone.is_answered.is_set()

    reported(story)


def test_cold_answers_yield_to_urgent_requests(disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer at a time, and a small part of each; without delay when no request is urgent."""

    async def story() -> None:
        broker = _Broker(_log(disk, 0), _log(disk, 1))
        fetching = broker.fetching(load_floor_byte_rate=1)
        urgent_requests = itertools.count()
        fetching.reads.load_pace = pace = LoadPace(1, urgent_requests.__next__, core_waits=lambda: None)
        monkeypatch.setattr("fenceline.node.api.fetch.reads.ANSWER_BYTES", 10_000)
        full, empty = await _Peer(broker, fetching, 0, 1).answered()
        assert _offsets(full)[0] == 0
        assert (empty.error_code, empty.records) == (0, b""), "it is first in the next answer"
        held, gone, last = (_Peer(broker, fetching, 0, 1) for _ in range(3))
        await _turns()
        gone.pending.abandon()
        await _turns()
        assert not held.is_answered.is_set(), "the rate is one byte a second"
        assert fetching.load_budget.used_bytes == full_bytes(full), "a waiting request holds no memory"
        pace._urgent_requests = lambda: 0
        for peer in (held, last):
            first, _ = await peer.answered()
            assert _offsets(first)[0] == 0
        assert not gone.is_answered.is_set()
        both = await _Peer(broker, fetching, 0, 1).answered()
        assert [_offsets(each)[0] for each in both] == [0, 0], "no request is urgent any more"

    reported(story)


def full_bytes(partition: Any) -> int:
    """The budget used by a partition that is read as a whole."""
    return MAP_FROM_BYTES if partition.records else 0


def test_reads_after_load_ahead_yield_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        broker = _Broker(_log_on_disk(tmp_path, *[10_000] * 30))
        fetching = broker.fetching()
        with monkeypatch.context() as patched:
            cold = await _cold(patched, broker, fetching)
        urgent_requests = itertools.count()
        fetching.reads.load_pace = pace = LoadPace(1, urgent_requests.__next__, core_waits=lambda: None)
        first = _Peer(broker, fetching, 0)
        assert first.is_pending
        await first.is_answered.wait()
        held = _Peer(broker, fetching, 0)
        await _turns()
        assert not held.is_answered.is_set()
        pace._urgent_requests = lambda: 0
        await held.is_answered.wait()
        assert _offsets((await held.answered())[0]) == list(range(30))
        cold.parts = first.parts = held.parts = []

    reported(story)


def test_replica_reads_never_yield(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk, 0))
        fetching = broker.fetching(load_floor_byte_rate=1)
        urgent_requests = itertools.count()
        fetching.reads.load_pace = LoadPace(1, urgent_requests.__next__, core_waits=lambda: None)
        consumers, replicas = FetchResult(is_for_replica=False), FetchResult(is_for_replica=True)
        for each in (consumers, replicas):
            each.from_disk_bytes = 1 << 20
        assert fetching.must_wait(consumers)
        assert not fetching.must_wait(replicas)
        for _ in range(10):
            (await fetching._admit(replicas)).release()

    reported(story)


def test_disconnect_during_a_cold_read_frees_everything(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk))
        fetching = broker.fetching(max_load_bytes=MAP_FROM_BYTES)
        disk.gate.clear()
        gone = _Peer(broker, fetching, 0)
        await _turns()
        assert fetching.load_budget.used_bytes == MAP_FROM_BYTES
        gone.pending.abandon()
        other = _Peer(broker, fetching, 0)
        disk.gate.set()
        await other.answered()
        assert not gone.is_answered.is_set()
        other.sent()
        assert fetching.load_budget.used_bytes == 0

    reported(story)


@pytest.mark.parametrize("timestamp", [1_010, -3])
def test_offsets_by_time_are_looked_up_in_a_thread(disk: WatchedDisk, timestamp: int) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk, 0), _log(disk, 1))
        disk.readers.clear()
        answer = broker.list_offsets(broker.context(7), _asked(7, (0, timestamp), (1, -1), (0, -3), (0, -3)))
        assert isinstance(answer, dict), "nothing is looked up"
        answers = answer["topics"][0]["partitions"]
        # Partition 0 is given several times, which is rejected once; partition 1 gets its end offset.
        assert [(each["partition_index"], each["error_code"]) for each in answers] == [(0, 42), (1, 0)]
        answer = broker.list_offsets(broker.context(7), _asked(7, (1, -1), (0, timestamp)))
        assert not isinstance(answer, dict)
        told_answers = (await answer)["topics"][0]["partitions"]
        assert [each["partition_index"] for each in told_answers] == [1, 0]
        assert told_answers[1]["offset"] == (10 if timestamp >= 0 else 39)
        assert disk.readers
        assert threading.get_ident() not in disk.readers

    reported(story)


def test_a_partition_in_two_entries_of_its_topic_is_rejected_once(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk))
        request = _asked(7, (0, -1))
        request = SimpleNamespace(replica_id=request.replica_id, topics=[*request.topics, *request.topics])
        answer = broker.list_offsets(broker.context(7), request)
        rows = [[each["error_code"] for each in topic["partitions"]] for topic in answer["topics"]]
        assert rows == [[42], []]

    reported(story)


def test_offsets_in_memory_are_answered_at_once(disk: WatchedDisk) -> None:
    async def story() -> None:
        broker = _Broker(_log(disk))
        disk.readers.clear()
        for timestamp in (-1, -2, -4, -5, -6):
            assert isinstance(broker.list_offsets(broker.context(11), _asked(11, (0, timestamp))), dict)
        assert not disk.readers

    reported(story)


def _asked(version: int, *partitions: tuple[int, int]) -> Any:
    rows = [{"partition_index": index, "timestamp": timestamp} for index, timestamp in partitions]
    fields = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": rows}]}
    return read_request(ApiKey.LIST_OFFSETS, version, write_request(ApiKey.LIST_OFFSETS, version, fields))
